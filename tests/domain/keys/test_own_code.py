"""image= and command=: where they may be typed, what they are read as, and what they exclude."""

import shlex
from dataclasses import replace

import pytest

from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import ShowPlan
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.datasets import AS_IT_IS, Listing, Preparation
from stationmaster.domain.errors import BadParameter, NotPossibleNow, UserError
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.questions import OwnCodeRules
from stationmaster.domain.restoring import RestoringOrder
from tests.support import typed
from tests.support.factories import make_request
from tests.support.typed import REGISTRY, RULES, RUN, channel, saved

IMAGE = f"{REGISTRY}/trainer:1.0"


def start(text: str, rules: OwnCodeRules | None = RULES) -> StartRun:
    return typed.start_of(text, own_code=rules)


def refused(text: str, rules: OwnCodeRules | None = RULES) -> UserError:
    return typed.refused(text, own_code=rules)


def test_image_and_command_are_read():
    command = start(f"ddp-cpu image={IMAGE} command=\"torchrun train.py --name 'a b' 5\"")

    assert command.options.image == IMAGE
    assert command.options.program == ("torchrun", "train.py", "--name", "a b", "5")
    assert command.overrides == {}


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("command='torchrun --nnodes 2 /a/b/t.py /c/d.py'", "/a/b"),
        ("command='/v/bin/python -u /a/t.py'", "/a"),
        ("command='/a/run.sh'", "/a"),
        ("command='torchrun b/t.py --config /c/d.json'", ""),
        ("command='torchrun /a/b/t.py' directory=/w", "/w"),
        ("command='/a/t.py' directory=$STATIONMASTER_OUTPUT_DIR", "$STATIONMASTER_OUTPUT_DIR"),
    ],
)
def test_command_starts_in_the_folder_of_its_script_or_where_it_was_typed(words: str, place: str):
    command = start(f"ddp-cpu {words}")

    assert command.options.working_directory == place
    assert start(command.words).options == command.options


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("torchrun t.py --lr 1e-4", "ddp-cpu 'command=torchrun t.py --lr 1e-4'"),
        (f"image={IMAGE} command='a b'", f"ddp-cpu image={IMAGE} 'command=a b'"),
    ],
)
def test_script_that_was_typed_without_a_recipe_gets_one(text: str, suggested: str):
    assert refused(text).suggestion == f"/train plan {suggested}"


def test_nothing_of_a_command_is_expanded():
    words = ["echo", "$(HOSTNAME)", "$HOME", "`id`", ";", "rm", "-rf", "<@U1>", "*", "&&", "|"]

    command = start(f"ddp-cpu command={shlex.quote(shlex.join(words))}")

    assert list(command.options.program) == words


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (replace(RULES, registries=(), channels=()), "set image_registries and image_channels in"),
        (replace(RULES, registries=()), "is off in this deployment: set image_registries in"),
        (replace(RULES, channels=()), "is off in this deployment: set image_channels in"),
        (replace(RULES, channel_id="C3"), "not allowed in this channel: add C3 to image_channels"),
        (None, "none is known here; type the command in the channel"),
    ],
)
@pytest.mark.parametrize("words", [f"image={IMAGE}", "command=true", "image=...", 'command=" "'])
def test_both_are_off_until_they_are_allowed_for_the_channel(
    rules: OwnCodeRules | None, said: str, words: str
):
    error = refused(f"ddp-cpu {words}", rules)

    assert isinstance(error, NotPossibleNow)
    assert said in str(error)
    assert str(error).startswith(words.partition("=")[0])


def test_refused_image_and_command_are_not_suggested_again():
    for words in ("image=evil.example.com/x:1", "command=' '"):
        suggestion = refused(f"ddp-cpu nodes=2 {words}").suggestion
        assert suggestion == "/train plan ddp-cpu nodes=2"


def test_allowed_command_stays_in_the_suggestion_as_it_was_typed():
    error = refused("ddp-cpu nodes=two command='torchrun A.py \"b c\"'")

    text = error.suggestion.removeprefix("/train ")
    planned = parse_command(text, own_code=RULES)
    assert isinstance(planned, ShowPlan)
    assert planned.request.options.program == ("torchrun", "A.py", "b c")


def test_command_on_ones_own_machine_needs_the_flag_and_an_image_does_not():
    here = replace(RULES, is_this_machine=True, allows_commands=False)

    assert "start it with --allow-commands" in str(refused("ddp-cpu command=true", here))
    assert start(f"ddp-cpu image={IMAGE}", here).options.image == IMAGE
    assert "runs no images" in str(refused("ddp-cpu image=a.example.com/x:1", here))
    on = replace(here, allows_commands=True)
    in_venv = start("ddp-cpu command=true venv=/v", on)
    assert start(in_venv.words, on).options.venv == "/v"
    assert start("ddp-cpu command=true", replace(here, allows_commands=True)).options.program == (
        "true",
    )


