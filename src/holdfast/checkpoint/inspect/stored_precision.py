"""How precisely a checkpoint's rows are stored: which codec, how many bytes, how much loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.read.fetcher import Manifests
from holdfast.codec import Codec, Difference, Exact
from holdfast.codec.chunk import codecs_of
from holdfast.codec.quantized import Quantized
from holdfast.format.manifest import RowsChunk
from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """The rows of a table that one checkpoint wrote with one codec.

    Args:
        checkpoint: The checkpoint that wrote them.
        table: The table's name.
        codec: How the weights are encoded, such as "4 bits (fitted)".
        rows: How many rows.
        size_bytes: Their size.
        loss: The mean distance (L2) of a stored weight row from the original.
    """

    checkpoint: CheckpointInfo
    table: str
    codec: str
    rows: int
    size_bytes: int
    loss: float


def stored_rows(infos: Sequence[CheckpointInfo], history: Sequence[Manifests]) -> tuple[StoredRows, ...]:
    """What every checkpoint of a lineage wrote, given its manifests."""
    return tuple(each for info, parts in zip(infos, history, strict=True) for each in _of_checkpoint(info, parts))


def _of_checkpoint(info: CheckpointInfo, parts: Manifests) -> Iterator[StoredRows]:
    groups: dict[tuple[str, str], list[RowsChunk]] = {}
    for manifest in parts:
        for part in manifest.tables:
            for chunk in part.chunks:
                key = part.spec.name, codec_words(chunk.codec, part.spec.weight.name)
                groups.setdefault(key, []).append(chunk)
    for (table, codec), chunks in groups.items():
        rows = sum(chunk.rows for chunk in chunks)
        yield StoredRows(
            checkpoint=info,
            table=table,
            codec=codec,
            rows=rows,
            size_bytes=sum(chunk.place.length for chunk in chunks),
            loss=math.fsum(chunk.loss * chunk.rows for chunk in chunks) / max(1, rows),
        )


def codec_words(text: str, column: str) -> str:
    """The codec of a column as readable text, from a chunk's codec field."""
    codecs = codecs_of(text)
    return "exact" if codecs is None or column not in codecs else _words(codecs[column])


def _words(codec: Codec | Difference) -> str:
    if isinstance(codec, Difference):
        return f"{_words(codec.inner)}, from the baseline"
    if isinstance(codec, Quantized):
        return f"{codec.bits} bits ({codec.name.replace('_', ' ')})"
    return "exact" if isinstance(codec, Exact) else codec.name
