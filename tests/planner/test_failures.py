"""Failure models: distributions that agree with themselves, and fits that find what was put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.planner import (
    FAMILIES,
    Exponential,
    FailureModel,
    Gamma,
    JobHistory,
    LogNormal,
    Weibull,
    fit,
    fit_all,
    fit_curves,
    kaplan_meier,
    survival_rmse,
)
from holdfast.planner.numerics import log_upper_gamma

HOUR_S = 3600.0

scales = st.floats(0.01 * HOUR_S, 1000 * HOUR_S)
shapes = st.floats(0.2, 8)
models = st.one_of(
    st.builds(lambda mean: Exponential(mean_s=mean), scales),
    st.builds(lambda shape, scale: Gamma(shape=shape, scale_s=scale), shapes, scales),
    st.builds(lambda shape, scale: Weibull(shape=shape, scale_s=scale), shapes, scales),
    st.builds(lambda sigma, median: LogNormal(sigma=sigma, median_s=median), st.floats(0.1, 3), scales),
)
TRUE_MODELS: list[FailureModel] = [
    Exponential(mean_s=20 * HOUR_S),
    Gamma(shape=0.6, scale_s=40 * HOUR_S),
    Weibull(shape=0.7, scale_s=18 * HOUR_S),
    LogNormal(sigma=1.3, median_s=9 * HOUR_S),
]


def history_of(model: FailureModel, jobs: int, *, longest_s: float, seed: int = 1) -> JobHistory:
    """Jobs that end by themselves after a random time, if they have not failed before."""
    rng = np.random.default_rng(seed)
    fails, ends = model.sample(rng, jobs), rng.uniform(0.1 * longest_s, longest_s, jobs)
    return JobHistory.of(np.minimum(fails, ends), fails <= ends)


@given(models, st.floats(1e-4, 1 - 1e-4))
def test_quantile_inverts_survival(model: FailureModel, share: float) -> None:
    assert float(model.survival(model.quantile(share))) == pytest.approx(1 - share, rel=1e-8)


@given(models)
@settings(max_examples=40, deadline=None)
def test_density_is_what_survival_loses(model: FailureModel) -> None:
    times = model.quantile(np.linspace(0.1, 0.9, 2001))
    lost = float(model.survival(times[0]) - model.survival(times[-1]))
    assert float(np.trapezoid(model.density(times), times)) == pytest.approx(lost, rel=1e-4)


@given(models)
@settings(max_examples=40, deadline=None)
def test_mtbf_is_the_area_below_the_survival_curve(model: FailureModel) -> None:
    times = np.exp(np.linspace(math.log(model.mtbf_s) - 25, math.log(float(model.quantile(1 - 1e-12))) + 3, 20_000))
    area = times[0] + np.trapezoid(model.survival(times), times)
    assert float(area) == pytest.approx(model.mtbf_s, rel=2e-3)


@pytest.mark.parametrize("model", TRUE_MODELS, ids=lambda model: type(model).__name__)
def test_samples_follow_the_survival_curve_and_repeat_with_their_seed(model: FailureModel) -> None:
    first, again = (model.sample(np.random.default_rng(7), 20_000) for _ in range(2))
    assert np.array_equal(first, again)
    for share in (0.1, 0.5, 0.9):
        assert float(np.mean(first < float(model.quantile(share)))) == pytest.approx(share, abs=0.02)


@given(st.integers(1, 6), st.floats(0.01, 60))
def test_incomplete_gamma_of_whole_shapes_is_a_poisson_sum(shape: int, x: float) -> None:
    terms = [math.exp(-x + n * math.log(x) - math.lgamma(n + 1)) for n in range(shape)]
    assert float(log_upper_gamma(shape, x)) == pytest.approx(math.log(math.fsum(terms)), rel=1e-9, abs=1e-12)


def test_incomplete_gamma_of_a_half_is_the_error_function() -> None:
    for x in (1e-6, 0.3, 1.4, 1.6, 20.0, 400.0):
        assert float(log_upper_gamma(0.5, x)) == pytest.approx(math.log(math.erfc(math.sqrt(x))), rel=1e-9)


@pytest.mark.parametrize("model", TRUE_MODELS, ids=lambda model: type(model).__name__)
def test_fit_recovers_the_parameters_though_half_of_the_jobs_did_not_fail(model: FailureModel) -> None:
    history = history_of(model, 4000, longest_s=40 * HOUR_S)
    assert len(history.censored_s) > 0.25 * 4000
    found = fit(type(model), history).model
    assert found.parameters() == pytest.approx(model.parameters(), abs=0.12)


def test_leaving_censored_jobs_out_makes_failures_look_more_frequent() -> None:
    model = Exponential(mean_s=20 * HOUR_S)
    history = history_of(model, 3000, longest_s=20 * HOUR_S)
    naive = fit(Exponential, JobHistory(failed_s=history.failed_s)).model
    assert naive.mtbf_s < 0.5 * model.mtbf_s
    assert fit(Exponential, history).model.mtbf_s == pytest.approx(model.mtbf_s, rel=0.06)


def test_the_exponential_fit_is_the_time_at_risk_over_the_failures() -> None:
    history = history_of(Gamma(shape=2, scale_s=HOUR_S), 100, longest_s=3 * HOUR_S)
    at_risk = math.fsum(history.failed_s + history.censored_s)
    assert fit(Exponential, history).model.mtbf_s == pytest.approx(at_risk / len(history.failed_s), rel=1e-4)


@pytest.mark.parametrize("model", TRUE_MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("by", ["aic", "rmse"])
def test_the_family_that_failures_came_from_is_chosen_or_one_that_contains_it(model: FailureModel, by: str) -> None:
    fits = fit_all(history_of(model, 6000, longest_s=60 * HOUR_S), by=by)  # type: ignore[arg-type]
    contains = (Exponential, Gamma, Weibull) if isinstance(model, Exponential) else (type(model),)
    assert isinstance(fits[0].model, contains)
    assert [type(each.model) for each in fits] != [] and {type(each.model) for each in fits} == set(FAMILIES)


def test_gamma_fits_a_production_like_history_within_the_papers_error() -> None:
    """MTBF of 14-30 h, median of 8-17 h, near-constant failure rate but at the beginning; RMSE of at most 4.4%."""
    cluster = Gamma(shape=0.65, scale_s=30 * HOUR_S)
    assert 14 <= cluster.mtbf_s / HOUR_S <= 30 and 8 <= float(cluster.quantile(0.5)) / HOUR_S <= 17
    best = fit_all(history_of(cluster, 5000, longest_s=100 * HOUR_S), by="rmse")[0]
    assert best.name == "Gamma" and best.rmse < 0.044
    hazard = best.model.hazard(np.asarray([0.1, 10.0, 40.0]) * HOUR_S)
    assert hazard[0] > 3 * hazard[1] and hazard[1] < 2 * hazard[2]


def test_kaplan_meier_counts_a_censored_job_as_at_risk_until_it_ended() -> None:
    curve = kaplan_meier(JobHistory(failed_s=(1.0, 3.0, 3.0, 5.0), censored_s=(3.0, 4.0)))
    assert curve.times_s.tolist() == [1.0, 3.0, 5.0]
    assert curve.survival.tolist() == pytest.approx([5 / 6, 5 / 6 * 3 / 5, 0.0])


def test_rmse_is_zero_for_a_curve_through_the_middle_of_every_step() -> None:
    model = Weibull(shape=1.5, scale_s=HOUR_S)
    times = model.quantile((np.arange(200) + 0.5) / 200)
    assert survival_rmse(model, JobHistory(failed_s=tuple(times.tolist()))) < 1e-9


def test_curves_to_draw_cover_the_history() -> None:
    history = history_of(TRUE_MODELS[1], 300, longest_s=40 * HOUR_S)
    curves = fit_curves(history, fit_all(history), points=50)
    assert set(curves.survival) == {family.__name__ for family in FAMILIES} == set(curves.hazard_per_s)
    assert curves.times_s[-1] == max(history.failed_s + history.censored_s)
    assert all(values.shape == (50,) and (np.diff(values) <= 0).all() for values in curves.survival.values())


def test_a_model_scaled_to_another_mean_keeps_its_form() -> None:
    for model in TRUE_MODELS:
        scaled = model.scaled_to(7 * HOUR_S)
        assert scaled.mtbf_s == pytest.approx(7 * HOUR_S)
        ratio = scaled.quantile([0.1, 0.9]) / model.quantile([0.1, 0.9])
        assert ratio[0] == pytest.approx(ratio[1])


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        (JobHistory(failed_s=(1.0, 2.0, 3.0, 4.0)), "4 failures are too few .* at least 5"),
        (JobHistory(failed_s=(), censored_s=(5.0,) * 50), "0 failures are too few"),
        (JobHistory(failed_s=(2.0,) * 9), "all 9 failures came after 2 s"),
    ],
)
def test_a_history_that_says_too_little_is_refused(history: JobHistory, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        fit_all(history)


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(time_s: float) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        JobHistory(failed_s=(1.0, time_s))
    with pytest.raises(ConfigurationError, match="mean_s must be a finite number above 0"):
        Exponential(mean_s=time_s)


def test_other_bad_calls_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one flag per job"):
        JobHistory.of([1.0, 2.0], [True])
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        Exponential(mean_s=1.0).quantile([0.5, 1.0])
    with pytest.raises(ConfigurationError, match="ordered by"):
        fit_all(JobHistory(failed_s=(1.0, 2.0, 3.0, 4.0, 5.0)), by="bic")  # type: ignore[arg-type]
