"""Odd and wrong input: a clear error or a correct result, never a wrong row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer, SparseAdam

import holdfast as hf
from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.row_lookup import lookup_rows
from holdfast.checkpoint.restore.tensors import restore_rows
from holdfast.errors import ConfigurationError, ModelMismatch, UnsupportedState
from holdfast.format.outline import Outline
from holdfast.run import Run
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.crash.jobs import SETTINGS
from tests.independent.writing import write_part
from tests.intents import some_intent
from tests.tiny import Tiny, same, snapshot

INTENT = some_intent(kind=Kind.INCREMENTAL)
ODD = (math.nan, -math.nan, math.inf, -math.inf, -0.0, 1e-45)


class Trial:
    """A model of given tables and its guard, with a save whenever it is asked for."""

    def __init__(self, store: MemoryStore, model: nn.Module, **arguments: Any) -> None:
        tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        dense = [p for p in model.parameters() if not any(p is table for table in tables)]
        self.model = model
        self.optimizers: list[Optimizer] = [SparseAdam(tables), Adam(dense)]
        defaults = {"save": hf.Never(), "strategy": hf.Consecutive(), "retention": hf.KeepAll()}
        self.guard = hf.Checkpointer(
            store,
            model=model,
            optimizer=self.optimizers,
            settings=hf.Settings(**SETTINGS),
            **{**defaults, **arguments},
        )

    def step(self, ids: Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.model(ids).sum().backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.guard.step()

    def save(self) -> hf.CheckpointInfo:
        self.guard.save(wait=True)
        return Run(self.guard._store).checkpoints()[-1]

    def state(self) -> dict[str, Tensor]:
        """Every bit, by the order of the parameters and not by that in which their state came to be."""
        state = snapshot(self.model, ())
        for number, optimizer in enumerate(self.optimizers):
            for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
                slots = optimizer.state.get(parameter, {})
                state |= {f"{number}/{index}/{key}": torch.as_tensor(slot).clone() for key, slot in slots.items()}
        return state


def restored(store: MemoryStore, model: nn.Module) -> dict[str, Tensor]:
    """The newest checkpoint, in a model that held other values."""
    trial = Trial(store, model)
    with trial.guard:
        trial.guard.resume()
        return trial.state()


def tiny(seed: int = 0, rows: Sequence[int] = (300, 40)) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(rows)


def ids(*first: int) -> Tensor:
    """A batch that looks up these rows of the first table, and as many of the others."""
    return torch.tensor(first).reshape(-1, 1, 1).expand(-1, 2, 1)


@pytest.mark.parametrize("url", ["ftp://host/run", "s4://bucket/run", "S3://bucket/run"])
def test_an_unknown_scheme_is_named_with_the_known_ones(url: str) -> None:
    for use in (lambda: hf.open_run(url), lambda: hf.Checkpointer(url, model=tiny())):
        with pytest.raises(ConfigurationError, match=rf"{url}: unknown scheme .*s3://"):
            use()


def test_rows_that_are_no_numbers_come_back_bit_for_bit() -> None:
    store = MemoryStore()
    trial = Trial(store, tiny())
    with trial.guard:
        trial.step(ids(1, 2))
        trial.save()
        payload = torch.tensor([0x7FA00001], dtype=torch.int32).view(torch.float32)  # a NaN that carries something
        trial.model.emb[0].weight.data[7] = torch.tensor(ODD[:4])
        trial.model.emb[0].weight.data[8] = torch.cat([torch.tensor(ODD[4:]), payload, payload])
        trial.guard.mark("emb.0", torch.tensor([7, 8]))
        trial.step(ids(1, 2))
        assert trial.save().kind.value == "incremental"
    assert same(restored(store, tiny(1)), trial.state())


def test_training_on_nan_gradients_is_saved_as_it_is() -> None:
    store = MemoryStore()
    trial = Trial(store, tiny())
    with trial.guard:
        trial.step(ids(1, 2))
        trial.save()
        with torch.no_grad():
            trial.model.top.weight.fill_(math.nan)
        trial.step(ids(3, 4))
        trial.save()
    assert trial.model.emb[0].weight[3].isnan().all()
    assert same(restored(store, tiny(1)), trial.state())


def test_an_empty_update_is_a_checkpoint_of_no_rows() -> None:
    store = MemoryStore()
    trial = Trial(store, tiny())
    with trial.guard:
        trial.step(ids(1, 2))
        trial.save()
        trial.optimizers[1].step()  # the dense part alone
        trial.guard.step()
        info = trial.save()
        assert (info.step, info.rows_written) == (2, 0)
        assert trial.save().rows_written == 0  # not even a step in between
    assert same(restored(store, tiny(1)), trial.state())
    assert Run(store).verify() == []


def test_tables_without_rows_are_saved_restored_and_asked_for_nothing() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
            self.empty = nn.Embedding(0, 4, sparse=True)
            self.top = nn.Linear(4, 1)

        def forward(self, wanted: Tensor) -> Tensor:
            nothing = self.empty(wanted.new_empty((len(wanted), 0))).sum(dim=1)
            return self.top(self.emb(wanted[:, 0]) + nothing)

    store = MemoryStore()
    trial = Trial(store, Sparse())
    with trial.guard:
        for row in (1, 2):
            trial.step(ids(row))
            trial.save()
    assert same(restored(store, Sparse()), trial.state())
    run = Run(store)
    assert run.verify() == []
    assert run.read_rows("empty", [])["weight"].shape == (0, 4)
    with pytest.raises(ConfigurationError, match="table empty has no rows"):
        run.read_rows("empty", [0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Tiny((301, 40)), r"table emb\.0 has shape \(300, 4\) in the checkpoint and \(301, 4\) in the model"),
        (lambda: Tiny((300, 40), 8), r"emb\.0 .*\(300, 4\).*\(300, 8\)"),
        (lambda: Tiny((300,)), r"tables missing from the model: \['emb\.1'\]"),
        (lambda: Tiny((300, 40, 5)), r"tables missing from the checkpoint: \['emb\.2'\]"),
        (lambda: tiny().to(torch.bfloat16), r"emb\.0 is F32 in the checkpoint and BF16 in the model"),
    ],
    ids=["more rows", "wider rows", "a table less", "a table more", "another type"],
)
def test_a_model_whose_tables_changed_is_refused_by_name_and_nothing_is_written(model: Any, message: str) -> None:
    store = MemoryStore()
    trial = Trial(store, tiny())
    with trial.guard:
        trial.step(ids(1, 2))
    other = Trial(store, model())
    before = other.state()
    with other.guard, pytest.raises(ModelMismatch, match=message):
        other.guard.resume()
    with pytest.raises(ModelMismatch, match=message):
        Run(store).restore(model=other.model)
    assert same(other.state(), before)
    assert same(restored(store, tiny(1)), trial.state())


def test_a_table_that_grew_keeps_its_new_values_and_is_saved_whole_when_not_strict() -> None:
    store = MemoryStore()
    trial = Trial(store, tiny())
    with trial.guard:
        trial.step(ids(1, 2))
    grown = Trial(store, tiny(1, rows=(301, 40)))
    with grown.guard:
        assert grown.guard.resume(strict=False) == 1
        grown.step(ids(3))
        grown.save()
    assert same(restored(store, tiny(2, rows=(301, 40))), grown.state())
    assert grown.model.emb[1].weight[10].equal(trial.model.emb[1].weight[10])
    assert Run(store).verify() == []


def test_state_that_turns_out_not_to_be_storable_is_named_and_nothing_is_lost() -> None:
    class Extra:
        value: object = 1

        def state_dict(self) -> dict[str, object]:
            return {"inner": [self.value]}

        def load_state_dict(self, state: dict[str, object]) -> None:
            pass

    store, extra = MemoryStore(), Extra()
    trial = Trial(store, tiny(), extra={"thing": extra})
    with trial.guard:
        trial.step(ids(1, 2))
        trial.save()
        trial.step(ids(3, 4))
        extra.value = object()
        with pytest.raises(UnsupportedState, match=r"extra.*thing.*inner"):
            trial.save()
        extra.value = 2
        trial.save()
    other = Trial(store, tiny(1), extra={"thing": Extra()})
    with other.guard:
        assert other.guard.resume() == 2
    assert same(other.state(), trial.state())


def test_rows_beyond_two_to_the_32_are_written_found_and_restored() -> None:
    """A table of one byte a row, which takes memory only where it is touched: the arithmetic of ids is what counts."""
    rows = 2**32 + 100
    wanted = torch.tensor([0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, rows - 1])
    values = torch.arange(1, 7, dtype=torch.uint8)
    source, target = (torch.from_numpy(np.zeros(rows, np.uint8)) for _ in range(2))
    source[wanted] = values
    store = MemoryStore()
    manifest, _ = write_part(store, INTENT, 0, {"huge": {"weight": source}}, {}, {"huge": wanted}, 65536)
    (part,) = manifest.tables
    assert [(chunk.first, chunk.last, chunk.ids) for chunk in part.chunks] == [(0, rows - 1, "U64")]
    outline = Outline.of([manifest])
    reads = tuple(Read(outline, index, chunk.rows) for index, chunk in enumerate(part.chunks))
    plan = TablePlan.of(part.spec, [reads], baseline=True)
    restore_rows(Fetcher(store), [(plan, {"weight": target})])
    assert target[wanted].equal(values)
    asked = wanted.flip(0)
    assert lookup_rows(Fetcher(store), plan, asked)["weight"].equal(values.flip(0))
