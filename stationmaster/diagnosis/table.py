"""All rules, in the order in which those of one rank are preferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.diagnosis import (
    account_rules,
    cluster_rules,
    megatron_rules,
    network_rules,
    node_rules,
    product_rules,
    program_rules,
    stack_rules,
    volume_rules,
)
from stationmaster.diagnosis.rules import Rule

RULES: Final[tuple[Rule, ...]] = (
    *node_rules.RULES,
    *account_rules.RULES,
    *volume_rules.RULES,
    *cluster_rules.RULES,
    *megatron_rules.RULES,
    *program_rules.RULES,
    *network_rules.RULES,
    *stack_rules.RULES,
    *product_rules.RULES,
)
RULE: Final[Mapping[str, Rule]] = {rule.id: rule for rule in RULES}
