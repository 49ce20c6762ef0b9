"""Checkpoints in few bits: every one gives back, to the bit, what its codecs say of the rows that were saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import holdfast as hf
from holdfast.errors import ConfigurationError
from holdfast.policy import Precision, Strategy
from holdfast.storage import MemoryStore, Store, open_store
from holdfast.types import Kind
from tests.independent.reader import IndependentRun
from tests.shelf import ROWS, Rows, Shelf, build, live, same_rows, train

STRATEGIES = {
    "full": hf.Full(),
    "one_shot": hf.OneShot(),
    "consecutive": hf.Consecutive(),
    "intermittent": hf.Intermittent(),
    "grid": hf.Grid(rule=hf.DeadShare(0.05), reset=False),
    "pairs": hf.Grid(rule=hf.Pairs(0.0), reset=False),
}
PRECISIONS = {
    "2 bits": hf.Bits(2),
    "3 bits, published": hf.Bits(3, method="published"),
    "4 bits, k-means": hf.Bits(4, method="kmeans"),
    "8 bits": hf.Bits(8),
    "2 bits of difference": hf.Bits(2, difference=True),
    "4 bits of difference, published": hf.Bits(4, difference=True, method="published"),
    "3 bits of difference, k-means": hf.Bits(3, difference=True, method="kmeans"),
    "one table exact": hf.PerTable(hf.Bits(4), {"user": hf.Exact()}),
    "one table of difference": hf.PerTable(hf.Exact(), {"item": hf.Bits(3, difference=True)}),
}
SETTINGS = hf.Settings(handle_sigterm=False, grace_s=0.0)
FROM_STORE = hf.Settings(handle_sigterm=False, grace_s=0.0, baseline_in_memory=False)


class Run:
    """A training and, beside it, what each of its checkpoints must hold."""

    def __init__(self, store: Store, strategy: Strategy, precision: Precision, *, optimizer: str = "sgd") -> None:
        self.store = store
        self.options = {"strategy": strategy, "precision": precision, "save": hf.Never(), "retention": hf.KeepAll()}
        self.optimizer_name = optimizer
        self.shelf = Shelf(precision)
        self.truth: dict[int, Rows] = {}
        self.restores = 0

    def life(
        self, steps: range, *, settings: hf.Settings = SETTINGS, whole_at: int | None = None, resume: bool = False
    ) -> list[Kind]:
        """Train, save after each step, and remember what each save must give back; the kinds of the saves."""
        model, optimizer = build(self.optimizer_name)
        kinds = []
        with self.guard(model, optimizer, settings) as guard:
            if resume:
                self.restores += 1
                assert guard.resume() == steps.start
                assert same_rows(live(model, optimizer), self.truth[steps.start])
            for step in range(steps.start + 1, steps.stop + 1):
                changed: dict[str, Tensor | None] = dict(train(model, optimizer, step))
                if step == whole_at:
                    guard.mark("item")
                    changed["item"] = None
                guard.step()
                guard.save(wait=True)
                kind = hf.open_run(self.store).checkpoints()[-1].kind
                kinds.append(kind)
                self._remember(step, kind, live(model, optimizer), changed)
            guard.drain(arranged=True)
        return kinds

    def guard(self, model: nn.Module, optimizer: Optimizer, settings: hf.Settings = SETTINGS) -> hf.Checkpointer:
        return hf.Checkpointer(self.store, model=model, optimizer=optimizer, settings=settings, **self.options)  # type: ignore[arg-type]

    def check(self) -> None:
        """Every checkpoint restores to what it must hold, row by row and whole; and every byte of the run is good."""
        run = hf.open_run(self.store)
        for info in run.checkpoints():
            model, optimizer = build(self.optimizer_name, seed=1)
            run.restore(model=model, optimizer=optimizer, step=info.step)
            assert same_rows(live(model, optimizer), self.truth[info.step]), (info.step, info.kind)
            for name, rows in ROWS.items():
                ids = torch.randint(0, rows, (50,))
                found = run.read_rows(name, ids, step=info.step)
                wanted = self.truth[info.step]
                assert all(same_rows({("", ""): found[c]}, {("", ""): wanted[name, c][ids]}) for c in found)
        assert not run.verify()

    def _remember(self, step: int, kind: Kind, state: Rows, changed: dict[str, Tensor | None]) -> None:
        self.truth[step] = self.shelf.save(kind, state, changed, self.restores)


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_every_checkpoint_gives_back_what_its_codecs_say(strategy: Strategy, precision: Precision) -> None:
    run = Run(MemoryStore(), strategy, precision)
    run.life(range(0, 6))
    run.check()


@pytest.mark.parametrize("strategy", [STRATEGIES["intermittent"], STRATEGIES["grid"]], ids=["intermittent", "grid"])
@pytest.mark.parametrize("precision", [hf.Bits(2), hf.Bits(2, difference=True)], ids=["bits", "difference"])
def test_slots_are_stored_as_their_kind_needs_it(strategy: Strategy, precision: Precision) -> None:
    run = Run(MemoryStore(), strategy, precision, optimizer="adagrad")
    run.life(range(0, 4))
    run.check()


@pytest.mark.parametrize("settings", [SETTINGS, FROM_STORE], ids=["in memory", "from the store"])
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_resumed_agent_goes_on_with_differences_from_the_same_baseline(
    strategy: Strategy, settings: hf.Settings
) -> None:
    run = Run(MemoryStore(), strategy, hf.Bits(2, difference=True))
    run.life(range(0, 3), settings=settings)
    run.life(range(3, 6), settings=settings, resume=True)
    run.check()


@pytest.mark.parametrize("strategy", [hf.Consecutive(), STRATEGIES["grid"]], ids=["consecutive", "grid"])
def test_rows_differ_from_no_baseline_below_a_table_that_was_saved_whole(strategy: Strategy) -> None:
    run = Run(MemoryStore(), strategy, hf.Bits(2, difference=True))
    run.life(range(0, 5), whole_at=3)
    run.life(range(5, 7), resume=True)
    run.check()


def test_rows_that_no_grid_holds_are_kept_exactly() -> None:
    for precision in (hf.Bits(2), hf.Bits(2, difference=True)):
        store = MemoryStore()
        model, optimizer = build()
        odd = torch.tensor([[float("nan")], [float("inf")], [-float("inf")], [1e-40], [3e38], [0.0], [7.0]])
        with hf.Checkpointer(
            store, model=model, optimizer=optimizer, precision=precision, save=hf.Never(), strategy=hf.Grid(reset=False)
        ) as guard:
            for step in range(4):
                train(model, optimizer, step)
                with torch.no_grad():
                    model["item"].weight.data[step * 7 : (step + 1) * 7, :1] = odd
                    model["item"].weight.data[300:307, :] = odd
                guard.mark("item", torch.cat([torch.arange(step * 7, (step + 1) * 7), torch.arange(300, 307)]))
                guard.step()
                guard.save(wait=True)
            guard.drain(arranged=True)
            kept = model["item"].weight.detach().clone()
        again, _ = build()
        hf.open_run(store).restore(model=again)
        infinite = ~kept.isfinite().all(dim=1)
        restored = again["item"].weight.detach()
        assert infinite.sum() >= 6
        assert torch.equal(restored[infinite].view(torch.int32), kept[infinite].view(torch.int32))
        assert torch.equal(restored[300:307].view(torch.int32), kept[300:307].view(torch.int32))


def test_restoring_into_another_type_gives_the_stored_rows_rounded_once() -> None:
    run = Run(MemoryStore(), hf.Consecutive(), hf.Bits(2, difference=True))
    run.life(range(0, 4))
    model, _ = build(seed=1)
    model = model.bfloat16()
    hf.open_run(run.store).restore(model=model, strict=False)
    assert torch.equal(model["item"].weight.detach(), run.truth[4]["item", "weight"].bfloat16())


def test_an_export_holds_plain_numbers(tmp_path: Path) -> None:
    run = Run(MemoryStore(), hf.Intermittent(), hf.Bits(3, difference=True))
    run.life(range(0, 3))
    hf.open_run(run.store).export(tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt")
    assert torch.equal(found["item.weight"], run.truth[3]["item", "weight"])


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize("strategy", [STRATEGIES["intermittent"], STRATEGIES["grid"]], ids=["intermittent", "grid"])
def test_a_reader_written_from_the_specification_reads_the_same(
    tmp_path: Path, strategy: Strategy, precision: Precision
) -> None:
    run = Run(open_store(tmp_path), strategy, precision, optimizer="adagrad")
    run.life(range(0, 4))
    independent = IndependentRun(tmp_path)
    independent.verify()
    for entry in independent.checkpoints():
        for name, columns in independent.tables(entry["id"]).items():
            for column, rows in columns.items():
                wanted = run.truth[entry["step"]][name, column].numpy()
                assert rows.view(np.uint32).tolist() == wanted.view(np.uint32).tolist(), (entry["step"], name, column)


# ---- precision follows restores ------------------------------------------------------------------------------------


def test_more_restores_than_expected_bring_eight_bits_and_a_new_baseline_and_both_stay() -> None:
    auto = hf.PaperTable(failure_probability=0.001, nodes=10, expected_hours=100)  # one restore expected: 2 bits
    run = Run(MemoryStore(), hf.OneShot(), auto)
    assert run.life(range(0, 2)) == [Kind.FULL, Kind.DIFFERENTIAL]
    assert run.life(range(2, 4), resume=True) == [Kind.DIFFERENTIAL] * 2
    assert run.life(range(4, 6), resume=True) == [Kind.FULL, Kind.DIFFERENTIAL]
    assert run.life(range(6, 8), resume=True) == [Kind.DIFFERENTIAL] * 2
    run.check()


def test_a_run_that_becomes_more_precise_takes_a_new_baseline_and_one_that_becomes_less_does_not() -> None:
    store = MemoryStore()
    kinds = []
    for number, precision in enumerate((hf.Bits(4), hf.Bits(2), hf.Bits(4), hf.Exact(), hf.Bits(8))):
        run = Run(store, hf.Consecutive(), precision)
        model, optimizer = build()
        with run.guard(model, optimizer) as guard:
            guard.resume()
            train(model, optimizer, number)
            guard.step()
            guard.save(wait=True)
        kinds.append(hf.open_run(store).checkpoints()[-1].kind)
    assert kinds == [Kind.FULL, Kind.INCREMENTAL, Kind.FULL, Kind.FULL, Kind.INCREMENTAL]


def test_a_precision_for_a_table_that_does_not_exist_is_refused() -> None:
    model, optimizer = build()
    with pytest.raises(ConfigurationError, match=r"'users'.*item, user"):
        hf.Checkpointer(
            MemoryStore(), model=model, optimizer=optimizer, precision=hf.PerTable(hf.Bits(2), {"users": hf.Exact()})
        )
    with pytest.raises(ConfigurationError, match=r"precision=.*Bits"):
        hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizer, precision=hf.Bits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dim", "dtype"), [(1, torch.float32), (1, torch.bfloat16), (2, torch.float16)], ids=["fp32", "bf16", "fp16"]
)
@pytest.mark.parametrize("precision", [hf.Bits(4), hf.Bits(2, difference=True), hf.Bits(4, method="kmeans")], ids=repr)
def test_a_nan_in_a_narrow_table_is_saved_as_it_is_and_so_is_everything_after_it(
    dim: int, dtype: torch.dtype, precision: Precision
) -> None:
    store = MemoryStore()
    torch.manual_seed(0)
    model = nn.ModuleDict({"emb": nn.Embedding(20, dim, sparse=True, dtype=dtype)})
    weight = model["emb"].weight
    options = {"precision": precision, "save": hf.Never(), "strategy": hf.Consecutive(), "settings": SETTINGS}
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with hf.Checkpointer(store, model=model, optimizer=optimizer, **options) as guard:  # type: ignore[arg-type]
        for row, value in enumerate([np.nan, np.inf, 1.0], start=3):
            optimizer.step()
            with torch.no_grad():
                weight[row, 0] = value
            guard.mark("emb", torch.tensor([row]))
            guard.step()
            guard.save(wait=True)
    rows = hf.open_run(store).read_rows("emb", range(20))["weight"]
    assert torch.equal(rows.contiguous().view(torch.uint8), weight.detach().contiguous().view(torch.uint8))
    assert hf.open_run(store).verify() == []
