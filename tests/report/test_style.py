"""The colours of a page can be told apart by day and in the dark."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from holdfast.report.page import stylesheet

TEXT = ("--ink", "--soft", "--link")
MARKS = ("--idle", *(f"--c{number}" for number in range(1, 9)))


def colors(mode: str) -> dict[str, str]:
    """The variables of a mode."""
    light, dark = re.findall(r":root \{(.*?)\}", stylesheet(), re.DOTALL)[:2]
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", light if mode == "light" else dark))


def luminance(color: str) -> float:
    """As WCAG defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_and_marks_stand_out(mode: str) -> None:
    found = colors(mode)
    for behind in ("--card", "--paper"):
        assert all(contrast(found[name], found[behind]) >= 4.5 for name in TEXT)
        assert all(contrast(found[name], found[behind]) >= 3 for name in MARKS)
    assert contrast(found["--ink"], found["--notice"]) >= 4.5


def test_both_modes_have_the_same_variables_and_no_two_marks_look_the_same() -> None:
    assert colors("light").keys() == colors("dark").keys()
    for mode in ("light", "dark"):
        assert all(colors(mode)[first] != colors(mode)[second] for first, second in combinations(MARKS, 2))


def test_every_colour_that_is_used_is_one_of_them() -> None:
    assert set(re.findall(r"var\((--[\w-]+)\)", stylesheet())) <= colors("light").keys()
