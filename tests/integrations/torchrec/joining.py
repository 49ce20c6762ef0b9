"""Puts together what ranks hold of tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.jobs.arrays import Arrays


def joined(parts: list[Arrays]) -> Arrays:
    """Whole tables and slots, from what all ranks hold of them. A slot with one entry per row and strip keeps these."""
    found: Arrays = {}
    pieces: dict[str, dict[tuple[int, int], Any]] = {}
    for part in parts:
        for key, values in part.items():
            name, _, place = key.partition("@")
            pieces.setdefault(name, {})[tuple(map(int, place.strip("()").split(","))) if "," in place else (0, 0)] = (
                values
            )
    for name, by_place in pieces.items():
        strips: dict[int, list[Any]] = {}
        for row, column in sorted(by_place):
            strips.setdefault(column, []).append(by_place[row, column])
        columns = {column: np.concatenate(rows) for column, rows in strips.items()}
        has_sums = name.endswith(".momentum1") and all(values.size == len(values) for values in columns.values())
        if not has_sums:
            found[name] = np.concatenate([columns[column] for column in sorted(columns)], axis=-1)
        else:
            for column, values in columns.items():
                found[f"{name}[{column}]"] = values.reshape(-1)
    return found


def assert_same(now: Arrays, before: Arrays) -> None:
    """Bit for bit."""
    assert now.keys() == before.keys(), now.keys() ^ before.keys()
    for name, values in before.items():
        assert values.dtype == now[name].dtype, name
        assert values.tobytes() == np.ascontiguousarray(now[name]).tobytes(), f"{name} differs"