@pytest.mark.parametrize("key", ["steps=5", "learning_rate=0.1", "backup_every=2h"])
def test_keys_of_the_recipes_trainer_are_refused_beside_a_command(key: str):
    error = refused(f"ddp-cpu command=true {key}")

    assert isinstance(error, BadParameter)
    assert str(error).startswith(f"{key.partition('=')[0]}= has no effect beside command=")


def test_data_of_a_command_is_measured_as_it_is():
    asked = []

    parse_command(
        "tiny-llama command=true dataset=s3://bucket/x",
        own_code=RULES,
        measure=lambda source, task: asked.append((source.uri, task)),
    )

    assert asked == [("s3://bucket/x/", AS_IT_IS)]
    assert make_request(program=("true",)).data_task == AS_IT_IS
    assert make_request().data_task == "pretraining"


def test_data_of_a_command_is_never_linked():
    gib = 2**30
    images = Listing(
        source="s3://bucket/x/",
        num_bytes=1000 * gib,
        num_objects=400_000_000,
        preparation=Preparation.NONE,
        prepared_bytes=0,
        is_complete=True,
        may_link=True,
    )
    words = "resnet50 {} instance=p4d.24xlarge dataset=s3://bucket/x"

    read = parse_command(words.format(""), measure=lambda *_: images)
    told = parse_command(words.format("command=true"), own_code=RULES, measure=lambda *_: images)

    assert isinstance(read, StartRun)
    assert isinstance(told, StartRun)
    assert read.plan.data.linked  # of which it reads little
    assert not told.plan.data.linked


def test_plan_of_a_command_knows_machines_and_price_only():
    # Neither its batch nor its memory would do.
    plan = start("llama2-70b nodes=3 instance=p4d.24xlarge command='torchrun x.py'").plan

    assert plan.fits
    assert not plan.trains_recipe
    assert (plan.estimated_cost_usd, plan.estimated_duration_s) == (0.0, 0)
    assert plan.price_per_hour_usd > 60
    assert plan.suggestion is None
    assert plan.warnings[0].startswith("runs torchrun x.py in place of the recipe's trainer")
    assert "30 days" in plan.warnings[0]
    assert not any("hub" in warning for warning in plan.warnings)


def test_command_takes_a_range_of_nodes_where_its_rendezvous_does():
    # The batch of the recipe's own trainer does not divide over 24 GPUs.
    plan = start("resnet50 nodes=1:3 instance=p4d.24xlarge command=true").plan

    assert (plan.min_nodes, plan.nodes) == (1, 3)
    assert (plan.fewest.fits, plan.fewest.estimated_cost_usd) == (True, 0)
    notes = "\n".join(plan.warnings)
    assert "what it trains on another number of them" in notes
    assert "images at any number of nodes" not in notes
    assert "rendezvous=static" in str(refused("ddp-cpu nodes=1:2 command=true rendezvous=static"))


def test_notes_on_what_else_was_typed_stay_in_the_plan_of_a_command():
    warnings = start("ddp-cpu command=true keep=2h").plan.warnings

    assert any(warning.startswith("keep=2h") for warning in warnings)
    assert not any("backup" in warning for warning in warnings)


def test_plan_says_which_image_and_that_a_tag_may_move():
    tagged = start(f"ddp-cpu image={IMAGE}").plan
    pinned = start(f"ddp-cpu image={REGISTRY}/trainer@sha256:{'0a' * 32}").plan

    assert tagged.trains_recipe
    assert tagged.warnings[0] == f"every training pod runs {IMAGE}"
    assert "a digest (@sha256:...) names one image" in tagged.warnings[1]
    assert not any("a digest" in warning for warning in pinned.warnings)


@pytest.mark.parametrize("words", ["tiny-llama resume_from={}", "tiny-llama weights={}"])
def test_result_of_a_command_is_not_continued_by_a_recipe(words: str):
    theirs = saved(program=("true",))

    with pytest.raises(NotPossibleNow, match="ran a command of its own") as error:
        parse_command(words.format(RUN), find_saved=channel(theirs))

    assert f"stationmaster results {RUN} --to DIR" in str(error.value)


def test_resumed_command_starts_again_and_gets_what_it_had_saved():
    before = saved(program=("torchrun", "a.py"), overrides={}, files=("output/ckpt.pt",))

    def read(text: str) -> StartRun:
        command = parse_command(text, find_saved=channel(before), own_code=RULES)
        assert isinstance(command, StartRun)
        return command

    again, edited = read("resume last"), read("resume last command='torchrun b.py'")
    request = again.requested(command="", team_id="T", channel_id="C", user_id="U")

    assert again.words.endswith(f"resume_from={RUN} command='torchrun a.py'")
    assert edited.options.program == ("torchrun", "b.py")
    assert read(again.words).options == again.options
    assert request.brings_data
    order = request.restoring_order(RunId("next"))
    assert order is not None
    assert order.by_source() == {RUN: RestoringOrder(run_id=RunId("next"), output_of=RUN)}
    assert any("come back from the artifacts bucket" in each for each in again.plan.warnings)


