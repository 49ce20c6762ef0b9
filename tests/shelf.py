"""What a checkpoint in few bits must give back, by a model of its own: a dictionary of rows, encoded row by row.

The model knows nothing of chunks, grids or agents: a save of every row stores each row by itself; a save of changed
rows stores those anew, by themselves or as what they differ by from the row that the last save of every row stored.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer

from holdfast.codec import Difference, Encoded, Exact
from holdfast.codec.choice import table_codecs, weight_codec
from holdfast.codec.difference import Baseline
from holdfast.codec.quantized import Quantized
from holdfast.policy import Precision
from holdfast.types import ColumnSpec, Kind, TableSpec

ROWS = {"item": 400, "user": 60}
DIMS = {"item": 16, "user": 5}
_NOWHERE = Baseline(checkpoint="", digest="")
Rows = dict[tuple[str, str], Tensor]  # by table and column


def build(optimizer: str = "sgd", seed: int = 0) -> tuple[nn.ModuleDict, Optimizer]:
    """Two tables, and nothing else."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({name: nn.Embedding(ROWS[name], DIMS[name], sparse=True) for name in ROWS})
    made = {"sgd": SGD, "adagrad": Adagrad}[optimizer](model.parameters(), lr=0.1)
    return model, made


def train(model: nn.ModuleDict, optimizer: Optimizer, step: int) -> dict[str, Tensor]:
    """One step; the rows of each table that it changed."""
    generator = torch.Generator().manual_seed(step)
    ids = {name: torch.randint(0, ROWS[name], (30,), generator=generator).unique() for name in ROWS}
    optimizer.zero_grad()
    torch.stack([(model[name](ids[name]) - step).square().sum() for name in ROWS]).sum().backward()
    optimizer.step()
    return ids


def live(model: nn.ModuleDict, optimizer: Optimizer) -> Rows:
    """Every row as training has it, with its optimizer's slots."""
    found: Rows = {}
    for name in ROWS:
        weight = model[name].weight
        found[name, "weight"] = weight.detach().clone()
        state = optimizer.state.get(weight, {})
        found |= {(name, key): slot.clone() for key, slot in state.items() if slot.shape[:1] == weight.shape[:1]}
    return found


class Shelf:
    """The rows as they are stored, after each save."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.rows: Rows = {}
        self._baseline: Rows = {}
        self._whole: set[str] = set()  # tables saved whole above the baseline
        self._above: dict[str, Tensor] = {}  # rows changed since the baseline: differential saves store them all again

    def save(self, kind: Kind, state: Rows, changed: dict[str, Tensor | None], restores: int = 0) -> Rows:
        """A save of every row, or of those changed (None: the whole table); what is stored from then on."""
        if kind is Kind.FULL:
            self._whole, self._above = set(), {name: torch.empty(0, dtype=torch.int64) for name in ROWS}
            self.rows = {key: self._stored(key, rows, state, None, restores) for key, rows in state.items()}
            self._baseline = dict(self.rows)
            return self.rows
        for name, ids in changed.items():
            more = torch.arange(ROWS[name]) if ids is None else ids
            self._above[name] = torch.cat([self._above[name], more]).unique()
            if kind is Kind.DIFFERENTIAL and ids is not None:
                changed = {**changed, name: self._above[name]}
        after = {key: rows.clone() for key, rows in self.rows.items()}
        for key, rows in state.items():
            ids = changed[key[0]]
            if ids is None:
                after[key] = self._stored(key, rows, state, None, restores)
            else:
                beside = None if key[0] in self._whole else self._baseline[key][ids]
                after[key][ids] = self._stored(key, rows[ids], state, beside, restores)
        self._whole |= {name for name, ids in changed.items() if ids is None}
        self.rows = after
        return self.rows

    def _stored(self, key: tuple[str, str], rows: Tensor, state: Rows, beside: Tensor | None, restores: int) -> Tensor:
        table, column = key
        stored = self.precision.decide(table, restores)
        if stored.bits is None:
            return rows.clone()
        codecs = table_codecs(_spec(table, state), 8 if stored.difference else stored.bits, stored.method)
        if stored.difference and column == "weight" and beside is not None:
            inner = weight_codec(stored.bits, stored.method)
            assert isinstance(inner, Quantized)
            codec = Difference(inner=inner, baseline=_NOWHERE)
            encoded = codec.encode(rows.numpy(), beside.numpy())
            return torch.from_numpy(codec.decode(encoded, beside.numpy(), _NOWHERE, rows.shape[1]))
        plain = codecs[column]
        if isinstance(plain, Exact):
            return rows.clone()
        matrix = rows.reshape(len(rows), -1).numpy()
        encoded = plain.encode(matrix)
        back = plain.decode(Encoded(records=encoded.records, escapes=encoded.escapes), matrix.shape[1])
        return torch.from_numpy(np.ascontiguousarray(back)).reshape(rows.shape)


def _spec(table: str, state: Rows) -> TableSpec:
    columns = tuple(
        ColumnSpec(name=column, dtype="F32", row_shape=tuple(rows.shape[1:]))
        for (name, column), rows in state.items()
        if name == table
    )
    return TableSpec(name=table, rows=ROWS[table], columns=columns)


def same_rows(first: Rows, second: Rows) -> bool:
    """Bit for bit."""
    return first.keys() == second.keys() and all(
        torch.equal(first[key].contiguous().view(torch.int32), second[key].contiguous().view(torch.int32))
        for key in first
    )
