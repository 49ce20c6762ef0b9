"""Pieces of state tensors, and how they lie in a chunk: one after another, each padded to the alignment of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.format.layout import padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes ``start ..`` of one state tensor."""

    tensor: int
    start: int
    length: int


def placed(pieces: Iterable[Piece], start: int = 0) -> Iterator[tuple[int, Piece]]:
    """Each piece after the offset at which it lies; the first lies at ``start``."""
    for piece in pieces:
        yield start, piece
        start += padded(piece.length)


def pieces_bytes(pieces: Iterable[Piece]) -> int:
    """Bytes that they take together, padding included."""
    return sum(padded(piece.length) for piece in pieces)
