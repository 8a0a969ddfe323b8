"""Files in which somebody has saved what kubectl printed, and what they are taken for."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.diagnosis.explaining import explain
from stationmaster.diagnosis.reading import read_source
from stationmaster.domain.errors import BadCommand

SCHEDULING = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."

EVENTS = f"""\
NAMESPACE   LAST SEEN   TYPE      REASON             OBJECT          MESSAGE
default     5m          Normal    Scheduled          pod/fsdp-w-0    assigned
default     3m          Normal    NodeNotReady       node/n-1        Node n-1 is now: NodeNotReady
default     2m14s       Warning   FailedScheduling   pod/fsdp-w-1    {SCHEDULING}
"""
NODES = """\
NAME                       STATUS                        ROLES    AGE   VERSION
ip-10-0-1-5.ec2.internal   Ready                         <none>   1h    v1.35.2-eks-1
ip-10-0-1-6.ec2.internal   NotReady,SchedulingDisabled   <none>   1h    v1.35.2-eks-1
"""
DESCRIBED = f"""\
Name:             fsdp-w-0
Status:           Running
Containers:
  pytorch:
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Ready:          True
Conditions:
  Type              Status
  Ready             True
Events:             <none>


Name:             fsdp-w-1
Status:           Pending
Events:
  Type     Reason            Age   From               Message
  ----     ------            ----  ----               -------
  Warning  FailedScheduling  2m    default-scheduler  {SCHEDULING}
"""
DESCRIBED_NODE = """\
Name:               ip-10-0-1-6.ec2.internal
Conditions:
  Type           Status    LastHeartbeatTime                 LastTransitionTime                Reason              Message
  ----           ------    -----------------                 ------------------                ------              -------
  DiskPressure   Unknown   Fri, 20 Nov 2026 18:20:11 +0000   Fri, 20 Nov 2026 18:00:11 +0000   NodeStatusUnknown   Kubelet stopped posting node status.
  Ready          Unknown   Fri, 20 Nov 2026 18:20:11 +0000   Fri, 20 Nov 2026 18:00:11 +0000   NodeStatusUnknown   Kubelet stopped posting node status.
Events:              <none>
"""  # noqa: E501
OBJECTS = yaml.safe_load(f"""\
apiVersion: v1
kind: List
items:
- kind: Event
  involvedObject: {{kind: Pod, name: fsdp-w-1}}
  lastTimestamp: "2026-11-20T18:01:00Z"
  message: {SCHEDULING!r}
  reason: FailedScheduling
- kind: Pod
  metadata: {{name: fsdp-w-0}}
  status:
    containerStatuses:
    - lastState:
        terminated: {{exitCode: 137, reason: OOMKilled, finishedAt: "2026-11-20T18:02:00Z"}}
      state: {{waiting: {{reason: CrashLoopBackOff}}}}
- kind: Node
  metadata: {{name: n-1}}
  status:
    conditions: [{{type: Ready, status: "True", reason: KubeletReady}}]
- kind: PyTorchJob
  metadata: {{name: fsdp}}
  status:
    conditions:
    - {{type: Failed, status: "True", message: it has reached the specified backoff limit}}
