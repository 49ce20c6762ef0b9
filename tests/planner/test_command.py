"""``holdfast plan``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli import app

JOB = ("--hours", 56, "--model-gb", 400, "--nodes", 8, "--mtbf-hours", 28)


def holdfast_plan(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result.stdout if expect == 0 else " ".join(result.output.replace("│", " ").split())


def as_json(*arguments: object) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(holdfast_plan(*arguments, "--json"))
    return loaded


def test_the_table_has_every_alternative_and_a_call_to_paste() -> None:
    text = holdfast_plan(*JOB, "--parity", "4+1")
    for name in ("full", "deltas", "grid", "grid, quantized", "partial", "parity", "parity, partial"):
        assert sum(line.strip().startswith(name + " ") for line in text.splitlines()) >= 2, name  # in both tables
    assert "2 expected, each taking 1 of 8 servers" in text
    assert "recommended: " in text and "hf.Checkpointer(" in text and "hf.EveryMinutes(" in text


def test_json_says_what_the_table_says() -> None:
    found = as_json(*JOB, "--pls", 0.1)
    assert found["recommended"] == "grid" and found["expected_failures"] == 2
    assert "hf.Grid()" in found["python"]
    partial, grid, full = (
        next(each for each in found["alternatives"] if each["name"] == name) for name in ("partial", "grid", "full")
    )
    assert partial["objections"] == [] and partial["expected_pls"] == pytest.approx(0.1)
    assert found["unavailable"] == "partial" and "hf.Cluster" in partial["needs"]
    assert grid["needs"] is None
    assert found["reduction"] == pytest.approx(1 - grid["overhead_share"] / full["overhead_share"])
    assert sum(full["overheads"].values()) == pytest.approx(full["overhead_share"] * 56 * 3600)


def test_what_needs_servers_is_marked_and_said() -> None:
    text = " ".join(holdfast_plan(*JOB, "--pls", 0.1).split())
    assert "* needs tables on servers, as hf.Cluster has them: pass --servers" in text
    assert "recommended: grid, " in text and "better still: partial, " in text
    assert "better still" not in holdfast_plan(*JOB)  # it loses what nobody allowed


def test_a_cluster_gets_its_ladder() -> None:
    text = holdfast_plan(*JOB, "--servers", 8, "--pls", 0.1)
    assert "hf.Cluster(" in text and "servers=8" in text and "needs tables" not in text
    assert "ladder=hf.Ladder(partial=True, budget=hf.PLS(0.1), priority=hf.MFU(r=0.125))" in text
    often = (*JOB[:-1], 2, "--servers", 8)
    found = as_json(*often)
    assert (
        found["recommended"] == "parity" and "ladder=hf.Ladder(parity=hf.Parity(data=4, parity=1))" in found["python"]
    )
    assert found["rates"]["parity_overhead"]["source"]
    assert "parity of 4 + 1 takes 12.5 GB of each server" in holdfast_plan(*often)
    assert found["why"] == "parity of 4 + 1 takes 12.5 GB of each server"
    assert as_json(*JOB)["why"] is None


def test_parity_that_does_not_fit_a_server_is_said_with_the_figure() -> None:
    job = ("--hours", 56, "--model-gb", 40, "--nodes", 8, "--mtbf-hours", 0.5, "--servers", 8)
    assert "hf.Parity(data=7, parity=1)" in as_json(*job, "--free-gb", 0.8)["python"]
    text = " ".join(holdfast_plan(*job, "--free-gb", 0.7).split())
    assert "parity of 7 + 1 would take 0.714 GB of each server, where 0.7 GB are left beside the rows" in text
    assert "parity" not in {each["name"] for each in as_json(*job, "--free-gb", 0.7)["alternatives"]}


def test_a_parity_that_is_asked_for_has_to_fit_as_in_a_cluster() -> None:
    job = (*JOB, "--servers", 8, "--parity", "4+1")
    assert as_json(*job, "--free-gb", 12.5)["why"] == "parity of 4 + 1 takes 12.5 GB of each server"
    said = holdfast_plan(*job, "--free-gb", 12, expect=2)
    assert "parity of 4 + 1 would take 12.5 GB of each server, where 12 GB are left beside the rows" in said


def test_too_few_servers_for_parity_are_said() -> None:
    job = (*JOB, "--servers", 2)
    assert "\nparity needs 3 servers or more\n" in holdfast_plan(*job)
    assert as_json(*job)["why"] == "parity needs 3 servers or more"


def test_every_rate_names_a_figure_that_benchmarks_print() -> None:
    claims = Path(__file__).parents[2] / "benchmarks" / "claims"
    printed = "".join(each.read_text(encoding="utf-8") for each in claims.glob("*.py"))
    for key, rate in as_json(*JOB)["rates"].items():
        figure, source = rate["figure"], rate["source"]
        if figure is None:
            assert source.startswith("assumed")
            continue
        spelt = figure.replace("holdfast_delta", "{name}")  # of one of several ways to save
        assert f'"{figure}"' in printed or f'"{spelt}"' in printed, key
        assert "python -m benchmarks" in source


def test_an_accuracy_can_be_stated_instead_of_a_pls() -> None:
    by_accuracy = as_json(*JOB, "--accuracy-loss", 0.0004, "--pls-slope", 0.004)
    assert by_accuracy["alternatives"] == as_json(*JOB, "--pls", 0.1)["alternatives"]


def test_a_nodes_mtbf_gives_the_jobs() -> None:
    found = as_json("--hours", 56, "--model-gb", 400, "--nodes", 8, "--node-mtbf-hours", 8 * 28)
    assert found["mtbf_s"] == pytest.approx(28 * 3600, rel=1e-4)


def test_the_papers_job_in_the_papers_words() -> None:
    found = as_json(
        *JOB, "--stall-minutes", 5.65, "--reschedule-minutes", 5, "--pls", 0.1,
        "--read-gb-per-s", 1e9, "--write-gb-per-s", 1e9,
    )  # fmt: skip
    shares = {each["name"]: each["overhead_share"] for each in found["alternatives"]}
    assert 0.080 <= shares["full"] <= 0.090 and shares["partial"] <= 0.0055
    assert 1 - shares["partial"] / shares["full"] >= 0.93


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((*JOB[:-1], 0), "mtbf_s must be a finite number above 0"),
        ((*JOB, "--lost-servers", 9), "9 of 8 servers"),
        ((*JOB, "--max-overhead", 0.001), "no setting keeps the overhead within 0.10%; the closest is"),
        ((*JOB, "--node-mtbf-hours", 4), "one of --mtbf-hours and --node-mtbf-hours"),
        ((*JOB, "--accuracy-loss", 0.1), "--accuracy-loss with --pls-slope"),
        ((*JOB, "--parity", "four"), "is not K+R, such as 4+1"),
        ((*JOB, "--parity", "²+1"), "is not K+R, such as 4+1"),
        ((*JOB, "--servers", 8, "--free-gb", -1), "memory must be at least 0, got -1"),
        ((*JOB, "--servers", 8, "--free-gb", "nan"), "memory must be at least 0"),
        ((*JOB, "--parity", "8+1"), "pass data=7 or less"),
        ((*JOB, "--stall-minutes", 0), "times must be above 0"),
        ((*JOB, "--pls", 0), "PLS budget must be above 0"),
    ],
)
def test_bad_input_ends_with_its_remedy(arguments: tuple[object, ...], complaint: str) -> None:
    assert complaint in holdfast_plan(*arguments, expect=2)


def test_planning_needs_no_torch() -> None:
    code = "import sys, holdfast.planner, holdfast.cli.planning; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
