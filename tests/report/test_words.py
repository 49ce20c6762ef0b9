"""How values are written: in words that a reader of any field understands."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.figures import number
from holdfast.report import words

MAGNITUDES = st.builds(
    lambda mantissa, power, sign: sign * mantissa * 10.0**power,
    st.floats(1, 9.99999999),
    st.integers(-290, 290),
    st.sampled_from((-1, 1)),
) | st.sampled_from([0.0, -0.0, 0.9996, 999.6, 9.9996, 59.99, 119.99, 7199.9, 999_999.6, 1e3, 1e-3])

CALCULATOR = re.compile(r"\d[eE][+-]?\d")


def written(value: float) -> list[str]:
    size = abs(value)
    return [
        number(value),
        number(value, 6),
        words.percent(value, 7.0),
        words.times(size, 3.0),
        words.spread(value, size / 10),
        words.size(size),
        words.duration(size),
        words.plain_unit([value]).name,
    ]


@given(MAGNITUDES)
def test_no_value_is_written_as_a_calculator_would(value: float) -> None:
    for text in written(value):
        assert not CALCULATOR.search(text), text


@given(MAGNITUDES)
def test_a_number_read_back_is_the_value_to_its_digits(value: float) -> None:
    text = number(value, 6).replace(",", "")
    mantissa, _, power = text.partition(" × 10")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) if power else 0
    assert float(f"{mantissa}e{exponent}") == pytest.approx(value, rel=1e-5)


@given(st.floats(1e-6, 1e15))
def test_a_time_or_size_never_has_a_thousand_of_a_unit_with_a_larger_one(value: float) -> None:
    for text, largest in ((words.duration(value), "days"), (words.size(value), "PB")):
        number, unit = text.split(" ")[0], text.split(" ")[-1]
        assert unit == largest or float(number.replace(",", "")) < 1000, text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.00052, "520 µs"),
        (0.0125, "12.5 ms"),
        (0.9996, "1 s"),
        (1.0, "1 s"),
        (119.2, "119 s"),
        (119.9, "2 min"),
        (3600.0, "60 min"),
        (7200.0, "2 h"),
        (56 * 3600.0, "56 h"),
        (1.1e6, "12.7 days"),
    ],
)
def test_a_time_span_is_told_in_the_unit_it_is_spoken_of(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1234567.0, "1,234,567"),
        (12345678.0, "1.23 × 10⁷"),
        (0.00002, "0.00002"),
        (3.21e-9, "3.21 × 10⁻⁹"),
        (-0.5, "-0.5"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_is_written_out_unless_it_is_very_large_or_small(value: float | None, text: str) -> None:
    assert number(value) == text


def test_an_axis_takes_the_unit_of_its_largest_value() -> None:
    assert words.byte_unit([10, 65_200_000]).name == "MB"
    assert words.byte_unit([999_960]).name == "MB"
    assert words.byte_unit([]).name == "B"
    assert words.time_unit([0.0, 0.004]).name == "ms"
    assert words.plain_unit([0.8, 0.1]).name == ""
    assert words.plain_unit([3e-9]).name == "10⁻⁹"
    assert words.plain_unit([2_550_000.0, -1.0]).name == "10⁶"
