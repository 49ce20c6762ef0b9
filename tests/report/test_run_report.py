"""The page of a run: what is on it, what cannot get onto it, and what is said where there is little to show."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import take_over
from holdfast.cli import app
from holdfast.errors import ConfigurationError
from holdfast.planner import PlsMeter
from holdfast.report import run_report
from holdfast.report.words import size
from holdfast.storage import LocalStore
from tests.report.browser import PHONE_WIDTH, look_at
from tests.tiny import build, train_step

EVIL = "</script><script>harmed = 1</script><img src=x onerror='harmed = 2'>"


class Metered:
    """A part of a training that keeps a PLS meter."""

    def state_dict(self) -> dict[str, Any]:
        meter = PlsMeter(total_samples=1000, budget=0.1).failed(200, lost_share=0.25)
        return {"pls": meter.to_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Always the same."""


def train(url: Path, steps: int, *, first: int | None = None, **more: Any) -> None:
    model, optimizers = build()
    more = {"save": hf.EverySteps(2), "strategy": hf.Grid(), "retention": hf.KeepAll()} | more
    with hf.Checkpointer(url, model=model, optimizer=optimizers, overlap=hf.Overlap.WAIT, **more) as guard:
        guard.resume(first)
        for step in range(guard.steps, steps):
            guard.step(loss=train_step(model, optimizers, step))
        guard.save(tag=EVIL, wait=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 2 and 4 live, 5 abandoned, then 6, 8 and 9; two trainers, 4 bits, and a PLS meter."""
    url = tmp_path_factory.mktemp("runs") / "run"
    more = {"precision": hf.Bits(4), "extra": {"meter": Metered()}}
    train(url, 5, **more)
    train(url, 9, first=4, **more)
    return url


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def report(url: Path) -> str:
    return run_report(hf.open_run(url))


def test_a_phone_shows_all_of_a_run_without_asking_anybody(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", str(trained), "-o", str(page)])
    assert result.exit_code == 0, result.output
    seen = look_at(page)
    assert seen.drawn == len(seen.captions) == 9
    assert seen.symbols_under("loss at each checkpoint") == 6
    assert seen.symbols_under("What each checkpoint wrote") == 6 + 2  # checkpoints, and the legend's kinds
    assert seen.symbols_under("How long training waited") == 6
    assert seen.symbols_under("to its commit") == 6
    assert seen.bars_under("what one checkpoint wrote") > 0
    assert seen.width <= PHONE_WIDTH
    assert seen.widest <= PHONE_WIDTH
    assert seen.requested == []
    for text in (
        "Checkpoints over time",
        "What is kept",
        "Grid",
        "Failures and recoveries",
        "Overhead",
        "Precision of",
    ):
        assert text in seen.text
    assert "4 bits" in seen.text
    assert "1 failure lost the effect of 0.05 of all samples: of a budget of 0.1" in seen.text
    assert "went back" in seen.text
    assert "restored 1 time" in seen.text


def test_what_a_run_brings_along_is_shown_and_not_run(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report(trained), encoding="utf-8")
    seen = look_at(page)
    assert EVIL in seen.text
    assert seen.harmed == "undefined"


def test_no_markup_of_a_run_gets_into_the_page(trained: Path) -> None:
    text = report(trained)
    assert "harmed = 1" in text
    assert EVIL not in text
    assert "<script>harmed" not in text
    assert not re.search(r"<(script|link|img|iframe|object|embed|base)\b|<[^>]*\s(src|style|on\w+)=", text)
    assert not re.search(r"@import|url\(|xlink:href", text)


def test_no_script_may_run_and_nothing_may_be_loaded(trained: Path) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', report(trained))
    assert re.fullmatch("default-src &#39;none&#39;; style-src &#39;sha256-[^;]*&#39;", policy)


def test_a_reader_in_the_dark_gets_a_dark_page_with_bright_charts(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report(trained), encoding="utf-8")
    day, night = look_at(page), look_at(page, dark=True)
    assert max(day.ink) < min(day.paper)
    assert max(night.paper) < min(night.ink)
    assert sum(night.series) > sum(day.series)


def test_charts_hold_what_the_catalog_says(trained: Path) -> None:
    (chart,) = re.findall(r"<svg(?:(?!</svg>).)*</svg>\s*<figcaption[^>]*>What each", report(trained), re.DOTALL)
    told = re.findall(r"<title>(.*?)</title>", chart, re.DOTALL)
    infos = hf.open_run(trained).checkpoints()
    assert len(told) == len(infos)
    for text, info in zip(told, infos, strict=True):
        assert text.startswith(f"step {info.step}, {info.kind.value}, ")
        assert f": {size(info.size_bytes)}, " in text


def test_idle_time_and_lost_work_are_told_apart(trained: Path) -> None:
    text = report(trained)
    assert "work lost, at most" in text
    assert "idle, at least" in text
    assert re.search(r"<title>lost: [^<]*%</title>", text)
    assert re.search(r"<title>idle: [^<]*%</title>", text)


def test_every_checkpoint_tells_how_long_training_waited_and_how_long_it_took(trained: Path) -> None:
    for info in hf.open_run(trained).checkpoints():
        assert info.stall_s is not None
        assert info.duration_s is not None
        assert 0 < info.stall_s < 60
        assert 0 < info.duration_s < 60


def test_a_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    Chain(LocalStore(tmp_path / "run")).commit(take_over())
    text = report(tmp_path / "run")
    assert "This run holds no checkpoint yet." in text
    assert "began" in text


def test_one_checkpoint_is_enough_for_a_page(tmp_path: Path) -> None:
    train(tmp_path / "run", 1, save=hf.Never(), strategy=hf.Full())
    page = tmp_path / "report.html"
    page.write_text(report(tmp_path / "run"), encoding="utf-8")
    assert "No checkpoints above the baseline" in page.read_text(encoding="utf-8")
    seen = look_at(page)
    assert seen.drawn == len(seen.captions) > 0


def test_no_run_is_a_clear_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path / "nothing"), "-o", str(tmp_path / "report.html")])
    assert result.exit_code == 2
    assert "holds no run yet" in result.output
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_newest_catalog_is_told_of_on_the_page(run: Path) -> None:
    newest = max((run / "catalog").iterdir())
    newest.chmod(0o644)
    newest.write_bytes(b"rubbish")
    text = report(run)
    assert f"catalog/{newest.name} cannot be read; this is the state before it" in text
    assert "Checkpoints over time" in text


def test_a_damaged_manifest_leaves_out_what_it_would_have_told(run: Path) -> None:
    newest = hf.open_run(run).checkpoints()[-1]
    for path in (run / "data" / newest.id).iterdir():
        path.chmod(0o644)
        path.write_bytes(b"rubbish")
    text = report(run)
    assert "does not match the size and digest" in text
    assert "Precision of what is stored" not in text
    assert "Checkpoints over time" in text


def test_reports_say_what_to_install(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ConfigurationError, match=r"altair: install holdfast\[report\]"):
        report(trained)


def test_a_report_is_of_a_run_or_of_an_emulation(tmp_path: Path) -> None:
    for arguments in ([], ["runs/x", "--emulation", "e.json"]):
        result = CliRunner().invoke(app, ["report", *arguments, "-o", str(tmp_path / "report.html")])
        assert result.exit_code == 2
        assert "--emulation FILE" in result.output
