"""Reading: a loader that is being read, from wherever an earlier worker had come in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.rng import capture_rng
from holdfast.cluster.train.place import Place
from holdfast.cluster.train.prefetcher import Prefetcher


@dataclass(slots=True)
class Reading:
    """A loader, and what was read of it."""

    loader: object
    epochs: int | None
    reader: Reader
    prefetcher: Prefetcher

    def complete(self) -> None:
        """The batches handed out are in a step."""
        self.reader.places.step(completed=True)

    def pass_over(self) -> None:
        """The last batch has no step of its own."""
        self.reader.places.step(completed=False)


def read_batches(
    reader: Reader, epochs: int | None, place: Place | None, restore: Callable[[Place], None]
) -> Iterator[Any]:
    """A reader's batches from a place on; ``restore`` brings back what else the place holds, at the right moment."""

    def on_iterator() -> None:
        if place is not None:
            restore(place)

    if place is not None and place.reader is not None:
        reader.load_state(place.reader, place.rng)
    batches = _granted(reader, reader.batches(epochs, on_iterator=on_iterator))
    if place is not None and place.reader is None:
        restore(place)
    return batches


def place_of(reading: Reading | None, *, steps: int, buffers: dict[str, Any]) -> Place:
    """From where the next step starts."""
    if reading is None:
        return Place(steps=steps, reader=None, rng=capture_rng(), buffers=buffers)
    here = reading.reader.places.here()
    rng = capture_rng() if here.rng is None else here.rng
    return Place(steps=steps, reader=here.reader, rng=rng, buffers=buffers)


def _granted(reader: Reader, batches: Iterator[Any]) -> Iterator[Any]:
    """A loader that reads ahead of what it hands out is granted one batch at a time: a place is known after each."""
    while True:
        if reader.reads_ahead:
            reader.grant(1)
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield batch
