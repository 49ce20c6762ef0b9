"""Batches come in their order with their rows, whether or not a batch more is read to count its rows early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.data.schema import Batch
from holdfast.cluster.train.prefetcher import Prefetcher
from tests.cluster.train.tiny_worker import Worker, loader_of

_BATCHES = 6


def prefetched(read: list[int], *, ahead: int, counts_early: bool, bad: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Each batch with what came for it; ``read`` grows with every batch that is taken from the loader."""
    loop: Any = Worker().loop
    names = [table.spec.name for table in loop._built.tables]  # emb.3.weight

    def batches() -> Iterator[Batch]:
        for number, batch in enumerate(loader_of()):
            read.append(number)
            yield batch._replace(ids=batch.ids + 10**9) if number == bad else batch

    source = Prefetcher(
        batches(),
        loop._fetcher,
        loop._forecast,
        device=torch.device("cpu"),
        ids=lambda batch: {name.removesuffix(".weight"): batch.ids[:, int(name.split(".")[1])] for name in names},
        ahead=ahead,
        dense=True,
        counts_early=counts_early,
    )
    while (found := source.next()) is not None:
        yield found, None if found.error else source.receive(found)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_batch_that_is_counted_early_has_the_same_rows(ahead: int) -> None:
    late, early = (list(prefetched([], ahead=ahead, counts_early=each)) for each in (False, True))
    assert len(late) == len(early) == _BATCHES
    for (one, rows), (other, same_rows) in zip(late, early, strict=True):
        assert torch.equal(one.batch.ids, other.batch.ids)
        for held, same in zip(rows.held, same_rows.held, strict=True):
            assert torch.equal(held.rows.ids, same.rows.ids)
            assert torch.equal(held.values, same.values)


@pytest.mark.parametrize(("counts_early", "beyond"), [(False, 1), (True, 2)])
def test_counting_early_reads_one_batch_more(counts_early: bool, beyond: int) -> None:
    read: list[int] = []
    next(prefetched(read, ahead=1, counts_early=counts_early))
    assert read == list(range(1 + beyond))


@pytest.mark.parametrize("counts_early", [False, True])
def test_ids_that_no_table_has_are_told_in_their_batch_s_turn(counts_early: bool) -> None:
    found = list(prefetched([], ahead=1, counts_early=counts_early, bad=3))
    assert [number for number, (each, _) in enumerate(found) if each.error is not None] == [3]
    assert len(found) == _BATCHES


@pytest.mark.parametrize("ahead", [1, 2])
def test_training_is_the_same_where_rows_are_counted_early(ahead: int) -> None:
    late, early = (Worker(ahead=ahead, counts_early=each) for each in (False, True))
    assert early.train(loader_of(shuffle=False), epochs=2) == late.train(loader_of(shuffle=False), epochs=2)
    for name, values in late.state().items():
        assert early.state()[name].tobytes() == values.tobytes()
