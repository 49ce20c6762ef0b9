"""Makes text from documents safe to show: control and invisible characters are escaped."""

from __future__ import annotations

import unicodedata

_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, invisible formats, lone surrogates, line separators


def printable(text: str) -> str:
    r"""The same text with control and formatting characters as escapes, such as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(_escaped(each) if unicodedata.category(each) in _STEERING else each for each in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
