"""A rerun of the study updates what the policy decides from."""

from __future__ import annotations

from pathlib import Path

from benchmarks.claims._accuracy_settings import SETTINGS
from benchmarks.study import measurements, rewritten
from holdfast.policy import study
from holdfast.policy.study import Measurement


def test_the_policy_holds_what_the_study_measures() -> None:
    keys = {(each.method, each.bits, each.restores, each.difference) for each in study.STUDY}
    rerun = measurements({f"{name}_auc_drop_bound_percent": 0.5 for name in SETTINGS})
    assert keys <= {(each.method, each.bits, each.restores, each.difference) for each in rerun}


def test_a_rerun_takes_the_place_of_the_figures_and_of_nothing_else() -> None:
    source = Path(study.__file__).read_text(encoding="utf-8")
    figures = {f"{name}_auc_drop_bound_percent": 0.0123456 + number for number, name in enumerate(SETTINGS)}
    changed = rewritten(source, figures)
    scope: dict[str, tuple[Measurement, ...]] = {}
    exec(compile(changed, "study", "exec"), {"__name__": "holdfast.policy.study"}, scope)
    assert [each.auc_drop_bound_percent for each in scope["STUDY"]] == [
        each.auc_drop_bound_percent for each in measurements(figures)
    ]
    assert rewritten(changed, figures) == changed
    kept = [line for line in source.splitlines() if "Measurement(" not in line]
    assert [line for line in changed.splitlines() if "Measurement(" not in line] == kept
