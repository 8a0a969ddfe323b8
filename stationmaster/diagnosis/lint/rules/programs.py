"""Arguments of well-known trainers and launchers: shapes, tokenizers, renamed flags, meeting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.launch import Flag, Launch
from stationmaster.diagnosis.lint.manifest import GPU, Manifest
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.values import whole
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import LanguageModel

# What a shape is called by the FSDP sample's train.py, and by Megatron-LM.
_NAMES: Final = {
    "layers": ("num_layers", "num_hidden_layers"),
    "hidden_size": ("hidden_width", "hidden_size"),
    "heads": ("num_heads", "num_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_query_groups"),
    "ffn_size": ("intermediate_size", "ffn_hidden_size"),
    "context_length": ("max_context_width", "seq_length", "max_position_embeddings"),
}
# Flags that train.py of the FSDP sample does not have, and swallows. Source: src/model_utils/
# arguments.py, whose parser takes unknown flags without a word.
_RENAMED: Final = {
    "dataset_path": "dataset",
    "offload_activation": "offload_activations",
    "train_split": "",
    "val_split": "",
}
_ACCELERATE_JOINS: Final = ("--num_machines", "--rdzv_backend", "--config_file", "--num-machines")
# Kinds whose controllers tell torchrun nothing.
_WITHOUT_OPERATOR: Final = ("Job", "JobSet", "StatefulSet")
_NONE: Final = Flag("", ())
_LLAMA_2_TOKENIZERS: Final = ("hf-internal-testing/llama-tokenizer", "meta-llama/llama-2")
_LLAMA_FLAGS: Final = ("swiglu", "group_query_attention", "untie_embeddings_and_output_weights")


def check(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        for container in pod.workers:
            runs_megatron = pod.machine(container).runs_megatron
            for launch in container.launches:
                yield from _shape(launch)
                yield from _renamed(launch)
                yield from _tokenizer(launch)
                yield from _meeting(manifest, container, launch)
                if runs_megatron:
                    yield from _megatron(container, launch)


def _meeting(manifest: Manifest, container: Container, launch: Launch) -> Iterator[Found]:
    """Check that what is started in several pods is told where they meet."""
    pods = manifest.num_pods or 1
    words = [word.rpartition("/")[2] for word in launch.words]
    if pods < 2 or not container.asks(GPU):
        return
    if "accelerate" in words and not any(word.startswith(_ACCELERATE_JOINS) for word in words):
        yield found(
            "accelerate",
            launch.path,
            f"accelerate launch does not join {pods} pods by itself: each trains a model of its "
            "own",
            fix="start the script with torchrun, which accelerate understands, or pass "
            "--rdzv_backend c10d, or --num_machines with the other flags of a machine",
        )
    flags = launch.torchrun or {}
    told = {*flags} & {"rdzv_endpoint", "master_addr"} or "PET_" in " ".join(container.names)
    if manifest.kind in _WITHOUT_OPERATOR and whole(flags.get("nnodes", _NONE).value) and not told:
        yield found(
            "torchrun",
            flags["nnodes"].path,
            f"--nnodes {flags['nnodes'].value} and no place to meet: nothing sets PET_* in a "
            f"{manifest.kind}, so each pod waits for the others at its own 127.0.0.1",
            fix="add --rdzv_backend=c10d, --rdzv_id and --rdzv_endpoint with the name of the first "
            "pod, or use a PyTorchJob or TrainJob",
            severity="error",
        )


def _given(launch: Launch, part: str) -> tuple[int, Flag] | None:
    for name in _NAMES[part]:
        flag = launch.flags.get(name)
        if flag is not None and (number := whole(flag.value)) is not None:
            return number, flag
    return None


def _published(launch: Launch) -> tuple[str, LanguageModel] | None:
    """Find the catalogue's model with these layers, this width and these heads."""
    given = [_given(launch, part) for part in ("layers", "hidden_size", "heads")]
    if any(each is None for each in given):
        return None
    shape = tuple(each[0] for each in given if each is not None)
    kinds = _kinds(launch)
    found_models = [
        (recipe.name, model)
        for recipe in CATALOGUE.values()
        if isinstance(model := recipe.model, LanguageModel)
        and (model.layers, model.hidden_size, model.heads) == shape
        and (not kinds or _kind(recipe.name) in kinds)
    ]
    # Several models share a shape (7B of Llama 2 and Mistral); one is needed to compare with.
    rests = {(model.kv_heads, model.ffn_size) for _, model in found_models}
    return found_models[0] if len(rests) == 1 else None