""")


def found(text):
    findings = explain([read_source("file", text)])
    return [(each.rule, each.subject, each.line) for each in findings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EVENTS, [("node-lost", "n-1", 3), ("no-gpu", "fsdp-w-1", 4)]),
        (NODES, [("node-lost", "ip-10-0-1-6.ec2.internal", 3)]),
        (DESCRIBED, [("no-gpu", "fsdp-w-1", 20), ("oom-host", "fsdp-w-0", 6)]),
        (DESCRIBED_NODE, [("node-lost", "ip-10-0-1-6.ec2.internal", 6)]),
    ],
    ids=["events", "nodes", "described pods", "described node"],
)
def test_tables_and_descriptions_of_kubectl_are_read(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob", "MPIJob", "Job"])
@pytest.mark.parametrize(
    "text", [json.dumps(OBJECTS, indent=4), yaml.safe_dump(OBJECTS)], ids=["json", "yaml"]
)
def test_objects_of_kubectl_are_read(text, kind):
    text = text.replace("PyTorchJob", kind)

    findings = explain([read_source("file", text)])

    assert [(each.rule, each.subject) for each in findings] == [
        ("no-gpu", "fsdp-w-1"),
        ("oom-host", "fsdp-w-0"),
        ("crash-loop", "fsdp-w-0"),
    ]
    assert findings[2].count == 2, "of the pod and of its job"
    assert [each.at and each.at.minute for each in findings] == [1, 2, None]
    assert SCHEDULING in text.splitlines()[findings[0].line - 1]
    assert "OOMKilled" in text.splitlines()[findings[1].line - 1]


DMON_HEAD = """\
# gpu     pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx       W      C      C      %      %      %      %      %      %    MHz    MHz
"""
DMON_ROW = (
    "    {gpu}     398     61     58     {sm}     64      0      0      0      0   2619   1980\n"
)


def test_gpus_that_mostly_wait_are_found_in_the_samples_of_dmon():
    rows = [(0, 95), (1, 10), (0, 91), (1, "-"), (1, 20)]
    text = DMON_HEAD + "".join(DMON_ROW.format(gpu=gpu, sm=sm) for gpu, sm in rows) + DMON_HEAD

    (finding,) = explain([read_source("file", text)])

    assert (finding.rule, finding.subject) == ("gpu-idle", "GPU 1")
    assert "computed 15 % of the time (2 samples)" in finding.diagnosis


@pytest.mark.parametrize("text", ["apiVersion: v1\nkind: List\nitems: []\n", '{"items": []}'])
def test_empty_list_of_objects_has_nothing_to_say(text):
    assert found(text) == []


def test_log_whose_lines_are_json_is_a_log():
    text = '{"stationmaster":1,"kind":"started"}\nOSError: [Errno 12] Cannot allocate memory\r\n'

    assert found(text) == [("fork", "", 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("apiVersion: v1\nkind: Pod\nmetadata: [", "cannot be read"),
        ('{"apiVersion": "v1", "kind": ', "kubectl get events -o json"),
        ("apiVersion: v1\nkind: ConfigMap\n", "stationmaster lint FILE"),
        ("kind: x\nitems: 3\n", "has no Event"),
        ('{"kind": ' + "[" * 100_000, "cannot be read"),
    ],
)
def test_objects_that_say_nothing_are_refused_with_a_sentence(text, words):
    with pytest.raises(BadCommand, match="file") as refused:
        read_source("file", text)

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["status", "conditions", "type", "reason", "message", "state", "waiting"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(["Event", "Pod", "Node", "Job"]), _VALUES, _VALUES)
def test_objects_of_any_shape_are_read_without_an_error(kind, status, metadata):
    text = json.dumps({"kind": kind, "status": status, "metadata": metadata, "type": status})

    assert explain([read_source("file", text)]) is not None


@given(st.text(max_size=300), st.sampled_from([EVENTS, NODES, DESCRIBED, DESCRIBED_NODE]))
def test_any_text_after_what_kubectl_printed_is_read_without_an_error(text, printed):
    cut = printed[: len(text) * 7]

    assert explain([read_source("file", cut + text if cut.strip() else printed + text)]) is not None


def test_events_that_were_cut_out_of_a_description_are_read_as_one_pods():
    rows = DESCRIBED[DESCRIBED.rindex("Events:") :]
    started = rows + "  Normal   Started   1m   kubelet   Started container pytorch\n"
    unknown = rows[: rows.index("  Warning")] + "  Warning  Odd  1m  kubelet  a widget is missing\n"

    def rules(text: str) -> list[str]:
        return [each.rule for each in explain([read_source("events.txt", text)])]

    assert rules(rows) == rules(rows.partition("\n")[2]) == ["no-gpu"]
    assert rules(started) == []
    (finding,) = explain([read_source("events.txt", unknown)])
    assert finding.evidence == "Odd: a widget is missing"
