"""Rows to encode: drawn ones with outliers, and those of a DLRM that was trained for a while."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.synthetic import ClickStream
from benchmarks.training import OptimizerName, build_dlrm, train_step

Rows = NDArray[np.float32]

DIM = 64
BATCH_SIZE = 1024
BOTTOM, TOP = (512, 256), (512, 512, 256)


def drawn_rows(count: int, dim: int = DIM, seed: int = 1) -> Rows:
    """Normal rows, each of its own scale; two values in a hundred are three to eight times as large."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((count, dim), dtype=np.float32)
    rows *= np.exp(draw.normal(-3, 0.5, (count, 1))).astype(np.float32)
    places = draw.integers(0, rows.size, rows.size // 50)
    rows.reshape(-1)[places] *= draw.uniform(3, 8, places.size).astype(np.float32)
    return rows


def trained_rows(steps: int, scale: float, optimizer: OptimizerName) -> Rows:
    """The rows that so many steps on the synthetic stream moved."""
    stream = ClickStream(5, scale)
    model, optimizers = build_dlrm(stream.cardinalities, DIM, optimizer=optimizer, bottom=BOTTOM, top=TOP, seed=5)
    seen = [np.zeros(rows, dtype=np.bool_) for rows in stream.cardinalities]
    for step in range(steps):
        batch = stream.batch(step, BATCH_SIZE)
        train_step(model, batch, optimizers)
        for field, table in enumerate(seen):
            table[batch.ids[:, field].numpy()] = True
    tables = [table.detach().numpy() for table in model.emb.parameters()]
    return np.concatenate([table[touched] for table, touched in zip(tables, seen, strict=True)])
