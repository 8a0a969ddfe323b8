"""The PyTorchJob: what the operator insists on, what devices need, what must never be in it."""

import dataclasses
import re
import socket
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.diagnosis.lint.linting import lint
from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.names import job_name
from stationmaster.domain.planning.plan import plan_recipe
from stationmaster.domain.run.aggregate import new_run_id
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.request import Placement
from stationmaster.rendering import JobSpec, job_spec
from stationmaster.rendering.examples import to_yaml
from stationmaster.rendering.pytorch_job import render_pytorch_job
from stationmaster.rendering.rendezvous import render_etcd, render_rendezvous
from tests.support.factories import make_request

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
RUN_ID = RunId("llama2-7b-0123abcd")
GPU_INSTANCES = [row.name for row in INSTANCES.values() if row.num_gpus and not row.is_neuron]


def spec_of(
    recipe: str = "llama2-7b",
    instance: str = "p4d.24xlarge",
    nodes: int = 2,
    run_id: str = RUN_ID,
    *,
    data_root: str = "",
    request: dict[str, Any] | None = None,
    **overrides: str,
) -> JobSpec:
    asked = make_request(
        recipe=recipe,
        nodes=nodes,
        instance_type=instance,
        overrides=overrides,
        **(request or {}),
    )
    assignment = first_assignment(run_id, asked)
    image = "registry/training:1"
    return job_spec(asked, assignment, run_id=run_id, image=image, data_root=data_root)


def render(*where: Any, **asked: Any) -> dict[str, Any]:
    return render_pytorch_job(spec_of(*where, **asked))


def pod_spec(job: dict[str, Any], role: str = "Worker") -> dict[str, Any]:
    return job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod_spec(job)["containers"]
    return only


def environment(job: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container(job)["env"] if "value" in item}


def test_job_is_worker_only_and_fixed_in_size_without_autoscaler():
    spec = render(nodes=5)["spec"]

    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 5
    elastic = spec["elasticPolicy"]
    assert (elastic["minReplicas"], elastic["maxReplicas"]) == (5, 5)
    assert elastic["rdzvBackend"] == "c10d"
    assert elastic["rdzvId"] == "llama2-7b-0123abcd"
    assert "metrics" not in elastic
    assert "nProcPerNode" not in elastic  # together with nprocPerNode the webhook refuses the job


@pytest.mark.parametrize(("least", "leased", "rendered"), [(2, 6, 2), (2, 2, 2), (4, 3, 3)])
def test_job_of_a_range_trains_with_its_fewest_nodes_and_has_a_pod_for_each_leased_one(
    least: int, leased: int, rendered: int
):
    spec = render(nodes=leased, request={"min_nodes": least})["spec"]

    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == leased
    elastic = spec["elasticPolicy"]
    assert (elastic["minReplicas"], elastic["maxReplicas"]) == (rendered, leased)
    assert (
        spec["runPolicy"]["backoffLimit"]
        == render(nodes=leased)["spec"]["runPolicy"]["backoffLimit"]
    )


def test_job_of_a_range_has_time_to_stop_on_its_fewest_nodes():
    sizes = {"sequence_length": "4096", "global_batch_size": "4096"}
    few, many = (render("llama2-70b", nodes=n, **sizes) for n in (1, 8))
    ranged = render("llama2-70b", nodes=8, request={"min_nodes": 1}, **sizes)

    grace = [pod_spec(job)["terminationGracePeriodSeconds"] for job in (few, ranged, many)]
    assert grace[0] == grace[1] > grace[2]


