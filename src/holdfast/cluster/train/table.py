"""Table: a table that lives on servers, as a worker sees it: the rows of its batch, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from holdfast.cluster.plan import TableSpec
from holdfast.cluster.train.row_set import Expected, Held, RowSet
from holdfast.errors import ConfigurationError


class Lookup(NamedTuple):
    """A call of a table's module in terms of the rows held: positions instead of ids."""

    rows: Tensor
    positions: Tensor
    padding: int | None  # the position of the padding row


class Gradient(NamedTuple):
    """Of some rows, ascending."""

    ids: Tensor
    values: Tensor


class RowSource(Protocol):
    """Whoever can bring rows that nobody expected."""

    def fetch(self, table: Table, ids: Tensor) -> Tensor:
        """The values of rows, each once and ascending; waits for them."""

    def surprised(self, table: Table, ids: Tensor) -> None:
        """A table was called with ids that were not expected, which it then searches for."""


class Table:
    """The rows that a worker holds of one table.

    ``parameter`` is the same object all the time and shows the rows of the batch and their gradients; after several
    micro-batches, those of all of them. Graphs of autograd do not hold it, as its shape changes with every batch: they
    hold a leaf of their own for each set of rows, whose gradient is handed on to it.
    """

    def __init__(self, spec: TableSpec, *, device: torch.device, requires_grad: bool, padding_idx: int | None) -> None:
        self.spec = spec
        self.parameter = nn.Parameter(torch.empty(0, spec.width, device=device), requires_grad=requires_grad)
        self.source: RowSource | None = None
        self.wants_gathered = False  # its module takes the row of each id, and nothing else
        self._padding_idx = padding_idx  # whose row gets no gradient
        self._held: Held | None = None
        self._graded: RowSet | None = None  # the rows of parameter.grad
        self._reference = ref(self)

    @property
    def name(self) -> str:
        """Of its weight in the model."""
        return self.spec.name

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass reached it since the last step."""
        return self.parameter.grad is not None

    # ---- rows ------------------------------------------------------------------------------------------------------

    def hold(self, held: Held, *, within_step: bool) -> None:
        """Look up in these rows from now on.

        Args:
            held: Of a batch.
            within_step: The last rows stay too, with their values: a step is not over.
        """
        if within_step and self._held is not None:
            held = self._held.extended(held.rows.ids, held.values, held.expected)
        self.exchange(held)
        if not self.has_gradient:
            self.parameter.data = held.values

    def exchange(self, held: Held | None) -> Held | None:
        """Look up in other rows for a while; those so far."""
        self._held, before = held, self._held
        return before

    def look_up(self, ids: Tensor, padding_idx: int | None) -> Lookup:
        """Positions for ids, and what they are positions in."""
        self._require_batch()
        positions = self._positions(ids)
        return Lookup(self._leaf(), positions, None if padding_idx is None else self._position(padding_idx))

    def gathered(self, ids: Tensor) -> Tensor | None:
        """The row of each id, ``[ids, width]``, where they were gathered; from the next batch on they are."""
        self.wants_gathered = True
        is_trained = self._is_trained
        for expected in self._require_batch().expected:
            if expected.matches(ids):
                rows = expected.gathered(trained=is_trained)
                if rows is not None and is_trained:
                    self._mark(expected)
                return rows
        return None

    def require_inside(self, ids: Tensor) -> None:
        """Refuse ids that are not rows of the table."""
        if ids.dtype not in (torch.int64, torch.int32):
            raise ConfigurationError(f"the ids of table {self.name} must be int64 or int32, got {ids.dtype}")
        if not ids.numel():
            return
        least, most = torch.aminmax(ids)
        if least < 0 or most >= self.spec.rows:
            raise outside(self.spec, int(least if least < 0 else most))

    @property
    def _is_trained(self) -> bool:
        return self.parameter.requires_grad and torch.is_grad_enabled()

    def _require_batch(self) -> Held:
        if self._held is None:
            raise ConfigurationError(
                f"the table {self.name} was used outside a batch: call the model in a loop over batches(loader), or "
                "within evaluating()"
            )
        return self._held

    def _positions(self, ids: Tensor) -> Tensor:
        for expected in self._require_batch().expected:
            if expected.matches(ids):
                if self._is_trained:
                    self._mark(expected)
                return expected.positions.view(ids.shape)
        positions = self._search(ids)
        if self._is_trained:
            self._require_batch().rows.mark(positions)
        return positions

    def _mark(self, expected: Expected) -> None:
        rows = self._require_batch().rows
        if expected.is_only:
            rows.mark_all()
        else:
            rows.mark(expected.positions)

    def _search(self, ids: Tensor) -> Tensor:
        assert self.source is not None
        self.require_inside(ids)
        self.source.surprised(self, ids)
        flat = ids.reshape(-1).to(torch.int64).contiguous()
        held = self._require_batch()
        found = held.rows.find(flat)
        if not found.is_there.all():
            missing = torch.unique(flat[~found.is_there])
            self._held = held.extended(missing, self.source.fetch(self, missing), [])
            found = self._held.rows.find(flat)
        return found.positions.view(ids.shape)

    def _position(self, row: int) -> int | None:
        rows = self._require_batch().rows
        found = rows.find(torch.tensor([row], device=rows.ids.device))
        return int(found.positions[0]) if bool(found.is_there[0]) else None

    def _leaf(self) -> Tensor:
        """The rows held, as a graph takes them."""
        held = self._require_batch()
        if not self._is_trained:
            return held.values
        if held.leaf is None:
            held.leaf = held.values.detach().requires_grad_()
            held.leaf.register_post_accumulate_grad_hook(partial(_take_from, self.receiver(held)))
        return held.leaf

    # ---- gradients -------------------------------------------------------------------------------------------------

    def gradient(self) -> Gradient | None:
        """Of the rows that were used since the last step."""
        values, rows = self.parameter.grad, self._graded
        if values is None or rows is None:
            return None
        if rows.is_all_used and self._padding_idx is None:
            return Gradient(rows.ids, values)
        kept = rows.used()
        if self._padding_idx is not None:
            kept = kept & (rows.ids != self._padding_idx)
        return Gradient(rows.ids[kept], values[kept])

    def receiver(self, held: Held) -> Callable[[Tensor], None]:
        """Takes gradients of these rows, and is called when a backward pass reached them.

        It does not refer to the table or what that holds: no collector finds a circle through a hook of torch's.
        """
        return partial(_receive, self._reference, held.rows, held.values)

    def receive(self, rows: RowSet, values: Tensor, gradient: Tensor) -> None:
        """A backward pass reached a set of rows."""
        shown = self.parameter.grad
        if shown is None or self._graded is None:
            self._show(rows, values, gradient)
        elif self._graded is rows:
            self.parameter.grad = shown + gradient
        else:
            self._join(self._graded, shown, rows, values, gradient)

    def _show(self, rows: RowSet, values: Tensor, gradient: Tensor) -> None:
        shown = self.parameter
        if (
            shown.data_ptr() != values.data_ptr() or shown.shape != values.shape
        ):  # else it shows them since the batch came
            shown.grad = None
            shown.data = values
        shown.grad = gradient
        self._graded = rows

    @torch.no_grad()
    def _join(self, before: RowSet, shown: Tensor, rows: RowSet, values: Tensor, gradient: Tensor) -> None:
        union = before.union(rows.ids)
        joined = RowSet(union.ids)
        joined.mark(union.first[before.used()])
        joined.mark(union.second[rows.used()])
        all_values = values.new_empty(len(union.ids), values.shape[1])
        all_values[union.second] = values
        all_values[union.first] = self.parameter.detach()
        total = torch.zeros_like(all_values)
        total[union.first] = shown
        total[union.second] += gradient
        self._show(joined, all_values, total)


def _receive(table: ref[Table], rows: RowSet, values: Tensor, gradient: Tensor) -> None:
    if (found := table()) is not None:
        found.receive(rows, values, gradient)


def _take_from(receive: Callable[[Tensor], None], leaf: Tensor) -> None:
    gradient, leaf.grad = leaf.grad, None
    assert gradient is not None
    receive(gradient)


def outside(table: TableSpec, row: int) -> ConfigurationError:
    """An id that is no row of its table."""
    return ConfigurationError(
        f"id {row} is outside table {table.name}, which has {table.rows} rows: check the data, or make the table larger"
    )
