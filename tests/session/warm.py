"""What a process imports from which trainers and ranks are forked. Torch's first optimizer imports more than torch."""

from __future__ import annotations

from holdfast.checkpoint.shards import warm_up
from tests.session import rank, trainer
from tests.tiny import build

__all__ = ["rank", "trainer"]

build()
warm_up()
