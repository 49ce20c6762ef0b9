"""Compares the fused kernels that write tables into a device buffer with torch's operations, chunk by chunk.

Without pytest and Numba, which a GPU machine may lack:

    PYTHONPATH=src:. python -m tests.checkpoint.snapshot.fused_check cuda     (or with a number of rounds behind it)
    PYTHONPATH=src:. TRITON_INTERPRET=1 python -m tests.checkpoint.snapshot.fused_check cpu
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import BoundLayout, RoomExceeded
from holdfast.checkpoint.snapshot.device_stage import StagedTable, TableStage
from holdfast.checkpoint.snapshot.gpu_records import encodable
from holdfast.checkpoint.snapshot.side_streams import CudaStreams, SideStreams
from holdfast.checkpoint.snapshot.table_copy import DeviceDifference, TableCopy
from holdfast.checkpoint.snapshot.table_layouts import TableLayouts
from holdfast.checkpoint.snapshot.table_writer import TableWriter
from holdfast.codec.choice import table_codecs
from holdfast.codec.quantized import Asymmetric, Quantized, Symmetric, default
from holdfast.kernels.quantize import tensors
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.kernels.quantize.scheme import record_bytes
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams
from tests.checkpoint.snapshot.staging_agent import FRAME_BYTES, table_spec, touched

ROUNDS = 8
WRITES = 4  # of the same tables: launched, recorded, and queued again from the record
SIZES = (
    (1, 40, 300) if os.environ.get("TRITON_INTERPRET") == "1" else (1, 700, 3000, 200_000)
)  # the interpreter is slow
BUFFER_BYTES = 2**22 if SIZES[-1] < 1000 else 2**28


def some_table(index: int, device: torch.device, draw: random.Random) -> TableCopy:
    """Of any size, with rows that no record holds, touched, listed or whole."""
    rows, dim = draw.choice(SIZES), draw.choice([5, 16])
    spec = table_spec(rows, dim)
    weight, momentum = torch.randn(rows, dim), torch.randn(rows, dim)
    weight[torch.rand(rows) < draw.choice([0.0, 0.01, 0.4]), 0] = torch.inf
    momentum[torch.rand(rows) < 0.1] = 2.5
    start = rows // 3 if draw.random() < 0.5 else 0
    share = draw.choice([0.02, 0.3, 1.0])
    ids = ((torch.rand(rows - start) < share).nonzero().view(-1) + start).to(device)
    how = draw.choice(["touched", "touched", "listed", "whole"])
    bits = draw.choice([None, 8, 4, 3, 2])
    weight, momentum = weight.to(device), momentum.to(device)
    differs = bits is not None and how != "whole" and draw.random() < 0.6
    return TableCopy(
        index=index,
        columns=spec.columns,
        tensors=(weight, momentum),
        difference=some_baseline(weight, start, default(bits or 8), draw) if differs else None,
        start=start,
        stop=rows,
        ids=ids if how == "listed" else None,
        unlisted=touched(rows, ids, start, rows) if how == "touched" else None,
        codecs={} if bits is None else dict(table_codecs(spec, bits)),
    )


def some_baseline(weight: Tensor, start: int, inner: Quantized, draw: random.Random) -> DeviceDifference:
    """What the weights were, more or less, from a row on."""
    rows, dim = weight.shape
    scheme = draw.choice([Asymmetric(bits=8), Symmetric(bits=8)]).scheme
    base = BaselineRows(
        torch.empty(rows - start + 1, record_bytes(scheme, dim), dtype=torch.uint8, device=weight.device),
        torch.empty(rows - start, dim, device=weight.device),
        scheme,
        start,
    )
    tensors.keep_baseline((weight + 0.01 * torch.randn_like(weight))[start:], base)
    return DeviceDifference(inner, base)


def chunks_of(stages: Sequence[TableStage], buffer: Tensor, tally: Tensor) -> list[object]:
    """What leaves the device of each table, or why it does not."""
    found: list[object] = []
    at = 0
    for each in stages:
        numbers = tally[at : at + each.layout.tally_numbers].cpu()
        at += each.layout.tally_numbers
        table = StagedTable(
            index=each.copy.index, buffer=buffer, layout=each.layout, origin=each.copy.origin, start=each.copy.start,
            numbers=numbers,
        )  # fmt: skip
        try:
            chunks = table.close()
        except RoomExceeded as error:
            found.append(str(error))
            continue
        bytes_ = [[bytes(table.bytes(place.source).cpu().numpy()) for place in chunk.places] for chunk in chunks]
        found.append([[replace(chunk, places=()), data] for chunk, data in zip(chunks, bytes_, strict=True)])
    assert at == len(tally)
    return found


def check(device: torch.device, streams: SideStreams, seed: int) -> int:
    """Several tables at once; how many bytes were compared."""
    from holdfast.checkpoint.snapshot.fused_writer import FusedWriter

    draw = random.Random(seed)
    torch.manual_seed(seed)
    layouts = TableLayouts(FRAME_BYTES)
    stages, used = [], 0
    for index in range(draw.randint(1, 4)):
        copy = some_table(index, device, draw)
        columns = encodable(copy)
        layout = layouts.of(copy, columns, used)
        assert layout is not None
        if not layout.bound:
            continue
        layout = cramped(layout, draw)
        stages.append(TableStage(copy=copy, columns=columns, layout=layout))
        used = layout.stop
    if not stages:
        return 0
    buffers = [torch.full((BUFFER_BYTES,), fill, dtype=torch.uint8, device=device) for fill in (0xAA, 0x55)]
    writer = FusedWriter(buffers[1], streams)
    for number in range(WRITES):
        if number:  # other rows and values, in the same places
            stages = [replace(each, copy=moved(each.copy, draw)) for each in stages]
        wanted = torch.cat([TableWriter(each.copy, each.columns, each.layout, buffers[0]).write() for each in stages])
        found = writer.write(stages)
        assert chunks_of(stages, buffers[1], found) == chunks_of(stages, buffers[0], wanted), (seed, number)
    print(f"{seed}: the same", flush=True)
    return used


def check_unrecordable(device: torch.device) -> None:
    """Work that waits for the device cannot be recorded: it is queued as before, and other work after it too."""
    streams, done = CudaStreams(), []

    def waits() -> None:
        done.append(torch.ones(1, device=device).item())

    assert streams.recorded(device, waits) is waits
    number = torch.zeros(1, device=device)
    streams.recorded(device, lambda: number.add_(1) and None)()
    assert number.item() == 1.0, "the device does not work any more"


def moved(copy: TableCopy, draw: random.Random) -> TableCopy:
    """The table after some training, with fewer rows touched."""
    for tensor in copy.tensors:
        tensor.mul_(-1.5)[draw.randrange(len(tensor))] = torch.nan
    if copy.unlisted is None:
        return copy
    ids = copy.unlisted.now()
    return replace(copy, unlisted=touched(len(copy.tensors[0]), ids[ids % 3 > 0], copy.start, copy.stop))


def cramped(layout: BoundLayout, draw: random.Random) -> BoundLayout:
    """With smaller chunks, and sometimes with less room than the rows need."""
    rows = draw.choice([layout.chunk_rows, layout.chunk_rows, max(1, layout.chunk_rows // 7)])
    escapes = draw.choice([layout.escapes, layout.escapes, 1])
    return replace(layout, chunk_rows=rows, escapes=min(escapes, layout.bound))


def main(device: torch.device, rounds: int = ROUNDS) -> None:
    sys.modules["numba"] = None  # type: ignore[assignment]
    streams: SideStreams = CudaStreams() if device.type == "cuda" else DelayedStreams()
    if device.type == "cpu":
        from holdfast.kernels.quantize import gpu

        tensors.is_cheap = lambda table, scheme: tensors.is_plain(table) and gpu.can_encode(scheme, table.shape[1])
    compared = sum(check(device, streams, seed) for seed in range(rounds))
    assert compared
    if device.type == "cuda":
        check_unrecordable(device)
    print(f"the fused kernels equal torch's operations on {device}: {compared} bytes")


if __name__ == "__main__":
    main(torch.device(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
