"""What all commands share: store options, error handling, output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.printable import printable_lines

if TYPE_CHECKING:
    from holdfast.checkpoint.commit.chain import Head
    from holdfast.run import Run

FAILED = 1  # the command worked and what it looked at is not good
ERROR = 2  # the command could not do its work
_PIPE_WIDTH = 240  # columns where there is no terminal, nor COLUMNS, to ask: nothing is left out

UrlArgument: TypeAlias = Annotated[str, typer.Argument(metavar="URL", help="Location of the run.", show_default=False)]
StoreOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Object store client option; may be repeated."),
]
StepOption: TypeAlias = Annotated[int | None, typer.Option("--step", help="Step of the checkpoint; default: newest.")]


JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, including errors.")]
_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]  # click's UsageError: typer does not export it
_JSON_ASKED = "holdfast.json"


class OneLineErrors(TyperGroup):
    """Ends a command that failed for a known reason with one line on standard error; with --json, as JSON."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the options before the command."""
        as_json = "--json" in args
        with _usage_errors(as_json=as_json):
            ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[_JSON_ASKED] = as_json
        return ctx

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        as_json = ctx.meta[_JSON_ASKED]
        try:
            with _usage_errors(as_json=as_json):
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (HoldfastError, OSError) as error:
            if ctx.params.get("traceback"):
                raise
            _tell(error, str(error), as_json=as_json)
            raise typer.Exit(ERROR) from error


@contextmanager
def _usage_errors(*, as_json: bool) -> Iterator[None]:
    """Typer frames them for people, unless JSON was asked for."""
    try:
        yield
    except _USAGE_ERROR as error:
        if not as_json:
            raise
        _tell(error, error.format_message(), as_json=True)
        raise typer.Exit(ERROR) from error


def _tell(error: Exception, message: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"error": {"type": type(error).__name__, "message": message}}))
    else:
        errors().print(f"error: {message}", style="red", soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


def common_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options before the command."""


def output() -> Console:
    """Standard output; plain text where it is not a terminal."""
    return _console(stderr=False)


def errors() -> Console:
    """Standard error, for what is not the command's result."""
    return _console(stderr=True)


class _PlainConsole(Console):
    """Prints plain text: markup has no meaning, and control characters are escaped."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string comes by here, those in tables and titles, too."""
        return super().render_str(printable_lines(text), **options)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return _PlainConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def newest(url: str, options: Sequence[str] | None) -> Head:
    """What the run at a URL lists; raises CheckpointNotFound where there is none. Needs no PyTorch."""
    from holdfast.checkpoint.commit.chain import Chain
    from holdfast.opening import open_patiently, read_head

    store = open_patiently(url, parsed(options))
    return read_head(Chain(store), store.url, told=set())


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
