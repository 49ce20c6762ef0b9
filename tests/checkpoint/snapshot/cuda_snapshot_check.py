"""Saves tables from a GPU in few bits, encoded there and by the agent, compares the rows, and measures both.

Without pytest and Numba, which a GPU machine may lack:

    PYTHONPATH=src:. python tests/checkpoint/snapshot/cuda_snapshot_check.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[3]))  # so that it runs from anywhere

import holdfast as hf
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import TensorFiller, pin, unpin
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import FrameChunk
from holdfast.codec import Codec
from holdfast.codec.choice import table_codecs
from holdfast.kernels.quantize import tensors
from holdfast.types import ColumnSpec, TableSpec
from tests.tiny import Tiny, ids_of

PRECISIONS = (
    hf.Bits(2),
    hf.Bits(3),
    hf.Bits(4, method="published"),
    hf.Bits(4, method="symmetric"),
    hf.Bits(8),
    hf.Bits(2, difference=True),
)
ROWS = (100_000, 40)
TABLE_BYTES = 10_240_000_000
FRAMES, FRAME_BYTES = 100, 32 * 2**20


@contextmanager
def encoding_by_the_agent():
    """As if there were no kernels for this device."""
    before, tensors.is_cheap = tensors.is_cheap, lambda table, scheme: False
    try:
        yield
    finally:
        tensors.is_cheap = before


def train(url: Path, precision: hf.Bits) -> hf.Run:
    """Three checkpoints; with a row that no record holds."""
    torch.manual_seed(0)
    model = Tiny(ROWS, dim=16).cuda()
    model.emb[1].weight.data[7, 0] = torch.inf
    optimizers = [torch.optim.Adagrad(model.emb.parameters()), torch.optim.Adam(model.top.parameters())]
    options = {"save": hf.EverySteps(3), "strategy": hf.Consecutive(), "overlap": hf.Overlap.WAIT}
    with hf.Checkpointer(
        url, model=model, optimizer=optimizers, precision=precision, retention=hf.KeepAll(), **options
    ) as guard:
        for step in range(9):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(ids_of(step, 64).cuda()).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            guard.step()
    return hf.open_run(url)


def check(precision: hf.Bits) -> None:
    """Every row of every checkpoint comes back the same from both ways."""
    with tempfile.TemporaryDirectory() as folder:
        there = train(Path(folder) / "there", precision)
        with encoding_by_the_agent():
            here = train(Path(folder) / "here", precision)
        steps = [info.step for info in here.checkpoints()]
        assert [info.step for info in there.checkpoints()] == steps and len(steps) == 3
        for step in steps:
            for number, rows in enumerate(ROWS):
                found = there.read_rows(f"emb.{number}", range(rows), step=step)
                wanted = here.read_rows(f"emb.{number}", range(rows), step=step)
                assert found.keys() == wanted.keys()
                assert all(torch.equal(found[c].view(torch.int32), wanted[c].view(torch.int32)) for c in wanted)
        assert not there.verify()
    print(f"same rows: {precision}", flush=True)


class Frames:
    """Gives every frame once."""

    def __init__(self) -> None:
        self._free = list(range(FRAMES))
        self.used = 0

    def acquire_frame(self) -> int:
        return self._free.pop()

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        self.used += used


def measure(dim: int) -> None:
    """What the loop waits for: a quarter of 10 GB, and all of it."""
    rows = TABLE_BYTES // 4 // dim
    weight = torch.empty(rows, dim, device="cuda").normal_()
    spec = TableSpec(name="table", rows=rows, columns=(ColumnSpec(name="weight", dtype="F32", row_shape=(dim,)),))
    touched = torch.randperm(rows, device="cuda")[: rows // 4].sort().values
    buffer = FrameBuffer.reserve(frames=FRAMES, frame_bytes=FRAME_BYTES)
    pin(buffer)
    for bits in (None, 8, 4, 2):
        codecs = {} if bits is None else table_codecs(spec, bits)
        for name, ids in (("a quarter", touched), ("all", None)):
            if bits is None and ids is None:
                continue  # it does not fit the frames
            taken_s, size = best_of(6, lambda: snapshot(buffer, spec, weight, ids, codecs))  # noqa: B023
            print(f"dim {dim}, {bits or 32} bits, {name}: {taken_s * 1e3:.1f} ms, {size / 1e6:.0f} MB", flush=True)
    unpin(buffer)


def snapshot(
    buffer: FrameBuffer, spec: TableSpec, weight: Tensor, ids: Tensor | None, codecs: Mapping[str, Codec]
) -> int:
    frames = Frames()
    filler = TensorFiller(frames, buffer, frames_ahead=FRAMES)
    filler.add_table(
        TableCopy(
            index=0, columns=spec.columns, tensors=(weight,), start=0, stop=len(weight), ids=ids, codecs=dict(codecs)
        )
    )
    filler.flush()
    return frames.used


def best_of(times: int, work: Callable[[], int]) -> tuple[float, int]:
    best_s, found = float("inf"), 0
    for _ in range(times):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        found = work()
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s, found


def measure_saves(precision: hf.Precision, rows: int = 20_000_000, dim: int = 64) -> None:
    """Whole saves of 5 GB through the agent, each of another number of rows: none may compile anything."""
    table = nn.EmbeddingBag(rows, dim, sparse=True, device="cuda")
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    options = {"save": hf.Never(), "strategy": hf.OneShot(), "overlap": hf.Overlap.WAIT}
    with (
        tempfile.TemporaryDirectory() as folder,
        hf.Checkpointer(
            Path(folder) / "run",
            model=nn.ModuleDict({"table": table}),
            optimizer=optimizer,
            precision=precision,
            **options,
        ) as guard,
    ):
        for _ in range(6):
            optimizer.zero_grad()
            table(torch.randint(0, rows, (4096, 20), device="cuda")).square().mean().backward()
            optimizer.step()
            guard.step()
            guard.mark("table", torch.randint(0, rows, (1_000_003,), device="cuda"))
            torch.cuda.synchronize()
            guard.save()
            stall_s = guard.stats.last_stall_s
            guard.drain()
            written = hf.open_run(Path(folder) / "run").checkpoints()[-1].rows_written
            print(f"{precision}: {written:,} rows, training waited {stall_s * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    for each in PRECISIONS:
        check(each)
    for dim in (64, 128):
        measure(dim)
    for each in (hf.Exact(), hf.Bits(8), hf.Bits(2)):
        measure_saves(each)
