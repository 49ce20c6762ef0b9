"""Where in a batch a table's ids are is learnt; what cannot be learnt is pulled when it is needed, and said once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.cluster.placement import Keys
from holdfast.cluster.train.exchange import Pulled
from holdfast.cluster.train.sites import OpenBatch, learn
from holdfast.errors import ConfigurationError
from holdfast.policy import tables
from tests.cluster.train.test_modules import Batches
from tests.cluster.train.tiny_worker import Worker

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda ids: ids,
    "a column": lambda ids: ids[:, 3],
    "a column as bags": lambda ids: ids[:, 3].unsqueeze(1),
    "columns": lambda ids: ids[:, 1:4],
    "the last columns": lambda ids: ids[:, -2:],
    "flat": lambda ids: ids.view(-1),
    "unbound": lambda ids: ids.unbind(1)[2],
    "split": lambda ids: ids.split(2, dim=1)[1],
}


@dataclass
class Record:
    ids: Tensor
    label: float = 0.0


SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda ids: ids,
    "mapping": lambda ids: {"label": torch.zeros(len(ids)), "ids": ids},
    "tuple": lambda ids: (torch.zeros(len(ids)), [ids]),
    "dataclass": Record,
    "object": lambda ids: SimpleNamespace(inner=SimpleNamespace(ids=ids)),
}


@given(st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(SHAPES)), st.integers(2, 6), st.integers(2, 6))
def test_what_was_learnt_from_one_batch_holds_for_batches_of_other_sizes(
    view: str, shape: str, first: int, second: int
) -> None:
    one, other = torch.arange(first * 5).view(first, 5), torch.arange(100, 100 + second * 5).view(second, 5)
    site = learn(SHAPES[shape](one), VIEWS[view](one))
    assert site is not None
    found = site.view(OpenBatch(SHAPES[shape](other)))
    assert found is not None and found.reshape(-1).tolist() == VIEWS[view](other).reshape(-1).tolist()


@pytest.mark.parametrize(
    "changed", [lambda ids: ids + 1, lambda ids: ids.clone(), lambda ids: ids[:, ::2], lambda ids: ids.t()[1:].t()]
)
def test_a_copy_has_no_site_and_neither_has_a_part_that_no_index_gives(changed: Callable[[Tensor], Tensor]) -> None:
    ids = torch.arange(20).view(4, 5)
    site = learn({"ids": ids}, changed(ids))
    if site is not None:  # a part that is one after all must be the right one
        found = site.view(OpenBatch({"ids": ids}))
        assert found is not None and torch.equal(found.reshape(-1), changed(ids).reshape(-1))
    else:
        assert changed(ids).data_ptr() != ids.data_ptr() or changed(ids).stride() != ids.stride()


def test_a_batch_of_another_make_has_no_ids_at_a_site() -> None:
    ids = torch.arange(20).view(4, 5)
    site = learn({"ids": ids}, ids[:, 3])
    assert site is not None
    for batch in ({"other": ids}, [ids], {"ids": ids[:, :2]}, {"ids": ids.view(-1)}, {"ids": "none"}, None):
        assert site.view(OpenBatch(batch)) is None


class Fields(nn.Module):
    """Three tables, one column of ids each."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 4) for _ in range(3))

    def forward(self, ids: Tensor, change: Callable[[Tensor], Tensor] = lambda ids: ids) -> Tensor:
        return torch.stack([table(change(ids[:, number])) for number, table in enumerate(self.tables)]).sum()


