"""The front page, held to what it says: its loop runs and is as short as it claims, its figures are those measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.docs.pages import ROOT, sections
from tests.docs.playing import Player

README = ROOT / "README.md"
FIGURES = ROOT / "docs" / "figures.md"
_COMMAND = "`python -m benchmarks "


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A row of a table of figures."""

    benchmark: str
    key: str
    meaning: str
    bar: str
    measured: str


def figures(page: Path) -> list[Figure]:
    """In their order; a row without a command belongs to the one above it."""
    found, benchmark = list[Figure](), ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if re.match(r"\|.*\| `\w+` \|", line):
            command, key, meaning, bar, measured = (cell.strip() for cell in line[1:-1].split("|"))
            benchmark = command.removeprefix(_COMMAND).strip("`") or benchmark
            found.append(Figure(benchmark=benchmark, key=key.strip("`"), meaning=meaning, bar=bar, measured=measured))
    assert found, f"{page} has no figures"
    return found


def test_the_loop_of_the_readme_runs_and_has_five_lines(namespace: dict[str, Any]) -> None:
    model, optimizers, loader = namespace["build"]()
    train_step = namespace["train_step"]
    namespace |= {"model": model, "optimizers": optimizers, "loader": loader}
    namespace["train_step"] = lambda batch: train_step(model, optimizers, batch)
    (loop,) = [block for section in sections(README) for block in section.blocks if block.kind == "python"]
    assert len([line for line in loop.text.splitlines() if line]) == 5
    Player(namespace).execute(loop)
    assert hf.open_run("runs/17").checkpoints()[-1].step == 200


def test_the_readme_names_commands_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", README.read_text(encoding="utf-8")):
        assert f"\n{target}:" in makefile


def test_the_readme_has_six_figures_as_the_page_of_all_figures_has_them() -> None:
    every = {each.key: each for each in figures(FIGURES)}
    six = figures(README)
    assert len(six) == 6
    for figure in six:
        listed = every[figure.key]
        assert (figure.benchmark, figure.bar, figure.measured) == (listed.benchmark, listed.bar, listed.measured)
    assert any(figure.measured.startswith("**") for figure in six), "a miss is among them as long as there is one"


@pytest.mark.parametrize("figure", figures(FIGURES), ids=lambda figure: figure.key)
def test_every_figure_is_one_that_its_benchmark_measures(figure: Figure) -> None:
    claims = ROOT / "benchmarks" / "claims"
    files = [claims / f"{figure.benchmark}.py", *claims.glob(f"_{figure.benchmark}_*.py")]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert figure.key in source or any(re.fullmatch(each, figure.key) for each in _templates(source))


def _templates(source: str) -> list[str]:
    """What the f-strings of a source can come to, as patterns."""
    literals = re.findall(r"f\"([a-z0-9_{}]*)\"", re.sub(r"\{[^{}\"]*\}", "{}", source))
    return [literal.replace("{}", r"\w*") for literal in literals if len(literal.replace("{}", "")) > 4]
