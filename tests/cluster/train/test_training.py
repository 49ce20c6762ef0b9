"""A model whose tables are on servers trains as an ordinary one does."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.models.dlrm import DLRM
from holdfast.cluster.train.exchange import Pulled
from holdfast.errors import ConfigurationError, NotFinite
from holdfast.policy import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from tests.cluster.train.tiny_worker import CARDINALITIES, Worker, build_dlrm, distances, loader_of, loss_of, plain_copy


def plain_dlrm(worker: Worker) -> nn.Module:
    return plain_copy(worker, DLRM(CARDINALITIES, 8, sparse=False, bottom=(16,), top=(16,)))


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), RowwiseAdagrad(0.05)], ids=["momentum", "rowwise"])
def test_the_number_of_servers_does_not_change_a_bit(optimizer: Optimizer, ahead: int) -> None:
    results = []
    for servers in (1, 2, 5):
        worker = Worker(servers=servers, optimizer=optimizer, dense_optimizer=Adam(0.01), ahead=ahead)
        worker.train(loader_of(), epochs=2)
        results.append(worker.bytes())
    assert results[0] == results[1] == results[2]


class Twice(nn.Module):
    """A table that is called twice: with ids in front, and with those behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.EmbeddingBag(50, 8, mode="sum")
        self.top = nn.Linear(8, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        small = ids % 50
        return self.top(self.emb(small[:, :4].contiguous()) * self.emb(small[:, 4:8])).squeeze(-1) + dense[:, 0]


@pytest.mark.parametrize("model", [build_dlrm, Twice])
def test_a_worker_that_was_replaced_before_every_step_changes_no_bit(model: Any) -> None:
    undisturbed = Worker(model, optimizer=Adagrad(0.1), ahead=0)
    undisturbed.train(loader_of())
    exchange, place = None, None
    for _ in range(6):
        one = Worker(model, optimizer=Adagrad(0.1), exchange=exchange, place=place, ahead=0)
        next(one.steps(loader_of()))
        exchange, place = one.exchange, one.exchange.place
    assert Worker(model, exchange=exchange).bytes() == undisturbed.bytes()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1), lambda parameters: torch.optim.SGD(parameters, 0.1)),
        (Adagrad(0.05), lambda parameters: torch.optim.Adagrad(parameters, 0.05)),
    ],
    ids=["sgd", "adagrad"],
)
def test_steps_agree_with_torch(ours: Optimizer, theirs: Any) -> None:
    worker = Worker(optimizer=ours, dense_optimizer=ours, ahead=0)
    model = plain_dlrm(worker)
    worker.train(loader_of(), epochs=2)
    optimizer = theirs(model.parameters())
    for _ in range(2):
        train_plainly(model, optimizer, loader_of())
    assert max(distances(worker, model)) < 1e-5


