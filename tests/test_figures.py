"""Numbers in messages and commands: written out, as people read them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.drawing import measured
from holdfast.figures import number
from holdfast.policy.pls import PlsMeter

CALCULATOR = re.compile(r"\d[eE][+-]?\d")
FIGURES = st.floats(0, 1e9)


@given(FIGURES, st.integers(1, 6))
def test_no_figure_is_written_as_a_calculator_would(value: float, digits: int) -> None:
    assert not CALCULATOR.search(number(value, digits))


@given(st.floats(1e-6, 1e6), st.integers(1, 6))
def test_a_figure_is_the_value_to_its_digits(value: float, digits: int) -> None:
    assert abs(float(number(value, digits).replace(",", "")) - value) <= 0.51 * value * 10 ** (1 - digits)


@given(FIGURES)
def test_metrics_of_any_size_are_listed_without_exponents(value: float) -> None:
    assert not CALCULATOR.search(measured({"loss": value}))


@given(st.floats(1e-9, 1.0))
def test_a_warning_about_lost_samples_has_no_exponents(lost: float) -> None:
    meter = PlsMeter(total_samples=10**9, budget=1e-9, pls=lost, failures=1)
    assert meter.warning and not CALCULATOR.search(meter.warning)


def test_figures_are_what_people_write() -> None:
    shown = [number(value) for value in (0.0, 1000.0, 0.0049, 28.0, 1234567.0, 3e-9, float("nan"), None)]
    assert shown == ["0", "1,000", "0.0049", "28", "1,234,567", "3 × 10⁻⁹", "nan", "-"]
