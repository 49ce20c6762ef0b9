"""Runs of Holdfast under the interface of ``torch.distributed.checkpoint`` (DCP): ``hf.dcp``.

``Writer`` is a ``StorageWriter``, ``Reader`` a ``StorageReader``. DCP plans and coordinates as ever, so its collectives
apply: a rank that dies leaves the others waiting in them until the process group's timeout.
"""

from __future__ import annotations

from holdfast.integrations.dcp.reader import Reader
from holdfast.integrations.dcp.writer import Writer

__all__ = ["Reader", "Writer"]
