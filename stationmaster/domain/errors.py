"""Every error that Stationmaster raises on purpose.

Of the branches below StationmasterError, a UserError is shown verbatim to who can type something
else, a TransientError is worth retrying, and a PermanentError fails the run with its sentence.

Step Functions matches errors by the bare class name, so names here are part of the state machines:
a test compares every ErrorEquals of the committed machines with them.
"""

from __future__ import annotations


class StationmasterError(Exception):
    """Root of the tree. `str(error)` is one sentence for a person: lower case, no full stop."""


class UserError(StationmasterError):
    """Something a person typed; `suggestion` is a corrected command to paste, when there is one."""

    def __init__(self, message: str, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class BadCommand(UserError):
    """The text does not follow the command grammar."""


class UnknownRecipe(UserError):
    """No recipe of that name."""


class UnknownInstance(UserError):
    """No instance type of that name in the catalogue."""


class BadParameter(UserError):
    """A key that the recipe does not take, or a value that the key does not take."""


class RunNotFound(UserError):
    """No run of that id."""


class ClusterNotFound(UserError):
    """No cluster of that id."""


class NotPossibleNow(UserError):
    """The run is in a phase in which this cannot be done."""


class NotPermitted(UserError):
    """The role that the person has in the channel is not enough for this."""


class TransientError(StationmasterError):
    """A throttle, a timeout, a 5xx: trying again is expected to help."""


class WriteConflict(TransientError):
    """The run was changed by another writer since it was read."""


class SlackBusy(TransientError):
    """Slack takes nothing now, or did not answer in time."""


class NoRoom(SlackBusy):
    """Our own budget of edits or posts is used up for this moment."""


class PermanentError(StationmasterError):
    """Trying again will not help; the sentence goes to the channel."""


class ChannelLost(PermanentError):
    """The app cannot post in a channel: removed from it, archived, restricted, or never let in.

    `code` is Slack's word for it.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class ResultMissing(PermanentError):
    """A run has left nothing in the artifacts bucket, or not all of it."""


class SavingFailed(PermanentError):
    """What a run leaves could not be brought to the artifacts bucket."""


class ResultsHeld(PermanentError):
    """A file system is kept: it has the only copy of what a run leaves."""


class ResultDamaged(PermanentError):
    """A file of a result is not what its manifest says."""


class StepTimedOut(PermanentError):
    """A resource was given its time and is not ready."""


class ResourceFailed(PermanentError):
    """AWS reports that a creation ended in failure."""


class ZoneChanged(PermanentError):
    """Nodes have to be made in another zone; the workflow calls their steps again."""


class NodesToReplace(PermanentError):
    """Nodes that failed a check are to be replaced; the workflow does that and checks again."""


class CheckFailed(PermanentError):
    """A validation check said no; training on such a cluster would waste money."""


class ClusterFailed(PermanentError):
    """The cluster that a run waited for cannot be used; has the cluster's own sentence."""


class ClusterDrained(PermanentError):
    """Nobody leases the cluster any more; its steps raise it so that its workflow ends at once."""


class DataNotStaged(PermanentError):
    """A run's data could not be brought to its file system; has the program's own sentence."""


class JobNotStarted(PermanentError):
    """The job was submitted and its pods never ran."""


class TrainingFailed(PermanentError):
    """The job ran and ended in failure."""


class PreflightFailed(PermanentError):
    """The account lacks what a start needs, as was asked before anything was made."""


class RunStopped(PermanentError):
    """A person asked to stop; steps raise it so that the workflow goes to its end at once."""


class Unreadable(PermanentError):
    """What the table has of a run or a cluster is damaged, or of a version that is not known."""


class IllegalTransition(PermanentError):
    """An event that cannot happen in the phase that the run or the cluster is in."""


class NotStorable(PermanentError):
    """An event or a state that is larger than its item may be, or that could not be read again."""


class LeftBehind(PermanentError):
    """Something tagged with the cluster still exists after its teardown."""
