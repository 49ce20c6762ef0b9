"""What a page tells of a cluster's jobs."""

from __future__ import annotations

import re
from dataclasses import replace

from holdfast.cluster.record import JobRecord, Speed
from holdfast.report.jobs_section import jobs_section
from holdfast.report.page import render
from holdfast.report.run_page import run_page
from tests.cluster.stories import BEGAN_S, story
from tests.report.test_run_page import checkpoint, facts


def test_a_run_without_a_cluster_tells_of_no_job() -> None:
    assert jobs_section(()) is None


def test_every_death_is_a_row_with_what_it_cost() -> None:
    found = jobs_section((story(1),))
    assert found is not None
    (table,) = found.tables
    newest, worker, server = table.rows
    died = ["server 1 (1)", "killed by SIGKILL"]
    assert server[1:] == [*died, "partial", "1 s", "a spare", "30", "7,680", "0.0125", "0.0125"]
    assert worker[1:] == ["worker 0 (1)", "killed by SIGKILL", "-", "3 s", "a new process", "0", "-", "-", "-"]
    assert newest[3:] == ["-", "-", "-", "80, everyone's", "-", "-", "-"]
    assert "3 deaths cost 110 steps" in found.text[0]
    assert found.text[1] == (
        "The last one made up for deaths of servers by parity (2 + 1) → partial → full; over all jobs it took partial "
        "1 time."
    )


def test_speeds_are_drawn_with_marks_for_what_happened() -> None:
    page = render(run_page(replace(facts(checkpoint(1)), jobs=(story(1), story(2)))))
    labels = re.findall(r"<title>([^<]+)</title>", page)
    assert any("6,400 samples per second" in label for label in labels)
    for mark in ("death, server 1 (1)", "at work again, worker 0 (2)", "went back", "checkpoint"):
        assert any(label.endswith(f": {mark}") for label in labels), mark


def test_a_long_job_is_drawn_small() -> None:
    speeds = tuple(
        Speed(at_s=BEGAN_S + each, step=each, samples_per_s=each % 7, rows_per_s=0.0) for each in range(9000)
    )
    found = jobs_section((replace(story(), speeds=speeds),))
    assert found is not None
    assert max(map(len, found.charts[0].spec["datasets"].values())) <= 400


def test_a_job_of_which_nothing_is_known_yet_is_told_of() -> None:
    found = jobs_section((JobRecord(term=1, servers=1, workers=1, synchronous=True),))
    assert found is not None
    assert (found.charts, found.tables) == ([], [])
    assert "1 server and 1 worker, which took each step together. Nobody died." in found.text[0]
