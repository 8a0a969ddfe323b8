"""A copy of the state in host memory, taken while training continues.

A step reads weights and optimizer state in forward and backward, and changes them only in
`optimizer.step()`: until then they can be copied beside the computation, by the thread that will
write them.

- From a GPU, a stream of its own copies into pinned memory. The optimizer's kernels wait for it on
  the device; the host does not.
- In host memory, the training thread waits for the end of the copy before the optimizer's step.

What a forward pass itself changes (the running statistics of batch normalisation) is copied before
`Stager.start` returns.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

_State = dict[str, Any]


class Staging:
    """A copy in progress; `finish` is for the writing thread, the rest for the training one."""

    def __init__(self, stager: Stager, state: _State, ready: torch.cuda.Event | None) -> None:
        self._stager = stager
        self._state = state
        self._ready = ready
        self._end = torch.cuda.Event(enable_timing=True) if ready else None
        self._arrived: torch.cuda.Event | None = None
        self._issued = threading.Event()
        self._held = False

    def finish(self) -> _State:
        """Copy, and return the copied state."""
        try:
            copied = self._stager.copy(self._state, after=self._ready, end=self._end)
        finally:
            # Also after an error, which the writer reports: nobody may wait for ever.
            self._issued.set()
        if self._end is not None:
            self._end.synchronize()
        # Until here it kept the memory that the device reads from being given to others.
        self._state = {}
        return copied

    def hold(self) -> float:
        """Return when the state may be changed; in seconds, how long the host waited.

        On a GPU the current stream waits for the rest, see `device_wait_s`.
        """
        if self._held:
            return 0.0
        self._held = True
        began = time.monotonic()
        self._issued.wait()
        waited = time.monotonic() - began
        if self._end is not None:
            stream = torch.cuda.current_stream()
            self._arrived = stream.record_event(torch.cuda.Event(enable_timing=True))
            stream.wait_event(self._end)
        return waited

    def device_wait_s(self) -> float:
        """Return how long the device stood still in `hold`; to be asked after `finish`."""
        if self._end is None or self._arrived is None or not self._arrived.query():
            return 0.0  # `hold` was not even reached when the copy had ended
        return max(0.0, self._arrived.elapsed_time(self._end) / 1000)


class Stager:
    """Copies states of the same shapes again and again, into memory that it keeps.

    New memory costs four times the copy (page faults), and more where it is pinned. The copy of the
    previous call is overwritten: never start before that one is written.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers: dict[tuple[Hashable, ...], torch.Tensor] = {}

    @torch.no_grad()
    def start(self, state: _State, *, changing: Iterable[torch.Tensor]) -> Staging:
        """Note what is to be copied; the writing thread's `finish` copies.

        Args:
            state: nested dicts whose leaves are tensors, DTensors or plain values.
            changing: tensors that training may change before its next `hold`; what shares memory
                with them is copied now, as plain values are.
        """
        unsteady = {_address(tensor) for tensor in changing}
        taken = _take(state, unsteady)
        # Marks all that was asked of the device so far: the optimizer's last step above all.
        ready = torch.cuda.current_stream().record_event() if self._stream else None
        return Staging(self, taken, ready)

    @torch.no_grad()
    def copy(
        self, state: _State, *, after: torch.cuda.Event | None, end: torch.cuda.Event | None
    ) -> _State:
        """Copy a state for `Staging`; on a GPU `after` an event, and `end` is recorded then."""
        if self._stream is None or after is None or end is None:
            return self._copied((), state)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            copied: _State = self._copied((), state)
            self._stream.record_event(end)
        return copied

    def _copied(self, path: tuple[Hashable, ...], value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._copied((*path, key), part) for key, part in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        local = value.to_local() if isinstance(value, DTensor) else value
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.shape, buffer.dtype) != (local.shape, local.dtype):
            pinned = self._stream is not None
            buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=pinned)
            self._buffers[path] = buffer
        buffer.copy_(local, non_blocking=True)
        if isinstance(value, DTensor):
            # Not `from_local`, which would move the copy to the mesh's device.
            return DTensor(buffer, value._spec, requires_grad=False)
        return buffer


def _take(value: Any, unsteady: set[int]) -> Any:
    if isinstance(value, dict):
        return {key: _take(part, unsteady) for key, part in value.items()}
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    return value.detach().clone() if _address(value) in unsteady else value.detach()


def _address(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()
