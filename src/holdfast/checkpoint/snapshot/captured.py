"""A snapshot before it is copied."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.format.layout import row_bytes

TensorForm = tuple[str, tuple[int, ...]]  # type and shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a snapshot will hold: live tensors or arrays, and which of their rows to copy."""

    copies: tuple[TableCopy, ...]
    slices: tuple[TableSlice, ...]
    tensors: tuple[Any, ...]  # of the state tree; the first is its skeleton
    tensor_specs: tuple[TensorForm, ...]

    @property
    def full_bytes(self) -> int:
        """Its size with every row."""
        state: int = sum(tensor.nbytes for tensor in self.tensors)
        return state + sum(row_bytes(copy.columns) * (copy.stop - copy.start) for copy in self.copies)

    def copy_into(self, filler: FrameFiller, *, state_apart: bool = False, without_state: Container[int] = ()) -> None:
        """Copy it: the part that the training loop waits for.

        ``state_apart`` keeps state and rows in separate frames, and so in separate bundles: a grid moves the rows away.
        ``without_state`` are state tensors that get there in another way.
        """
        try:
            for index, tensor in enumerate(self.tensors):
                if index not in without_state:
                    filler.add_state(index, tensor)
            if state_apart:
                filler.end_frame()
            for copy in self.copies:
                filler.add_table(copy.listed())
            filler.flush()
        finally:
            filler.wait()
