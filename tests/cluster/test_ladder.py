"""The ladder of a job: what its arguments say, what its machines allow, and what the planner makes of both."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import holdfast as hf
from holdfast.cluster.history import History
from holdfast.cluster.ladder import Asked, Machines
from holdfast.cluster.plan import ModelPlan, TableSpec
from holdfast.cluster.record import JobRecord, Speed, page_name
from holdfast.errors import ConfigurationError
from holdfast.planner import Outlook
from holdfast.storage import MemoryStore
from tests.cluster.stories import BEGAN_S, story

PLAN = ModelPlan(tables=(TableSpec(name="t", rows=8000, width=31, init=hf.Normal(0.0, 1.0)),), dense=())
MB = 1_000_000  # of rows, and of one sum each


def asked(ladder: Any = "auto", parity: Any = None, strategy: Any = None, **more: Any) -> Asked:
    settings = {"retention": hf.KeepLast(1), "servers": 8, "synchronous": False, **more}
    return Asked.of(ladder, parity, strategy, **settings)


def machines(names: str, **free_bytes: int) -> Machines:
    """One letter for each server."""
    return Machines(
        list(names),
        free_bytes,
        plan=PLAN,
        optimizer=hf.RowwiseAdagrad(0.1),
        dense_optimizer=hf.SGD(0.1),
    )


def test_arguments_without_a_ladder_leave_parity_to_the_planner() -> None:
    assert asked().is_auto and asked().ladder == hf.Ladder()
    partial = asked(strategy=hf.Partial(priority=hf.SSU()))
    assert partial.is_auto and partial.ladder == hf.Ladder(partial=True, priority=hf.SSU())
    given = asked(parity=hf.Parity())
    assert not given.is_auto and given.ladder == hf.Ladder(parity=hf.Parity())


def test_a_ladder_says_all_of_it() -> None:
    ladder = hf.Ladder(partial=True, budget=hf.PLS(0.1))
    found = asked(ladder, strategy=hf.Grid())
    assert not found.is_auto and found.strategy == hf.Partial(consistent=hf.Grid(), budget=hf.PLS(0.1))
    same = asked(hf.Ladder.of(hf.Parity(), hf.Partial()), hf.Parity(), hf.Partial())  # both say the same
    assert same.ladder.parity == hf.Parity() and same.strategy == hf.Partial()


def test_nothing_is_recovered_partially_in_synchronous_training() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy=Partial\(\.\.\.\) and synchronous=True exclude .* Grid\("):
        asked(strategy=hf.Partial(consistent=hf.Grid()), synchronous=True)
    with pytest.raises(ConfigurationError, match=r"Ladder\(partial=True\) and synchronous=True exclude"):
        asked(hf.Ladder(partial=True), strategy=hf.Partial(), synchronous=True)


def test_the_planner_spreads_parity_over_machines() -> None:
    settled = machines("aabbccdd").settle(asked(), Outlook())
    assert settled.ladder.parity == hf.Parity(data=3, parity=1)  # two rings, each with one server of every machine
    assert [len(ring.servers) for ring in settled.rings] == [4, 4]
    alone = machines("aaaaa").settle(asked(servers=5), Outlook())
    assert alone.ladder.parity == hf.Parity(data=4, parity=1, domain="process")
    assert machines("ab").settle(asked(servers=2), Outlook()).rings == ()


def test_memory_that_does_not_suffice_takes_the_next_rung_or_is_refused_with_the_figure() -> None:
    wide = machines("aaaaaaaa", a=round(1.2 * MB)).settle(asked(), Outlook())
    assert wide.ladder.parity is not None and wide.ladder.parity.data == 6
    none = machines("aaaaaaaa", a=round(1.05 * MB)).settle(asked(), Outlook())
    assert none.ladder == hf.Ladder() and not none.rings
    assert "of machine a, where 0.000026 GB are left beside the rows" in none.why
    with pytest.raises(ConfigurationError, match=r"parity takes .* GB of machine a, where 0\.000026 GB of memory are"):
        machines("aaaaaaaa", a=round(1.05 * MB)).settle(asked(parity=hf.Parity()), Outlook())


@pytest.mark.parametrize(
    "said",
    [{"ladder": hf.Ladder(parity=hf.Parity())}, {"ladder": hf.Ladder(partial=True)}, {"ladder": hf.Ladder()}, {}],
    ids=["parity", "partial", "full", "auto"],
)
def test_rows_that_do_not_fit_are_refused_with_their_own_figure(said: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"rows and their slots take 0\.00102 GB of machine a.* 0\.0005 GB .* free"
    ) as told:
        machines("aaaaaaaa", a=MB // 2).settle(asked(**said), Outlook())
    assert "start servers on more machines" in str(told.value) and "parity" not in str(told.value).lower()


def test_rows_that_exceed_by_little_what_is_free_may_be_tried_without_parity() -> None:
    short = machines("aaaaaaaa", a=round(0.95 * MB))
    assert short.settle(asked(hf.Ladder()), Outlook()).ladder == hf.Ladder()
    assert short.settle(asked(), Outlook()).ladder == hf.Ladder()
    with pytest.raises(ConfigurationError, match="rows and their slots take"):
        short.settle(asked(parity=hf.Parity()), Outlook())


def test_too_few_machines_are_warned_of_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        machines("aabbccdd").settle(asked(parity=hf.Parity(data=4)), Outlook())
    assert "protect each other" in caplog.text
    with pytest.raises(ConfigurationError, match=r"Parity\(strict=True\): machine"):
        machines("aabbccdd").settle(asked(parity=hf.Parity(data=4, strict=True)), Outlook())


def test_earlier_jobs_tell_how_often_servers_die_and_how_long_an_interval_lasts() -> None:
    store = MemoryStore("sample")
    assert History.of(store, hf.EveryMinutes(30)) == History(interval_s=pytest.approx(1800, abs=1))
    assert History.of(store, hf.EverySteps(100)) == History()  # nobody knows how fast they are
    for term in (1, 2):
        store.put(page_name(term, 1), story(term).encode())  # two servers died in 18 seconds, at 25 steps a second
    found = History.of(store, hf.EverySteps(100))
    assert found.mtbf_s == pytest.approx(36 / 4) and found.interval_s == pytest.approx(4.0)
    assert History.of(store, hf.Never()).interval_s is None


def test_a_job_that_hardly_ran_tells_nothing() -> None:
    store = MemoryStore("sample")
    speed = Speed(at_s=BEGAN_S, step=0, samples_per_s=0.0, rows_per_s=0.0)
    store.put(page_name(1, 1), JobRecord(term=1, servers=3, workers=1, synchronous=False, speeds=(speed,)).encode())
    assert History.of(store, hf.EverySteps(100)) == History()
