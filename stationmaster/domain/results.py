"""What a run leaves behind in the bucket: its names, its manifest and its checksums. Pure.

    runs/RUN/model/...              Hugging Face safetensors, config, tokenizer, model card
    runs/RUN/checkpoint/step-N/...  the newest checkpoint that was whole
    runs/RUN/checkpoint/huggingface the configuration and tokenizer of its model
    runs/RUN/metrics.jsonl          the trainer's progress lines
    runs/RUN/samples.jsonl          texts that a language model wrote at the end
    runs/RUN/profile/...            what one step did, where that was asked for
    runs/RUN/tensorboard/...        the figures as TensorBoard reads them, likewise
    runs/RUN/output/...             in place of these: what a custom command has written;
                                    of another framework, its checkpoints, beside model/
    runs/RUN/logs/POD.log           what the pods printed; of further attempts, POD.attempt-N.log
    relayed/RELAY/POD.log           the same as a relay's pod has read it, outside of the result
    runs/RUN/manifest.json          lists all of them; written last: without it nothing is complete

Backups of a run that trains have the same names, without a model; the result at its end takes their
place. On the run's file system, the trainer's output directory has the first three under these
names, its checkpoints as `domain.checkpoints` says, and `facts.json`. A file of at most one part is
put in one request, a larger one as a multipart upload.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from stationmaster.domain.checkpoints import step_name
from stationmaster.domain.detected import Detection
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.outside import Count, Finite, first_problem
from stationmaster.domain.progress_lines import PrintedLine

MODEL: Final = "model"
CHECKPOINT: Final = "checkpoint"
OUTPUT: Final = "output"
TENSORBOARD: Final = "tensorboard"
PROFILE: Final = "profile"
PROFILE_TRACE: Final = "trace.json.gz"
PROFILE_MEMORY: Final = "memory.pickle"
LOGS: Final = "logs"
RELAYED_LOGS: Final = "relayed"
"""Where relays put logs of pods that have ended; the saver adds the run's to its result."""
METRICS_FILE: Final = "metrics.jsonl"
SAMPLES_FILE: Final = "samples.jsonl"
MANIFEST_FILE: Final = "manifest.json"
TRAINER_FACTS_FILE: Final = "facts.json"

RUNNING: Final = "running"
"""The outcome of a run that had not ended when this was saved."""

MIB: Final = 2**20
# Source: Amazon S3 user guide, "Amazon S3 multipart upload limits": parts of 5 MiB to 5 GiB.
MAX_PARTS: Final = 10_000
MIN_PART_BYTES: Final = 8 * MIB

_DIGEST_BYTES: Final = 32


def results_prefix(run_id: RunId) -> str:
    """Return what the keys of a run's result begin with."""
    return f"runs/{run_id}/"


def results_uri(bucket: str, run_id: RunId) -> str:
    """Return the address of a run's result, as people and tools write it."""
    return f"s3://{bucket}/{results_prefix(run_id)}"


def checkpoint_directory(step: int) -> str:
    """Name the place of a step's checkpoint in a result."""
    return f"{CHECKPOINT}/{step_name(step)}"


def checkpoint_file(step: int, name: str) -> str:
    """Name the place of a file of that checkpoint."""
    return f"{checkpoint_directory(step)}/{name}"


def log_name(pod: str, attempt: int) -> str:
    """Name a pod's log: the pods of each attempt have the names of those before."""
    return pod if attempt == 1 else f"{pod}.attempt-{attempt}"


def log_file(log: str) -> str:
    """Name the place of a pod's log in a result."""
    return f"{LOGS}/{log}.log"


def relayed_prefix(relay: str) -> str:
    """Return what the keys of the logs begin with that a relay's pod has put there.

    Its AWS role reaches what lies under the very name of the pod.
    """
    return f"{RELAYED_LOGS}/{relay}"


