"""The demo: its picture from a scripted record, its share of the data, and the second act as it is played."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.demo import cluster_job, second_act
from benchmarks.demo.__main__ import plan
from benchmarks.demo.picture import costs, drawn
from holdfast.cluster.deaths import deaths_of
from holdfast.cluster.happenings import Recovered
from tests.cluster.stories import HEIR, story


def shown(what: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(what)
    return console.export_text()


def test_the_picture_shows_the_gap_of_a_death_and_its_mark() -> None:
    lines = shown(drawn(story(), width=80)).splitlines()
    top = next(line for line in lines if "6,400" in line)
    marks = next(line for line in lines if "▼" in line)
    gap = marks.index("▲")  # everyone is at work again when the second without a sample ends
    assert top[gap - 1] == " " and top[gap - 6] == "█"
    assert marks.count("▼") == 3 and marks.count("·") == 1
    assert "18 s" in lines[-2]


@pytest.mark.parametrize("width", [10, 30, 300])
def test_the_picture_fits_its_width(width: int) -> None:
    lines = shown(drawn(story(), width=width), width=400).splitlines()
    assert max(len(line.rstrip()) for line in lines[1:-2]) <= 10 + width


def test_a_job_that_ended_at_once_is_drawn_as_nothing() -> None:
    assert "no speed was recorded" in shown(drawn(replace(story(), speeds=()), width=80))


def test_the_table_says_what_each_death_cost() -> None:
    text = shown(costs(deaths_of(story().events)))
    assert "server 1 (1)" in text and "0.0125" in text and "a spare" in text
    assert "everyone" in text and "partial" in text


def test_workers_share_the_stream_and_go_on_where_they_were() -> None:
    shares = [cluster_job.Share(index, 2) for index in range(2)]
    assert sum(map(len, shares)) == cluster_job.STEPS
    first = iter(shares[0])
    next(first)
    state = shares[0].state_dict()
    expected = next(first)
    again = cluster_job.Share(0, 2)
    again.load_state_dict(state)
    assert next(iter(again)).ids.equal(expected.ids)


def test_the_first_act_kills_four_lives_and_lets_the_last_one_end() -> None:
    kills = plan(3)
    assert len(kills) == 5 and kills[-1] is None and all(kills[:-1])


def test_a_recovery_is_told_with_its_rung_and_what_it_cost() -> None:
    known = dict(member=HEIR, rows=9, saved_rows=0, at_s=1.0, took_s=2.04)
    assert "nothing lost" in second_act.told(Recovered(**known, rung="parity"))  # type: ignore[arg-type]
    cost = dict(lost_steps=3, lost_samples=768.0, lost_pls=0.0125)
    text = second_act.told(Recovered(**known, rung="partial", **cost))  # type: ignore[arg-type]
    assert text.endswith("for server 1 (2): 2.0 s, 3 steps, 768 samples lost to its rows, PLS 0.0125")


@pytest.mark.slow
def test_the_second_act_takes_every_rung_and_survives_all_its_deaths(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    report = tmp_path / "page.html"
    assert second_act.play(str(tmp_path / "run"), report, console=console)
    text = console.export_text()
    assert "What each death cost" in text
    assert all(f"rung {rung} for server" in text for rung in ("parity", "partial", "full"))
    assert "Jobs of a cluster" in report.read_text(encoding="utf-8")
