"""What CONTRIBUTING.md points to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import sections

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "src/holdfast/checkpoint"


def tasks() -> list[str]:
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    start = lines.index("| to change | open |") + 2
    return [line for line in lines[start : start + 20] if line.startswith("| ")]


def test_at_least_ten_tasks_name_the_files_to_open() -> None:
    assert len(tasks()) >= 10
    for line in tasks():
        paths = re.findall(r"`(src/[^`]+)`", line)
        assert paths, line
        for path in paths:
            assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("walk", ["The walk of a save", "The walk of a resume"])
def test_every_stop_of_a_walk_is_a_file_and_the_walk_fits_a_screen(walk: str) -> None:
    page = (ROOT / "docs/design/001-foundation.md").read_text()
    drawing = page.split(f"## {walk}")[1].split("```")[1]
    stops = re.findall(r"\b([a-z]+/[a-z_]+)\b", drawing)
    assert len(stops) >= 10
    assert len(drawing.splitlines()) <= 40
    for stop in stops:
        assert (CHECKPOINT / f"{stop}.py").is_file(), stop


def test_the_layers_name_every_module() -> None:
    (drawn, *_) = [block for section in sections(ROOT / "CONTRIBUTING.md") for block in section.blocks]
    package = ROOT / "src" / "holdfast"
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = {word for line in drawn.text.splitlines() for word in line.split("   ")[0].split()}
    assert {module for module in modules if not module.startswith("_")} - named == set()
