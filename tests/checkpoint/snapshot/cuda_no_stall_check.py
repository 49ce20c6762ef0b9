"""Takes snapshots on a GPU while training goes on, with random delays on both streams, and compares every row.

Without pytest and Numba, which a GPU machine may lack:

    PYTHONPATH=src:. python -m tests.checkpoint.snapshot.cuda_no_stall_check          (about two minutes)
    PYTHONPATH=src:. python -m tests.checkpoint.snapshot.cuda_no_stall_check cuda:0 1 (one round, not three)
    PYTHONPATH=src:. python -m tests.checkpoint.snapshot.cuda_no_stall_check cuda:0 1 differences runs    (some checks)
    PYTHONPATH=src:. python -m tests.checkpoint.snapshot.cuda_no_stall_check cpu      (no GPU: tries the program itself)

Whole snapshots are read in slices, too, from a buffer that is smaller than they are. Then it takes away what keeps the
order, one thing at a time, and expects the rows to differ.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.snapshot import device_stage, side_streams, staging
from holdfast.checkpoint.snapshot.device_baselines import DeviceBaselines
from holdfast.checkpoint.snapshot.draining import Draining
from holdfast.checkpoint.snapshot.side_streams import Copy, CudaStreams, SideStreams
from holdfast.checkpoint.snapshot.staging import Staging
from holdfast.checkpoint.snapshot.table_copy import DeviceDifference, TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import pin, unpin
from holdfast.codec import Codec, Difference
from holdfast.codec.choice import table_codecs
from holdfast.codec.difference import Baseline
from holdfast.codec.quantized import Asymmetric, Quantized, Symmetric
from holdfast.kernels.quantize import tensors
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.policy import Precision
from holdfast.types import Kind, TableSpec
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams
from tests.checkpoint.snapshot.staging_agent import Agent, captured, table_spec, touched
from tests.tiny import Tiny

ROWS = 400_000 if torch.cuda.is_available() else 20_000
DIM, TOUCHED = 64, 4_000
ROUNDS = 3
FRAMES, FRAME_BYTES = 6, 2**19
SLICED_FRAME_BYTES = FRAME_BYTES if torch.cuda.is_available() else 2**16
CYCLES_PER_MS = 1_800_000
MOST_DELAY_MS = 8
PRECISIONS = (hf.Exact(), hf.Bits(8), hf.Bits(4), hf.Bits(3), hf.Bits(2), hf.Bits(2, difference=True))
DIFFERENCES = (hf.Bits(3, difference=True), hf.Bits(2, difference=True))
CHECKS = ("differences", "rows", "slices", "mutants", "kept", "runs")
TINY_ROWS = (20_000, 40)
NOWHERE = Baseline(checkpoint="first", digest="")


class Torn(AssertionError):
    """Rows that differ from those of the snapshot's step."""


class SlowStreams(CudaStreams):
    """Copies come late, by a random time."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._draw = random.Random(seed)

    def copy(self, device: torch.device, copies: Iterable[Copy]) -> None:
        with torch.cuda.stream(self.stream(device)):
            torch.cuda._sleep(self._draw.randint(2, MOST_DELAY_MS) * CYCLES_PER_MS)
        super().copy(device, copies)


class Unordered(SlowStreams):
    """A mutant: the side stream does not wait for training's."""

    def follow(self, device: torch.device) -> None:
        self.stream(device)


class Unlent(SlowStreams):
    """A mutant: nobody tells the allocator that a copy still reads the memory."""

    def lend(self, source: Tensor, stream: torch.cuda.Stream) -> None:
        pass


def say(text: str) -> None:
    print(f"{time.perf_counter() - STARTED_S:6.1f} s  {text}", flush=True)


def delay(device: torch.device, milliseconds: int) -> None:
    """Training's stream falls behind the CPU, as it does in real steps."""
    if device.type == "cuda":
        torch.cuda._sleep(milliseconds * CYCLES_PER_MS)


def train_on(weight: Tensor, momentum: Tensor, draw: random.Random) -> None:
    """Change rows in place, and take, fill and give back memory as a step does."""
    ids = torch.randint(0, len(weight), (20_000,), device=weight.device)
    momentum.index_fill_(0, ids, draw.random())
    weight.index_add_(0, ids, momentum[ids], alpha=-0.1)
    weight.mul_(1.0 + 1e-3)
    fill_memory(weight.device, draw)


