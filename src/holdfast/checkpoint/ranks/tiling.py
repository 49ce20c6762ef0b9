"""Which rank stores which tile of every DTensor. All ranks know it of all, so that one of them can write it down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from holdfast.checkpoint.ranks.agreement import Agreement, gather_or_raise
from holdfast.checkpoint.training.dtensors import box_of
from holdfast.errors import ConfigurationError
from holdfast.format.boxes import Box, are_tiles
from holdfast.format.dtypes import code_of
from holdfast.format.scattered import Scattered, Tile

Forms = Mapping[str, Sequence[Any]]  # by name: type, shape, and where a rank's box begins and how large it is


class Tiling:
    """The tiles of all DTensors. What several ranks hold is stored by one of them, each in its turn."""

    def __init__(self, agreement: Agreement, *, is_needed: bool) -> None:
        self._agreement = agreement
        self.is_needed = is_needed  # some rank has DTensors; all ranks know that
        self._digests: list[str] = []
        self._scattered: dict[str, Scattered] = {}
        self._own: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[str, ...]:
        """What this rank stores a tile of, in the order of its tiles."""
        return self._own

    def scattered(self, name: str) -> Scattered:
        """What a checkpoint says in the place of a DTensor."""
        return self._scattered[name]

    def agree(self, find: Callable[[], Mapping[str, Tensor]]) -> None:
        """All ranks call this, and find the DTensors they hold; raises ConfigurationError on all if some do not match.

        As long as nothing changes, that takes one digest of each rank.
        """
        forms: dict[str, Any] = {}

        def digest() -> str:
            forms.update((name, _form(name, tensor)) for name, tensor in find().items())
            return hashlib.blake2b(json.dumps(forms).encode(), digest_size=16).hexdigest()

        digests = gather_or_raise(self._agreement, digest)
        if digests == self._digests:
            return
        self._arrange(self._agreement.gather(forms))
        self._digests = digests

    def _arrange(self, by_rank: Sequence[Forms]) -> None:
        owners = {
            name: _owners(name, [forms.get(name) for forms in by_rank], number)
            for number, name in enumerate(sorted({name for forms in by_rank for name in forms}))
        }
        counts = [0] * len(by_rank)
        for tiles in owners.values():
            for rank in tiles.values():
                counts[rank] += 1
        first = by_rank[0]
        self._own = tuple(name for name, tiles in owners.items() if self._agreement.rank in tiles.values())
        self._scattered = {}
        for name, tiles in owners.items():
            placed = []
            for box, rank in tiles.items():
                placed.append(Tile(rank=rank, place=counts[rank], box=box))
                counts[rank] -= 1
            dtype, shape, *_ = first[name]
            self._scattered[name] = Scattered(dtype=dtype, shape=tuple(shape), tiles=tuple(placed))


def _form(name: str, tensor: Tensor) -> list[Any]:
    box = box_of(tensor, name)
    return [code_of(tensor.dtype), list(tensor.shape), list(box.offsets), list(box.sizes)]


def _owners(name: str, forms: Sequence[Sequence[Any] | None], number: int) -> dict[Box, int]:
    """Who stores each tile of a tensor; ``number``: whose turn it is, among those that hold the same."""
    known = _matching(name, forms)
    holders: dict[Box, list[int]] = {}
    for rank, (_, _, offsets, sizes) in enumerate(known):
        box = Box(offsets=tuple(offsets), sizes=tuple(sizes))
        if box.volume:
            holders.setdefault(box, []).append(rank)
    require_tiles(name, known[0][1], holders)
    return {box: ranks[number % len(ranks)] for box, ranks in holders.items()}


def _matching(name: str, forms: Sequence[Sequence[Any] | None]) -> list[Sequence[Any]]:
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        lacking = [rank for rank, form in enumerate(forms) if form is None]
        raise ConfigurationError(
            f"{name} is a DTensor on some ranks and not on rank {lacking[0]}: build the same model and optimizers on "
            "all ranks, and divide them in the same way"
        )
    for rank, form in enumerate(known):
        if form[:2] != known[0][:2]:
            raise ConfigurationError(
                f"the shards of {name} differ: {known[0][0]}{known[0][1]} on rank 0, {form[0]}{form[1]} on rank "
                f"{rank}. Give it the same type and shape on all ranks"
            )
    return known


def require_tiles(name: str, shape: Sequence[int], boxes: Iterable[Box]) -> None:
    """Raise ConfigurationError unless what all ranks hold makes up the tensor."""
    if not are_tiles(shape, boxes):
        raise ConfigurationError(
            f"{name} has the shape {tuple(shape)}, but the shards of all ranks do not make it up: some overlap, or "
            "leave gaps. Divide it in the same way on all ranks, over meshes that together have all of them"
        )