def test_job_with_etcd_meets_where_its_etcd_listens_with_the_protocol_that_torch_speaks():
    spec = dataclasses.replace(spec_of(rendezvous="etcd"), job="llama2-7b-again")

    elastic = render_pytorch_job(spec)["spec"]["elasticPolicy"]
    service, deployment = render_rendezvous(spec)

    pod = deployment["spec"]["template"]
    (etcd,) = pod["spec"]["containers"]
    assert elastic["rdzvBackend"] == "etcd-v2"
    assert elastic["rdzvHost"] == service["metadata"]["name"] == f"{spec.job}-etcd"
    # For etcd it is the time for one HTTP request, not for the coming of a worker.
    assert "read_timeout" not in {item["key"] for item in elastic["rdzvConf"]}
    assert elastic["rdzvPort"] == service["spec"]["ports"][0]["port"]
    assert elastic["rdzvPort"] == etcd["ports"][0]["containerPort"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert pod["metadata"]["labels"]["stationmaster/run-id"] == RUN_ID
    assert "--enable-v2=true" in etcd["command"]
    # The last minor version that has the v2 protocol.
    assert re.fullmatch(r".*/etcd:3\.5\.[0-9.-]+", etcd["image"])
    assert render_rendezvous(spec_of(rendezvous="static")) == []


def test_job_with_etcd_starts_its_agents_when_etcd_listens():
    job = render(rendezvous="etcd")
    (waiting,) = pod_spec(job)["initContainers"]
    elastic = job["spec"]["elasticPolicy"]
    python, flag, script, address, _ = waiting["command"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = [sys.executable, flag, script, f"127.0.0.1:{server.getsockname()[1]}"]
        listening = subprocess.run([*arguments, "0"], check=False)
    closed = subprocess.run([*arguments, "0"], capture_output=True, text=True, check=False)

    assert (python, address) == ("python", f"{elastic['rdzvHost']}:{elastic['rdzvPort']}")
    assert waiting["image"] == container(job)["image"]
    assert (listening.returncode, closed.returncode) == (0, 1)
    assert "does not answer after 0 s" in closed.stderr
    assert "initContainers" not in pod_spec(render())


@given(recipe=st.text(max_size=200), key=st.text(max_size=20))
def test_names_of_any_run_are_labels_with_room_for_pods_and_etcd(recipe: str, key: str):
    run_id = new_run_id(recipe, dedup_key=key)

    job = job_name(run_id)
    service, _ = render_etcd(run_id, job=job)

    for name in (service["metadata"]["name"], f"{job}-worker-999"):
        assert DNS_1035.fullmatch(name)


def test_job_survives_two_gang_restarts_and_fails_with_the_third():
    policy = render(nodes=3)["spec"]["runPolicy"]

    assert 2 * 3 < policy["backoffLimit"] <= 3 * 3
    assert policy["cleanPodPolicy"] == "None"


def test_agents_wait_for_each_other_until_a_lost_node_is_replaced():
    """Then each other pod is restarted once, and not each minute of the wait."""
    # Marked unreachable after 50 s, its pods moved 300 s later and removed within 60 s, a new
    # instance in 180 s, 20 GB of image in 300 s.
    replaced_after_s = 50 + 300 + 60 + 180 + 300
    elastic = render()["spec"]["elasticPolicy"]

    conf = {item["key"]: int(item["value"]) for item in elastic["rdzvConf"]}

    assert conf["join_timeout"] == conf["read_timeout"] >= replaced_after_s
    assert conf["keep_alive_interval"] * conf["keep_alive_max_attempt"] <= 10


def test_command_is_an_explicit_list_with_the_overrides_and_the_output_on_the_shared_file_system():
    job = render("tiny-llama", "m5.2xlarge", run_id="tiny-llama-1", steps="9", dataset="/fsx/text")

    given = "dataset=/fsx/text steps=9 --stop-deadline 100 --samples 3"
    command = f"torchrun -m training tiny-llama {given} --output-dir /fsx/runs/tiny-llama-1"
    assert container(job)["command"] == command.split()
    classifier = render("resnet50", preset="smoke")
    assert "--samples" not in container(classifier)["command"], "it writes no texts"


def test_deadlines_after_sigterm_end_from_the_inside_out():
    job = render()
    words = container(job)["command"]

    trainer_s = float(words[words.index("--stop-deadline") + 1])
    torchrun_s = float(environment(job)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert trainer_s < torchrun_s < pod_spec(job)["terminationGracePeriodSeconds"]


def test_grace_of_a_pod_follows_the_size_of_its_checkpoint():
    graces = {}
    for name in ("tiny-llama", "llama2-7b", "llama2-70b"):
        recipe = RECIPES[name]
        nodes = recipe.default_nodes
        plan = plan_recipe(recipe)
        grace_s = pod_spec(render(name, recipe.default_instance, nodes))[
            "terminationGracePeriodSeconds"
        ]
        # A save in progress is written and read back, then the last one is written.
        assert grace_s >= plan.step_time_s + 3 * plan.checkpoint_write_s
        graces[name] = grace_s

    assert graces["tiny-llama"] == 120
    assert graces["llama2-7b"] > 300
    assert graces["llama2-70b"] > graces["llama2-7b"]


def test_command_with_a_dollar_sign_is_kept_from_being_expanded():
    job = render("tiny-llama", "m5.2xlarge", dataset="$(HF_TOKEN)")

    assert "dataset=$$(HF_TOKEN)" in container(job)["command"]


@pytest.mark.parametrize("instance", GPU_INSTANCES)
def test_gpu_pod_requests_all_devices_and_limits_equal_requests(instance: str):
    row = get_instance(instance)

    resources = container(render(instance=instance))["resources"]

    assert resources["requests"]["nvidia.com/gpu"] == str(row.num_gpus)
    for name, limit in resources["limits"].items():
        assert resources["requests"][name] == limit
    assert int(resources["requests"]["cpu"]) < row.vcpus
    assert int(resources["requests"]["memory"].removesuffix("Gi")) < 0.9 * row.memory_gib


@pytest.mark.parametrize(
    ("instance", "efa"), [("p4d.24xlarge", "4"), ("p5.48xlarge", "32"), ("g6e.48xlarge", "4")]
)
def test_efa_pod_requests_every_interface_and_no_fallback(instance: str, efa: str):
    job = render(instance=instance)

    limits = container(job)["resources"]["limits"]
    assert limits["vpc.amazonaws.com/efa"] == efa
    assert "hugepages-2Mi" not in limits
    assert environment(job)["NCCL_NET"] == "AWS Libfabric"
    assert environment(job)["FI_PROVIDER"] == "efa"
    assert environment(job)["FI_EFA_USE_HUGE_PAGE"] == "0"
    # The relay reads from these lines whether EFA is used.
    assert environment(job)["NCCL_DEBUG"] == "INFO"
    assert environment(job)["NCCL_DEBUG_SUBSYS"] == "NET"


@pytest.mark.parametrize("instance", ["g5.xlarge", "p3.8xlarge", "g4dn.8xlarge", "p3dn.24xlarge"])
def test_pod_without_useful_efa_asks_for_none_and_leaves_libfabric_alone(instance: str):
    job = render(instance=instance)

    assert "vpc.amazonaws.com/efa" not in container(job)["resources"]["requests"]
    assert not [name for name in environment(job) if name.startswith(("FI_", "NCCL_NET"))]


@pytest.mark.parametrize(("asked", "net"), [(0, "Socket"), (1, "AWS Libfabric")])
def test_pod_asks_for_the_interfaces_that_were_typed_and_nothing_complains(asked: int, net: str):
    job = render(request={"job_options": JobOptions(efa=asked)})

    resources = container(job)["resources"]
    assert resources["limits"].get("vpc.amazonaws.com/efa", "0") == str(asked)
    # The node's huge pages are set aside all the same.
    assert resources["requests"]["memory"] == container(render())["resources"]["requests"]["memory"]
    assert environment(job)["NCCL_NET"] == net
    assert ("FI_PROVIDER" in environment(job)) == bool(asked)
    found = {each.rule for each in lint([("job.yaml", to_yaml([job]))]).findings}
    assert found <= ({"efa-partial"} if asked else set())


def test_device_rdma_is_off_where_efa_has_no_gpudirect_only():
    assert environment(render(instance="g5.48xlarge"))["FI_EFA_USE_DEVICE_RDMA"] == "0"
    assert "FI_EFA_USE_DEVICE_RDMA" not in environment(render(instance="p5.48xlarge"))


def test_environment_sets_what_is_needed_and_nothing_that_harms():
    values = environment(render())

    assert values["NCCL_SOCKET_IFNAME"] == "^lo,docker,veth,eni,pod-id-link0"
    assert values["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert values["STATIONMASTER_RUN_ID"] == "llama2-7b-0123abcd"
    harmful = {"NCCL_PROTO", "NCCL_ALGO", "NCCL_TIMEOUT", "NCCL_P2P_DISABLE", "FI_EFA_FORK_SAFE"}
    # The operator sets these itself.
    injected = {"PYTHONUNBUFFERED", "PET_NNODES", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT"}
    injected |= {"PET_NPROC_PER_NODE", "PET_MAX_RESTARTS", "PET_RDZV_ID", "PET_RDZV_CONF"}
    names = [item["name"] for item in container(render())["env"]]
    assert not (harmful | injected) & set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("instance", ["m5.2xlarge", "p4d.24xlarge"])
def test_cpu_recipe_asks_for_no_device_and_names_no_interface_and_no_thread_count(instance: str):
    job = render("tiny-llama", instance)

    assert set(container(job)["resources"]["requests"]) == {"cpu", "memory"}
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"} & set(
        environment(job)
    )
    assert job["spec"]["nprocPerNode"] == "1"


def test_token_comes_from_an_optional_secret_and_is_nowhere_in_clear():
    job = render()

    (token,) = [item for item in container(job)["env"] if item["name"] == "HF_TOKEN"]
    assert "value" not in token
    assert token["valueFrom"]["secretKeyRef"]["optional"] is True
    assert not [item for item in container(job)["command"] if "token" in item.lower()]


@pytest.mark.parametrize(
    ("track", "given"),
    [
        ("tensorboard", []),
        ("wandb:lab", ["WANDB_API_KEY", "WANDB_BASE_URL"]),
        ("mlflow:https://typed.example", []),  # nobody vouches for who gets a token there
    ],
)
def test_tracker_is_an_option_and_its_account_comes_from_the_secret(track: str, given: list[str]):
    made = container(render(request={"track": track}))

    secret = [item["name"] for item in made["env"] if "secretKeyRef" in item.get("valueFrom", {})]
    assert secret == ["HF_TOKEN", *given]
    assert made["command"][made["command"].index("--track") + 1] == track


def test_pods_are_one_a_node_on_the_tainted_nodes_of_the_instance_type():
    spec = pod_spec(render())

    assert spec["nodeSelector"] == {
        "stationmaster/node-group": "training",
        "stationmaster/cluster-id": "llama2-7b-0123abcd",
        "node.kubernetes.io/instance-type": "p4d.24xlarge",
    }
    assert {"key": "stationmaster/training", "operator": "Exists"} in spec["tolerations"]
    (term,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {
        "training.kubeflow.org/job-name": "llama2-7b-0123abcd"
    }


def test_pods_mount_the_claim_and_shared_memory_and_no_host_path():
    job = render()

    mounts = {mount["mountPath"]: mount["name"] for mount in container(job)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod_spec(job)["volumes"]}
    assert volumes[mounts["/fsx"]]["persistentVolumeClaim"]["claimName"] == "llama2-7b-0123abcd-fsx"
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert not [volume for volume in volumes.values() if "hostPath" in volume]


def test_pod_has_no_privilege_and_bounded_scratch_space():
    job = render()

    assert container(job)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    volumes = {volume["name"]: volume for volume in pod_spec(job)["volumes"]}
    assert volumes["scratch"] == {"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}}
    assert not pod_spec(job)["automountServiceAccountToken"]


def test_job_is_rendered_from_the_attempt_and_not_from_what_was_wished_for():
    request = make_request(nodes=2, instance_type="m5.2xlarge")
    run_id = "tiny-llama-0123abcd"
    elsewhere = first_assignment(run_id, request).model_copy(
        update={
            "cluster_id": "kept-0a1b2c3d",
            "placement": Placement(nodes=4, instance_type="p4d.24xlarge"),
            "job": f"{run_id}-2",
            "rendezvous_id": "second",
        }
    )

    spec = job_spec(request, elsewhere, run_id=run_id, image="i")
    job = render_pytorch_job(spec)

    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (apart,) = pod_spec(job)["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert (worker["replicas"], spec.instance.name) == (4, "p4d.24xlarge")
    assert job["metadata"]["name"] == f"{run_id}-2"
    assert f"{run_id}-2" in apart["labelSelector"]["matchLabels"].values()
    assert job["spec"]["elasticPolicy"]["rdzvId"] == "second"
    assert pod_spec(job)["nodeSelector"]["stationmaster/cluster-id"] == "kept-0a1b2c3d"


@pytest.mark.parametrize(
    ("nodes", "replicas"), [(1, {"Master": 1}), (2, {"Master": 1, "Worker": 1})]
)
def test_static_rendezvous_has_a_master_and_no_elastic_policy(nodes: int, replicas: dict[str, int]):
    job = render("ddp-cpu", "m5.2xlarge", nodes, rendezvous="static")

    specs = job["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in specs.items()} == replicas
    assert "elasticPolicy" not in job["spec"]
    assert {spec["restartPolicy"] for spec in specs.values()} == {"OnFailure"}
    assert job["spec"]["runPolicy"]["backoffLimit"] == 3 * nodes


def test_pods_of_a_static_job_are_those_of_an_elastic_one_but_for_the_wait():
    static, elastic = (render("ddp-cpu", "m5.2xlarge", 3, rendezvous=r) for r in ("static", "c10d"))
    (of_master,) = pod_spec(static, "Master")["containers"]
    waits = {"name": "PET_RDZV_CONF", "value": "timeout=900"}

    assert pod_spec(static, "Master") == pod_spec(static)
    assert waits in of_master["env"]
    assert "PET_RDZV_CONF" not in environment(elastic)
    of_master["env"].remove(waits)
    of_master["command"].remove("rendezvous=static")
    container(elastic)["command"].remove("rendezvous=c10d")
    assert pod_spec(static, "Master") == pod_spec(elastic)


def test_command_of_ones_own_replaces_the_trainer_and_nothing_is_expanded_in_it():
    words = ("torchrun", "t.py", "$(HOSTNAME)", "$$", "${HOME}", "`id`", ";", "a b")

    job = render(request={"program": words})

    # Kubernetes reads $$ as $, and expands $(NAME).
    assert container(job)["command"] == [
        *("torchrun", "t.py", "$$(HOSTNAME)", "$$$$", "$${HOME}", "`id`", ";", "a b"),
    ]
    assert "args" not in container(job)
    assert container(job)["image"] == "registry/training:1"


def test_processes_of_a_command_are_those_that_were_typed():
    eight = render("llama2-7b", "p5.48xlarge", 2, request={"program": ("python", "a.py")})
    one = {"program": ("python", "a.py"), "processes_per_node": 1}

    assert eight["spec"]["nprocPerNode"] == "8"
    assert render("llama2-7b", "p5.48xlarge", 2, request=one)["spec"]["nprocPerNode"] == "1"


def test_trainer_has_the_processes_and_cpus_that_were_typed():
    asked = {"processes_per_node": 2, "job_options": JobOptions(cpus=4)}
    job = render("ddp-cpu", "m5.2xlarge", 2, request=asked)

    assert job["spec"]["nprocPerNode"] == "2"
    resources = container(job)["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("4", "4")
    assert environment(job)["OMP_NUM_THREADS"] == "2"


def test_variables_of_the_product_are_filled_in_where_a_command_names_them():
    words = "a.py --out=$STATIONMASTER_OUTPUT_DIR/x ${STATIONMASTER_RUN_ID} $STATIONMASTER_X"

    job = render(request={"program": tuple(words.split())})

    filled = "a.py --out=$(STATIONMASTER_OUTPUT_DIR)/x $(STATIONMASTER_RUN_ID) $$STATIONMASTER_X"
    assert container(job)["command"] == filled.split()


def test_command_that_is_resumed_is_told_where_its_output_lies_and_a_first_one_nothing():
    words = ("/opt/app/a.py", "--from=$STATIONMASTER_RESUME_DIR")

    first = render(request={"program": words})
    again = render(request={"program": words, "output_from": "ddp-cpu-00000001"})

    assert container(first)["command"] == ["/opt/app/a.py", "--from="]
    assert container(first)["workingDir"] == "/opt/app"
    assert "STATIONMASTER_RESUME_DIR" not in environment(first)
    assert container(again)["command"] == ["/opt/app/a.py", "--from=$(STATIONMASTER_RESUME_DIR)"]
    where = environment(again)["STATIONMASTER_RESUME_DIR"]
    assert where == environment(again)["STATIONMASTER_OUTPUT_DIR"]


def test_command_of_ones_own_finds_its_output_directory_made():
    job = render(request={"program": ("true",), "image": "registry.example.com/x:1"})

    (first,) = pod_spec(job)["initContainers"]
    assert first["command"] == ["mkdir", "-p", environment(job)["STATIONMASTER_OUTPUT_DIR"]]
    for same in ("image", "securityContext"):
        assert first[same] == container(job)[same]
    assert first["volumeMounts"][0] in container(job)["volumeMounts"]
    assert "initContainers" not in pod_spec(render(recipe="torchtitan-llama3.1-8b"))


def test_nothing_starts_a_command_of_ones_own_again():
    job = render(request={"program": ("true",)})
    own = render()

    (replica,) = job["spec"]["pytorchReplicaSpecs"].values()
    assert (replica["restartPolicy"], job["spec"]["elasticPolicy"]["maxRestarts"]) == ("Never", 0)
    (replica,) = own["spec"]["pytorchReplicaSpecs"].values()
    assert (replica["restartPolicy"], own["spec"]["elasticPolicy"]["maxRestarts"]) == (
        *("OnFailure", 3),
    )


@pytest.mark.parametrize(
    ("overrides", "data_root", "told"),
    [
        ({}, "", None),
        ({"dataset": "some $(WORDS)"}, "", "some $$(WORDS)"),
        ({"dataset": "s3://bucket/x"}, "0a1b/files", "/fsx/data/0a1b/files"),
    ],
)
def test_command_of_ones_own_has_the_usual_environment_and_is_told_where_things_are(
    overrides: dict[str, str], data_root: str, told: str | None
):
    job = render(data_root=data_root, request={"program": ("true",)}, **overrides)

    theirs = environment(job)
    output = theirs.pop("STATIONMASTER_OUTPUT_DIR")
    assert output == "/fsx/runs/llama2-7b-0123abcd/output"
    assert theirs.pop("STATIONMASTER_DATASET", None) == told
    grace = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    stop_s = int(theirs.pop("STATIONMASTER_STOP_SECONDS"))
    assert 0 < stop_s < grace["terminationGracePeriodSeconds"]
    bars = {"TTY_COMPATIBLE": "1", "COLUMNS": "160"}  # rich draws none otherwise
    # What Lightning's Trainer takes where its caller says neither.
    lightning = {"PL_TRAINER_DEFAULT_ROOT_DIR": output}
    assert theirs == environment(render()) | bars | lightning


def test_command_can_start_where_its_output_is_saved():
    where = {"directory": "$STATIONMASTER_OUTPUT_DIR"}
    job = render(request={"program": ("/a/t.py",), **where})

    assert container(job)["workingDir"] == environment(job)["STATIONMASTER_OUTPUT_DIR"]


def test_lightning_is_told_of_the_nodes_only_where_torchrun_joins_as_many():
    def told(**request):
        return environment(render(nodes=3, request=request)).get("PL_TRAINER_NUM_NODES")

    assert told(program=("torchrun", "a.py")) == "3"
    assert told(program=("torchrun", "a.py"), min_nodes=2) is None
    assert told(program=("python", "a.py")) is None


def test_image_of_ones_own_runs_as_a_user_that_is_not_root():
    job = render(request={"image": "registry.example.com/x:1"})

    assert container(job)["image"] == "registry.example.com/x:1"
    assert container(job)["command"][:3] == ["torchrun", "-m", "training"]
    assert container(job)["securityContext"] == {
        **container(render())["securityContext"],
        "runAsUser": 1000,
    }
    # That user has no home in an image that does not know it.
    assert environment(job)["HOME"] == "/scratch"
    assert "STATIONMASTER_OUTPUT_DIR" not in environment(job)
    assert "HOME" not in environment(render())


def test_job_for_a_queue_of_kueue_is_suspended_until_kueue_admits_it():
    queued = render(request={"job_options": JobOptions(queue="night", priority_class="high")})
    usual = render()

    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
    assert queued["spec"]["runPolicy"]["suspend"] is True
    assert pod_spec(queued)["priorityClassName"] == "high"
    assert "kueue.x-k8s.io/queue-name" not in usual["metadata"]["labels"]
    assert usual["spec"]["runPolicy"]["suspend"] is False
    assert {"priorityClassName", "hostNetwork", "dnsPolicy"}.isdisjoint(pod_spec(usual))


def test_jobs_on_the_network_of_nodes_find_each_other_at_ports_of_their_own():
    first, second = (
        render(run_id=run_id, request={"job_options": JobOptions(host_network=True)})
        for run_id in ("llama2-7b-0123abcd", "llama2-7b-4567cdef")
    )

    assert pod_spec(first)["hostNetwork"] is True
    assert pod_spec(first)["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert environment(first)["NCCL_SOCKET_IFNAME"] == "^lo,docker,veth,eni,pod-id-link0"
    (port,), (other,) = (container(job)["ports"] for job in (first, second))
    assert (port["name"], container(render())["ports"][0]["containerPort"]) == (
        "pytorchjob-port",
        23456,
    )
    assert 20_000 <= port["containerPort"] < 30_000
    assert port["containerPort"] not in (other["containerPort"], 23456)


@pytest.mark.parametrize("level", ["INFO", "WARN"])
def test_level_of_nccl_that_was_typed_is_of_all_its_subsystems(level: str):
    values = environment(render(request={"job_options": JobOptions(nccl_debug=level)}))

    assert values["NCCL_DEBUG"] == level
    assert "NCCL_DEBUG_SUBSYS" not in values


def test_pods_select_fit_nodes_of_hyperpod_and_ask_for_the_cpus_that_these_offer() -> None:
    asked = make_request(recipe="tiny-llama", instance_type="m5.2xlarge", nodes=2)
    assigned = first_assignment(RUN_ID, asked)
    spec = job_spec(asked, assigned, run_id=RUN_ID, image="training:1", hyperpod_vcpus=4)
    pod = pod_spec(render_pytorch_job(spec))

    assert (
        pod["nodeSelector"].items()
        >= {
            "node.kubernetes.io/instance-type": "ml.m5.2xlarge",
            "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        }.items()
    )
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "3"
    assert not any("sagemaker" in each["key"] for each in pod["tolerations"])
