"""Decides which rows changed, without ever missing one (Check-N-Run, section 4.1.2).

A missed row is silent corruption, an extra one a few bytes. So the truth is the gradient that ``optimizer.step`` uses:
it holds other ranks' rows, functional lookups and accumulated batches, which hooks on the forward pass would miss. It
is read where the step begins, or after each call of a closure; whatever changes a table in another way shows in the
version counters of its tensors, and the table is then saved whole.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.track.attributes import PlainAttributes
from holdfast.checkpoint.track.max_norm import watch_lookups
from holdfast.checkpoint.track.movements import Movements
from holdfast.checkpoint.track.notices import Notices
from holdfast.checkpoint.track.optimizer_hooks import Steps
from holdfast.checkpoint.track.row_sets import Touched
from holdfast.checkpoint.track.table_watch import TableWatch
from holdfast.checkpoint.training.divided import Divided, SeeRows
from holdfast.checkpoint.training.keyed_rows import KeyedRows
from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.errors import ConfigurationError
from holdfast.kernels.bit_sets import tensors as sets
from holdfast.types import Kind, Since, TableSpec

# Hooks of trackers that were dropped without close(): they do nothing any more. A tracker may be dropped while torch
# runs through its hooks, and taking some away then would break off the user's optimizer.step().
_stale: list[RemovableHandle] = []


class Tracker:
    """Follows every change of the tables until ``close``. For the training thread; its hooks wait for no device.

    A save is ``begin``, then ``touched`` for each table, then ``committed`` or ``failed``.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        optimizers: Sequence[Optimizer],
        *,
        row_local: Sequence[Optimizer] = (),
        names: Mapping[int, str] | None = None,
        check: Callable[[Optimizer], None] | None = None,
        divided: Divided | None = None,
    ) -> None:
        """``row_local`` are optimizers declared so, ``names`` those of parameters, by their identities.

        ``check`` is called once with every optimizer that has made its state, and may refuse it. ``divided`` tells of
        rows that are changed without one.
        """
        self._watches = {table.name: TableWatch(table) for table in tables}
        self._keyed = [watch for watch in self._watches.values() if isinstance(watch.table, KeyedRows)]
        self._notices = Notices()
        self._attributes = PlainAttributes(optimizers)
        self._steps = Steps(
            tuple(self._watches.values()),
            optimizers,
            self._notices,
            row_local=row_local,
            names=names or {},
            check=partial(_look_at, check, self._attributes),
        )
        self._full = False
        for device in {table.parameter.device for table in tables}:
            sets.warm_up(device)
        _remove_stale_hooks()
        self._handles = self._steps.install()
        for watch in self._watches.values():
            self._handles += watch_lookups(watch)
        if divided is not None:
            self._handles += divided.watch(_weak(self._see_rows))
            for table in divided.tables:
                self._watches[table.name].unannounced = True
        self.movements = Movements(tuple(self._watches.values()))
        self._dropped = weakref.finalize(self, _stale.extend, self._handles)

    @property
    def optimizer_steps(self) -> int:
        """How often ``step`` of any of the optimizers was called."""
        return self._steps.count

    @property
    def optimizer_rounds(self) -> int:
        """The most steps that one of the optimizers made: that of each batch is one."""
        return max(self._steps.count_of.values(), default=0)

    def observe(self, name: str, observer: Callable[[Tensor], None] | None) -> None:
        """Pass every gradient that moves a table to an observer."""
        self._watch(name).observer = observer

    def stored(self, name: str) -> TableSpec | None:
        """A table's columns in the last committed or restored checkpoint."""
        return self._watch(name).stored

    def check(self) -> None:
        """Raise ModelMismatch if a table is not the one that training started with."""
        self._steps.follow_moved_parameters()
        for watch in self._watches.values():
            watch.check_same()
            watch.check_same_memory()

    def look(self) -> None:
        """Ask keyed tables which rows they changed: before a save is planned, and when it begins."""
        for watch in self._keyed:
            watch.look()

    def has_news(self) -> bool:
        """Whether a row of any table may have changed since the last snapshot or restore."""
        self.look()
        return any(watch.has_news() for watch in self._watches.values())

    def begin(self, kind: Kind) -> None:
        """Take a snapshot now: ``touched`` answers for this moment until its outcome is known.

        Raises ModelMismatch if a table is not the one that training started with. Marks belong to checkpoints: a
        priority save leaves them to the next one.
        """
        self.check()
        if kind is Kind.PRIORITY:
            return
        self.look()
        specs = [watch.table.spec() for watch in self._watches.values()]
        for watch, spec in zip(self._watches.values(), specs, strict=True):
            if watch.begin(spec):
                self._steps.notice_edit(watch)
        self._full = kind is Kind.FULL
        self._notices.publish()
        self._attributes.warn()

    def touched(self, table: Table | str, since: Since) -> Touched[Tensor]:
        """The rows that a snapshot of this table must hold."""
        name = table if isinstance(table, str) else table.name
        watch = self._watches.get(name) or self._watch(name)
        return watch.marks.touched(since, whole=self._full)

    def committed(self, kind: Kind, state: Sequence[PieceDigest] = ()) -> None:
        """The snapshot's commit is confirmed: its rows are forgotten, or counted as changed since the baseline."""
        if kind is Kind.PRIORITY:
            return
        for watch in self._watches.values():
            watch.committed(full=kind is Kind.FULL)
        self._full = False

    def failed(self, kind: Kind) -> None:
        """The snapshot was not committed, or this is unknown: its rows stay marked and go into the next one."""
        if kind is not Kind.PRIORITY:
            self._full = False

    def mark(self, name: str, ids: Tensor | Sequence[int] | None) -> None:
        """Rows (None: all) that were changed in a way that torch does not count, such as through ``.data``."""
        for watch in self._watches_of(name):
            watch.surprise()
            if ids is None:
                watch.marks.live.add_all()
            else:
                watch.marks.live.add(watch.table.local_ids(_checked(ids, watch.table)))

    def mark_all(self) -> None:
        """Every row of every table."""
        for name in self._watches:
            self.mark(name, None)

    def forget_all(self) -> None:
        """Clear all marks: the tables are about to be restored."""
        for watch in self._watches.values():
            watch.marks.forget()
            watch.stored = None
        self._full = False

    def restored(self, specs: Iterable[TableSpec]) -> None:
        """The tables are now those of a checkpoint that stored these columns."""
        stored = {spec.name: spec for spec in specs}
        for name, watch in self._watches.items():
            watch.restored(stored.get(name))
        self._full = False

    def rebuild(self, name: str, ids: Tensor | NDArray[np.int64] | Sequence[int] | None) -> None:
        """Rows (None: all) that the restored checkpoint holds beyond its baseline."""
        watch = self._watch(name)
        if ids is None:
            watch.marks.base.add_all()
        else:
            watch.marks.base.add(watch.table.local_ids(_checked(ids, watch.table)))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """What is written meanwhile is our own restore, not an edit."""
        self._steps.ignored = True
        try:
            yield
        finally:
            self._steps.ignored = False
            for watch in self._watches.values():
                watch.account()

    def close(self) -> None:
        """Remove every hook."""
        if self._dropped.detach() is not None:
            _remove(self._handles)

    def _see_rows(self, name: str, ids: Tensor) -> None:
        """Something else than an optimizer is about to change these rows of a table's tensors."""
        watch = self._watches[name]
        watch.see_rows(ids)
        if watch.observer is not None:
            watch.observer(torch.sparse_coo_tensor(ids[None], ids.new_empty(len(ids)), (watch.table.rows,)))

    def _watch(self, name: str) -> TableWatch:
        (watch,) = self._watches_of(name)
        return watch

    def _watches_of(self, name: str) -> list[TableWatch]:
        """That of a table or a strip, or those of all strips of a table that this rank holds."""
        if (watch := self._watches.get(name)) is not None:
            return [watch]
        known = {each.table.whole_name: each for each in self._watches.values()}
        if name not in known:
            near = ", ".join(get_close_matches(name, known) or list(known)[:5])
            raise ConfigurationError(f"unknown table {name!r}; did you mean one of: {near}?")
        return [each for each in self._watches.values() if each.table.whole_name == name]


def _weak(see: SeeRows) -> SeeRows:
    """The method as a hook that does not keep its object alive."""
    reference = weakref.WeakMethod(see)

    def seen(name: str, ids: Tensor) -> None:
        if (alive := reference()) is not None:
            alive(name, ids)

    return seen


def _look_at(check: Callable[[Optimizer], None] | None, attributes: PlainAttributes, optimizer: Optimizer) -> None:
    """An optimizer has made its state: now it is known what it keeps, and where."""
    if check is not None:
        check(optimizer)
    attributes.warn()


def _checked(ids: Tensor | NDArray[np.int64] | Sequence[int], table: Table) -> Tensor:
    rows = torch.as_tensor(ids, device=table.parameter.device)
    if rows.numel() and (rows.is_floating_point() or rows.is_complex() or rows.dtype is torch.bool):
        raise ConfigurationError(f"rows of table {table.name!r} must be integers, not {rows.dtype}")
    rows = rows.to(torch.int64)
    of_table = table.whole_shape[0]
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < of_table:
        raise ConfigurationError(
            f"table {table.whole_name!r} has rows 0 to {of_table - 1}; a row outside this range was passed"
        )
    return rows


def _remove_stale_hooks() -> None:
    while _stale:
        _stale.pop().remove()


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
