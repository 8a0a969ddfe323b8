"""The states of the three workflows that call a function."""

from __future__ import annotations

from tests.chaos.rules import Fault

# State of each machine: its function and what tells its call from others of that function.
TRAIN_TASKS: dict[str, Fault] = {
    "PrepareRun": Fault("prepare-run"),
    "AcquireCluster": Fault("acquire-cluster"),
    "StageData": Fault("stage-data"),
    "SubmitJob": Fault("submit-job"),
    "EnsureJobStarted": Fault("ensure-job-started"),
    "AwaitJob": Fault("await-job"),
}
SAVING_TASKS: dict[str, Fault] = {
    "SaveResults": Fault("save-results", without="error"),
    "VerifyResults": Fault("verify-results"),
}
LATE_SAVING_TASKS: dict[str, Fault] = {
    "SaveAfterFailure": Fault("save-results"),
    "VerifyAfterFailure": Fault("verify-results"),
}
PUSH_TASKS: dict[str, Fault] = {"PushResults": Fault("push")}
LATE_PUSH_TASKS: dict[str, Fault] = {"PushAfterFailure": Fault("push")}
ENDING_TASKS: dict[str, Fault] = {
    "ConcludeRun": Fault("conclude-run", without="error"),
    "ReleaseRun": Fault("release-run"),
    "ReleaseLease": Fault("release-lease"),
}
CLUSTER_TASKS: dict[str, Fault] = {
    "PrepareCluster": Fault("prepare-cluster"),
    "EnsureCluster": Fault("ensure-cluster"),
    "EnsureSystemNodes": Fault("ensure-node-group", only={"node_group": "system"}),
    "EnsureTrainingNodes": Fault("ensure-node-group", only={"node_group": "training"}),
    "EnsureFileSystem": Fault("ensure-file-system"),
    "InstallPlugin": Fault("install-plugin", only={"plugin": "fsx-csi-driver"}),
    "RunCheck": Fault("run-check", only={"check": "storage"}),
    "ConcludeCluster": Fault("conclude-cluster", without="error"),
}
TEARDOWN_TASKS: dict[str, Fault] = {
    "BeginTeardown": Fault("begin-teardown"),
    "ReleaseJob": Fault("release-job"),
    "ReleaseFileSystem": Fault("release-file-system"),
    "ReleaseSystemNodes": Fault("release-node-group", only={"node_group": "system"}),
    "ReleaseTrainingNodes": Fault("release-node-group", only={"node_group": "training"}),
    "ReleaseCluster": Fault("release-cluster"),
    "ReleaseNetwork": Fault("release-network"),
    "VerifyReleased": Fault("verify-released"),
    "ConcludeTeardown": Fault("conclude-teardown", without="error"),
}