class Counted(Worker):
    """Counts pulls."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(Fields, declared=tables(min_bytes=0), **settings)
        self.pulls: Counter[str] = Counter()
        pull = self.exchange.pull

        def counted(keys: Sequence[Keys], *, dense: bool = True) -> int:
            self.pulls["with dense" if dense else "rows alone"] += 1
            return pull(keys, dense=dense)

        self.exchange.pull = counted  # type: ignore[method-assign]

    def run(self, loader: Any, change: Any = lambda ids: ids, **how: Any) -> None:
        for batch in self.loop.batches(loader, **how):
            self.loop.model(batch["ids"], change).backward()
            self.loop.step()


def batches_of(count: int) -> Batches:
    draw = torch.Generator().manual_seed(0)
    return Batches([{"ids": torch.randint(0, 20, (6, 3), generator=draw)} for _ in range(count)])


def test_after_the_first_batch_each_batch_is_one_pull(caplog: pytest.LogCaptureFixture) -> None:
    worker = Counted(ahead=1)
    worker.run(batches_of(8))
    # The first batch asks table by table; the second was asked for before anything was learnt, and again after it.
    assert worker.pulls == {"with dense": 8, "rows alone": 3 + 1}
    assert not caplog.records


def test_ids_that_the_model_computes_are_pulled_on_demand_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    foreseen, computed = Counted(ahead=1), Counted(ahead=1)
    foreseen.run(batches_of(6))
    with caplog.at_level(logging.WARNING, "holdfast"):
        computed.run(batches_of(6), lambda ids: ids + 0)
    assert computed.bytes() != {} and computed.pulls["rows alone"] == 6 * 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3 and "table tables.0.weight was called with ids which are not a part of a tensor" in said[0]
    assert "ids=" in said[0]


def test_pulled_on_demand_or_ahead_the_model_is_the_same() -> None:
    results = []
    for how in ({}, {"change": lambda ids: ids + 0}, {"ids": named}, {"change": lambda ids: ids + 0, "ids": named}):
        worker = Counted(ahead=0)
        worker.run(batches_of(6), **how)
        results.append(worker.bytes())
    assert all(each == results[0] for each in results)


def named(batch: Any) -> dict[str, Any]:
    return {f"tables.{number}": batch["ids"][:, number] for number in range(3)}


def test_a_function_that_names_ids_foresees_what_the_model_computes() -> None:
    worker = Counted(ahead=1)
    worker.run(
        batches_of(6),
        lambda ids: (ids + 1) % 20,
        ids=lambda batch: {
            "tables.0": [(batch["ids"] + 1) % 20],
            "tables.1.weight": (batch["ids"] + 1) % 20,
            "tables.2": (batch["ids"] + 1) % 20,
        },
    )
    assert worker.pulls == {"with dense": 6}


def test_a_function_that_leaves_a_table_out_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    worker = Counted(ahead=1)
    with caplog.at_level(logging.WARNING, "holdfast"):
        worker.run(batches_of(3), ids=lambda batch: {"tables.0": batch["ids"][:, 0]})
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"table tables.{number}.weight was called with ids which ids= did not name" for number in (1, 2)
    ]
    with pytest.raises(
        ConfigurationError, match=r"ids= named the table 'user'; tables on servers are: tables\.0, tables\.1"
    ):
        Counted().run(batches_of(3), ids=lambda batch: {"user": batch["ids"]})


def test_ids_changed_in_place_after_the_batch_was_read_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    worker, other = Counted(ahead=1), Counted(ahead=1)
    loader = batches_of(4)
    with caplog.at_level(logging.WARNING, "holdfast"):
        for number, batch in enumerate(worker.loop.batches(loader)):
            if number > 1:
                batch["ids"].add_(1).remainder_(20)
            worker.loop.model(batch["ids"]).backward()
            worker.loop.step()
    assert "which were changed after the batch was read" in caplog.records[0].getMessage()
    for number, batch in enumerate(other.loop.batches(batches_of(4))):
        ids = (batch["ids"] + 1) % 20 if number > 1 else batch["ids"]
        other.loop.model(ids).backward()
        other.loop.step()
    assert worker.state().keys() == other.state().keys()
    assert worker.bytes() == other.bytes()


def test_answers_may_be_read_only() -> None:
    worker = Counted(ahead=1)
    take = worker.exchange.take

    def read_only(number: int) -> Pulled:
        pulled = take(number)
        for each in (*pulled.rows, pulled.dense):
            if each is not None:
                each.flags.writeable = False
        return pulled

    worker.exchange.take = read_only  # type: ignore[method-assign]
    worker.run(batches_of(4))
    assert worker.loop.steps == 4