def test_rows_pulled_ahead_miss_just_the_steps_in_front_of_them() -> None:
    """One table of one row, of which the gradient is 1: what a batch sees says how many steps it missed."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Embedding(1, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            seen.append(round(-self.count(ids).item()))
            return self.count(ids).sum()

    from holdfast.policy import Constant, tables

    for ahead in (0, 1, 2):
        seen: list[int] = []
        declared = tables(min_bytes=0, init=Constant(0))
        worker = Worker(Counter, declared=declared, optimizer=SGD(1.0), ahead=ahead)
        loader = torch.utils.data.DataLoader(torch.zeros(8, 1, dtype=torch.int64), batch_size=1)
        for batch in worker.loop.batches(loader):
            worker.loop.model(batch).backward()
            worker.loop.step()
        settled = seen[3:]
        assert settled == [number - ahead for number in range(3, 8)]


@pytest.mark.parametrize("servers", [1, 3])
def test_accumulated_micro_batches_are_one_step(servers: int) -> None:
    whole = Worker(servers=servers, ahead=0)
    whole.train(loader_of(64, 32))
    parts = Worker(servers=servers, ahead=0)
    for number, batch in enumerate(parts.loop.batches(loader_of(64, 8))):
        (loss_of(parts.loop.model, batch) / 4).backward()
        if number % 4 == 3:
            parts.loop.step()
    assert parts.loop.steps == 2
    for name, values in whole.state().items():
        np.testing.assert_allclose(parts.state()[name], values, atol=1e-5, err_msg=name)


def test_clipping_sees_the_gradients_of_all_micro_batches() -> None:
    worker = Worker(ahead=0)
    model = plain_dlrm(worker)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept = list(worker.loop.model.parameters())  # a list made once, as many loops do
    for number, (mine, theirs) in enumerate(zip(worker.loop.batches(loader_of()), loader_of(), strict=True)):
        loss_of(worker.loop.model, mine).backward()
        loss_of(model, theirs).backward()
        if number % 2:
            one = nn.utils.clip_grad_norm_(kept, 0.05)
            other = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            assert float(one) == pytest.approx(float(other), rel=1e-4)
            worker.loop.step()
            optimizer.step()
            optimizer.zero_grad()
    assert max(distances(worker, model)) < 1e-5


def test_a_table_called_twice_and_two_batches_in_one_graph_add_up() -> None:
    worker = Worker(ahead=0)
    model = plain_dlrm(worker)
    batches, plain = worker.loop.batches(loader_of()), list(loader_of())
    first = loss_of(worker.loop.model, next(batches))
    second = loss_of(worker.loop.model, next(batches))
    (first + second).backward()
    worker.loop.step()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    (loss_of(model, plain[0]) + loss_of(model, plain[1])).backward()
    optimizer.step()
    assert max(distances(worker, model)) < 1e-6


def test_schedulers_set_the_learning_rates_that_go_out() -> None:
    worker = Worker(ahead=0)
    model = plain_dlrm(worker)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (step + 1))
        for each in (worker.loop.optimizer, optimizer)
    ]
    for mine, theirs in zip(worker.loop.batches(loader_of()), loader_of(), strict=True):
        loss_of(worker.loop.model, mine).backward()
        worker.loop.step()
        optimizer.zero_grad()
        loss_of(model, theirs).backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
    assert max(distances(worker, model)) < 1e-5
    again = torch.optim.lr_scheduler.LambdaLR(
        worker.loop.optimizer, lambda step: 1 / (step + 1), last_epoch=worker.loop.steps - 1
    )
    assert again.get_last_lr() == schedules[0].get_last_lr()


def test_autocast_and_a_scaler_work_as_in_an_ordinary_loop() -> None:
    worker = Worker(ahead=0)
    model = plain_dlrm(worker)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=128.0) for _ in range(2)]
    for mine, theirs in zip(worker.loop.batches(loader_of()), loader_of(), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            one, other = loss_of(worker.loop.model, mine), loss_of(model, theirs)
        scalers[0].scale(one).backward()
        worker.loop.step(loss=one, scaler=scalers[0])
        optimizer.zero_grad()
        scalers[1].scale(other).backward()
        scalers[1].step(optimizer)
        scalers[1].update()
    assert worker.loop.steps == 6
    assert max(distances(worker, model)) < 1e-4


def test_a_step_of_the_optimizer_is_a_step_and_counts_once() -> None:
    how: dict[str, Any] = {"optimizer": SGD(0.1, momentum=0.9), "dense_optimizer": Adam(0.01)}
    one, other = Worker(**how), Worker(**how)
    one.train(loader_of())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for number, batch in enumerate(other.loop.batches(loader_of())):
        other.loop.optimizer.zero_grad()
        loss = loss_of(other.loop.model, batch)
        scaler.scale(loss).backward()
        scaler.step(other.loop.optimizer)
        scaler.update()
        if number % 2:
            other.loop.step(loss=loss)
    other.loop.step()
    assert other.loop.steps == one.loop.steps == 6 and other.bytes() == one.bytes()


def test_a_scaler_leaves_a_step_with_an_overflow_out() -> None:
    worker = Worker()
    before = worker.bytes()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    batches = worker.loop.batches(loader_of())
    scaler.scale(loss_of(worker.loop.model, next(batches)) * torch.inf).backward()
    worker.loop.step(scaler=scaler)
    assert worker.bytes() == before and worker.loop.steps == 0
    loss = loss_of(worker.loop.model, next(batches))
    scaler.scale(loss).backward()
    worker.loop.step(scaler=scaler)
    assert worker.bytes() != before and worker.loop.steps == 1


def test_a_gradient_that_is_nan_is_refused_skipped_or_pushed() -> None:
    def one_step(on_nan: str) -> Worker:
        worker = Worker(on_nan=on_nan)
        batch = next(iter(worker.loop.batches(loader_of())))
        (loss_of(worker.loop.model, batch) * torch.nan).backward()
        worker.loop.step()
        return worker

    with pytest.raises(NotFinite, match=r"the gradient of emb\.2\.weight, .* and \d+ more is NaN or infinite"):
        one_step("raise")
    assert one_step("skip").loop.skipped == 1
    assert np.isfinite(one_step("skip").exchange.dense()).all()
    assert not np.isfinite(one_step("push").exchange.dense()).all()


def test_a_training_that_keeps_its_losses_goes_on() -> None:
    """Kept graphs hold the leaves of earlier batches, which have other shapes."""
    worker = Worker()
    losses = []
    for batch in worker.loop.batches(loader_of()):
        losses.append(loss_of(worker.loop.model, batch))
        losses[-1].backward()
        worker.loop.step(loss=losses[-1])
    assert len(losses) == 6 and worker.loop.measured.loss == pytest.approx(np.mean([each.item() for each in losses]))


def test_evaluating_reads_without_training() -> None:
    worker = Worker()
    batches = worker.loop.batches(loader_of())
    loss_of(worker.loop.model, next(batches)).backward()
    worker.loop.step()
    batch = next(batches)
    before, random = worker.bytes(), torch.get_rng_state()
    with worker.loop.evaluating() as metrics:
        model = plain_dlrm(worker).eval()
        for each in worker.loop.batches(loader_of(40, 7, shuffle=True, seed=3)):
            assert not worker.loop.model.training
            scores = worker.loop.model(each.dense, each.ids)
            worker.loop.metrics(scores, each.labels)
            torch.testing.assert_close(scores, model(each.dense, each.ids))
        for each in loader_of(40, 7, seed=4):  # without batches(): slower, the same
            torch.testing.assert_close(worker.loop.model(each.dense, each.ids), model(each.dense, each.ids))
        with pytest.raises(ConfigurationError, match="a step needs a batch"):
            worker.loop.step()
    assert metrics.samples == 40 and worker.loop.measured.samples == 0
    assert worker.bytes() == before and torch.equal(torch.get_rng_state(), random) and worker.loop.model.training
    loss_of(worker.loop.model, batch).backward()
    worker.loop.step()
    assert worker.bytes() != before


def test_evaluating_between_steps_changes_nothing_of_a_training() -> None:
    plain, evaluated = Worker(), Worker()
    plain.train(loader_of())
    for batch in evaluated.loop.batches(loader_of()):
        with evaluated.loop.evaluating():
            for each in evaluated.loop.batches(loader_of(32, seed=5)):
                evaluated.loop.model(each.dense, each.ids)
        loss_of(evaluated.loop.model, batch).backward()
        evaluated.loop.step()
    assert evaluated.bytes() == plain.bytes()


def test_answers_of_several_servers_need_not_be_joined() -> None:
    joined, apart = Worker(servers=3), Worker(servers=3)
    pull, take, groups = apart.exchange.pull, apart.exchange.take, apart.exchange.placement.groups
    cuts: dict[int, Any] = {}

    def noted(keys: Any, *, dense: bool = True) -> int:
        number = pull(keys, dense=dense)
        cuts[number] = [group.cuts(each) for group, each in zip(groups, keys, strict=True)]
        return number

    def divided(number: int) -> Pulled:
        pulled = take(number)
        rows = [
            [each[start:end] for start, end in pairwise(at)] for each, at in zip(pulled.rows, cuts[number], strict=True)
        ]
        pieces = apart.exchange.placement.dense
        dense = None if pulled.dense is None else [pulled.dense[each.start : each.end] for each in pieces]
        return Pulled(rows=rows, dense=dense)

    apart.exchange.pull, apart.exchange.take = noted, divided  # type: ignore[method-assign]
    joined.train(loader_of())
    apart.train(loader_of())
    assert apart.bytes() == joined.bytes()


def test_a_model_without_large_tables_trains() -> None:
    from holdfast.policy import tables

    worker = Worker(declared=tables(min_bytes=1 << 40))
    assert not worker.built.plan.tables
    assert len(worker.train(loader_of())) == 6


def test_more_servers_than_rows_change_nothing() -> None:
    one, many = Worker(servers=1), Worker(servers=64)
    one.train(loader_of())
    many.train(loader_of())
    assert one.bytes() == many.bytes()


def test_a_table_frozen_in_the_middle_stays_as_it_is() -> None:
    worker = Worker(ahead=0)
    name = worker.built.plan.tables[0].name
    worker.built.tables[0].parameter.requires_grad_(False)
    before = worker.exchange.table(name)
    worker.train(loader_of())
    np.testing.assert_array_equal(worker.exchange.table(name), before)


def test_a_model_is_used_within_a_batch_only() -> None:
    worker = Worker()
    batch = next(iter(loader_of()))
    with pytest.raises(ConfigurationError, match=r"table emb\.2\.weight was used outside a batch"):
        worker.loop.model(batch.dense, batch.ids)
    with pytest.raises(ConfigurationError, match="a step needs a batch"):
        worker.loop.step()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ahead": -1}, "ahead must be"),
        ({"on_nan": "stop"}, "on_nan must be"),
        ({"on_bad_ids": 1}, "on_bad_ids must be"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Worker(**settings)


def test_the_state_of_a_worker_holds_no_table() -> None:
    worker = Worker()
    worker.train(loader_of(32))
    state = copy.deepcopy(worker.loop.model.state_dict())
    assert {name for name, _ in worker.loop.model.named_parameters()} - state.keys() == {
        table.name for table in worker.built.plan.tables
    }
