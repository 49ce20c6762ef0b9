"""The emulation's claim: figures from trainings that are kept, and nothing trained twice."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim import SGD

from benchmarks.claims import emulation
from benchmarks.claims._emulation_cases import UNDISTURBED, Case, cases
from benchmarks.claims._emulation_runs import PLANS, Lines, missing, train_all
from benchmarks.claims._emulation_statistics import Drops, Slopes, resampled
from benchmarks.claims._emulation_trainer import DlrmTraining, Trained
from benchmarks.data.synthetic import ClickStream
from benchmarks.training import train_step
from holdfast.emulation import charged
from holdfast.planner.emulated import EmulatedJob

PLAN = PLANS["tiny"]


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Training takes one; the tests after these take as many as before."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def made_up(case: Case) -> Trained:
    """Vanilla loses 0.01 per PLS, SSU and MFU a tenth of that."""
    if case.way is None or case.schedule is None:
        return Trained(seed=case.seed, key=UNDISTURBED, auc=0.8, pls=0.0)
    pls = charged(case.way.emulation(case.schedule, PLAN.model.steps)).pls
    slope = 0.001 if case.way.priority else 0.01
    return Trained(seed=case.seed, key=case.key, auc=0.8 - slope * pls, pls=pls)


def every_case() -> list[Case]:
    return [case for seed in range(PLAN.seeds) for case in cases(seed, PLAN.draws)]


def test_what_is_kept_is_not_trained_again_and_the_rest_is(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "runs.jsonl", PLAN.model)
    left = {(0, UNDISTURBED), (1, "lost_12/cpr-ssu")}
    for case in every_case():
        if (case.seed, case.key) not in left:
            lines.add(made_up(case))
    with (tmp_path / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"seed": 0, "key": "undist')  # killed while it wrote
        file.write("\n")
    before = lines.read()
    assert {(case.seed, case.key) for case in missing(PLAN, lines)} == left
    train_all(PLAN, lines, processes=1)
    assert not missing(PLAN, lines)
    assert lines.read()[: len(before)] == before and len(lines.read()) == len(before) + 2


def test_figures_follow_from_the_trainings(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "found.runs.jsonl", PLAN.model)
    for case in every_case():
        lines.add(made_up(case))
    figures = {name: float(value) for name, value in emulation.run("tiny", tmp_path / "found.json").figures.items()}
    assert 0.080 <= figures["overhead_full"] <= 0.090
    assert 0.042 <= figures["overhead_partial"] <= 0.046
    assert figures["overhead_cpr"] <= 0.0055 and figures["overhead_reduction"] >= 0.93
    assert figures["auc_drop_vanilla"] == pytest.approx(10 * figures["auc_drop_ssu"])
    assert figures["vanilla_slope"] == pytest.approx(0.01)
    assert figures["ssu_slope_over_vanilla_upper"] == pytest.approx(0.1)
    assert figures["pls_auc_correlation"] == pytest.approx(1.0) and figures["trainings_left"] == 0
    job = EmulatedJob.from_json((tmp_path / "found.emulation.json").read_text(encoding="utf-8"))
    assert job.strategies[0].name == "full" and job.strategies[0].mean("auc_drop") == 0


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [resampled(rng.normal(1.0, 0.5, 25), lambda each: each.mean(axis=-1)) for _ in range(60)]
    assert 0.8 <= np.mean([each.low <= 1.0 <= each.high for each in found]) <= 1.0


def test_a_seed_counts_for_slopes_only_when_all_of_it_was_trained() -> None:
    trained = [made_up(case) for case in every_case()]
    whole = Slopes.of(Drops(trained), ["draw_0"], ["cpr-vanilla", "cpr-ssu"])
    part = Slopes.of(
        Drops([each for each in trained if each.key != "draw_0/cpr-ssu" or each.seed]),
        ["draw_0"],
        ["cpr-vanilla", "cpr-ssu"],
    )
    assert len(whole.squares) == PLAN.seeds and len(part.squares) == PLAN.seeds - 1


def test_the_training_is_that_of_a_plain_dlrm_by_sgd() -> None:
    fast, plain = DlrmTraining(PLAN.model, 1), DlrmTraining(PLAN.model, 1)
    plain.model = copy.deepcopy(plain.model)  # tables of their own again
    rest = [*plain.model.bottom.parameters(), *plain.model.top.parameters()]
    rates = PLAN.model.table_rate, PLAN.model.rest_rate
    optimizers = [SGD(plain.model.emb.parameters(), lr=rates[0]), SGD(rest, lr=rates[1])]
    for number in range(20):
        fast.step(number)
        train_step(plain.model, ClickStream(1, PLAN.model.scale).batch(number, PLAN.model.batch_size), optimizers)
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(fast.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_trainings_need_pytorch_and_numpy_alone() -> None:
    """So that they can be made on a machine that has nothing else."""
    blocked = ["rich", "typer", "numba", "obstore", "torchdata", "triton", "altair", "jinja2"]
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); import benchmarks.claims._emulation_runs"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
