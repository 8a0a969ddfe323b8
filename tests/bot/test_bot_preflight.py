"""What the channel shows of the checks before a start."""

from __future__ import annotations

from bot.blocks.answers import preflight_findings
from stationmaster.preflight.findings import Finding, Severity, unanswered

THERE = Finding(check="images", severity=Severity.INFO, message="the relay image is there")
LACKS = Finding(
    check="vcpu-quota",
    severity=Severity.ERROR,
    message='"P instances" allows 0 vCPUs',
    remedy="ask for 384",
)


def test_answer_has_what_lacks_first_and_its_remedy() -> None:
    content = preflight_findings([("the deployment", [THERE, LACKS]), ("/train x", [])])

    assert content.text == "preflight: 1 thing lacking"
    (section,) = content.blocks[1:]
    lines = section["text"]["text"].splitlines()
    assert lines[0] == "*the deployment*"
    assert lines[1].endswith('`vcpu-quota` "P instances" allows 0 vCPUs; ask for 384')
    assert lines[2].endswith("`images` the relay image is there")


def test_answer_says_that_nothing_is_lacking() -> None:
    assert preflight_findings([("the deployment", [THERE])]).text == "preflight: nothing is lacking"
    unasked = preflight_findings([("the deployment", [THERE, unanswered("quota", "no answer")])])
    assert unasked.text == "preflight: nothing is lacking, 1 question without an answer"
