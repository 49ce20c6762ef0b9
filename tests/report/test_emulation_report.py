"""The page of an emulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.planner import Failure, Overheads, Recovery
from holdfast.planner.emulated import EmulatedJob, EmulatedRun, EmulatedStrategy
from holdfast.report import emulation_report
from tests.report.browser import PHONE_WIDTH, look_at

HOUR_S = 3600.0


def job(*, name: str = "CPR-MFU") -> EmulatedJob:
    def runs(overheads: Overheads, pls: float, drop: float) -> tuple[EmulatedRun, ...]:
        failures = (Failure(at_s=9 * HOUR_S, servers=(3,)), Failure(at_s=40 * HOUR_S, servers=(1, 2)))
        return tuple(
            EmulatedRun(
                seed=seed, overheads=overheads, failures=failures, pls=pls, auc=0.8 - drop, auc_drop=drop + seed / 1e5
            )
            for seed in range(3)
        )

    full = Overheads(save_s=8000, load_s=600, lost_s=8000, reschedule_s=600)
    partial = Overheads(save_s=400, load_s=200, reschedule_s=300)
    return EmulatedJob(
        title="Two failures in 56 hours",
        total_s=56 * HOUR_S,
        servers=8,
        pls_budget=0.1,
        strategies=(
            EmulatedStrategy(name="full", recovery=Recovery.FULL, interval_s=2 * HOUR_S, runs=runs(full, 0.0, 0.0)),
            EmulatedStrategy(name=name, recovery=Recovery.PARTIAL, interval_s=None, runs=runs(partial, 0.12, 0.0002)),
        ),
    )


def test_a_phone_shows_every_strategy_of_an_emulation(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps(job(name="<b>CPR</b>").to_dict()), encoding="utf-8")
    page = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", "--emulation", str(tmp_path / "e.json"), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert "<b>" not in page.read_text(encoding="utf-8")
    seen = look_at(page)
    assert seen.drawn == len(seen.captions) == 4
    assert seen.bars_under("Time that is not training") == 2 * 4
    assert seen.symbols_under("The line is the budget") == 6
    assert seen.symbols_under("When failures struck") == 6
    assert seen.width <= PHONE_WIDTH
    assert seen.requested == []
    assert "Beyond the PLS budget of 0.1 with at least one seed: <b>CPR</b>." in seen.text
    assert "94.8%" in seen.text  # 900 s instead of 17200 s
    assert "never" in seen.text


def test_a_job_that_nothing_happened_to_has_a_page() -> None:
    quiet = EmulatedRun(seed=0, overheads=Overheads(), failures=(), pls=0.0, auc=0.8, auc_drop=0.0)
    strategy = EmulatedStrategy(name="full", recovery=Recovery.FULL, interval_s=HOUR_S, runs=(quiet,))
    text = emulation_report(replace(job(), strategies=(strategy,)))
    assert "There were none." in text


def test_what_is_no_emulation_is_a_clear_error(tmp_path: Path) -> None:
    for text, told in (
        ("{", "is JSON, and this is not"),
        ("[]", "not an emulation's result"),
        ("{}", "lacks 'emulation'"),
    ):
        (tmp_path / "e.json").write_text(text, encoding="utf-8")
        result = CliRunner().invoke(app, ["report", "--emulation", str(tmp_path / "e.json"), "-o", str(tmp_path / "r")])
        assert result.exit_code == 2
        assert told in result.output
