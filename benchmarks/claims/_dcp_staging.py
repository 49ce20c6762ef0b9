"""DCP's staging of a state dict: copied to pinned memory that it keeps, by a thread, on a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager


class DcpStaging:
    """What torch's ``DefaultStager`` does when it is asynchronous, with pinned memory and copies that do not block.

    That class itself closes its copier after every use in torch 2.11, and so can be used only once.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._copier = StateDictStager(pin_memory=on_gpu, share_memory=False)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._thread = ThreadPoolExecutor(max_workers=1)

    def stage(self, state: Mapping[str, Any]) -> Future[Any]:
        """Copy the tensors as they are after all that is queued now; the future is done when the copies are."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return self._thread.submit(self._stage, state)

    def close(self) -> None:
        """End the thread, and give the memory back."""
        self._thread.shutdown(wait=True)
        self._copier.close()

    def _stage(self, state: Mapping[str, Any]) -> Any:
        if self._stream is None:
            return self._copier.stage(state)
        with torch.cuda.stream(self._stream):
            copied = self._copier.stage(state, non_blocking=True)
        self._stream.synchronize()
        return copied
