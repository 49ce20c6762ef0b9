"""The reference of a keyed table: a hash table of rows, whose least recently used key makes room for a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

EMPTY_KEY = torch.iinfo(torch.int64).min


class LruTable(nn.Module):
    """Rows by key. ``forgets`` makes it an incomplete tracker: it does not tell of what it names."""

    def __init__(self, rows: int, dim: int, *, forgets: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, dim))
        self.register_buffer("_keys", torch.full((rows,), EMPTY_KEY, dtype=torch.int64))
        self.register_buffer("_used_at", torch.zeros(rows, dtype=torch.int64))
        self._row_of: dict[int, int] = {}
        self._clock = 0
        self._changed: set[int] = set()
        self._forgets = forgets

    def forward(self, keys: Sequence[int]) -> Tensor:
        rows = torch.tensor([self.find(key) for key in keys])
        return nn.functional.embedding(rows, self.weight, sparse=True)

    def find(self, key: int) -> int:
        """The key's row, which may have been another key's."""
        self._clock += 1
        row = self._row_of.get(key)
        if row is None:
            row = self._free_row()
            self._keys[row] = key
            self._row_of[key] = row
            self.weight.data[row] = (key % 97) / 97
            self._tell("inserts", row)
        else:
            self._tell("uses", row)
        self._used_at[row] = self._clock
        return row

    def evict(self, key: int) -> None:
        row = self._row_of.pop(key)
        self._keys[row] = EMPTY_KEY
        self._used_at[row] = 0
        self._tell("evictions", row)

    def rows_by_key(self) -> dict[int, tuple[int, list[float], int]]:
        """For each key: its row, its weights, and when it was used last."""
        return {
            key: (row, self.weight.data[row].tolist(), int(self._used_at[row])) for key, row in self._row_of.items()
        }

    # ---- what Holdfast asks --------------------------------------------------------------------------------------

    @property
    def columns(self) -> Mapping[str, Tensor]:
        return {"key": self._keys, "used_at": self._used_at}

    def take_changed(self) -> Tensor:
        changed, self._changed = sorted(self._changed), set()
        return torch.tensor(changed, dtype=torch.int64)

    def restored(self) -> None:
        self._row_of = {key: row for row, key in enumerate(self._keys.tolist()) if key != EMPTY_KEY}

    def insert(self, keys: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        if len(keys) > len(self._keys):
            raise ValueError("too many keys")
        rows = torch.arange(len(keys))
        self._keys[rows], self._used_at[rows] = keys, columns["used_at"]
        self.restored()
        return rows

    def get_state(self) -> Any:
        return {"clock": self._clock}

    def set_state(self, state: Any) -> None:
        self._clock = state["clock"]

    # ---- inside --------------------------------------------------------------------------------------------------

    def _free_row(self) -> int:
        if len(self._row_of) == len(self._keys):
            self.evict(min(self._row_of, key=lambda key: int(self._used_at[self._row_of[key]])))
        return next(row for row, key in enumerate(self._keys.tolist()) if key == EMPTY_KEY)

    def _tell(self, what: str, row: int) -> None:
        if what != self._forgets:
            self._changed.add(row)