def _kind(recipe: str) -> str:
    for sign, kind in (("llama2", "llama_v2"), ("llama3", "llama_v3"), ("mixtral", "mixtral")):
        if recipe.startswith(sign):
            return kind
    return "mistral"


def _kinds(launch: Launch) -> set[str]:
    """Say which families of models the command says it builds; empty where it does not."""
    flag = launch.flags.get("model_type")
    return {flag.value.lower()} if flag is not None and flag.value else set()


def _shape(launch: Launch) -> Iterator[Found]:
    published = _published(launch)
    if published is None:
        return
    name, model = published
    for part in ("kv_heads", "ffn_size"):
        given = _given(launch, part)
        expected = getattr(model, part)
        if given is not None and given[0] != expected:
            flag = given[1]
            word = next(each for each in _NAMES[part] if launch.flags.get(each) is flag)
            yield found(
                "model-shape",
                flag.path,
                f"--{word} {given[0]}; the published {name} has {expected}: its weights do not "
                "fit, and its figures do not hold",
                fix=f"write --{word}={expected}",
            )
    context = _given(launch, "context_length")
    if context is not None and context[0] == model.vocab_size != model.context_length:
        yield found(
            "model-shape",
            context[1].path,
            f"a context of {context[0]} is {name}'s vocabulary, not its context",
            fix=f"write the length of a sequence, e.g. {min(8192, model.context_length)}",
        )


def _renamed(launch: Launch) -> Iterator[Found]:
    if not launch.program.endswith("train.py") or "hidden_width" not in launch.flags:
        return
    for old, new in _RENAMED.items():
        flag = launch.flags.get(old)
        if flag is not None:
            yield found(
                "trainer-flag",
                flag.path,
                f"train.py has no --{old}, and takes it without a word",
                fix=f"write --{new}" if new else "remove it",
            )


def _tokenizer(launch: Launch) -> Iterator[Found]:
    flag = launch.flags.get("tokenizer")
    if flag is None or is_unresolved(flag.value):
        return
    is_llama_2 = flag.value.lower().startswith(_LLAMA_2_TOKENIZERS)
    if is_llama_2 and "llama_v3" in _kinds(launch):
        yield found(
            "tokenizer",
            flag.path,
            f"{flag.value} is Llama 2's tokenizer (32,000 entries), and the model is a Llama 3 "
            "(128,256)",
            fix="use the tokenizer of the model's own repository, e.g. meta-llama/Llama-3.1-8B",
        )


def _megatron(container: Container, launch: Launch) -> Iterator[Found]:
    flags = launch.flags
    if "num_layers" not in flags and "tensor_model_parallel_size" not in flags:
        return
    tokenizer = flags.get("tokenizer_model")
    says_llama = any("llama-3" in word.lower() or "llama3" in word.lower() for word in launch.words)
    missing = [name for name in _LLAMA_FLAGS if name not in flags]
    if says_llama and missing:
        path = tokenizer.path if tokenizer is not None else launch.path
        yield found(
            "megatron",
            path,
            "without "
            + ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            + " Megatron builds a GPT-2, which Llama's weights do not fit",
            fix="add them, with --normalization RMSNorm, --position-embedding-type rope and "
            "--ffn-hidden-size",
        )
    if "use_distributed_optimizer" not in flags and container.count(GPU) > 1:
        yield found(
            "megatron",
            launch.path,
            "without --use-distributed-optimizer every rank keeps the whole optimizer of its "
            "model part: about 12 bytes more for each parameter",
            fix="add --use-distributed-optimizer",
        )
    load, save = flags.get("load"), flags.get("save")
    if load is None or save is None or load.value != save.value:
        return
    # Where tokens are made up, nobody expects the model to know anything.
    begins_anew = "pretrained_checkpoint" not in flags and "mock_data" not in flags
    if begins_anew and says_llama:
        yield found(
            "megatron",
            load.path,
            f"--load and --save are both {load.value}: the first start begins with random weights",
            fix="convert the published weights, and name them with --pretrained-checkpoint",
            severity="info",
        )
