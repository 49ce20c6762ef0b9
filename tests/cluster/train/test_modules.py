"""Modules with rows of a batch return what torch's return, and their rows get torch's gradients."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.cluster.train.occurrences import Occurrences
from holdfast.cluster.train.row_set import Held
from holdfast.errors import ConfigurationError
from holdfast.policy import SGD, Normal, tables
from tests.cluster.train.tiny_worker import Worker, plain_copy

ROWS = 12
DECLARED = tables(min_bytes=4, init=Normal())


class Batches:
    """A loader with a state, over given batches."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches
        self._next = 0

    def __iter__(self) -> Any:
        while self._next < len(self._batches):
            self._next += 1
            yield self._batches[self._next - 1]
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


@dataclass(frozen=True)
class Case:
    """A module, and the arguments of its calls."""

    kind: type[nn.Module]
    arguments: dict[str, Any]
    calls: list[dict[str, Any]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    padding = draw(st.none() | st.integers(-ROWS, ROWS - 1))
    common = {"padding_idx": padding, "sparse": draw(st.booleans())}
    dtype = draw(st.sampled_from([torch.int64, torch.int32]))
    ids = st.integers(0, ROWS - 1)
    calls: list[dict[str, Any]] = []
    if draw(st.booleans()):
        common["scale_grad_by_freq"] = draw(st.booleans()) and not common["sparse"]  # torch takes no both
        for _ in range(draw(st.integers(1, 3))):
            shape = draw(st.sampled_from([(5,), (2, 3), (0,), (1, 2, 2), *([] if common["sparse"] else [()])]))
            count = int(np.prod(shape))
            values = draw(st.lists(ids, min_size=count, max_size=count))
            calls.append({"input": torch.tensor(values, dtype=dtype).reshape(shape)})
        return Case(nn.Embedding, common, calls)
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    last = draw(st.booleans())
    common["sparse"] = common["sparse"] and mode != "max"
    for _ in range(draw(st.integers(1, 3))):
        calls.append(_bag(draw, ids, dtype, mode, last))
    return Case(nn.EmbeddingBag, {**common, "mode": mode, "include_last_offset": last}, calls)


def _bag(draw: st.DrawFn, ids: Any, dtype: torch.dtype, mode: str, last: bool) -> dict[str, Any]:
    call: dict[str, Any] = {}
    if draw(st.booleans()) and not last:
        values = draw(st.lists(st.lists(ids, min_size=3, max_size=3), min_size=1, max_size=4))
        call["input"] = torch.tensor(values, dtype=dtype)
    else:
        bags = draw(st.lists(st.lists(ids, max_size=3), min_size=1, max_size=4))
        call["input"] = torch.tensor([each for bag in bags for each in bag], dtype=dtype)
        ends = np.cumsum([0, *(len(bag) for bag in bags)])
        call["offsets"] = torch.tensor(ends if last else ends[:-1], dtype=dtype)
    if mode == "sum" and draw(st.booleans()):
        call["per_sample_weights"] = torch.linspace(-1, 2, call["input"].numel()).reshape(call["input"].shape)
    return call


def weighted(result: Tensor) -> Tensor:
    """A loss whose gradient differs from value to value."""
    return (result * torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)).sum()


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([1, 3]))
def test_a_module_computes_and_learns_as_torchs_does(case: Case, servers: int) -> None:
    def make() -> nn.Module:
        return nn.ModuleDict({"table": case.kind(ROWS, 4, **case.arguments)})

    worker = Worker(make, declared=DECLARED, servers=servers, optimizer=SGD(0.5), ahead=0)
    plain = plain_copy(worker, make())
    optimizer = torch.optim.SGD(plain.parameters(), 0.5)
    for batch in worker.loop.batches(Batches([case.calls] * 3)):  # found in the first; foreseen, then gathered
        optimizer.zero_grad()
        total = torch.zeros(())
        for call in batch:
            mine = worker.loop.model["table"](**call)
            theirs = plain["table"](**call)
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
            total = total + weighted(mine)
            weighted(theirs).backward()
        total.backward()
        worker.loop.step()
        optimizer.step()
    found = torch.from_numpy(worker.exchange.table("table.weight"))
    torch.testing.assert_close(found, plain["table"].weight.detach(), atol=1e-4, rtol=1e-4)


def test_a_batch_is_let_go_without_the_garbage_collector() -> None:
    gc.collect()  # what other tests have left behind
    worker = one_table()
    gc.disable()
    try:
        for batch in worker.loop.batches(Batches([torch.arange(4)] * 8)):
            worker.loop.model["user"](batch).sum().backward()
            worker.loop.step()
        kept = [type(each) for each in gc.get_objects() if type(each) in (Held, Occurrences)]
    finally:
        gc.enable()
    assert sorted(kept, key=str) == [Occurrences, Held]  # of the last batch


def one_table(**arguments: Any) -> Worker:
    return Worker(lambda: nn.ModuleDict({"user": nn.Embedding(ROWS, 4, **arguments)}), declared=DECLARED)


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**60])
def test_an_id_outside_its_table_is_named(wrong: int) -> None:
    worker = one_table()
    words = f"id {wrong} is outside table user.weight, which has 12 rows"
    with pytest.raises(ConfigurationError, match=words):
        for batch in worker.loop.batches(Batches([torch.tensor([1, wrong])])):
            worker.loop.model["user"](batch)


