"""What an emulation found, as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.planner import Failure, Overheads, Recovery
from holdfast.planner.emulated import EmulatedJob, EmulatedRun, EmulatedStrategy


def job(**more: Any) -> EmulatedJob:
    failure = Failure(at_s=100.0, servers=(0, 3))
    runs = (
        EmulatedRun(seed=1, overheads=Overheads(save_s=1.0), failures=(failure,), pls=0.02, auc=0.75, auc_drop=0.01),
        EmulatedRun(seed=2, overheads=Overheads(save_s=3.0, lost_s=2.0), failures=()),
    )
    strategy = EmulatedStrategy(name="partial", recovery=Recovery.PARTIAL, interval_s=None, runs=runs)
    return EmulatedJob(
        **{"title": "t", "total_s": 1e4, "servers": 4, "pls_budget": 0.1, "strategies": (strategy,)} | more
    )


def test_it_comes_back_from_json() -> None:
    assert EmulatedJob.from_json(json.dumps(job().to_dict())) == job()


def test_means_are_over_the_seeds_that_measured() -> None:
    (strategy,) = job().strategies
    assert strategy.overheads == Overheads(save_s=2.0, lost_s=1.0)
    assert (strategy.mean("pls"), strategy.mean("auc"), strategy.mean("auc_drop")) == (0.01, 0.75, 0.01)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda body: body.pop("servers"), "servers"),
        (lambda body: body.pop("strategies"), "strategies"),
        (lambda body: body.update(emulation=2), "version 2"),
        (lambda body: body.update(more=1), "unknown values: more"),
        (lambda body: body["strategies"].clear(), "at least one"),
        (lambda body: body["strategies"][0]["runs"].clear(), "at least one"),
        (lambda body: body["strategies"][0].update(recovery="none"), "none"),
        (lambda body: body["strategies"][0]["runs"][0]["overheads"].update(save_s=float("inf")), "finite"),
        (lambda body: body["strategies"][0]["runs"][0].update(failures=[{}]), "servers"),
        (lambda body: body.update(total_s=0), "total_s"),
        (lambda body: body.update(pls_budget=7), "PLS budget"),
    ],
)
def test_what_is_none_is_a_clear_error(change: Any, told: str) -> None:
    body = json.loads(json.dumps(job().to_dict()))
    change(body)
    with pytest.raises(ConfigurationError, match=told):
        EmulatedJob.from_dict(body)
