"""Optimizers that are not those of the checkpoint: what fits is restored, the rest is named, later saves are exact."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

import holdfast as hf
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.tiny import Tiny, same, train_step

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
SMALL = hf.Settings(buffer_bytes=2**18, frame_bytes=2**16, handle_sigterm=False)
ROWS = (300, 40)

Make = Callable[[Tiny], list[Optimizer]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def top(model: Tiny) -> Optimizer:
    return Adam(model.top.parameters())


def one(model: Tiny) -> list[Optimizer]:
    return [SparseAdam(list(model.emb.parameters())), top(model)]


def split(model: Tiny) -> list[Optimizer]:
    return [*(SparseAdam([weight]) for weight in model.emb.parameters()), top(model)]


def grouped(model: Tiny) -> list[Optimizer]:
    groups = [{"params": [weight], "lr": 0.01 * (1 + number)} for number, weight in enumerate(model.emb.parameters())]
    return [SparseAdam(groups), top(model)]


def dense_adam(model: Tiny) -> list[Optimizer]:
    return [Adam(model.emb.parameters()), top(model)]


def adagrads(model: Tiny) -> list[Optimizer]:
    return [Adagrad(model.emb.parameters()), top(model)]


def turned(model: Tiny) -> list[Optimizer]:
    return one(model)[::-1]


def first_frozen(model: Tiny) -> list[Optimizer]:
    return [SparseAdam([model.emb[1].weight]), top(model)]


def train(
    store: MemoryStore, make: Make, steps: int, *, strict: bool = True, rows: tuple[int, ...] = ROWS, seed: int = 0
) -> tuple[Tiny, list[Optimizer]]:
    """Resume, train on, save now and then and at the end; every save but the first may be a delta."""
    torch.manual_seed(seed)
    sparse = make is not dense_adam
    model = Tiny(rows, sparse=sparse)
    optimizers = make(model)
    with hf.Checkpointer(
        store,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(4),
        strategy=hf.Consecutive(),
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
        settings=SMALL,
    ) as guard:
        begin = guard.resume(strict=strict)
        for step in range(begin, begin + steps):
            guard.step(loss=train_step(model, optimizers, step))
    return model, optimizers


def assert_resumes_exactly(
    store: MemoryStore, make: Make, live: tuple[Tiny, list[Optimizer]], rows: tuple[int, ...] = ROWS
) -> None:
    resumed = train(store, make, 0, rows=rows, seed=99)
    assert same(everything(*resumed), everything(*live))


def everything(model: Tiny, optimizers: list[Optimizer]) -> dict[str, torch.Tensor]:
    """Every bit of weights and optimizer state, by the parameters' names."""
    state = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        for number, optimizer in enumerate(optimizers):
            held = optimizer.state.get(parameter, {})
            state |= {f"{number}/{name}/{key}": torch.as_tensor(value) for key, value in held.items()}
    return state


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
@pytest.mark.parametrize("before", [one, split, dense_adam, adagrads, first_frozen], ids=lambda make: make.__name__)
@pytest.mark.parametrize("after", [one, split, grouped, turned, adagrads, first_frozen], ids=lambda make: make.__name__)
def test_what_is_trained_after_a_change_of_optimizers_is_saved_exactly(before: Make, after: Make) -> None:
    store = MemoryStore()
    train(store, before, 10)
    live = train(store, after, 10, strict=False, seed=5)
    assert_resumes_exactly(store, after, live)


@pytest.mark.parametrize("after", [split, turned])
def test_state_finds_its_parameter_where_an_optimizer_was_split_or_moved(after: Make) -> None:
    store = MemoryStore()
    before = train(store, one, 10)
    resumed = train(store, after, 0, strict=False, seed=5)
    for (name, left), (_, right) in zip(before[0].named_parameters(), resumed[0].named_parameters(), strict=True):
        assert torch.equal(left, right)
        ours, theirs = state_of(before[1], left), state_of(resumed[1], right)
        assert ours.keys() == theirs.keys() and ours, name
        assert all(torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(theirs[key])) for key in ours), name


def state_of(optimizers: list[Optimizer], parameter: nn.Parameter) -> dict[str, object]:
    return next((dict(each.state[parameter]) for each in optimizers if parameter in each.state), {})


@pytest.mark.parametrize("after", [split, turned])
def test_after_a_split_the_next_save_is_still_a_small_delta(after: Make) -> None:
    store = MemoryStore()
    train(store, one, 8)
    train(store, after, 4, strict=False, seed=5)
    newest = hf.open_run(store).checkpoints()[-1]
    assert newest.kind is Kind.INCREMENTAL and newest.rows_written < sum(ROWS) / 2


