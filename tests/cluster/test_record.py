"""The record of a job, as it is kept in a run."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

import holdfast as hf
from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.losses import Losses
from holdfast.cluster.controller.recorder import KEPT_JOBS, Recorder
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.deaths import deaths_of
from holdfast.cluster.happenings import Event, Recovered
from holdfast.cluster.record import JobRecord, page_name, read_jobs
from holdfast.errors import DamagedData, StorageError
from holdfast.format.document import seal, unseal
from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore
from tests.cluster.stories import BEGAN_S, HEIR, SERVER, WORKER, story
from tests.spec.sample import SampleRun


def test_a_page_holds_everything_that_can_happen() -> None:
    page = story()
    assert {type(event) for event in page.events} == set(Event.__args__)
    assert JobRecord.decode(page.encode(), name="jobs/00001-000001") == page


def test_what_a_later_release_tells_of_is_left_out() -> None:
    body = unseal("job", 1, story().encode(), name="page")
    body["events"].insert(0, {"what": "flew_to_the_moon", "at_s": 1.0})
    body["weather"] = "fine"
    assert JobRecord.decode(seal("job", 1, body), name="page") == story()


@pytest.mark.parametrize("field", ["term", "events", "speeds", "synchronous"])
@pytest.mark.parametrize("value", [None, -1, "x", [1], [{"what": "died"}], [[1.0, 2, -1.0, 0.0]]])
def test_a_malformed_page_is_damaged(field: str, value: object) -> None:
    body = {**unseal("job", 1, story().encode(), name="page"), field: value}
    with pytest.raises(DamagedData, match="page"):
        JobRecord.decode(seal("job", 1, body), name="page")


def test_only_the_end_of_a_long_text_is_kept() -> None:
    died = replace(story().events[4], how="a" * 9000 + "why")  # type: ignore[call-arg]
    page = replace(story(), events=(died,))
    (found,) = JobRecord.decode(page.encode(), name="page").events
    assert len(found.how) == 2000 and found.how.endswith("why")  # type: ignore[union-attr]


def test_jobs_are_put_together_from_their_pages_and_damaged_ones_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, whole = MemoryStore("sample"), story()
    for number, first in enumerate(range(0, len(whole.events), 4), start=1):
        part = replace(whole, events=whole.events[first : first + 4], speeds=whole.speeds[first : first + 4])
        store.put(page_name(1, number), part.encode())
    store.put(page_name(12, 1), story(12).encode())
    store.put(page_name(12, 2), b"holdfast job 1 nonsense")
    store.put("jobs/notes.txt", b"mine")
    with caplog.at_level(logging.WARNING, "holdfast"):
        jobs = read_jobs(store)
    assert jobs == (whole, story(12))
    assert [record.message for record in caplog.records if "jobs/00012-000002" in record.message]


def test_every_death_is_told_with_what_it_cost() -> None:
    first, second, third = deaths_of(story().events)
    assert (first.member, first.replaced_s, first.by_spare, first.lost_steps) == (SERVER, 1.0, True, 30)
    assert (first.pls, first.went_back) == (0.0125, False)
    assert (second.member, second.replaced_s, second.by_spare, second.lost_steps) == (WORKER, 3.0, False, 0)
    assert (third.member, third.replaced_s, third.lost_steps, third.went_back) == (HEIR, None, 80, True)


class Clerk:
    """A recorder of a job that is only told, on a clock that is moved."""

    def __init__(self, store: MemoryStore, term: int = 1) -> None:
        self.now_s = 0.0
        runtime = Runtime(monotonic_s=lambda: self.now_s, wall_s=lambda: BEGAN_S + self.now_s)
        self.accounts = Accounts(Losses(None, servers=1), synchronous=False, runtime=runtime)
        job = JobRecord(term=term, servers=1, workers=1, synchronous=False)
        self.recorder = Recorder(store, job, self.accounts, runtime=runtime)

    def work(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            report = json.dumps({"steps": int(self.now_s), "samples": 100 * self.now_s}).encode()
            self.accounts.hear(Member(Role.WORKER, 0, 1), report)
            self.recorder.turn()


def test_a_job_is_recorded_in_pages_that_come_more_and_more_seldom() -> None:
    store = MemoryStore("sample")
    clerk = Clerk(store)
    clerk.work(25)
    clerk.recorder.tell(story().events[3])
    clerk.work(7200)
    clerk.recorder.close()
    pages = list(store.list("jobs/"))
    assert 40 < len(pages) < 110  # every 10 seconds would have been 723
    (job,) = read_jobs(store)
    assert job.events == story().events[3:4]
    assert len(job.speeds) < 60 * len(pages)
    assert {round(speed.samples_per_s) for speed in job.speeds if speed.at_s > BEGAN_S} == {100}


def test_a_store_that_fails_costs_the_record_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        def put(self, *args: object, **options: object) -> None:
            raise StorageError("the store is away")

    clerk = Clerk(Broken("sample"))
    with caplog.at_level(logging.WARNING, "holdfast"):
        clerk.work(40)
        clerk.recorder.close()
    assert [record.message for record in caplog.records] == [
        "a part of this job's record is not stored: the store is away"
    ]


def test_a_run_tells_of_its_last_jobs_only() -> None:
    store = MemoryStore("sample")
    for term in range(1, 31):
        store.put(page_name(term, 1), story(term).encode())
    clerk = Clerk(store, term=31)
    clerk.work(1)
    clerk.recorder.close()
    assert [job.term for job in hf.open_run(store).jobs()] == list(range(32 - KEPT_JOBS, 32))


def test_pages_disturb_neither_verification_nor_pruning() -> None:
    store = SampleRun().store
    run = hf.open_run(store)
    assert run.verify() == []
    run.prune(hf.KeepLast(1), grace_s=0.0)
    assert [job.term for job in run.jobs()] == [2]
    assert run.verify() == []


def test_a_page_of_a_release_that_told_less_is_read() -> None:
    body = {"at_s": 1.0, "what": "recovered", "member": ["server", 1, 2], "rung": "parity", "rows": 9, "saved_rows": 0}
    page = {"term": 1, "servers": 3, "workers": 1, "synchronous": False, "speeds": []}
    data = seal("job", 1, {**page, "events": [{**body, "took_s": 0.5}]})
    (event,) = JobRecord.decode(data, name="jobs/00001-000001").events
    assert isinstance(event, Recovered) and (event.lost_steps, event.lost_samples, event.lost_pls) == (0, None, None)
