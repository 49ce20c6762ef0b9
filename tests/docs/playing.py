"""Runs a section of the guide as its reader would, and remembers everything that it shows them."""

from __future__ import annotations

import io
import logging
import re
import shlex
import warnings
from contextlib import redirect_stdout
from typing import Any

from typer.testing import CliRunner

from holdfast.cli import app
from tests.docs.pages import Block, Section

FIXED = ("planning.md",)  # pages whose commands print the same figures wherever they run


class Player:
    """One namespace and one transcript."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._shown = io.StringIO()

    def play(self, section: Section) -> None:
        """Every block in turn."""
        for block in section.blocks:
            match block.kind:
                case "python" | "python setup":
                    self.execute(block)
                case "python no-run":
                    block.compiled()
                case "console":
                    self._type(block)
                case "text":
                    self._compare(block)

    def execute(self, block: Block) -> None:
        """Run code; what it prints, logs and warns of is shown."""
        handler = logging.StreamHandler(self._shown)
        handler.setLevel(logging.WARNING)  # what a program without a logging set-up shows
        logging.getLogger("holdfast").addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as warned, redirect_stdout(self._shown):
                warnings.simplefilter("always")
                warnings.simplefilter("ignore", ResourceWarning)  # as Python does by itself
                exec(block.compiled(), self._namespace)  # type: ignore[arg-type]
        finally:
            logging.getLogger("holdfast").removeHandler(handler)
        for warning in warned:
            self._shown.write(f"{warning.message}\n")

    def _type(self, block: Block) -> None:
        """Run the command lines; lines below one must be in its output, whatever their figures where these vary."""
        output, like = "", _squeezed if block.path.name in FIXED else _figureless
        for line in block.text.splitlines():
            if line.startswith("$ "):
                output = _command(line.removeprefix("$ "))
            elif _figureless(line) and line.strip() != "...":
                assert like(line) in map(like, output.splitlines()), f"{line!r} is not in:\n{output}"

    def _compare(self, block: Block) -> None:
        """Every quoted line must have been shown, as it is or within a longer one, in this order."""
        shown = self._shown.getvalue()
        rest = iter(map(_squeezed, shown.splitlines()))
        for line in filter(None, map(_squeezed, block.text.splitlines())):
            assert any(line in each for each in rest), f"{block.path.name}:{block.line}: {line!r} is not in:\n{shown}"


def _command(line: str) -> str:
    program, *arguments = shlex.split(line)
    assert program == "holdfast", f"only holdfast's own commands can be run here: {line}"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{line}: {result.output}"
    return result.stdout


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _figureless(line: str) -> str:
    """Without figures, rules and spacing: what stays the same from run to run."""
    return _squeezed(re.sub(r"[\d.,]+", "0", re.sub(r"[─━]+", "", line)))
