"""The power is cut before every single operation of the disk, and in the middle of every write and sync.

A script of six checkpoints with a change of mind runs on a simulated disk. Whatever a cut leaves: the run opens, every
checkpoint whose commit had returned is there and exact, nothing else is seen but the one in flight, complete, and a
new trainer brings the script to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.commit import collect, pages
from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.restore.model import ModelRestorer
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import find_tables
from holdfast.run import Run
from holdfast.runtime import Runtime
from holdfast.storage import LocalStore, Store
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.power import PowerCut
from holdfast.testing.runtime import with_runtime
from tests.crash.recording import (
    REBOOTS,
    ROOT,
    Aftermath,
    Cut,
    Listed,
    Recorder,
    WitnessedStore,
    everything,
    listed,
    objects,
)
from tests.crash.scripted import (
    PRECISIONS,
    RETENTION,
    SCRIPTS,
    Acknowledged,
    State,
    Training,
    play,
    play_rounded,
    runtime,
)
from tests.independent.reader import IndependentRun
from tests.tiny import same

SAMPLED, SAMPLED_ROUNDED = 29, 117  # odd: lost and kept take turns
PARTS = 8  # of the slowest test, which a machine with many cores runs side by side
LOST_OR_KEPT = ("unsynced lost", "unsynced kept")
FIRST_LIFE, SECOND_LIFE, READER = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A whole life of the script, and what a power cut would have left at each of its moments."""

    states: dict[str, State]  # by tag: what a checkpoint must hold
    end: State
    listed: dict[int, Listed]  # by catalog number: what the run shows
    operations: int
    aftermaths: tuple[Aftermath, ...]
    left_by: dict[Cut, int]


