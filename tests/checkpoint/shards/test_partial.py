"""A process that takes a dead one's place: the newest rows saved, and saves that go on with the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import holdfast as hf
from holdfast.checkpoint.shards import SavePolicies, Shard
from holdfast.checkpoint.shards.uses import uses_of
from holdfast.events import SaveCommitted, SaveGivenUp
from holdfast.policy import Priority, Strategy
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.checkpoint.shards.job import Job, copied, divided, load, same, some_tables

KEEP = hf.KeepAll()


def replace_part(job: Job, part: int) -> None:
    """Another process takes the place of a part; what it does not load is NaN."""
    empty = {table: {name: np.full_like(v, np.nan) for name, v in c.items()} for table, c in job.tables.items()}
    job.writers[part].close()
    job.shards[part] = divided(empty, job.cuts, part)
    job.writers[part] = job._writer(part)
    loaded = job.runs[part].load_newest(job.shards[part])
    job.writers[part].start(job.term, loaded, replaces=True)
    for shard in job.shards[part]:  # what all of them hold together now
        for name, values in shard.columns.items():
            job.tables[shard.table][name][shard.first : shard.stop] = values


@pytest.mark.parametrize("priority", [hf.MFU(r=0.25), hf.SSU(r=0.25, period=1), hf.SCAR(r=0.25)], ids=repr)
def test_rows_saved_between_checkpoints_are_the_ones_that_come_back(priority: Priority) -> None:
    store, tables = MemoryStore(), some_tables([400, 6])
    policies = SavePolicies(strategy=hf.Partial(priority=priority), retention=KEEP)
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        assert job.intend(priority=True) is None  # there is no checkpoint to build on
        job.save()
        job.update(0, share=0.05)
        at_save = copied(tables)
        info = job.save(priority=True)
        assert info.kind is Kind.PRIORITY and info.rows_written > 0
        job.update(1, share=0.05)
        replace_part(job, 1)
        for shard in job.shards[1]:  # at most a quarter of the rows moved: all of them were saved
            assert all(
                np.array_equal(v, at_save[shard.table][n][shard.first : shard.stop]) for n, v in shard.columns.items()
            )
        job.save()
        assert same(load(store, tables, 2), tables)


@pytest.mark.parametrize(
    "strategy",
    [hf.Consecutive(), hf.OneShot(), hf.Grid(rule=hf.DeadShare(0.0))],
    ids=["increments", "one shot", "grid"],
)
@pytest.mark.parametrize(
    "precision", [hf.Exact(), hf.Bits(8), hf.Bits(4, difference=True)], ids=["exact", "8 bits", "differences"]
)
def test_a_part_saved_whole_beside_deltas_of_the_others_is_restored(strategy: Strategy, precision: hf.Bits) -> None:
    store, tables = MemoryStore(), some_tables([200, 31])
    policies = SavePolicies(strategy=strategy, precision=precision, retention=KEEP)
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        for number in range(8):
            job.save()
            if number in (0, 2, 5):  # the first delta, too: nothing below it is contested
                replace_part(job, number % 3)
            job.update(number, share=0.2)
            for writer in job.writers:
                writer.arrange()
        job.save()
        seen = [load(store, tables, parts) for parts in (1, 4)]
        run = hf.open_run(store)
        if precision == hf.Exact():
            assert same(seen[0], tables)
        assert same(seen[0], seen[1])
        for name, columns in seen[0].items():
            found = run.read_rows(name, list(range(len(columns["weight"]))))
            assert all(np.array_equal(found[column].numpy(), values) for column, values in columns.items())
        assert run.verify() == []


@pytest.mark.parametrize("is_told", [True, False], ids=["all make way", "the leader does"])
def test_a_checkpoint_takes_the_place_of_a_priority_save_without_a_word(
    is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, tables = MemoryStore(), some_tables([80])
    policies = SavePolicies(strategy=hf.Partial(priority=hf.MFU(r=1.0)), retention=KEEP)
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        job.save()
        job.update(0)
        intent = job.intend(priority=True)
        assert intent is not None
        assert all([job.capture(intent, part) for part in (0, 1)])  # the third is late
        job.update(1)
        for writer in job.writers if is_told else ():
            writer.make_way()
        assert job.save().kind is not Kind.PRIORITY
    assert same(load(store, tables, 2), tables)
    assert not [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_a_damaged_priority_save_is_passed_over() -> None:
    store, tables = MemoryStore(), some_tables([80])
    with Job(
        store, tables, 2, policies=SavePolicies(strategy=hf.Partial(priority=hf.MFU(r=1.0)), retention=KEEP)
    ) as job:
        job.start()
        job.save()
        expected = []
        for number in range(2):
            job.update(number, share=0.1)
            saved = job.save(priority=True)
            expected.append(copied(tables))
        for info in list(store.list(f"data/{saved.id}/")):
            if info.name.endswith("safetensors"):
                store.put(info.name, bytes(bytearray(store.get(info.name))[:-8]) + bytes(8))
        loaded = job.runs[0].load_newest(job.shards[0])
        assert (loaded.info.step, loaded.newest_step) == (0, 1)
        for shard in job.shards[0]:
            own = expected[0][shard.table]["weight"][shard.first : shard.stop]
            assert np.array_equal(shard.columns["weight"], own)


def test_what_a_dead_writer_had_sealed_is_committed_and_its_successor_goes_on(tmp_path: Path) -> None:
    tables = some_tables([60])
    with Job(str(tmp_path / "run"), tables, 2, policies=SavePolicies(strategy=hf.Consecutive(), retention=KEEP)) as job:
        job.start()
        job.save()
        job.update(0)
        intent = job.intend()
        assert intent is not None
        job.capture(intent, 0)
        agent = job.writers[0].agent_pid
        assert agent is not None
        os.kill(agent, signal.SIGKILL)  # its save is lost, or was committed by then; its successor finds out
        job.capture(intent, 1)
        for writer in job.writers:
            writer.settle()
        ended = [event for writer in job.writers for event in writer.poll()]
        kinds = {type(event) for event in ended} & {SaveCommitted, SaveGivenUp}
        assert len(kinds) == 1  # a save ends the same way for everyone
        job.update(1)
        replace_part(job, 1)
        job.save()
        assert same(load(str(tmp_path / "run"), tables, 3), tables)


def chosen_rows(policy: Priority) -> list[list[int]]:
    """What is chosen of a group's second shard: first, after a save of that failed, and after one that succeeded."""
    both = [
        Shard(table=name, rows=40, first=0, columns={"weight": np.zeros((40, 2), dtype=np.float32)}) for name in "ab"
    ]
    uses = uses_of(policy, [(both[0], 0), (both[1], 40)], frozenset("ab"))
    found, chosen = [], uses.selectors["b"]

    def update(*rows: int) -> None:
        both[1].columns["weight"][list(rows)] += 1
        uses.use(np.array([3, *(40 + row for row in rows)]))

    for rows in ([1, 2, 3], [2, 3], [3], [7]):
        update(*rows)
    for succeeds in (False, True):
        found.append(chosen.choose().tolist())
        chosen.begin(chosen.choose())
        update(5)
        chosen.committed() if succeeds else chosen.failed()
    return [*found, chosen.choose().tolist()]


def test_the_rows_that_come_first() -> None:
    often = [[2, 3], [2, 3], [1, 5]]
    for policy in (hf.MFU(r=0.05), hf.SCAR(r=0.05)):
        found = chosen_rows(policy)
        assert found[:2] == often[:2] and 5 in found[2] and not {2, 3} & set(found[2])
    assert chosen_rows(hf.SSU(r=1.0, period=1)) == [[1, 2, 3, 7], [1, 2, 3, 5, 7], [5]]
    assert len(chosen_rows(hf.SSU(r=0.05, period=1))[0]) == 2
