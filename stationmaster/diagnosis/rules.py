"""The vocabulary of the rule table: what a rule is, where it is read, and what it explains.

Rules are data in the modules `*_rules`; `matching` collects and applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Where(StrEnum):
    """The kind of text in which a rule is looked for."""

    LOG = "log line"
    DMESG = "dmesg line"
    TOOL = "answer of kubectl, eksctl or AWS"
    STACK = "frame of a py-spy dump"
    EVENT = "Kubernetes event"
    POD = "pod status"
    NODE = "node condition"


LOG = frozenset({Where.LOG})
POD = frozenset({Where.POD})
EVENT = frozenset({Where.EVENT, Where.POD})
TOOL = frozenset({Where.TOOL})
ANSWER = frozenset({Where.TOOL, Where.EVENT})
STACK = frozenset({Where.STACK})
NODE = frozenset({Where.NODE, Where.EVENT})
DMESG = frozenset({Where.DMESG, Where.LOG, Where.EVENT, Where.NODE})
TEXT_LINE = frozenset({Where.LOG, Where.DMESG, Where.TOOL, Where.STACK, Where.EVENT})
"""What a line of a text file may be; only its words say which."""


class Severity(StrEnum):
    """What a finding means for the run."""

    ERROR = "error"  # training cannot start or continue
    WARNING = "warning"  # it continues, slower or not as was meant
    INFO = "info"


class Rank(IntEnum):
    """The distance of a cause from the root; the lowest that was found explains the others."""

    HARDWARE = 10
    """A GPU, a link or a node failed."""
    CAPACITY = 20
    """AWS did not give what was asked for."""
    ADMISSION = 25
    """Kubernetes refused an object."""
    VOLUME = 30
    """The file system is not there or cannot be mounted."""
    PLACEMENT = 32
    """The scheduler finds no node."""
    IMAGE = 34
    """The image cannot be pulled or run."""
    KILLED = 40
    """The kernel or the kubelet ended a process."""
    PROGRAM = 50
    """The program itself failed."""
    UNKNOWN_SIGNAL = 55
    """A process was killed, and nothing says by whom."""
    NETWORK = 60
    """Processes cannot reach each other, or the library between them is known to be faulty."""
    RENDEZVOUS = 64
    """Processes did not meet."""
    STUCK = 68
    """A process stands still."""
    STEP = 69
    """What the product says of a step that timed out; it knows no more than that."""
    UNEXPLAINED = 70
    """The line that names a failure best, where no rule explains it."""
    CONSEQUENCE = 80
    """What processes say when another one is gone."""
    WRAPPER = 85
    """What launchers and operators say of any failure."""
    SLOW = 90
    """Training continues, slower than it could."""
    NOTE = 95
    """Worth knowing, and no cause of a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row of the table.

    `diagnosis` and `remedy` may use the pattern's named groups in braces, and {run}, {recipe},
    {cluster} and {instance} of the run.
    """

    id: str
    pattern: str
    """A regular expression; case does not matter."""
    diagnosis: str
    remedy: str
    source: str
    """The source of the wording that it matches."""
    fix: str = ""
    """Keys of a start that carry the remedy out, where it has such."""
    where: frozenset[Where] = LOG
    rank: Rank = Rank.PROGRAM
    severity: Severity = Severity.ERROR
    not_in: str = ""
    """A regular expression; the rule does not hold for a line in which it is found."""
    unless: str = ""
    """The id of a rule; where that one matches in the same source, this one does not hold."""
    is_shown: bool = True
    """False for a rule that only cancels others."""
    least_efa: int = 0
    """The least number of EFA adapters of instance types for which the rule holds."""
