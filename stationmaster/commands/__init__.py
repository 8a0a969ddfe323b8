"""What a person asks for, as plain functions: each checks, writes at most one thing, and returns.

`runs` has what is asked of runs, `results` of those that have ended, `clusters` of kept clusters.
"""

from stationmaster.commands.account import finders, preflight
from stationmaster.commands.approving import approve, reject
from stationmaster.commands.changing import change_budget, scale_run
from stationmaster.commands.clusters import (
    ask_for_nodes,
    ask_to_delete,
    create_cluster,
    delete_cluster,
    describe_cluster,
    extend_cluster,
    list_clusters,
    resize_cluster,
    validate_cluster,
    view_cluster,
)
from stationmaster.commands.comparing import channel_cost, compare_runs, diff_runs
from stationmaster.commands.finding import run_of_thread, stop_choice
from stationmaster.commands.home import channel_of, set_budget, set_notices, show_home
from stationmaster.commands.looking import describe_run, list_runs, show_audit, show_logs, view_run
from stationmaster.commands.permitting import Actor, approval_of, check_role, wish_of
from stationmaster.commands.results import Links, link_results, words_of
from stationmaster.commands.runs import (
    give_up_results,
    offered_plan,
    plan_run,
    request_run,
    save_again,
    stop_run,
)
from stationmaster.commands.studying import request_study
