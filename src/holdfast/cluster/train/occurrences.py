"""Occurrences: the row of each id of a batch, gathered for all tables of a group at once, and their gradients added up.

Torch's embeddings do both table by table; on a GPU, adding up in a fixed order takes a dozen kernels and a wait each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Receive = Callable[[Tensor], None]


class Occurrences:
    """Of some views of a batch, which follow one another in ``positions``.

    Args:
        rows: Of all tables of the group, table by table.
        positions: Of each id of each view, among these rows.
        sizes: How many ids each view has.
        members: To which table of the group each view belongs.
        counts: How many rows each table has.
        receivers: Of each table: takes the gradient of its rows, when a backward pass that reached it ends.
    """

    def __init__(
        self,
        rows: Tensor,
        positions: Tensor,
        *,
        sizes: Sequence[int],
        members: Sequence[int],
        counts: Sequence[int],
        receivers: Sequence[Receive],
    ) -> None:
        self._pieces = rows.index_select(0, positions).split(list(sizes))
        self._positions = positions
        self._sizes = sizes
        self._members = members
        self._counts = counts
        self._count = len(rows)
        self._receivers = receivers
        self._found: dict[int, Tensor] = {}  # gradients by view, in a backward pass

    def rows(self, view: int, *, trained: bool) -> Tensor:
        """``[ids, width]``, of one view; a leaf, where it is trained."""
        leaf: Tensor = self._pieces[view].detach()
        if trained:
            leaf.requires_grad_().register_post_accumulate_grad_hook(lambda leaf: self._collect(view, leaf))
        return leaf

    def _collect(self, view: int, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        if not self._found:
            torch.autograd.Variable._execution_engine.queue_callback(self._add_up)
        before = self._found.get(view)
        self._found[view] = gradient if before is None else before + gradient

    @torch.no_grad()
    def _add_up(self) -> None:
        """The backward pass is over: each row's gradients are added in the order of ids in a view, then those of views.

        A graph that looks rows up in a leaf adds in this order too.
        """
        found, self._found = self._found, {}
        members = [self._members[view] for view in sorted(found)]
        turns = [members[:at].count(member) for at, member in enumerate(members)]  # of the views of one table
        for turn in range(max(turns) + 1):
            views = [view for view, each in zip(sorted(found), turns, strict=True) if each == turn]
            parts = self._summed(views, found)
            for view in views:
                self._receivers[self._members[view]](parts[self._members[view]])

    def _summed(self, views: Sequence[int], found: Mapping[int, Tensor]) -> Sequence[Tensor]:
        """The gradients of each table's rows, from views of different tables."""
        positions = self._positions
        if len(views) < len(self._sizes):
            pieces = positions.split(list(self._sizes))
            positions = torch.cat([pieces[view] for view in views])
        gradients = torch.cat([found[view] for view in views])
        total = torch.ops.aten.embedding_dense_backward(gradients, positions, self._count, -1, False)
        parts: Sequence[Tensor] = total.split(list(self._counts))
        return parts
