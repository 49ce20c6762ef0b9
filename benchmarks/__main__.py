"""``python -m benchmarks NAME --json FILE``: measure one claim. Without a name: list them."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import claims
from benchmarks.ending import end_at_sigterm
from benchmarks.report import Report, machine, show, write_json

if TYPE_CHECKING:
    from rich.console import Console

SCALES = ("small", "full")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    console = _console()
    if options.name is None:
        _list(console)
        return 0
    if options.name not in _names():
        parser.error(f"there is no benchmark {options.name!r}; known: {', '.join(_names()) or 'none'}")
    if options.json and not options.json.parent.is_dir():  # said now, not after the measurement
        parser.error(f"--json {options.json}: the folder {options.json.parent} does not exist")
    end_at_sigterm()
    report = _run(options.name, options.scale, options.json)
    show(report, console)
    if options.json:
        write_json(report, options.json, {"benchmark": options.name, "scale": options.scale, **machine()})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure one claim, or list them.")
    parser.add_argument("name", nargs="?", help="the claim's name; without it, all are listed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, as one flat object")
    parser.add_argument("--scale", choices=SCALES, default="full", help="small: the same measurement in little time")
    return parser


def _names() -> list[str]:
    """Claims are the public modules; what they share has a name that starts with an underscore."""
    return sorted(module.name for module in pkgutil.iter_modules(claims.__path__) if not module.name.startswith("_"))


def _console() -> Console | None:
    """None where rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _list(console: Console | None) -> None:
    for name in _names():
        line = f"{name:16} {_first_line(name)}"
        print(line) if console is None else console.print(line, markup=False, highlight=False)


def _first_line(name: str) -> str:
    """The claim's docstring without running its module, which may import much."""
    source = Path(claims.__path__[0]) / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _run(name: str, scale: str, beside: Path | None) -> Report:
    """A claim that keeps more than figures takes ``beside``, their file, to put it next to."""
    run = importlib.import_module(f"{claims.__name__}.{name}").run
    takes_beside = "beside" in inspect.signature(run).parameters
    report = run(scale, beside=beside) if takes_beside else run(scale)
    assert isinstance(report, Report), f"benchmarks/claims/{name}.py: run() must return a Report"
    return report


if __name__ == "__main__":
    sys.exit(main())
