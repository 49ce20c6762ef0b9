"""What a save of one writer agrees on, where a test needs one and does not care which."""

from __future__ import annotations

from holdfast.format.catalog import Intent, checkpoint_id
from holdfast.types import Kind


def some_intent(
    step: int = 1, *, kind: Kind = Kind.FULL, base: str | None = None, world: int = 1, token: str = "00000001"
) -> Intent:
    """Of a step's first save, in term 1."""
    return Intent(
        checkpoint=checkpoint_id(step, 1, token),
        step=step,
        term=1,
        kind=kind,
        parent=base,
        base=base,
        world=world,
        created_s=0.0,
        overlap="wait",
    )