def part_bytes(num_bytes: int) -> int:
    """Return the bytes of each part of a file but the last: whole MiB, 8 or more."""
    needed = -(-num_bytes // MAX_PARTS)
    return max(MIN_PART_BYTES, -(-needed // MIB) * MIB)


def part_sizes(num_bytes: int, each: int) -> list[int]:
    """Return the bytes of every part of a file; an empty file is one empty part."""
    whole, rest = divmod(num_bytes, each)
    return [each] * whole + ([rest] if rest or not whole else [])


def s3_checksum(part_digests: Sequence[bytes]) -> str:
    """Compute the SHA-256 checksum that S3 reports of a file, from the digests of its parts.

    Of one part it is that part's own; of several it is S3's composite one, `BASE64-PARTS`. Source:
    Amazon S3 user guide, "Checking object integrity", composite checksums.
    """
    if not part_digests or any(len(digest) != _DIGEST_BYTES for digest in part_digests):
        raise ValueError("expected one SHA-256 digest of 32 bytes or more")
    if len(part_digests) == 1:
        return base64.b64encode(part_digests[0]).decode("ascii")
    together = hashlib.sha256(b"".join(part_digests)).digest()
    return f"{base64.b64encode(together).decode('ascii')}-{len(part_digests)}"


def is_backup(facts: RunFacts) -> bool:
    """Say whether it was saved while the run trained."""
    return facts.outcome == RUNNING


class FileHasher:
    """Hashes a file that is read in order, in pieces of any size."""

    def __init__(self, *, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._whole = hashlib.sha256()
        self._part = hashlib.sha256()
        self._room = part_bytes
        self._digests: list[bytes] = []
        self.num_bytes = 0

    def update(self, data: bytes | memoryview) -> None:
        self._whole.update(data)
        self.num_bytes += len(data)
        rest = memoryview(data)
        while rest:
            if not self._room:
                self._digests.append(self._part.digest())
                self._part, self._room = hashlib.sha256(), self._part_bytes
            piece, rest = rest[: self._room], rest[self._room :]
            self._part.update(piece)
            self._room -= len(piece)

    def result(self, path: str) -> ResultFile:
        """Describe the file, once all of it is read, for a manifest."""
        return ResultFile(
            path=path,
            num_bytes=self.num_bytes,
            sha256=self._whole.hexdigest(),
            s3_checksum=s3_checksum([*self._digests, self._part.digest()]),
            part_bytes=self._part_bytes,
        )


def is_plain_path(path: str) -> bool:
    """Say whether a path stays in the directory of a download, on any system."""
    parts = path.split("/")
    is_inside = not any(part in ("", ".", "..") for part in parts)
    return is_inside and "\\" not in path and path.isprintable()


def _relative(path: str) -> str:
    if not is_plain_path(path):
        raise ValueError(f"path {path!r} is not a plain relative path")
    return path


class ResultFile(Frozen):
    """One file of a result."""

    path: Annotated[str, AfterValidator(_relative)]
    """The path below the run's prefix."""
    num_bytes: Count
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    s3_checksum: str = Field(pattern=r"^[A-Za-z0-9+/]{43}=(-[0-9]+)?$")
    """What S3 itself computed: see `s3_checksum`."""
    part_bytes: int = Field(ge=1)

    @property
    def num_parts(self) -> int:
        return len(part_sizes(self.num_bytes, self.part_bytes))


class TrainerFacts(Frozen):
    """What only the trainer knows of a run; `facts.json` in its output directory."""

    versions: dict[str, str] = {}
    """Versions of libraries by name; `code` is a hash of the trainer's own."""
    seed: int | None = None
    data: str = ""
    """The data set, and its hash where it has one."""


MAX_WHY: Final = 160


class Recovery(Frozen):
    """A setback that training has passed: what it cost, and what proves that it went on rightly."""

    attempt: int
    why: str = Field(max_length=MAX_WHY)
    step: int
    """The newest step before the setback."""
    resumed_step: int
    resumed_sample: int | None = None
    """The samples that the model had seen at that step; None where the program chooses them."""
    repeated_steps: int
    repeated_tokens: int | None = None
    lost_s: float
    """From the last step before the setback until training was further than that."""
    passed_at: datetime | None = None
    """When it was; None where an earlier version has recorded it."""
    lost_usd: float
    nodes: int | None = None
    """The number of nodes that it continued on, where that was changed; None after a failure."""
    loss_before: float | None = None
    """The median of the last losses before it, in nats."""
    loss_after: float | None = None
    loss_z: float | None = None
    """How far it is above `loss_before`, in robust standard deviations of those before."""
    compared: int = 0
    """The steps that were reported both before and after it."""
    equal: int = 0
    """Those of them that have the same loss to the last bit."""


class Setbacks(Frozen):
    """What several setbacks have cost together."""

    number: int = 0
    repeated_steps: int = 0
    lost_s: float = 0.0
    lost_usd: float = 0.0

    def after(self, *more: Recovery) -> Setbacks:
        """Add further ones; a change of the number of nodes is none."""
        new = [each for each in more if each.nodes is None]
        return Setbacks(
            number=self.number + len(new),
            repeated_steps=self.repeated_steps + sum(each.repeated_steps for each in new),
            lost_s=self.lost_s + sum(each.lost_s for each in new),
            lost_usd=self.lost_usd + sum(each.lost_usd for each in new),
        )


class Size(Frozen):
    """A number of nodes that a run had, and from when and after which step on."""

    at: datetime
    step: Count
    nodes: Count


class RunFacts(TrainerFacts):
    """What a manifest says of the run itself, known when its result is saved."""

    run_id: RunId
    recipe: str
    overrides: dict[str, str] = {}
    model: str = ""
    """The repository of the hub or the catalogue's model that was trained; "" for a command."""
    nodes: Count
    instance_type: str
    image: str = ""
    """The image of the training pods, with its digest where that is known."""
    pods: tuple[str, ...] = ()
    """The training pods that were seen; the logs of all of them belong to the result."""
    program: tuple[str, ...] = ()
    """What the training pods ran in place of the recipe's trainer."""
    outcome: str
    """The outcome: succeeded, failed or stopped; `RUNNING` for a backup."""
    step: int | None = None
    loss_nats: float | None = Field(default=None, allow_inf_nan=False)
    best_step: int | None = None
    """The step of the checkpoint that the model is of, the best by evaluation; None: the last."""
    cost_usd: float | None = Field(default=None, allow_inf_nan=False)
    """The run's own share so far, as its receipt has it; an earlier version wrote the cluster's."""
    cluster_cost_usd: float | None = Field(default=None, allow_inf_nan=False)
    """What its cluster has cost so far, with all other runs on it."""
    goodput: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The part of the time paid so far in which it trained; None where nothing reported steps."""
    attempts: Count = 1
    recoveries: tuple[Recovery, ...] = ()
    """Of its newest setbacks, as many as a run keeps."""
    setbacks: Setbacks = Setbacks()
    """What all of them have cost."""
    detections: tuple[Detection, ...] = ()
    """What was found wrong while it trained, the newest, as many as a run keeps."""
    sizes: tuple[Size, ...] = ()
    """Its newest numbers of nodes, oldest first; empty where that never changed."""


class ResultManifest(RunFacts):
    """The contents of `manifest.json`."""

    version: Literal[1] = 1
    checkpoint_source: str = ""
    """The checkpoint's place below the trainer's `checkpoints`: CONFIGURATION/step-N."""
    left_out: tuple[str, ...] = ()
    """What the run has written and is not saved, each with the reason."""
    files: tuple[ResultFile, ...]
    """The files, ordered by path, without the manifest itself."""

    @model_validator(mode="after")
    def _each_path_once(self) -> ResultManifest:
        paths = [file.path for file in self.files]
        if len(set(paths)) < len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise ValueError(f"{twice} is listed twice")
        return self

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> bytes:
        """Write the bytes of `manifest.json`; equal for equal manifests."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def read_manifest(data: bytes, *, uri: str) -> ResultManifest:
    """Parse the bytes of a `manifest.json`; `uri` is named in the error.

    Raises:
        PermanentError: they are no manifest of a known version.
    """
    try:
        return ResultManifest.model_validate_json(data)
    except ValidationError as exc:
        raise PermanentError(
            f"{uri} is not a manifest that this version reads: {first_problem(exc)}; use the "
            "version that wrote it"
        ) from exc


def manifest_sha256(data: bytes) -> str:
    """Compute the SHA-256, in hex, by which events name a manifest."""
    return hashlib.sha256(data).hexdigest()


def unlike_recorded(data: bytes, recorded: str, *, uri: str) -> str:
    """Say why a manifest is not the one that was verified and recorded; "" where it is."""
    found = manifest_sha256(data)
    if found == recorded:
        return ""
    known = f"{recorded[:12]} was recorded" if recorded else "no hash was recorded"
    return (
        f"{uri} is not the manifest that was verified: its SHA-256 begins {found[:12]}, and "
        f"{known}; nothing of this result is used"
    )


class SavingLine(PrintedLine):
    """The saver's progress: bytes that S3 holds, of all bytes of the result."""

    kind: Literal["saving"] = "saving"
    saved_bytes: Count
    total_bytes: Count


class PushedLine(PrintedLine):
    """The last line of a push: the model is on the hub, and the hub confirms its files."""

    kind: Literal["pushed"] = "pushed"
    repository: str
    revision: str
    num_files: Count
    num_bytes: Count


class SavedLine(PrintedLine):
    """The saver's last line: the result is complete, its manifest is in place."""

    kind: Literal["saved"] = "saved"
    uri: str
    num_files: Count
    num_bytes: Count
    manifest_sha256: str
    seconds: Finite
