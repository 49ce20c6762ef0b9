"""Two jobs write to one URL by mistake: the later one owns it, the earlier one is told, and nothing is damaged.

They meet at every single operation of the store, in both orders.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import FaultyStore, Operation
from tests.crash.jobs import Job, check_exact, steps_of, wait_until

TOLD = r"another trainer .* took over this run: its term is 2, ours was 1. Nothing was damaged.*its own URL"


def first_job(store: Store) -> Job:
    """It has trained two steps and saved the first."""
    job = Job(store)
    job.train()
    job.guard.save(wait=True)
    job.train()
    return job


def interrupt(store: FaultyStore, number: int, act: Callable[[], object]) -> list[object]:
    """Let somebody else act ahead of that operation; the result is put into the list."""
    results: list[object] = []

    def before(operation: Operation) -> None:
        if store.operations == number and not results:
            results.append(act())

    store.before = before
    return results


def operations_of_the_second_save() -> tuple[int, int]:
    """The numbers of its first operation and of the one after its last."""
    store = FaultyStore(MemoryStore())
    with first_job(store).guard as guard:
        guard.save(wait=True)
    leases = [n for n, each in enumerate(store.history, 1) if each.kind == "put" and each.name.startswith("leases/")]
    return leases[1], store.operations + 1


def check_ownership(store: MemoryStore, first: Job, second: Job, *, committed: bool) -> None:
    """The second one owns the run, goes on and saves; the first one is told as soon as it saves again."""
    resumed_at = second.guard.steps
    assert steps_of(store) == ([1, 2] if committed else [1])
    assert resumed_at == steps_of(store)[-1]
    with pytest.raises(hf.TakenOver, match=TOLD), first.guard:
        first.train()
        first.guard.save(wait=True)
    with second.guard:
        second.train()
        assert second.save()
    assert steps_of(store) == [*range(1, resumed_at + 2)]
    check_exact(store, first.states | second.states)


def test_the_first_trainer_is_told_at_its_next_step_after_a_save() -> None:
    store = MemoryStore()
    first, second = first_job(store), Job(store)
    assert second.guard.resume() == 1
    first.guard.save()
    with pytest.raises(hf.TakenOver, match=TOLD):
        first.train_until(lambda: False)
    check_ownership(store, first, second, committed=False)


def test_a_second_trainer_may_come_at_any_operation_of_a_save() -> None:
    for number in range(*operations_of_the_second_save()):
        inner = MemoryStore()
        store = FaultyStore(inner)
        first, second = first_job(store), Job(inner)
        came = interrupt(store, number, second.guard.resume)
        committed = first.save()
        wait_until(lambda came=came: bool(came))  # its commit is told before it tidies up
        check_ownership(inner, first, second, committed=committed)


def test_a_first_trainer_may_save_at_any_operation_of_a_resume() -> None:
    number = 0
    while True:
        number += 1
        inner = MemoryStore()
        store = FaultyStore(inner)
        first, second = first_job(inner), Job(store)
        saved = interrupt(store, number + store.operations, first.save)
        second.guard.resume()
        if not saved:
            break
        check_ownership(inner, first, second, committed=bool(saved[0]))
    assert number > 5
