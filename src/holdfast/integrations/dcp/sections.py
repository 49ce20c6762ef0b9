"""The sections of tensors that a rank is about to store, which threads share out among themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from holdfast.checkpoint.snapshot.tensor_filler import bytes_of
from holdfast.format.dcp_state import sections_of
from holdfast.format.layout import padded
from holdfast.format.manifest import TensorSpec
from holdfast.integrations.dcp.stored import StoredPiece, StoredSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor to store: what stock readers of a bundle see it as, and what is stored of it already, by its start."""

    name: str
    spec: TensorSpec
    tensor: Tensor
    known: Mapping[int, StoredSection]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Bytes ``start ..`` of a source, which is the ``owner``-th."""

    owner: int
    start: int
    source: Source
    data: Tensor

    @property
    def known(self) -> StoredSection | None:
        """What the last checkpoint has in its place."""
        return self.source.known.get(self.start)


class Sections:
    """Those that nobody has taken yet, and where each of the others went."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._lock = threading.Lock()
        self._specs: list[TensorSpec] = []
        self._found: list[dict[int, StoredSection]] = []
        self._waiting = self._cut(sources)
        self._next: Section | None = None
        self._failed = False

    def take(self, room_bytes: int, most: int, *, only_new: bool = False) -> list[Section]:
        """The next ones, as many as fit and at most so many.

        A tensor is resolved with its first section, because that may take memory.

        Args:
            room_bytes: What they may take in a frame.
            most: How many they may be.
            only_new: Whether to stop before one in whose place the last checkpoint holds something.
        """
        taken: list[Section] = []
        with self._lock:
            while len(taken) < most and not self._failed and (section := self._peek()) is not None:
                room_bytes -= padded(len(section.data))
                if room_bytes < 0 or (only_new and section.known is not None):
                    break
                taken.append(section)
                self._next = None
        return taken

    def give_up(self) -> None:
        """Let the other threads stop: one has failed."""
        self._failed = True

    @property
    def are_given_up(self) -> bool:
        """Whether a thread has failed."""
        return self._failed

    def add(self, section: Section, stored: StoredSection) -> None:
        """It is known where a section is, or will be."""
        with self._lock:
            self._found[section.owner][section.start] = stored

    def stored(self) -> list[StoredPiece]:
        """Where each source is, or will be."""
        return [
            StoredPiece(spec=spec, sections=tuple(found[start] for start in sorted(found)))
            for spec, found in zip(self._specs, self._found, strict=True)
        ]

    def _peek(self) -> Section | None:
        try:
            self._next = self._next or next(self._waiting, None)
        except BaseException:
            self._failed = True
            raise
        return self._next

    def _cut(self, sources: Iterable[Source]) -> Iterator[Section]:
        for owner, source in enumerate(sources):
            self._specs.append(source.spec)
            self._found.append({})
            data = bytes_of(source.tensor)
            for start, length in sections_of(len(data)):
                yield Section(owner=owner, start=start, source=source, data=data[start : start + length])
