"""Rows out of encoded columns, written from docs/spec/codec.md alone."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np

from tests.independent.objects import DTYPES, Array, Json, as_array, cut, require, size_of


def columns_of(chunk: list[Any], table: Json) -> list[tuple[str, str, list[int]]]:
    """Name, type and shape of each column of an encoded chunk, ids first, escapes last."""
    _, count, _, _, ids, codec, _, _, escapes, _ = chunk
    codecs = json.loads(codec)
    columns = [("ids", {"G8": "U8", "G16": "U16"}.get(ids, ids), [count])] if ids else []
    for name, dtype, row in table["columns"]:
        raw = (name, dtype, [count, *row])
        columns.append(
            raw if codecs[name]["name"] == "exact" else (name, "U8", [count, _width(codecs[name], dtype, row)])
        )
    for (name, dtype, row), kept in zip(table["columns"], escapes, strict=True):
        if kept:
            columns.append((f"{name}.escapes", dtype, [kept, *row]))
    return columns


def read_encoded(data: bytes, name: str, chunk: list[Any], table: Json, base: tuple[Json, dict[str, Array]]) -> Any:
    """The ids, as they are stored, and the columns of an encoded chunk; ``base`` is the baseline and its rows."""
    columns = columns_of(chunk, table)
    pieces = cut(data, [size_of(dtype, shape) for _, dtype, shape in columns], name)
    stored = {c: as_array(piece, d, shape) for (c, d, shape), piece in zip(columns, pieces, strict=True)}
    ids = stored.pop("ids", None)
    if ids is not None:
        ids = np.cumsum(ids.astype(np.int64)) if chunk[4].startswith("G") else ids.astype(np.int64)
    codecs = json.loads(chunk[5])
    rows = {}
    for column, dtype, row in table["columns"]:
        codec, records = codecs[column], stored[column]
        if codec["name"] == "difference":
            require(codec["baseline"] == base[0]["checkpoint"], name, "differs from another baseline")
            require(codec["digest"] == base[0]["digest"], name, "differs from another baseline")
            decoded = base[1][column][ids + chunk[2]] + _decoded(codec["inner"], records, row).astype(np.float32)
        else:
            decoded = records if codec["name"] == "exact" else _decoded(codec, records, row)
        rows[column] = _with_escapes(decoded, codec, records, stored.get(f"{column}.escapes"), dtype, row)
    return ids, rows


def baseline_digest(shares: list[tuple[Json, Json]]) -> str:
    """What differences call a table of a baseline by."""
    placed = sorted((chunk[2], part["bundles"][chunk[0][0]][3]) for part, table in shares for chunk in table["chunks"])
    return hashlib.sha256("\n".join(dict.fromkeys(digest for _, digest in placed)).encode()).hexdigest()


def _with_escapes(rows: Array, codec: Json, records: Array, escapes: Array | None, dtype: str, row: list[int]) -> Array:
    inner = codec.get("inner", codec)
    result = rows.astype(DTYPES[dtype])
    if "bits" not in inner or _is_plain(inner, dtype, row):
        return result
    flagged = (records[:, 0] == 0xFF) & (records[:, 1] == 0xFF)
    assert flagged.sum() == (0 if escapes is None else len(escapes))
    if escapes is not None:
        result[flagged] = escapes
    return result


def _values(row: list[int]) -> int:
    return math.prod(row)


def _is_plain(codec: Json, dtype: str, row: list[int]) -> bool:
    return _width(codec, dtype, row) == size_of(dtype, row)


def _width(codec: Json, dtype: str, row: list[int]) -> int:
    codec, n = codec.get("inner", codec), _values(row)
    if codec["name"] == "rounded":
        return 2 * n if dtype == "F32" else size_of(dtype, row)
    quarter = -(-n // 4)
    codes = {8: n, 4: -(-n // 2), 3: quarter + (quarter + 1) // 2, 2: quarter}[codec["bits"]]
    return min(size_of(dtype, row), max(6, _header(codec) + codes))


def _header(codec: Json) -> int:
    """Bytes before the codes."""
    return {"symmetric": 2, "kmeans": 4 + 2 ** codec["bits"]}.get(codec["name"], 4)


def _decoded(codec: Json, records: Array, row: list[int]) -> Array:
    """The values of records of a float32 column."""
    n, count = _values(row), len(records)
    if codec["name"] == "rounded":
        return _float(records.view("<u2").astype(np.uint32) << 16).reshape(count, *row)
    if _is_plain(codec, "F32", row):
        return np.ascontiguousarray(records).view("<f4").reshape(count, *row)
    bits, header = codec["bits"], _header(codec)
    fields = np.ascontiguousarray(records[:, :4]).view("<u2").astype(np.uint32)
    scale = _float(fields[:, :1] << 15)
    codes = _codes(records[:, header:], n, bits)
    top = np.float32(2**bits - 1)
    if codec["name"] == "logarithmic":
        low, span = fields[:, 1:2].astype(np.int64) << 15, (fields[:, :1].astype(np.int64) - fields[:, 1:2]) << 15
        step = span.astype(np.float32) / (top - 1)
        pattern = low + np.rint((codes.astype(np.float32) - 1) * step).astype(np.int64)
        found = _float(np.minimum(pattern, 0x7F7F_FFFF).astype(np.uint32))
        values = np.where(codes == 0, np.float32(0), found)
    else:
        if codec["name"] == "kmeans":
            codes = np.take_along_axis(records[:, 4:header], codes, axis=1)
        zero = -scale * (top / 2) if codec["name"] == "symmetric" else _float(fields[:, 1:2] << 16)
        values = zero + scale * codes.astype(np.float32)
    constant = _float(np.ascontiguousarray(records[:, 2:6]).view("<u4"))
    values = np.where(fields[:, :1] == 0, constant, values)
    return np.asarray(np.where(fields[:, :1] == 0xFFFF, np.float32(0), values)).reshape(count, *row)


def _codes(data: Array, n: int, bits: int) -> Array:
    if bits == 3:
        quarter = -(-n // 4)
        high = _codes(data[:, quarter:], quarter, 4)
        stacked = [(high >> lane) & 1 for lane in range(4)]
        return _codes(data[:, :quarter], n, 2) + 4 * np.concatenate(stacked, axis=1)[:, :n]
    width = -(-n * bits // 8) if bits == 8 else -(-n // (8 // bits))
    lanes = [(data[:, :width] >> (bits * lane)) & (2**bits - 1) for lane in range(8 // bits)]
    return np.concatenate(lanes, axis=1)[:, :n].astype(np.int64)


def _float(pattern: Array) -> Array:
    return pattern.astype("<u4").view("<f4")
