"""Digests of a checkpoint's state, which a trainer compares with its own to see whether anything changed.

The agent computes them from a frame while it has it, or reads the state back if another agent wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.format.state_pieces import Piece, placed


class PieceDigest(NamedTuple):
    """Which bytes of which state tensor were stored."""

    tensor: int
    start: int
    length: int
    digest: str  # as digest_of gives it


def digest_of(data: memoryview | bytes) -> str:
    """Tells one state's bytes from another's, on either side."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_pieces(data: memoryview, pieces: Iterable[Piece]) -> Iterator[PieceDigest]:
    """Those of a chunk's pieces, which lie in ``data`` one after another."""
    for offset, piece in placed(pieces):
        digest = digest_of(data[offset : offset + piece.length])
        yield PieceDigest(tensor=piece.tensor, start=piece.start, length=piece.length, digest=digest)
