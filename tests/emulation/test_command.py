"""``holdfast simulate``, run as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli import app
from holdfast.planner.emulated import EmulatedJob

SMALL = ("--steps", "300", "--seeds", "1", "--strategy", "full", "--strategy", "cpr-vanilla")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def lines_of(text: str) -> dict[str, list[str]]:
    """The words of each line, by the first of them."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}


def test_simulate_prints_overheads_by_cause_and_the_auc_of_every_strategy(tmp_path: Path) -> None:
    result = simulate(*SMALL, "--strategy", "cpr-mfu", "-o", str(tmp_path / "found.json"))
    assert result.exit_code == 0, result.output
    accuracy, causes = (lines_of(part) for part in result.stdout.split("Overhead by cause"))
    assert accuracy["full"][-1] == "0.00000" and accuracy["full"][1:3] == ["2.3", "h"]
    assert accuracy["cpr-vanilla"][1:3] == ["44.8", "h"] and accuracy["cpr-mfu"][1:3] == ["44.8", "h"]
    assert causes["strategy"][1:] == ["save", "load", "lost", "resched.", "parity"]
    assert causes["cpr-mfu"][3] == "0.00%" < causes["full"][3]
    found = EmulatedJob.from_json((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [each.name for each in found.strategies] == ["full", "cpr-vanilla", "cpr-mfu"]
    assert found.strategies[0].overheads.lost_s > 0 == found.strategies[1].overheads.lost_s


def test_simulate_is_the_same_for_the_same_seed() -> None:
    first, again = simulate(*SMALL, "--json"), simulate(*SMALL, "--json")
    assert first.exit_code == 0 and first.stdout == again.stdout
    other = simulate(*SMALL, "--json", "--first-seed", "1")
    assert json.loads(other.stdout)["strategies"] != json.loads(first.stdout)["strategies"]


def test_failures_may_be_given_or_drawn() -> None:
    given = simulate(*SMALL, "--fail-at", "10", "--fail-at", "50.5", "--json")
    (run,) = json.loads(given.stdout)["strategies"][1]["runs"]
    assert [failure["at_s"] for failure in run["failures"]] == [36_000.0, 181_800.0]
    for model in ("exponential", "gamma", "weibull", "lognormal"):
        drawn = simulate(*SMALL, "--strategy", "full", "--failures", model, "--mtbf-hours", "8", "--json")
        assert drawn.exit_code == 0, drawn.output
        assert json.loads(drawn.stdout)["strategies"][0]["runs"][0]["failures"]


def test_a_strategy_that_falls_back_says_so() -> None:
    result = simulate(
        *SMALL, "--mtbf-hours", "1.4", "--lost-servers", "4", "--pls", "0.02", "--strategy", "cpr-vanilla"
    )
    assert "cpr-vanilla (recovers fully)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--lost-servers", "9"), "lost_servers is 9 of 8 servers"),
        (("--r", "0", "--strategy", "cpr-ssu"), "r must be above 0 and at most 1"),
        (("--mtbf-hours", "0"), "mtbf_s must be a finite number above 0"),
        (("--save-minutes", "-1"), "save_s must be a finite number above 0"),
        (("--pls", "2"), "a PLS budget must be above 0 and at most 1"),
        (("--strategy", "cpr"), "unknown strategy 'cpr'"),
        (("--steps", "10", "--strategy", "cpr-ssu"), "train more than 10 steps"),
        (("--fail-at", "60"), "at_s of a failure must be within the job's"),
    ],
)
def test_bad_input_ends_with_one_line(arguments: tuple[str, ...], said: str) -> None:
    result = simulate(*SMALL, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr and "Traceback" not in result.stderr


def test_an_unknown_failure_model_is_refused() -> None:
    result = simulate(*SMALL, "--failures", "bathtub")
    assert result.exit_code == 2 and "unknown failure model 'bathtub'" in result.stderr
