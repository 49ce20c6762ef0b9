"""Which pushes rows hold, where not all rows hold the same."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cluster.core.stripes import StripeSet
from holdfast.cluster.core.vectors import Vector, covers, holds, joined


class Layers:
    """Rows of one server by the pushes that they hold: most of the time a single layer."""

    def __init__(self) -> None:
        self._layers: list[tuple[StripeSet, Vector]] = []

    def put(self, stripes: StripeSet, held: Vector) -> None:
        """These rows hold just this."""
        if len(self._layers) == 1 and self._layers[0][1] == held:  # while blocks of one host come, one after another
            self._layers = [(self._layers[0][0] | stripes, held)]
            return
        rest = [(part - stripes, each) for part, each in self._layers]
        self._layers = [(part, each) for part, each in rest if part]
        self._layers.append((stripes, held))
        self._merge()

    def advance(self, pushes: Vector) -> None:
        """All rows hold these pushes now, or they do not concern them."""
        self._layers = [(part, joined(held, pushes)) for part, held in self._layers]
        self._merge()

    def advance_some(self, stripes: StripeSet, pushes: Vector) -> None:
        """These rows hold these pushes now, or they do not concern them."""
        for part, held in list(self.groups(stripes)):
            self.put(part, joined(held, pushes))

    def groups(self, stripes: StripeSet) -> Iterator[tuple[StripeSet, Vector]]:
        """Stripes that hold the same, with what they hold."""
        for part, held in self._layers:
            if both := stripes & part:
                yield both, held
                stripes -= both
        if stripes:
            yield stripes, {}

    def holding(self, pushes: Vector) -> Iterator[StripeSet]:
        """Stripes whose rows hold these pushes."""
        return (part for part, held in self._layers if holds(held, pushes))

    def forget(self, applied: Vector) -> bool:
        """Whether no row holds more than this; then all are alike."""
        if not all(covers(applied, held) for _, held in self._layers):
            return False
        self._layers.clear()
        return True

    def _merge(self) -> None:
        if len(self._layers) > 1:
            merged: list[tuple[StripeSet, Vector]] = []
            for part, held in self._layers:
                same = next((index for index, each in enumerate(merged) if each[1] == held), None)
                if same is None:
                    merged.append((part, held))
                else:
                    merged[same] = (merged[same][0] | part, held)
            self._layers = merged
