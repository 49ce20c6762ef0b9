"""What a process imports from which trainers are forked. Torch's first optimizer imports more than torch does."""

from __future__ import annotations

from holdfast.checkpoint.shards import warm_up
from tests.session import trainer
from tests.tiny import build

__all__ = ["trainer"]

build()
warm_up()
