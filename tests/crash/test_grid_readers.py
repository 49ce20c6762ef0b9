"""Somebody reads a checkpoint, and before any operation of that it is rearranged and what it lay in is collected."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import holdfast as hf
from holdfast.policy import Rule
from holdfast.run import Run
from holdfast.storage import MemoryStore
from holdfast.testing.faults import FaultyStore, Operation
from tests.grid import ROWS, Trainer, Truth, bundles_named, bundles_stored, restored, same

Read = Callable[[Run, Truth, str], bool]  # whether what was read of a checkpoint is right


def restores(run: Run, truth: Truth, checkpoint: str) -> bool:
    return same(restored(run, checkpoint), truth.states[checkpoint])


def reads_rows(run: Run, truth: Truth, checkpoint: str) -> bool:
    ids = torch.arange(ROWS["wide"]).flip(0)
    rows = run.read_rows("wide", ids, step=checkpoint)
    return same({"wide": rows}, {"wide": {name: c[ids] for name, c in truth.states[checkpoint]["wide"].items()}})


def reads_the_state(run: Run, truth: Truth, checkpoint: str) -> bool:
    return run.state(checkpoint)["step"] == run.head().by_id[checkpoint].info.step


class Reading:
    """A reader, and a trainer that makes all older checkpoints due, rearranges them and collects what is left."""

    def __init__(self, rule: Rule) -> None:
        self.inner, self.truth = MemoryStore(), Truth()
        self.store = FaultyStore(self.inner)  # the reader's
        self.trainer = Trainer(self.inner, hf.Grid(rule=rule, reset=False), self.truth)
        self.trainer.save({"wide": [0], "short": [0], "flat": [0]})
        self.trainer.save({"wide": list(range(10)), "short": [2, 3, 4]})
        self.trainer.save({"wide": list(range(6, 16))}, arranged=True)  # arranged once
        self.target = self.trainer.save({"wide": list(range(20, 30)), "flat": [5, 6]}, arranged=True)
        self.before = bundles_stored(self.inner)
        self.happened = False
        self._first = threading.Lock()  # readers have several threads

    def rearrange(self) -> None:
        self.happened = True
        self.trainer.save({"wide": list(range(12, 26)), "short": [2], "flat": [6]}, arranged=True)
        assert bundles_named(self.inner) != self.before

    def read(self, number: int, read: Read) -> bool:
        """Read the checkpoint; ahead of operation ``number`` all is rearranged and collected."""

        def before(operation: Operation) -> None:
            if self.store.operations >= number and self._first.acquire(blocking=False):
                self.rearrange()

        self.store.before = before
        return read(Run(self.store), self.truth, self.target)

    def tidied_up(self) -> bool:
        """Whether what the reader needed goes once it is done."""
        self.trainer.save({"wide": [50]}, arranged=True)
        self.trainer.guard.close()
        return bundles_stored(self.inner) == bundles_named(self.inner)


@pytest.mark.parametrize("rule", [hf.DeadShare(0.05), hf.Pairs(0.0)], ids=repr)
@pytest.mark.parametrize("read", [restores, reads_rows, reads_the_state])
def test_what_was_begun_before_a_rearrangement_ends_with_the_truth(read: Read, rule: Rule) -> None:
    number = kept_for_it = 0
    while True:
        number += 1
        reading = Reading(rule)
        assert reading.read(number, read)
        if not reading.happened:
            break
        kept_for_it += bundles_stored(reading.inner) > bundles_named(reading.inner)
        assert reading.tidied_up()
        reading.truth.check(Run(reading.inner), reading.target)
    assert number > 5 and kept_for_it
