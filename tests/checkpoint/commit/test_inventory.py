"""What a run lists follows from deltas: joined or one by one, and from no delta that does not belong there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from holdfast.checkpoint.commit.inventory import Inventory
from holdfast.format.catalog import Entry, Garbage, Ref
from holdfast.format.history import Delta
from holdfast.types import CheckpointInfo, Kind

REF = Ref(name="r", size_bytes=1, digest="d")
OLD = Garbage(folder="old", dropped_s=1.0)


def entry(name: str, auc: float = 0.0) -> Entry:
    info = CheckpointInfo(
        id=name, step=1, term=1, kind=Kind.FULL, parent=None, base=None, created_s=0.0, size_bytes=1, rows_written=1,
        full_bytes=1, metrics={"auc": auc},
    )  # fmt: skip
    return Entry(info=info, part_list=REF)


def some_change(chance: random.Random, number: int, now: Inventory) -> Delta:
    """Whatever a commit may do."""
    entries, garbage = list(now.entries), list(now.garbage)
    entries += [entry(f"{number}-{each}") for each in range(chance.randrange(3))]
    for gone in chance.sample(entries, chance.randrange(len(entries) // 2 + 1)):
        entries.remove(gone)
        garbage.append(Garbage(folder=gone.info.id, dropped_s=float(number)))
    for changed in chance.sample(range(len(entries)), len(entries) // 4):
        entries[changed] = entry(entries[changed].info.id, chance.random())
    for collected in chance.sample(garbage, chance.randrange(len(garbage) // 2 + 1)):
        garbage.remove(collected)
    delta = now.until(entries, garbage)
    after = now.after(delta)
    assert (list(after.entries), list(after.garbage)) == (entries, garbage)
    assert after.condemned == {item.folder for item in garbage}
    return delta


@pytest.mark.parametrize("seed", range(30))
def test_deltas_say_the_same_joined_in_any_way(seed: int) -> None:
    chance = random.Random(seed)
    states, deltas = [Inventory()], list[Delta]()
    for number in range(20):
        deltas.append(some_change(chance, number, states[-1]))
        states.append(states[-1].after(deltas[-1]))
    while len(deltas) > 1:
        place = chance.randrange(len(deltas) - 1)
        deltas[place : place + 2] = [deltas[place].then(deltas[place + 1])]
        del states[place + 1]
        for before, delta, after in zip(states, deltas, states[1:], strict=False):
            found = before.after(delta)
            assert (found.entries, found.garbage) == (after.entries, after.garbage)
    (whole,) = deltas
    assert whole == Delta(entries=states[-1].entries, garbage=states[-1].garbage)


@pytest.mark.parametrize(
    ("delta", "problem"),
    [
        (Delta(entries=(entry("a"),)), "twice"),
        (Delta(entries=(entry("b"), entry("b"))), "twice"),
        (Delta(changed=(entry("b"),)), "changes checkpoint b"),
        (Delta(dropped=("b",)), "drops checkpoint b"),
        (Delta(collected=(replace(OLD, dropped_s=2.0),)), "not garbage"),
    ],
)
def test_a_delta_that_does_not_belong_there_is_refused(delta: Delta, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Inventory().after(Delta(entries=(entry("a"),), garbage=(OLD,))).after(delta)
