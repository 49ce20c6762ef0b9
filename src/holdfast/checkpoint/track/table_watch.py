"""A watched table: its marks, and every way in which its rows can change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.checkpoint.track.fingerprint import Fingerprint, version_of
from holdfast.checkpoint.track.tensor_sets import tensor_marks
from holdfast.checkpoint.track.witness import Witness
from holdfast.checkpoint.training.keyed_rows import KeyedRows
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError, ModelMismatch
from holdfast.types import TableSpec


def _is_same(now: Tensor | None, seen: Tensor | None) -> bool:
    """Whether it is the gradient that was seen, or another view of it, as parameters that are views give."""
    if now is seen or now is None or seen is None:
        return now is seen
    return now._base is not None and now._base is seen._base and now.data_ptr() == seen.data_ptr()


Versions = tuple[int | None, int | None]
OnMove = Callable[[Tensor | None], None]  # rows by their numbers in the table's tensors, some maybe twice; None: any


def _checked_rows(changed: Tensor, table: Table) -> Tensor:
    if changed.dtype is not torch.int64 or not 0 <= int(changed.min()) <= int(changed.max()) < table.rows:
        raise ConfigurationError(
            f"take_changed() of keyed table {table.name!r} returned {changed.dtype} numbers from {changed.min()} to "
            f"{changed.max()}; return int64 numbers of its rows, 0 to {table.rows - 1}"
        )
    return changed


class TableWatch:
    """What a table went through since the last snapshot, the last commit and the baseline."""

    __slots__ = (
        "_device",
        "_dtype",
        "_fingerprint",
        "_pending_spec",
        "_seen",
        "_shape",
        "_surprised",
        "marks",
        "never_tracked",
        "observer",
        "on_move",
        "state_is_seen",
        "stored",
        "table",
        "unannounced",
        "witness",
    )

    def __init__(self, table: Table) -> None:
        self.table = table
        self._shape = table.parameter.shape
        self._dtype = table.parameter.dtype
        self._device = table.parameter.device
        self.marks = tensor_marks(table.rows, self._device)
        self.stored: TableSpec | None = None  # its columns in the last committed or restored checkpoint
        self.never_tracked = False  # changes where no hook runs: to be saved whole, always
        self.observer: Callable[[Tensor], None] | None = None  # is shown every gradient that the optimizer uses
        self.witness: Witness | None = None  # of a step that must leave some rows alone
        self.on_move: OnMove | None = None  # is told of rows before an optimizer moves them
        self.unannounced = False  # something moves rows that nobody is told of before
        self._surprised = False  # since the last snapshot began, something did
        self._pending_spec: TableSpec | None = None
        self.state_is_seen = False  # whether rows that move without a gradient were looked for since
        self._fingerprint = Fingerprint(table)
        self._seen: tuple[Tensor, Versions, int] | None = None  # a gradient, its version, the changes it will make

    def check_same(self) -> None:
        """Raise ModelMismatch if the parameter is not the one that the table was found with, or has another shape."""
        table = self.table
        for module in table.modules:
            if not table.is_in(module):
                raise self._mismatch(
                    "its module now holds a different Parameter (assigned, or loaded with assign=True)"
                )
        if table.is_replaced():
            raise self._mismatch("its rows are now held elsewhere (the model was sharded again)")
        if (shape := table.parameter.shape) != self._shape:
            raise self._mismatch(f"its shape changed from {tuple(self._shape)} to {tuple(shape)}")

    def check_same_memory(self) -> None:
        """Raise ModelMismatch if the parameter was moved or cast; until then its changed address makes it whole."""
        parameter = self.table.parameter
        if parameter.dtype is not self._dtype or parameter.device != self._device:
            now = f"{parameter.dtype} on {parameter.device}"
            raise self._mismatch(f"it was {self._dtype} on {self._device} and is {now}")

    def look(self) -> None:
        """Add the rows that the table changed itself, where keys find them."""
        if not isinstance(self.table, KeyedRows):
            return
        changed = self.table.keyed.take_changed()
        if changed is None:
            self.marks.live.add_all()
        elif len(changed):
            self.marks.live.add(_checked_rows(changed, self.table))

    def gradient(self) -> Tensor | None:
        """What this rank holds of the gradient now."""
        found = self.table.optimized.grad
        return None if found is None else self.table.local(found)

    def _versions_of(self, gradient: Tensor) -> Versions:
        """How often a gradient was changed; where this rank holds a part of it, also as a whole."""
        whole = self.table.optimized.grad
        return version_of(gradient), None if whole is None or whole is gradient else version_of(whole)

    def notice_edits(self) -> bool:
        """Add every row if something that was not accounted for changed the weight; whether that is news."""
        if self.marks.live.whole or self._fingerprint.weight_is_unchanged():
            return False
        self.marks.live.add_all()
        return True

    def account(self) -> None:
        """Take everything up to now as known."""
        self._fingerprint.take()
        self.state_is_seen = False

    def see_gradient(self, gradient: Tensor, *, changes: int) -> None:
        """The optimizer is about to use this gradient, with so many in-place changes of each tensor: add its rows."""
        live = self.marks.live
        if self.on_move is not None:
            self.on_move(gradient._indices()[0] if gradient.is_sparse else None)
        if live.whole:
            return
        if gradient.is_sparse:
            ids = gradient._indices()
            live.add(ids if ids.shape[0] == 1 else ids[0])
        else:
            live.add_nonzero_rows(gradient)
        self._seen = (gradient, self._versions_of(gradient), changes)

    def see_any(self) -> None:
        """An optimizer is about to move rows, and nobody knows which: add all of them."""
        if self.on_move is not None and not self.never_tracked:  # else a graph captures whatever is queued now
            self.on_move(None)
        self.marks.live.add_all()

    def see_rows(self, ids: Tensor) -> None:
        """Something else than an optimizer is about to change these rows."""
        if self.on_move is not None:
            self.on_move(ids)
        self.marks.live.add(ids)

    def surprise(self) -> None:
        """Rows were changed in a way that torch does not count, and that was not told of before."""
        self._surprised = True

    @property
    def is_overtaken(self) -> bool:
        """Whether something may have changed rows since the last snapshot began that was not told of before it did."""
        return self._surprised or self.never_tracked or self.marks.live.whole or not self._fingerprint.is_unchanged()

    def see_state(self, moving: Tensor | None) -> None:
        """The optimizer is about to use a dense gradient: add rows that it moves all the same, those with a bit set.

        Rows that come to that later do so by a gradient, which adds them; so once after each snapshot is enough.
        """
        if not self.marks.live.whole:
            self.state_is_seen = True
            if moving is not None:
                self.marks.live.add_nonzero_rows(moving)

    def call_witness(self, gradient: Tensor, number: int) -> None:
        """The step that uses this gradient was declared row-local: remember some rows that it must leave alone."""
        self.witness = Witness(self.table, gradient, number)

    def breaks_its_word(self) -> bool:
        """Whether the step moved one of them; if so, the table is saved whole from now on."""
        witness, self.witness = self.witness, None
        if witness is None or not witness.is_broken():
            return False
        self.never_tracked = True
        self.marks.live.add_all()
        return True

    def stepped(self) -> bool:
        """The optimizer's step is over; whether all it did to the table was to use the gradient that was seen."""
        seen, self._seen = self._seen, None
        live = self.marks.live
        if live.whole:
            return True
        gradient, version, changes = seen or (None, None, 0)
        same = _is_same(self.gradient(), gradient) and (gradient is None or self._versions_of(gradient) == version)
        if same and self._fingerprint.advance(changes * self.table.counted_with):
            return True
        live.add_all()
        return False

    def before_lookup(self) -> None:
        """A module with ``max_norm`` is about to be called."""
        self.notice_edits()

    def after_lookup(self, ids: Tensor) -> None:
        """A module with ``max_norm`` was called: it rewrote the rows that it looked up, in eval mode too."""
        live = self.marks.live
        self.surprise()
        live.add(ids)
        if not live.whole and not self._fingerprint.advance(1):
            live.add_all()

    def has_news(self) -> bool:
        """Whether a row may have changed since the last snapshot or restore, in whatever way."""
        live = self.marks.live
        return not live.is_empty or not self._fingerprint.is_unchanged()

    def begin(self, spec: TableSpec) -> bool:
        """A snapshot with these columns is taken now; whether it shows an edit that was not noticed before."""
        live, fingerprint = self.marks.live, self._fingerprint
        slots = self.table.slots()
        # In the order of what they take; the last one accounts for all changes up to now.
        known = fingerprint.has_same_slots(slots) and fingerprint.has_same_memory() and fingerprint.advance(0)
        edited = not (known or live.whole)
        has_new_columns = spec is not self.stored and spec != self.stored  # slots appear with the first step
        if edited or has_new_columns or self.never_tracked:
            live.add_all()
        self._pending_spec = spec
        self._surprised = False
        self.marks.begin()
        if not (known and fingerprint.knows(slots)):
            fingerprint.take()
        self.state_is_seen = False
        return edited

    def committed(self, *, full: bool) -> None:
        """The snapshot's commit is confirmed."""
        self.stored = self._pending_spec
        self.marks.committed(full=full)

    def restored(self, stored: TableSpec | None) -> None:
        """The table is now that of a checkpoint which stored these columns (None: it was not in it)."""
        self.stored = stored
        if isinstance(self.table, KeyedRows):
            self.table.keyed.take_changed()  # what the restore itself did
        self.marks.live.clear()
        self.marks.pending.clear()
        self.account()

    def _mismatch(self, what: str) -> ModelMismatch:
        return ModelMismatch(
            f"table {self.table.name!r} was replaced after training started: {what}. Change the model before creating "
            "the Checkpointer, or create a new Checkpointer"
        )
