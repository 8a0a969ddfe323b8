"""Sequences of several documents: where each begins, so that attention can stay inside of it.

Used with document_mask=true. A document ends with the tokenizer's end token, so that no file has to
mark it; what follows begins a new one.

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from training.task import IGNORED_LABEL, Batch


def apart(batch: Batch, *, end_id: int | None) -> Batch:
    """Add every token's place in its document to the batch; nothing without `end_id`.

    The first token of a document cannot be predicted from the one before, so it is no target.
    """
    if end_id is None:
        return batch
    is_end_BT = batch.inputs == end_id
    is_first_BT = torch.ones_like(is_end_BT)
    is_first_BT[:, 1:] = is_end_BT[:, :-1]
    index_T = torch.arange(batch.inputs.shape[1])
    began_BT = torch.where(is_first_BT, index_T, 0).cummax(dim=1).values
    return replace(
        batch,
        targets=batch.targets.masked_fill(is_end_BT, IGNORED_LABEL),
        positions=index_T - began_BT,
    )
