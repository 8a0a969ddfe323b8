"""precision=float8: what it is refused with, on which machines, and what plans say of it."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.plan import Plan
from tests.support.plans import make_plan

HAVE_IT = {"H100", "H200", "B200", "B300", "L4", "L40S", "RTX PRO 6000"}


def plan(name: str, instance: str = "p5.48xlarge", **keys: str) -> Plan:
    overrides = {"precision": "float8", **keys}
    return make_plan(name, nodes=1, instance_type=instance, overrides=overrides)


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("resnet50", {}, "resnet50 is made of convolutions; use precision=bf16"),
        ("mixtral-8x7b", {}, "most of mixtral-8x7b is experts"),
        ("llama2-7b", {"parallelism": "ddp"}, "needs parallelism=full or hybrid"),
        ("llama2-7b", {"tensor_parallel": "2"}, "does not work with tensor_parallel=2"),
        ("llama2-7b", {"sequence_length": "1000"}, "a multiple of 16, not 1000; use 992"),
        ("tiny-llama", {}, "tiny-llama trains on CPUs, .* need Hopper, .*; use precision=bf16"),
        ("llama2-7b", {"preset": "smoke"}, "trains on CPUs"),
        ("llama2-7b", {"precision": "fp8"}, "'auto', 'bf16', 'fp32' or 'float8'"),
    ],
)
def test_float8_is_refused_where_nothing_is_gained(
    name: str, keys: dict[str, str], sentence: str
) -> None:
    with pytest.raises(BadParameter, match=sentence):
        plan(name, **keys)


def test_float8_is_for_the_generations_that_compute_in_it() -> None:
    nvidia = [row for row in INSTANCES.values() if row.num_gpus and not row.is_neuron]
    others: dict[str | None, str] = {}
    for instance in nvidia:
        if instance.price_per_hour_usd is not None:
            try:
                plan("llama3.2-1b", instance.name)
            except BadParameter as refusal:
                others.setdefault(instance.gpu, str(refusal))

    assert others.keys() == {row.gpu for row in nvidia} - HAVE_IT
    assert others["A100"] == (
        "precision=float8: p4d.24xlarge has A100 GPUs, and products in float8 need Hopper, Ada and "
        "Blackwell GPUs (p5, p6, g6, g6e and g7e instances); use instance=p5.48xlarge, or "
        "precision=bf16"
    )


def test_plan_of_float8_has_the_published_gain_and_no_mfu() -> None:
    bf16 = plan("llama3.1-8b", compile="true", precision="bf16")
    float8 = plan("llama3.1-8b", compile="true")

    assert float8.tokens_per_s == pytest.approx(8532 / 6667 * bf16.tokens_per_s, rel=0.01)
    assert float8.memory_per_gpu_gib == bf16.memory_per_gpu_gib
    assert bf16.assumed_mfu is not None
    assert float8.assumed_mfu is None
    assert any("1.28 times as fast as bf16" in warning for warning in float8.warnings)


def test_plan_of_float8_gains_nothing_without_the_compiler() -> None:
    bf16 = plan("llama3.1-8b", compile="false", precision="bf16")
    float8 = plan("llama3.1-8b", compile="false")

    assert float8.step_time_s == bf16.step_time_s
    assert any("add compile=true" in warning for warning in float8.warnings)
