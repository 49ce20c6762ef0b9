"""Runs the ``holdfast`` command as a shell would."""

from __future__ import annotations

from typer.testing import CliRunner

from holdfast.cli import app


def holdfast(*arguments: object, expect: int = 0, answer: str | None = None) -> str:
    """Standard output of a command that ended as expected; standard error as well where that was not with 0."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=answer)
    assert result.exit_code == expect, result.output
    assert "\x1b" not in result.output, "escape codes where there is no terminal"
    return result.stdout if expect == 0 else result.output
