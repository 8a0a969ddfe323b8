"""The command line of `container/nemo2/pretrain.py`, which trains with NeMo 2: keys by name."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.framework_training import MOCK, RANDOM, NemoTraining

# Where the image has it.
PROGRAM: Final = "/usr/local/lib/stationmaster/pretrain.py"
_OTHERWISE: Final = {
    *("schedule", "rendezvous", "activation_checkpointing", "sequence_parallel"),
    *("distributed_optimizer", "dataset", "tokenizer", "weights"),
}


def render_program(training: NemoTraining, output_dir: str) -> tuple[str, ...]:
    """Return the words that each pod runs; it resumes from what it finds in `output_dir`."""
    values = training.model_dump(exclude=_OTHERWISE) | {"output_dir": output_dir}
    if training.dataset != MOCK:
        values |= {"dataset": training.dataset, "tokenizer": training.tokenizer}
    if training.weights != RANDOM:
        values["weights"] = training.weights
    switches = {
        "sequence_parallel": training.splits_sequences,
        "distributed_optimizer": training.distributed_optimizer,
        "recompute": training.activation_checkpointing == "full",
    }
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return "torchrun", PROGRAM, *words, *(f"--{name}" for name, is_on in switches.items() if is_on)
