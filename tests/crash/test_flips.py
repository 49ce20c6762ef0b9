"""One byte of a run is changed, anywhere; or an object is cut short, or gone. Nothing of it is ever believed.

``verify`` names the object; a restore, a resume and a read of single rows that need it say so too, or fall back as
documented; and whatever they return instead is the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random

import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.commit import pages
from holdfast.errors import CheckpointNotFound, DamagedData
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.run import Run
from holdfast.storage import LocalStore
from holdfast.testing.runtime import with_runtime
from tests.crash.damage import (
    ROOT,
    ROWS,
    STEPS,
    Damage,
    Sample,
    damages,
    flipped,
    guarded,
    make_sample,
    replace_object,
)
from tests.crash.scripted import State, Training, runtime
from tests.tiny import same

FLIPS_ANYWHERE = 200  # in each object
STRATEGIES = {"differential": hf.OneShot(), "consecutive": hf.Consecutive()}


@pytest.fixture(scope="module", params=STRATEGIES)
def sample(request: pytest.FixtureRequest) -> Iterator[Sample]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_INLINE_ITEMS", 2)  # so that a short run has history pages
        yield make_sample(STRATEGIES[request.param])


class Examination:
    """Looks at a damaged copy of a run in every way there is."""

    def __init__(self, sample: Sample, damage: Damage) -> None:
        self.sample, self.damage, self.name = sample, damage, damage.name
        self.disk = sample.disk.copy()
        replace_object(self.disk, damage.name, damage.data)
        self.run = with_runtime(Run, runtime(2))(LocalStore(ROOT, self.disk))
        self.is_newest_catalog = damage.name == sample.newest_catalog
        self.needed_by_head = self.is_newest_catalog or self._is_page_of_the_head()
        self.visible = self._visible()

    def verify_names_it(self) -> None:
        named = {problem.object_name for problem in self.run.verify()}
        harmless = self.damage.gone and self.name.startswith("catalog/")  # as if that commit had never been
        assert self.name in named or harmless
        assert named <= ({self.name, self.sample.newest_catalog} if self.needed_by_head else {self.name})

    def restores_tell_or_are_exact(self, training: Training) -> None:
        for step in STEPS:
            try:
                self.run.restore(step, model=training.model, optimizer=training.optimizers, extra=training.extra)
            except DamagedData as error:
                assert error.object_name == self.name
                assert self.breaks(step) is not False
            except CheckpointNotFound:
                assert step not in self.visible
            else:
                assert step in self.visible and not self.breaks(step)
                assert same(training.state(), self.sample.states[step])

    def rows_tell_or_are_exact(self) -> None:
        for step in self.visible:
            for table in range(len(ROWS)):
                for ids in ([ROWS[table] // 2], list(range(ROWS[table]))):
                    self._read_rows(step, table, ids)

    def resume_falls_back_and_says_so(self, log: pytest.LogCaptureFixture) -> None:
        training = Training(ROWS)
        good = [step for step in self.visible if not self.breaks(step)]
        log.clear()
        guard = guarded(self.disk, training, hf.OneShot())
        try:
            if not good:
                with pytest.raises(DamagedData, match="no checkpoint of the run can be restored"):
                    guard.resume()
                return
            assert guard.resume() == good[-1]
        finally:
            guard.close()
        assert same(training.state(), self.sample.states[good[-1]])
        abandoned = {info.step for info in self.run.checkpoints() if info.abandoned}
        assert abandoned == {step for step in self.visible if step > good[-1]}
        for step in abandoned:
            assert f"checkpoint of step {step} cannot be restored ({self.name}" in log.text
        if self.needed_by_head and not (self.damage.gone and self.is_newest_catalog):
            assert "cannot be read; continuing from catalog/" in log.text

    def breaks(self, step: int) -> bool | None:
        """Whether a restore of that step reads what is damaged; None if that is not known."""
        owner = self.sample.owner(self.name)
        if self.name.endswith("/intent") or owner not in self.sample.stands_on[step]:
            return False
        return True if owner == step else self.damage.rows

    def _read_rows(self, step: int, table: int, ids: list[int]) -> None:
        expected = table_rows(self.sample.states[step], table)
        try:
            rows = self.run.read_rows(f"emb.{table}", ids, step=step)
        except DamagedData as error:
            assert error.object_name == self.name
            assert self.breaks(step) is not False
        else:
            assert all(torch.equal(rows[column], expected[column][ids]) for column in rows)

    def _is_page_of_the_head(self) -> bool:
        newest = self.sample.objects()[self.sample.newest_catalog]
        return self.name.startswith("history/") and self.name.encode() in newest

    def _visible(self) -> list[int]:
        """The steps that the newest readable catalog lists."""
        with_newest = not self.needed_by_head
        return [step for step in STEPS if with_newest or step != STEPS[-1]]


def table_rows(state: State, table: int) -> dict[str, Tensor]:
    """The truth about a table: its weight and slots."""
    prefix = f"{table}/0/"  # the optimizer with that number holds this one parameter
    slots = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return {"weight": state[f"emb.{table}.weight"], **slots}


def examine(sample: Sample, damages: Iterable[Damage], look: Callable[[Examination], None]) -> None:
    for damage in damages:
        try:
            look(Examination(sample, damage))
        except BaseException as error:
            error.add_note(f"{damage.name}: {damage.what}")
            raise


def test_sample_has_every_kind_of_object_and_a_chunk_of_several_blocks(sample: Sample) -> None:
    kinds = {name.split("/")[0] if name.count("/") == 1 else name.split("/")[2][:5] for name in sample.objects()}
    assert kinds == {"catalog", "history", "00000", "check", "inten", "part-"}
    assert max(map(len, sample.objects().values())) > 2 * BLOCK_BYTES


def test_verify_names_whatever_is_damaged(sample: Sample) -> None:
    examine(sample, damages(sample), Examination.verify_names_it)


# Most objects have 9 damages: every fourth takes each kind in turn.
some_or_all = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])


@some_or_all
def test_restore_tells_what_is_damaged_or_is_exact(sample: Sample, every: int) -> None:
    training = Training(ROWS)
    some = islice(damages(sample), 0, None, every)
    examine(sample, some, lambda examination: examination.restores_tell_or_are_exact(training))


@some_or_all
def test_single_rows_tell_what_is_damaged_or_are_exact(sample: Sample, every: int) -> None:
    examine(sample, islice(damages(sample), 1, None, every), Examination.rows_tell_or_are_exact)


@some_or_all
def test_resume_falls_back_past_what_is_damaged_and_says_so(
    sample: Sample, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    some = islice(damages(sample), 2, None, every)
    examine(sample, some, lambda examination: examination.resume_falls_back_and_says_so(caplog))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_verify_and_restore_find_a_flip_anywhere(sample: Sample) -> None:
    training = Training(ROWS)
    chance = Random(0)
    for name, data in sample.objects().items():
        for at in sorted(chance.sample(range(len(data)), min(len(data), FLIPS_ANYWHERE))):
            look = Examination(sample, Damage(name=name, what=f"byte {at} flipped", data=flipped(data, at), rows=None))
            look.verify_names_it()
            look.restores_tell_or_are_exact(training)
