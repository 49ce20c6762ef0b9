"""A decoder written from docs/spec/codec.md alone, in plain Python, reads what the codecs write."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from holdfast.codec import Asymmetric, Codec, Fitted, KMeans, Logarithmic, Symmetric

DIMS = (2, 3, 4, 5, 7, 8, 13, 16, 33, 64)
CODECS = [kind(bits=bits) for kind in (Symmetric, Asymmetric, Fitted, KMeans, Logarithmic) for bits in (2, 3, 4)]


def single(pattern: int) -> float:
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def numbers(data: bytes, count: int, bits: int) -> list[int]:
    """Value i is in byte i mod w, from bit bits·⌊i/w⌋ on."""
    width = -(-count * bits // 8)
    return [data[i % width] >> (bits * (i // width)) & (1 << bits) - 1 for i in range(count)]


def codes_of(data: bytes, count: int, bits: int) -> list[int]:
    if bits != 3:
        return numbers(data, count, bits)
    width = -(-count // 4)
    fours = numbers(data[width:], width, 4)
    low = numbers(data[:width], count, 2)
    return [low[i] | (fours[i % width] >> (i // width) & 1) << 2 for i in range(count)]


def decode(name: str, bits: int, record: bytes, count: int) -> list[float] | None:
    """The row, or None for an escape."""
    if len(record) == 4 * count:
        return list(struct.unpack(f"<{count}f", record))
    first, second = struct.unpack("<HH", record[:4])
    top = 2**bits - 1
    if first == 0xFFFF:
        return None
    if first == 0:
        return [struct.unpack("<f", record[2:6])[0]] * count
    if name == "symmetric":
        return [single(first << 15) * (code - top / 2) for code in codes_of(record[2:], count, bits)]
    if name == "kmeans":
        centroids, codes = record[4 : 5 + top], codes_of(record[5 + top :], count, bits)
        return [single(second << 16) + single(first << 15) * centroids[code] for code in codes]
    codes = codes_of(record[4:], count, bits)
    if name != "logarithmic":
        return [single(second << 16) + single(first << 15) * code for code in codes]
    step = (first - second) * 2**15 / (top - 1)
    patterns = [(second << 15) + round((code - 1) * step) for code in codes]
    return [single(min(p, 0x7F7FFFFF)) if code else 0.0 for p, code in zip(patterns, codes, strict=True)]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_records_mean_what_the_page_says(codec: Codec) -> None:
    draw = np.random.default_rng(1)
    for dim in DIMS:
        rows = draw.standard_normal((20, dim)).astype(np.float32)
        rows = np.abs(rows) if codec.name == "logarithmic" else rows
        rows[3], rows[4, 0], rows[5, 1:] = 0.1, np.nan, 0
        encoded = codec.encode(rows)
        found = codec.decode(encoded, dim)
        for row, record in zip(found, encoded.records, strict=True):
            read = decode(codec.name, codec.bits, record.tobytes(), dim)  # type: ignore[attr-defined]
            if read is None:
                assert np.isnan(row).any()
            else:
                assert np.allclose(row, read, rtol=1e-6, atol=1e-7, equal_nan=True)
