"""A snapshot before it is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.format.layout import row_bytes

TensorForm = tuple[str, tuple[int, ...]]  # type and shape


class Snapshot(Protocol):
    """What a snapshot will hold, as far as it has to be known before training goes on."""

    @property
    def copies(self) -> tuple[TableCopy, ...]:
        """Which rows of which tables."""
        ...

    def live(self) -> dict[int, Any]:
        """Tensors of the state, by their numbers in it, that training may change as soon as it goes on."""
        ...

    def complete(self) -> Captured:
        """All of it. Once, and at any time: what is put together here does not change any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unfinished:
    """See ``Snapshot``: one whose state is not put together yet."""

    copies: tuple[TableCopy, ...]
    tensors: tuple[Any, ...]  # of the state tree, behind its skeleton: those that training may change
    finish: Callable[[], Captured]

    def live(self) -> dict[int, Any]:
        """All but the skeleton, and what is not known yet."""
        return dict(enumerate(self.tensors, start=1))

    def complete(self) -> Captured:
        """With everything else that the state holds."""
        return self.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a snapshot will hold: live tensors or arrays, and which of their rows to copy."""

    copies: tuple[TableCopy, ...]
    slices: tuple[TableSlice, ...]
    tensors: tuple[Any, ...]  # of the state tree; the first is its skeleton
    tensor_specs: tuple[TensorForm, ...]

    def live(self) -> dict[int, Any]:
        """All tensors: nobody knows which of them others can change."""
        return dict(enumerate(self.tensors))

    def complete(self) -> Captured:
        """It is."""
        return self

    @property
    def full_bytes(self) -> int:
        """Its size with every row."""
        state: int = sum(tensor.nbytes for tensor in self.tensors)
        return state + sum(row_bytes(copy.columns) * (copy.stop - copy.start) for copy in self.copies)

    def copy_into(self, filler: FrameFiller, *, state_apart: bool = False) -> None:
        """Copy it: the part that the training loop waits for.

        ``state_apart`` keeps state and rows in separate frames, and so in separate bundles: a grid moves the rows away.
        """
        try:
            for index, tensor in enumerate(self.tensors):
                filler.add_state(index, tensor)
            if state_apart:
                filler.end_frame()
            _add_tables(filler, self.copies)
        finally:
            filler.wait()


def copy_tables_into(filler: FrameFiller, copies: Iterable[TableCopy]) -> None:
    """Copy some tables, and no state."""
    try:
        _add_tables(filler, copies)
    finally:
        filler.wait()


def _add_tables(filler: FrameFiller, copies: Iterable[TableCopy]) -> None:
    for copy in copies:
        filler.add_table(copy.listed())
    filler.flush()
