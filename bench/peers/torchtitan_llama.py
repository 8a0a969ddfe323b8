"""Llama 3.2 1B for torchtitan 0.3: the same model, batch and data as our own run beside it.

    PYTHONPATH=bench/peers torchrun --nproc-per-node 1 -m torchtitan.train \
        --module torchtitan_llama --config llama32_1b --hf_assets_path DATA_DIR \
        --dataloader.dataset_path DATA_DIR/tokens-00000.bin --training.local_batch_size 4

Imported by torchtitan in its own environment, never by ours. What makes torchtitan fast is left as
its recipes have it (fused QKV, FlexAttention, CUDA graphs, chunked loss, fused AdamW), and
torch.compile is on; activation checkpointing is off, as in our run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, TrainingConfig
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


class PackedTokens(BaseDataLoader):
    """Sequences of one file of packed token ids, in order, from the start again at its end.

    Positions run through a whole sequence: attention is causal over all of it, as in our run, and
    not cut at the ends of documents.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        dtype: str = "uint32"

    def __init__(
        self, config: Config, *, seq_len: int, local_batch_size: int, **_unused: Any
    ) -> None:
        assert config.dataset_path is not None
        self._tokens = np.memmap(config.dataset_path, dtype=config.dtype, mode="r")
        self._length = seq_len
        self._rows = local_batch_size

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        num_sequences = (len(self._tokens) - 1) // self._length
        positions = torch.arange(self._length).expand(self._rows, -1).contiguous()
        read = 0
        while True:
            starts = [(read + row) % num_sequences * self._length for row in range(self._rows)]
            rows = np.stack([self._tokens[start : start + self._length + 1] for start in starts])
            ids = torch.from_numpy(rows.astype(np.int64))
            yield (
                {"input": ids[:, :-1].contiguous(), "positions": positions},
                ids[:, 1:].contiguous(),
            )
            read += self._rows

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: this run is never resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `state_dict`."""


def llama32_1b() -> Trainer.Config:
    """Return what `--config llama32_1b` names."""
    model_spec = model_registry("1B")
    return Trainer.Config(
        model_spec=model_spec,
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))
        ),
        optimizer=default_adamw(lr=1e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=50),
        dataloader=PackedTokens.Config(),
        metrics=MetricsProcessor.Config(log_freq=5, disable_color_printing=True),
        activation_checkpoint=None,
        compile=CompileConfig(enable=True),
    )