def test_a_batch_with_an_id_outside_is_refused_in_its_turn_or_left_out() -> None:
    good, bad = torch.tensor([1, 2]), torch.tensor([1, ROWS])
    seen = []
    with pytest.raises(ConfigurationError, match=r"id 12 is outside table user\.weight"):
        for batch in worker_with(good, bad, on_bad_ids="raise"):
            seen.append(batch)
    assert len(seen) == 1
    assert [each.tolist() for each in worker_with(good, bad, good, on_bad_ids="skip")] == [[1, 2], [1, 2]]


def worker_with(*batches: Tensor, **settings: Any) -> Any:
    worker = Worker(lambda: nn.ModuleDict({"user": nn.Embedding(ROWS, 4)}), declared=DECLARED, **settings)
    for batch in worker.loop.batches(Batches(list(batches)), ids=lambda batch: {"user": batch}):
        worker.loop.model["user"](batch).sum().backward()
        worker.loop.step()
        yield batch


def test_ids_that_are_no_integers_are_refused() -> None:
    worker = one_table()
    with pytest.raises(
        ConfigurationError, match=r"the ids of table user\.weight must be int64 or int32, got torch\.float"
    ):
        for batch in worker.loop.batches(Batches([torch.rand(3)])):
            worker.loop.model["user"](batch)


@pytest.mark.parametrize("rows", [0, 1])
def test_tables_of_no_row_and_of_one_row_work(rows: int) -> None:
    def make() -> nn.Module:
        return nn.ModuleDict({"user": nn.Embedding(rows, 4), "other": nn.Embedding(5, 4)})

    worker = Worker(make, declared=tables(min_bytes=0), servers=3)
    assert [each.rows for each in worker.built.plan.tables] == [rows, 5]
    for batch in worker.loop.batches(Batches([torch.zeros(rows, dtype=torch.int64)])):
        result = worker.loop.model["user"](batch).sum() + worker.loop.model["other"](torch.tensor([4])).sum()
        result.backward()
        worker.loop.step()
    assert worker.loop.steps == 1


def test_only_rows_that_a_step_used_are_pushed() -> None:
    """Lazy momentum: a row that was pulled and not used must not move."""
    worker = Worker(
        lambda: nn.ModuleDict({"user": nn.Embedding(ROWS, 4)}),
        declared=DECLARED,
        optimizer=SGD(0.1, momentum=0.9),
        ahead=0,
    )
    pushed: list[int] = []
    original = worker.exchange.push
    worker.exchange.push = lambda step: (pushed.append(len(step.keys[0])), original(step))  # type: ignore[assignment]
    ids = torch.tensor([1, 2, 3, 3])
    for number, batch in enumerate(worker.loop.batches(Batches([ids] * 4))):
        used = batch if number < 2 else batch[:1]
        worker.loop.model["user"](used).sum().backward()
        worker.loop.step()
    assert pushed == [3, 3, 1, 1]


def test_two_modules_of_one_weight_learn_together() -> None:
    def make() -> nn.Module:
        model = nn.ModuleDict({"one": nn.Embedding(ROWS, 4), "two": nn.EmbeddingBag(ROWS, 4)})
        model["two"].weight = model["one"].weight
        return model

    worker = Worker(make, declared=DECLARED, optimizer=SGD(1.0))
    plain = plain_copy(worker, make())
    for batch in worker.loop.batches(Batches([torch.tensor([[1, 2], [5, 2]])])):
        for model in (worker.loop.model, plain):
            (weighted(model["one"](batch)) + weighted(model["two"](batch + 3))).backward()
        worker.loop.step()
    expected = plain["one"].weight - plain["one"].weight.grad
    torch.testing.assert_close(torch.from_numpy(worker.exchange.table("one.weight")), expected.detach())


def test_models_may_write_to_what_a_module_returns() -> None:
    """As with torch's, whose result is a copy of rows: in a later call they are as they were."""
    make = lambda: nn.ModuleDict({"user": nn.Embedding(ROWS, 4), "item": nn.EmbeddingBag(ROWS, 4)})  # noqa: E731
    worker = Worker(make, declared=DECLARED, optimizer=SGD(1.0), ahead=0)
    plain = plain_copy(worker, make())
    optimizer = torch.optim.SGD(plain.parameters(), 1.0)
    for batch in worker.loop.batches(Batches([torch.tensor([[3], [5], [3]])] * 3)):
        optimizer.zero_grad()
        for model in (worker.loop.model, plain):
            both = [model["user"](batch.view(-1)).relu_(), model["item"](batch).mul_(3)]
            again = [model["user"](batch.view(-1)), model["item"](batch)]
            sum(map(weighted, [*both, *again])).backward()
        worker.loop.step()
        optimizer.step()
    for name in ("user.weight", "item.weight"):
        found = torch.from_numpy(worker.exchange.table(name))
        torch.testing.assert_close(found, plain.get_parameter(name).detach())


def test_tables_that_no_backward_pass_reached_are_not_pushed() -> None:
    worker = Worker(
        lambda: nn.ModuleDict({"user": nn.Embedding(ROWS, 4), "item": nn.Embedding(ROWS, 4)}),
        declared=DECLARED,
        optimizer=SGD(0.1, momentum=0.9),
        ahead=0,
    )
    moved = []
    for number, batch in enumerate(worker.loop.batches(Batches([torch.tensor([1, 2])] * 4))):
        before = worker.exchange.table("item.weight")
        user, item = worker.loop.model["user"](batch).sum(), worker.loop.model["item"](batch).sum()
        (user + item if number < 3 else user).backward()
        worker.loop.step()
        moved.append(bool((worker.exchange.table("item.weight") != before).any()))
    assert moved == [True, True, True, False]
