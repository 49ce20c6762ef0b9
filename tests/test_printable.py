"""What documents bring to a terminal is shown and not obeyed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedData
from holdfast.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("best 0.75 · größer [red]x[/red]", "best 0.75 · größer [red]x[/red]"),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("a\rb\nc\td", r"a\x0db\x0ac\x09d"),
        ("\x9b31m", r"\x9b31m"),
        ("evil\u202etxt.exe", r"evil\u202etxt.exe"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_would_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_what_is_shown_has_no_control_characters_and_plain_text_stays_as_it_is(text: str) -> None:
    assert not any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 for each in printable(text))
    assert printable(text) == text or not text.isprintable()
    assert printable_lines(text).count("\n") == text.count("\n")


def test_an_error_that_quotes_a_document_does_not_steer_a_terminal() -> None:
    error = DamagedData("data/x", "belongs to checkpoint \x1b[31mred")
    assert str(error) == r"data/x: belongs to checkpoint \x1b[31mred"
    assert error.what == r"belongs to checkpoint \x1b[31mred"
