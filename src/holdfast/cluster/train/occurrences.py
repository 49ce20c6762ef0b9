"""Occurrences: the row of each id of a batch, gathered for all tables of a group at once, and their gradients added up.

Torch's embeddings do both table by table; on a GPU, adding up in a fixed order takes a dozen kernels and a wait each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        receivers: Of each table: takes the gradient of its rows, when a backward pass has reached it. Whatever refers
            to these occurrences must not be referred to by them.
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
        self._rows = rows
        self._positions = positions
        self._sizes = list(sizes)
        self._sums = _Sums(positions, self._sizes, members, list(counts), receivers)
        self._pieces: dict[bool, list[Tensor | None]] = {}  # gathered, to be trained or not; without those handed out

    def rows(self, view: int, *, trained: bool) -> Tensor:
        """``[ids, width]``, of one view: memory that no other call is given."""
        pieces = self._pieces.get(trained)
        if pieces is None or pieces[view] is None:
            pieces = self._pieces[trained] = self._gather(trained=trained)
        piece, pieces[view] = pieces[view], None
        assert piece is not None
        return piece

    def _gather(self, *, trained: bool) -> list[Tensor | None]:
        gathered = self._rows.index_select(0, self._positions).requires_grad_(trained)
        pieces = torch.unsafe_split_with_sizes(gathered, self._sizes)  # not views: models may write to them
        if trained:
            self._sums.follow(gathered, pieces[0].grad_fn)
        return list(pieces)


class _Sums:
    """Of the gradients of each row. No leaf is referred to: no collector finds a circle through a hook of torch's."""

    def __init__(
        self,
        positions: Tensor,
        sizes: list[int],
        members: Sequence[int],
        counts: list[int],
        receivers: Sequence[Receive],
    ) -> None:
        self._positions = positions
        self._sizes = sizes
        self._members = members
        self._counts = counts
        self._receivers = receivers

    def follow(self, leaf: Tensor, cut: torch.autograd.graph.Node | None) -> None:
        """Hand on the gradient of a leaf, which ``cut`` cuts into views, whenever a backward pass reaches it."""
        assert cut is not None
        reached: list[int] = []

        def note(gradients: Sequence[Tensor | None]) -> None:
            reached[:] = [view for view, each in enumerate(gradients) if each is not None]

        def take(leaf: Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            assert gradient is not None
            self._add_up(gradient, reached)

        cut.register_prehook(note)
        leaf.register_post_accumulate_grad_hook(take)

    @torch.no_grad()
    def _add_up(self, gradient: Tensor, reached: Sequence[int]) -> None:
        """Each row's gradients are added in the order of ids in a view, then those of views.

        A graph that looks rows up in a leaf adds in this order too.
        """
        for views in self._rounds(reached):
            parts = self._summed(views, gradient)
            for view in views:
                self._receivers[self._members[view]](parts[self._members[view]])

    def _rounds(self, views: Sequence[int]) -> list[list[int]]:
        """Views of different tables together: the first of each table, then the second, and so on."""
        rounds: list[list[int]] = []
        turns: dict[int, int] = {}  # by table
        for view in views:
            turn = turns.get(self._members[view], 0)
            turns[self._members[view]] = turn + 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(view)
        return rounds

    def _summed(self, views: Sequence[int], gradients: Tensor) -> Sequence[Tensor]:
        """The gradients of each table's rows, from views of different tables."""
        positions = self._positions
        if len(views) < len(self._sizes):
            positions = _chosen(positions, self._sizes, views)
            gradients = _chosen(gradients, self._sizes, views)
        total = torch.ops.aten.embedding_dense_backward(gradients, positions, sum(self._counts), -1, False)
        parts: Sequence[Tensor] = total.split_with_sizes(self._counts)
        return parts


def _chosen(values: Tensor, sizes: list[int], views: Sequence[int]) -> Tensor:
    pieces = values.split_with_sizes(sizes)
    return torch.cat([pieces[view] for view in views])