@pytest.fixture(autouse=True)
def few_catalogs_of_few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short run, too, writes history pages and deletes old catalogs."""
    monkeypatch.setattr(pages, "_INLINE_ITEMS", 1)
    monkeypatch.setattr(collect, "LINEAGE_LENGTH", 4)


@cache
def record(name: str, reboots: Sequence[str], likeness: Callable[[SimulatedDisk], int]) -> Recording:
    disk = SimulatedDisk()
    recorder = Recorder(disk, reboots, likeness)
    states: dict[str, State] = {}
    world = runtime(FIRST_LIFE)
    end = live(WitnessedStore(recorder, world), name, world, states.__setitem__)
    recorder.finish()
    return Recording(
        states=states,
        end=end,
        listed=recorder.listed,
        operations=disk.operations,
        aftermaths=tuple(recorder.aftermaths.values()),
        left_by=recorder.left_by,
    )


def live(store: Store, name: str, world: Runtime, acknowledged: Acknowledged = lambda tag, state: None) -> State:
    """The script of that name, from wherever the run stands to its end."""
    if name in PRECISIONS:
        return play_rounded(store, SCRIPTS[name], PRECISIONS[name], world, acknowledged)
    return play(store, SCRIPTS[name], world, acknowledged)


def check(name: str, recording: Recording, left: Aftermath) -> None:
    """Everything that must hold after a power cut."""
    store = LocalStore(ROOT, left.disk, runtime(READER))
    run = with_runtime(Run, runtime(READER))(store)
    head = Chain(store).head()
    number = head.catalog.number if head else 0
    assert number >= left.committed
    assert listed(head) == recording.listed[number]
    assert [info.id for info in run.checkpoints()] == [identifier for identifier, _ in listed(head)]
    assert run.verify() == []
    check_exact(store, head, recording.states)
    assert same(live(store, name, runtime(SECOND_LIFE)), recording.end)
    run.prune(RETENTION, grace_s=0.0)  # where nothing was left to save, nobody has tidied up yet
    check_exact(store, run.head(), recording.states)
    assert run.verify() == []
    head = run.head()
    referred = {folder for entry in head.entries for folder in entry.folders}
    assert {entry.info.id for entry in head.entries} <= _stored_folders(left.disk)
    assert _stored_folders(left.disk) <= referred | {outline.folder for outline in head.catalog.outlines}


def check_exact(store: LocalStore, head: Head | None, states: dict[str, State]) -> None:
    """Every checkpoint that is visible, abandoned or not, holds what the script had at that point, to the bit."""
    training = Training()
    tables = find_tables({"": training.model}, training.optimizers, {})
    state = TrainingState({"": training.model}, training.optimizers, training.extra, tables)
    for entry in head.entries if head else ():
        ModelRestorer(store, tables, state, None).restore(head, entry)
        assert same(training.state(), states[entry.info.tag]), entry.info.tag


def _stored_folders(disk: SimulatedDisk) -> set[str]:
    """Of which checkpoints and rounds there are objects in the store, referred to or not."""
    prefix = f"{ROOT}/data/"
    files = [path for path, data in disk.contents().items() if path.startswith(prefix) and data is not None]
    return {path.removeprefix(prefix).partition("/")[0] for path in files}


def check_all(name: str, recording: Recording, *, every: int = 1) -> None:
    first = list(SCRIPTS).index(name) % every  # others than the other strategies' tests take
    for left in recording.aftermaths[first::every]:
        try:
            check(name, recording, left)
        except BaseException as error:
            error.add_note(f"after a power cut at {left.cut}: {left.what}")
            raise


def check_live(name: str, recording: Recording, cut: Cut) -> None:
    """Really cut there: trainer and agent die at once and leave what was recorded."""
    disk = SimulatedDisk()
    disk.crash_at(cut.operation, tear=cut.torn)
    world = runtime(FIRST_LIFE)
    with pytest.raises(PowerCut):
        live(LocalStore(ROOT, disk, world), name, world)
    assert disk.operations == cut.operation
    REBOOTS[cut.reboot](disk, cut.operation)
    assert everything(disk) == recording.left_by[cut]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_commit_survives_a_power_cut_at_any_operation(name: str) -> None:
    check_all(name, record(name, LOST_OR_KEPT, objects), every=15 if name in PRECISIONS else 4)  # slow tests take all


@pytest.mark.parametrize("name", SCRIPTS)
def test_trainer_and_agent_die_with_the_power_and_leave_what_was_recorded(name: str) -> None:
    recording = record(name, LOST_OR_KEPT, objects)
    first = list(SCRIPTS).index(name)  # others than the other strategies' tests take
    for cut in list(recording.left_by)[first : -2 : SAMPLED_ROUNDED if name in PRECISIONS else SAMPLED]:
        check_live(name, recording, cut)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_commit_survives_whatever_a_power_cut_leaves_by_chance(name: str) -> None:
    check_all(name, record(name, tuple(REBOOTS), everything))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_independent_reader_finds_the_same_after_any_power_cut(name: str, tmp_path: Path) -> None:
    recording = record(name, LOST_OR_KEPT, objects)
    for number, left in enumerate(recording.aftermaths):
        if left.committed:
            path = tmp_path / str(number)
            write_out(left.disk, path)
            run = IndependentRun(path)
            run.verify()
            for entry in run.checkpoints():
                found = run.tables(entry["id"])
                for table, weight in enumerate(recording.states[entry["tag"]][f"emb.{n}.weight"] for n in (0, 1)):
                    assert np.array_equal(found[f"emb.{table}"]["weight"], weight.numpy())


def write_out(disk: SimulatedDisk, path: Path) -> None:
    """The run on a simulated disk as files."""
    for name, data in disk.contents().items():
        if data is not None and name.startswith(ROOT):
            file = path / name.removeprefix(f"{ROOT}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SCRIPTS)
def test_trainer_and_agent_die_with_the_power_at_any_operation(name: str, part: int) -> None:
    recording = record(name, LOST_OR_KEPT, objects)
    for cut in list(recording.left_by)[part:-2:PARTS]:  # the last ones are after the last operation
        check_live(name, recording, cut)