def fill_memory(device: torch.device, draw: random.Random) -> None:
    """Whatever was freed before is overwritten."""
    filled = [  # all at once
        torch.full((size,), -draw.randint(1, 2**40), dtype=torch.int64, device=device)
        for size in (1, 40, 100, 700, 20_000)
        for _ in range(24)
    ]
    filled.clear()


def one_snapshot(
    streams: SideStreams,
    device: torch.device,
    codecs: dict[str, Codec],
    spec: TableSpec,
    seed: int,
    *,
    baseline: Quantized | None = None,
) -> None:
    """Stage, train on, drain, compare. Raises Torn. With ``baseline``, weights are differences from rows stored so."""
    agent = Agent(spec, codecs, FRAMES, FRAME_BYTES)
    if device.type == "cuda":
        pin(agent.buffer)
    try:
        take_and_compare(agent, streams, device, codecs, spec, seed, baseline)
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize()
            unpin(agent.buffer)


def take_and_compare(
    agent: Agent,
    streams: SideStreams,
    device: torch.device,
    codecs: dict[str, Codec],
    spec: TableSpec,
    seed: int,
    baseline: Quantized | None,
) -> None:
    """The same with an agent whose frames are pinned. The first snapshot, which compiles kernels, is dropped."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    weight, momentum = (torch.randn(ROWS, DIM, device=device) for _ in range(2))
    weight[::997, 3] = torch.nan  # no record holds these
    dense = torch.randn(300_000, device=device)
    ids = torch.randperm(ROWS, device=device)[: draw.randint(TOUCHED // 2, TOUCHED)].sort().values
    stager = Staging(streams, {device: 2**27}, frame_bytes=FRAME_BYTES)
    kept, before = (None, None) if baseline is None else keep_baseline(streams, weight, baseline, codecs["weight"], ids)
    for behind_ms in (0, 40):
        agent.chunks.clear()
        agent.state.clear()
        delay(device, behind_ms)
        copy = TableCopy(
            index=0,
            columns=spec.columns,
            tensors=(weight, momentum),
            start=0,
            stop=ROWS,
            ids=None,
            unlisted=touched(ROWS, ids, 0, ROWS),
            codecs=codecs,
            difference=kept,
        )
        staged = stager.stage(captured(copy, dense))
        assert staged is not None, "the device buffer is too small"
        shadow = {"weight": weight[ids], "momentum_buffer": momentum[ids]}
        state = dense.clone()
        draining = Draining(staged, stager, agent, agent.buffer)
        drain_beside(draining, agent, lambda: (train_on(weight, momentum, draw), dense.add_(1.0)))
    shadow = {name: each.cpu() for name, each in shadow.items()}
    compare(agent, codecs, ids.cpu(), shadow, state.cpu(), before)


def keep_baseline(
    streams: SideStreams, weight: Tensor, codec: Quantized, inner: Codec, ids: Tensor
) -> tuple[DeviceDifference, np.ndarray]:
    """A table on its device as a baseline, and how a restore would give some of its rows back; then it is trained."""
    assert isinstance(inner, Quantized)
    weight[1::997] = 4.0  # a constant row, which its record holds
    baselines = DeviceBaselines(streams, {weight.device: 2**30})
    baselines.take("first")
    baselines.keep(0, weight, codec, inner, 0, len(weight))
    baselines.committed(Kind.FULL, ())
    before = codec.decode(codec.encode(weight[ids].cpu().numpy()), DIM)
    for _ in range(10_000):
        if (base := baselines.of(0, "first")) is not None:
            break
        time.sleep(0.001)
    assert base is not None, "the baseline is of no use"
    weight.add_(torch.randn_like(weight), alpha=0.01)
    weight[::1993] = 5.0
    return DeviceDifference(inner, base), before


class AnnouncedMoves:
    """See ``Movements``: what moves rows tells of them before."""

    def __init__(self) -> None:
        self.on_move: Callable[[Tensor | None], None] | None = None
        self.are_told = True

    def are_announced(self, table: int) -> bool:
        return True

    def listen(self, table: int, on_move: Callable[[Tensor | None], None] | None) -> None:
        self.on_move = on_move

    def is_overtaken(self, table: int) -> bool:
        return False

    def name(self, table: int) -> str:
        return "table"

    def tell(self, ids: Tensor) -> None:
        if self.on_move is not None and self.are_told:
            self.on_move(ids)


def sliced_snapshot(
    streams: SideStreams,
    device: torch.device,
    codecs: dict[str, Codec],
    spec: TableSpec,
    seed: int,
    moves: AnnouncedMoves,
) -> None:
    """A whole table from a buffer of two thirds of its size, while steps move rows of it."""
    agent = Agent(spec, codecs, FRAMES, SLICED_FRAME_BYTES, whole=True)
    draw = random.Random(seed)
    torch.manual_seed(seed)
    weight, momentum = (torch.randn(ROWS, DIM, device=device) for _ in range(2))
    weight[::997, 3] = torch.nan
    row_bytes = 8 * DIM if not codecs else sum(codec.bytes_per_row(DIM, "F32") for codec in codecs.values())
    size = ROWS * row_bytes * 2 // 3
    stager = Staging(streams, {device: size}, frame_bytes=SLICED_FRAME_BYTES, movements=moves)
    if device.type == "cuda":
        pin(agent.buffer)
    try:
        for behind_ms in (0, 30):
            agent.chunks.clear()
            delay(device, behind_ms)
            copy = TableCopy(
                index=0, columns=spec.columns, tensors=(weight, momentum), start=0, stop=ROWS, ids=None, codecs=codecs
            )
            staged = stager.stage(captured(copy))
            assert staged is not None and staged.slices is not None, "it should be read in slices"
            shadow = {"weight": weight.clone(), "momentum_buffer": momentum.clone()}

            def step() -> None:
                ids = torch.randint(0, ROWS, (ROWS // 1000,), device=device)
                moves.tell(ids)
                momentum.index_fill_(0, ids, draw.random())
                weight.index_add_(0, ids, momentum[ids], alpha=-0.1)
                fill_memory(device, draw)

            drain_beside(Draining(staged, stager, agent, agent.buffer), agent, step)
        compare(agent, codecs, torch.arange(ROWS), {name: each.cpu() for name, each in shadow.items()}, None)
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize()
            unpin(agent.buffer)


def check_slices(device: torch.device, streams: Callable[[int], SideStreams], rounds: int) -> None:
    """Every precision; and a step that tells nobody what it moves is noticed."""
    spec = table_spec(ROWS, DIM)
    for bits in (None, 8, 4, 3, 2):
        codecs = {} if bits is None else dict(table_codecs(spec, bits))
        for round_ in range(rounds):
            sliced_snapshot(streams(round_), device, codecs, spec, round_, AnnouncedMoves())
        say(f"same rows in slices: {bits or 'exact'}{' bits' if bits else ''}, {rounds} snapshots")
    silent = AnnouncedMoves()
    silent.are_told = False
    try:
        sliced_snapshot(streams(0), device, {}, spec, 0, silent)
    except Torn as error:
        say(f"mutant without announcements: noticed ({error})")
        return
    raise AssertionError("nobody noticed that moves were not announced")


def drain_beside(draining: Draining, agent: Agent, train: Callable[[], object]) -> None:
    """Let a snapshot leave, a bit after every step."""
    for _ in range(10_000):
        train()
        if draining.advance():
            agent.finish()
            return
        if agent.released:
            agent.released = 0
            agent.finish()
    raise Torn("it never ended")


def compare(
    agent: Agent,
    codecs: dict[str, Codec],
    ids: Tensor,
    shadow: dict[str, Tensor],
    state: Tensor | None,
    before: np.ndarray | None = None,
) -> None:
    """With the shadow, as the agent encodes it: weights as differences from ``before``, if there was a baseline."""
    found_ids, found = agent.rows()
    if not torch.equal(found_ids, ids):
        raise Torn(f"{len(found_ids)} rows, and not the {len(ids)} that were touched")
    for name, values in shadow.items():
        wanted = values
        if codecs:
            codec = codecs[name]
            encoded = codec.encode(values.numpy())
            if name == "weight" and before is not None:
                assert isinstance(codec, Quantized)
                encoded = Difference(inner=codec, baseline=NOWHERE).encode(values.numpy(), before)
            wanted = torch.from_numpy(codec.decode(encoded, DIM))
        differ = (found[name].view(torch.int32) != wanted.view(torch.int32)).any(dim=1)
        if differ.any():
            raise Torn(f"{int(differ.sum())} of {len(ids)} rows of {name} differ")
    if state is not None and agent.state[0] != state.numpy().tobytes():
        raise Torn("the state differs")


def check_rows(device: torch.device, streams: Callable[[int], SideStreams], rounds: int) -> None:
    """Every precision, several times."""
    spec = table_spec(ROWS, DIM)
    for bits in (None, 8, 4, 3, 2):
        codecs = {} if bits is None else dict(table_codecs(spec, bits))
        for round_ in range(rounds):
            one_snapshot(streams(round_), device, codecs, spec, seed=round_)
        say(f"same rows: {bits or 'exact'}{' bits' if bits else ''}, {rounds} snapshots")


def check_differences(device: torch.device, streams: Callable[[int], SideStreams], rounds: int) -> None:
    """Every precision, and baselines of both kinds."""
    spec, plain = table_spec(ROWS, DIM), Asymmetric(bits=8)
    for bits, baseline in ((8, plain), (4, plain), (3, plain), (2, plain), (2, Symmetric(bits=8))):
        for round_ in range(rounds):
            codecs = dict(table_codecs(spec, bits))
            one_snapshot(streams(round_), device, codecs, spec, seed=round_, baseline=baseline)
        say(f"same differences: {bits} bits from {baseline}, {rounds} snapshots")


def check_mutant(mutant: type[SlowStreams], device: torch.device, rounds: int, *, in_slices: bool = False) -> None:
    """It must be noticed in one of several tries."""
    spec, noticed = table_spec(ROWS, DIM), []
    for seed in range(rounds):
        try:
            if in_slices:
                sliced_snapshot(mutant(seed), device, {}, spec, seed, AnnouncedMoves())
            else:
                one_snapshot(mutant(seed), device, {}, spec, seed=seed)
        except (AssertionError, hf.HoldfastError, ValueError, IndexError) as error:
            noticed.append(f"{type(error).__name__}: {error}")
        torch.cuda.synchronize()
    how = " in slices" if in_slices else ""
    say(f"mutant {mutant.__name__}{how}: noticed in {len(noticed)} of {rounds} tries ({noticed[:1]})")
    assert noticed, f"nobody noticed {mutant.__name__}{how}: {mutant.__doc__}"


def fresh_writer(buffer: Tensor, streams: SideStreams) -> device_stage.Write:
    """Writes each save with memory of its own, which is free at once, as slices do."""
    return partial(device_stage._write, buffer, streams)


def check_run(precision: Precision, device: torch.device, *, kept: bool = False) -> None:
    """A whole run: saves while training goes on; beside it a run on the host is told the same rows of each save.

    ``kept``: the device makes the differences.
    """
    torch.manual_seed(1)
    model, twin = Tiny(TINY_ROWS, dim=16).to(device), Tiny(TINY_ROWS, dim=16)
    model.emb[1].weight.data[7, 0] = torch.inf
    twin.load_state_dict({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    optimizers, others = (_optimizers(each) for each in (model, twin))
    settings = hf.Settings(device_baseline_bytes=2**26 if kept else 0)
    options = {"save": hf.Never(), "strategy": hf.Consecutive(), "precision": precision, "retention": hf.KeepAll()}
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        shadows: list[tuple[list[Tensor], list[Tensor]]] = []
        with (
            counted_differences() as made,
            hf.Checkpointer(there, model=model, optimizer=optimizers, settings=settings, **options) as guard,
        ):
            moved: list[list[Tensor]] = [[], []]
            for step in range(16):
                ids = torch.randint(0, 100_000, (64, 2, 2), device=device)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                model(ids).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
                guard.step()
                for number, rows in enumerate(TINY_ROWS):
                    moved[number].append(ids[:, number].reshape(-1) % rows)
                if step % 4 == 3:
                    delay(device, 10)
                    guard.save()
                    rows_now = [table.weight.detach().clone() for table in model.emb]
                    shadows.append((rows_now, [torch.cat(each) for each in moved]))
                    moved = [[], []]
            guard.drain()
            stats = guard.stats
        assert stats.drained == len(shadows) and not stats.device_waits, stats
        assert sum(made) == (len(TINY_ROWS) * (len(shadows) - 1) if kept else 0), made
        host = side_streams.streams_for
        side_streams.streams_for = lambda tensors: None  # the twin is not on a device, whoever pretends that it is
        try:
            with hf.Checkpointer(here, model=twin, optimizer=others, **options) as guard:
                for values, ids_of_tables in shadows:
                    for number, (table, rows_then) in enumerate(zip(twin.emb, values, strict=True)):
                        table.weight.data.copy_(rows_then)
                        guard.mark(f"emb.{number}", ids_of_tables[number].unique().cpu())
                    guard.save(wait=True)
        finally:
            side_streams.streams_for = host
        compare_runs(hf.open_run(here), hf.open_run(there), len(shadows))
    where = ", made on the device" if kept else ""
    say(f"same rows of a whole run: {precision}{where}; drained in {stats.last_drain_s * 1e3:.0f} ms")


@contextmanager
def counted_differences() -> Iterator[list[bool]]:
    """Whether the device makes the differences, each time that somebody asks."""
    made: list[bool] = []
    of = DeviceBaselines.of

    def counted(self: DeviceBaselines, table: int, checkpoint: str | None) -> BaselineRows | None:
        found = of(self, table, checkpoint)
        made.append(found is not None)
        return found

    DeviceBaselines.of = counted  # type: ignore[method-assign]
    try:
        yield made
    finally:
        DeviceBaselines.of = of  # type: ignore[method-assign]


def _optimizers(model: Tiny) -> list[torch.optim.Optimizer]:
    """The second one keeps numbers on the host beside tensors on the device."""
    dense = [each for name, each in model.named_parameters() if not name.startswith("emb")]
    return [torch.optim.SGD(model.emb.parameters(), lr=0.1), torch.optim.Adam(dense)]


def compare_runs(here: hf.Run, there: hf.Run, checkpoints: int) -> None:
    """Checkpoint by checkpoint, row by row."""
    pairs = list(zip(here.checkpoints(), there.checkpoints(), strict=True))
    assert len(pairs) == checkpoints
    for mine, other in pairs:
        assert mine.kind == other.kind
        for number, rows in enumerate(TINY_ROWS):
            wanted = _rows(here, number, rows, mine.id)
            found = _rows(there, number, rows, other.id)
            if not torch.equal(found.view(torch.int32), wanted.view(torch.int32)):
                raise Torn(f"rows of emb.{number} differ in {other.id}")
    assert not there.verify()


def _rows(run: hf.Run, number: int, rows: int, checkpoint: str) -> Tensor:
    return run.read_rows(f"emb.{number}", range(rows), step=checkpoint)["weight"]


def main(device: torch.device, rounds: int = ROUNDS, checks: Sequence[str] = CHECKS) -> None:
    sys.modules["numba"] = None  # type: ignore[assignment]
    make: Callable[[int], SideStreams] = SlowStreams
    if device.type == "cpu":
        tensors.is_cheap = lambda table, scheme: tensors.is_plain(table)
        make = lambda seed: DelayedStreams()  # noqa: E731
    if "differences" in checks:
        check_differences(device, make, rounds)
    if "rows" in checks:
        check_rows(device, make, rounds)
    if "slices" in checks:
        check_slices(device, make, rounds)
    if device.type == "cuda" and "mutants" in checks:
        check_mutant(Unordered, device, rounds)
        check_mutant(Unordered, device, rounds, in_slices=True)
        staging.writer = fresh_writer
        check_mutant(Unlent, device, rounds)
        staging.writer = device_stage.writer
    side_streams.streams_for = lambda tensors: make(0)
    for precision in DIFFERENCES if "kept" in checks else ():
        check_run(precision, device, kept=True)
    for precision in PRECISIONS if "runs" in checks else ():
        check_run(precision, device)
    say("all good")


STARTED_S = time.perf_counter()

if __name__ == "__main__":
    main(
        torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda:0"),
        int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS,
        sys.argv[3:] or CHECKS,
    )