def test_what_starts_fresh_is_named_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    train(store, dense_adam, 4)
    with caplog.at_level(logging.WARNING, "holdfast"):
        train(store, one, 0, strict=False)
    assert "optimizer state of emb.0.weight, emb.1.weight (saved by Adam, now SparseAdam)" in caplog.text
    assert "top" not in caplog.text


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
def test_a_lost_part_does_not_come_back_with_the_slots_of_the_optimizer_before() -> None:
    store = MemoryStore()
    train(store, dense_adam, 4)
    model = Tiny(ROWS)
    optimizers = one(model)
    with hf.Checkpointer(store, model=model, optimizer=optimizers, save=hf.Never(), settings=SMALL) as guard:
        guard.resume(strict=False)
        guard.step(loss=train_step(model, optimizers, 4))
        guard.recover([0], of=2)
    assert not optimizers[0].state[model.emb[0].weight]["exp_avg"][: ROWS[0] // 2].any()
    assert optimizers[0].state[model.emb[0].weight]["exp_avg"][ROWS[0] // 2 :].any()


def test_options_of_joined_groups_that_differ_are_left_alone_and_named(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    train(store, grouped, 4)
    with caplog.at_level(logging.WARNING, "holdfast"):
        _, optimizers = train(store, one, 0, strict=False)
    assert "options of SparseAdam, group 0" in caplog.text and "emb.0.weight" not in caplog.text
    assert optimizers[0].param_groups[0]["lr"] == SparseAdam([nn.Parameter(torch.zeros(1))]).defaults["lr"]


def test_a_parameter_that_became_a_table_keeps_its_values_and_slots() -> None:
    """As with ``tables=``, the remedy for a table that no nn.Embedding holds."""
    store = MemoryStore()
    live = steps_with_a_bare_table(store, 6, declared=False)
    assert hf.open_run(store).tables() == []
    live = steps_with_a_bare_table(store, 3, declared=True, strict=False, expected=live)
    live = steps_with_a_bare_table(store, 0, declared=True, expected=live)
    assert [spec.name for spec in hf.open_run(store).tables()] == ["bare"]


def steps_with_a_bare_table(
    store: MemoryStore,
    steps: int,
    *,
    declared: bool,
    strict: bool = True,
    expected: list[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Train a parameter of rows; checks what it begins with, and gives what it ends with."""
    model = nn.Module()
    model.bare = nn.Parameter(torch.rand(50, 3))
    optimizer = Adagrad([model.bare], lr=0.1)
    tables = {"bare": model.bare} if declared else {}
    with hf.Checkpointer(
        store, model=model, optimizer=optimizer, tables=tables, save=hf.Never(), settings=SMALL
    ) as guard:
        begin = guard.resume(strict=strict)
        held = [model.bare.detach(), optimizer.state[model.bare]["sum"]]
        assert expected is None or all(torch.equal(*pair) for pair in zip(held, expected, strict=True))
        for step in range(begin, begin + steps):
            optimizer.zero_grad()
            model.bare[torch.tensor([step, 7])].square().sum().backward()
            optimizer.step()
            guard.step()
    return [tensor.clone() for tensor in held]


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_of_changes_resumes_bit_for_bit(seed: int) -> None:
    chance = random.Random(seed)
    store = MemoryStore()
    rows, make = ROWS, random_optimizers(chance)
    train(store, make, 5, seed=seed)
    for change in range(3):
        make = random_optimizers(chance)
        rows = (chance.choice((300, 301)), 40)
        live = train(store, make, chance.randint(1, 9), strict=False, rows=rows, seed=change)
        assert_resumes_exactly(store, make, live, rows)


def random_optimizers(chance: random.Random) -> Make:
    """Each parameter in one of up to three optimizers of any kind, in any order; some in none."""
    homes = [chance.randrange(4) for _ in range(4)]
    kinds = [chance.choice((SparseAdam, Adagrad, SGD)) for _ in range(3)]
    tops = [chance.choice((Adam, Adagrad, SGD)) for _ in range(3)]
    apart = chance.random() < 0.5
    order = chance.sample(range(6), 6)

    def make(model: Tiny) -> list[Optimizer]:
        made: list[Optimizer] = []
        for kinds_here, parameters in ((kinds, list(model.emb.parameters())), (tops, list(model.top.parameters()))):
            offset = 0 if kinds_here is kinds else 2
            for number, kind in enumerate(kinds_here):
                chosen = [each for index, each in enumerate(parameters) if homes[index + offset] == number]
                if chosen:
                    made.append(kind([{"params": [each]} for each in chosen] if apart else chosen, lr=0.05))
        ordered = [made[index] for index in order if index < len(made)]
        return ordered or [SGD(model.top.parameters(), lr=0.05)]

    return make
