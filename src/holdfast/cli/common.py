"""What every command shares: the store's options, how errors end, where output goes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.printable import printable_lines

if TYPE_CHECKING:
    from holdfast.run import Run

FAILED = 1  # the command worked and what it looked at is not good
ERROR = 2  # the command could not do its work
_PIPE_WIDTH = 240  # columns where there is no terminal to ask: nothing is cut off

UrlArgument: TypeAlias = Annotated[str, typer.Argument(metavar="URL", help="Where the run is.", show_default=False)]
StoreOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the object store's client; may be repeated."),
]
StepOption: TypeAlias = Annotated[int | None, typer.Option("--step", help="A checkpoint's step; default: the newest.")]


class OneLineErrors(TyperGroup):
    """Ends a command that failed for a known reason with one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (HoldfastError, OSError) as error:
            if ctx.params.get("traceback"):
                raise
            errors().print(f"error: {error}", style="red", soft_wrap=True)
            raise typer.Exit(ERROR) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


def common_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    """Options before the command."""


def output() -> Console:
    """Standard output; plain text where it is not a terminal."""
    return _console(stderr=False)


def errors() -> Console:
    """Standard error, for what is not the command's result."""
    return _console(stderr=True)


class _PlainConsole(Console):
    """Shows text as it is: markup means nothing in it, and what would steer the terminal is written out."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string comes by here, those in tables and titles, too."""
        return super().render_str(printable_lines(text), **options)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return _PlainConsole(
        stderr=stderr, width=None if stream.isatty() else _PIPE_WIDTH, markup=False, highlight=False, emoji=False
    )


def opened(url: str, options: Sequence[str] | None) -> Run:
    """The run at a URL; raises CheckpointNotFound where there is none."""
    from holdfast.run import open_run  # imports torch, which --help need not wait for

    run = open_run(url, options=parsed(options))
    run.head()
    return run


def parsed(options: Sequence[str] | None) -> dict[str, str] | None:
    """``KEY=VALUE`` texts as a mapping."""
    found = {}
    for option in options or ():
        key, separator, value = option.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE", param_hint="--option")
        found[key] = value
    return found or None