@pytest.mark.parametrize(
    ("text", "before", "said"),
    [
        ("resume last", {"files": ("logs/a.log",)}, f"; /train rerun {RUN} starts it again"),
        ("resume last steps=+9", {"files": ("output/a",)}, "steps= has no effect beside command="),
        ("tiny-llama resume_from=last command=true", {"program": ()}, "leave one of them out"),
    ],
)
def test_command_that_cannot_go_on_is_refused(text: str, before: dict[str, object], said: str):
    before = saved(**{"program": ("a.py",), "overrides": {}} | before)

    with pytest.raises(UserError) as error:
        parse_command(text, find_saved=channel(before), own_code=RULES)

    assert said in str(error.value)


def test_resumed_run_keeps_its_image():
    command = parse_command(
        "resume last steps=+9", find_saved=channel(saved(image=IMAGE)), own_code=RULES
    )

    assert isinstance(command, StartRun)
    assert command.options.image == IMAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("image=registry.example.com/team-evil/x:1", f"this deployment runs only {REGISTRY}"),
        *(
            (f"command='a{character}b'", "cannot be seen")
            for character in "\n\t\x00\x1b\u2028\u202e"
        ),
        ("command=' '", "names no program"),
        ("command='\"\" x'", "names no program"),
        ("""command="it's" """, "is opened and not closed"),
        ("command=true directory=here", "directory=here is not accepted: expected an absolute"),
        ("command=true directory=$HOME", "an absolute path, such as /opt/app, or $STATIONMASTER"),
        ("directory=/opt/app", "directory= has no effect without command="),
        ("command=true processes_per_node=0", "expected a whole number from 1 to 64"),
        ("command=true venv=/v", "build the environment into it and name it with image="),
        ("command=true datset=x", "did you mean dataset"),
        ("command=true dataset=packed:c4", "is packed for the recipe's trainer"),
        (f"image={IMAGE} rendezvous=etcd", "use rendezvous=c10d or static"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(words: str, said: str):
    assert said in str(refused(f"ddp-cpu {words}"))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("accelerate launch train.py", "accelerate launch --rdzv_backend c10d"),
        ("torchrun --standalone train.py", "--standalone does not join the 2 nodes"),
        ("accelerate launch --rdzv_backend c10d train.py", ""),
        ("python train.py", "python is started once on each of the 2 nodes"),
        ("env A=1 python3.11 train.py", "python3.11 is started once on each of the 2 nodes"),
        ("bash -c 'cd x && python train.py'", "python is started once on each of the 2 nodes"),
        ("uv run accelerate launch train.py", "accelerate launch --rdzv_backend c10d"),
        ("env A=1 torchrun train.py", ""),
        ("bash -c 'cd x; torchrun train.py'", ""),
        ("bash train.sh", ""),
        ("./train.py", "train.py is started once on each of the 2 nodes"),
        ("deepspeed train.py", "deepspeed without a host file"),
        ("accelerate launch --num_machines 2 train.py", ""),
        ("torchrun train.py", ""),
        ("python -m torch.distributed.run train.py", ""),
    ],
)
def test_plan_warns_of_a_program_that_each_node_runs_for_itself(program: str, said: str):
    def warned(nodes: int) -> list[str]:
        plan = start(f'ddp-cpu nodes={nodes} command="{program}"').plan
        words = ("each of the", "does not join")
        return [each for each in plan.warnings if any(word in each for word in words)]

    assert [said in each for each in warned(2)] == ([True] if said else [])
    assert warned(1) == []


def test_static_rendezvous_says_what_a_script_without_torchrun_needs():
    def said(words: str) -> bool:
        return "start such a one with processes_per_node=1" in "".join(
            start(f"ddp-cpu nodes=2 {words}").plan.warnings
        )

    assert said("rendezvous=static command='python a.py'")
    assert not said("command='python a.py'")
    assert not said("rendezvous=static command='torchrun a.py'")
    assert not said("rendezvous=static command='env WORLD_SIZE=2 python a.py'")
    words = "rendezvous=static processes_per_node=1 command='python a.py'"
    assert not any("torchrun" in each for each in start(f"ddp-cpu nodes=2 {words}").plan.warnings)
    assert not said(words)


def test_data_that_is_not_given_is_not_used_in_a_command():
    error = refused("ddp-cpu command='torchrun a.py $STATIONMASTER_DATASET'")

    assert isinstance(error, BadParameter)
    assert "no dataset= is given; add dataset=" in str(error)
