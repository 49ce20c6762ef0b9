"""The documents, held to what they say: every example runs, every message is quoted as it is printed."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.trainer.position import SaveStats
from holdfast.cli import app
from holdfast.events import TrainingEvent
from tests.docs.pages import GUIDE, KINDS, ROOT, Section, anchors, guide_pages, links, sections
from tests.docs.playing import Player

SECTIONS = [section for page in guide_pages() for section in sections(page)]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("section", [each for each in SECTIONS if each.runs], ids=lambda section: section.name)
def test_every_example_of_the_guide_runs_and_prints_what_it_says(section: Section, namespace: dict[str, Any]) -> None:
    Player(namespace).play(section)


def text(*names: str) -> str:
    return "\n".join((GUIDE / name).read_text(encoding="utf-8") for name in names)


def test_every_block_says_what_it_is() -> None:
    assert {block.kind for section in SECTIONS for block in section.blocks} <= set(KINDS)


def test_the_guide_names_every_public_name() -> None:
    written = text(*(page.name for page in guide_pages()))
    assert [name for name in hf.__all__ if not re.search(rf"\bhf\.{name}\b", written)] == []


def test_the_guide_says_what_to_do_about_every_error() -> None:
    named = set(re.findall(r"^\| .*", text("failures.md"), re.MULTILINE))
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)]
    told = {errors.HoldfastError, errors.HoldfastWarning}  # what the others are, and what is no error
    assert [each.__name__ for each in classes if each not in told and f"{each.__name__}`" not in " ".join(named)] == []


@pytest.mark.parametrize(
    ("described", "page"),
    [(hf.Settings, "operating.md"), (SaveStats, "saving.md"), (hf.CheckpointInfo, "inspecting.md")],
)
def test_the_guide_describes_every_field(described: type, page: str) -> None:
    missing = [field.name for field in fields(described) if f"`{field.name}`" not in text(page)]
    assert missing in ([], ["last_commit_s"])  # a monotonic clock's reading: nothing for people


def test_the_guide_describes_every_event_that_hooks_receive() -> None:
    written = text("saving.md")
    for event in get_args(TrainingEvent):
        missing = [field.name for field in fields(event) if f"`{field.name}`" not in written]
        assert f"`{event.__name__}`" in written and missing == []


def test_the_guide_shows_every_command_and_its_options() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"holdfast {name}" in text("inspecting.md")
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if option not in text("inspecting.md", "planning.md")] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, fragment in links(document):
        assert target.exists(), target
        assert not fragment or fragment in anchors(target), f"{target}#{fragment}"


def test_the_guide_lists_the_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (everything,) = project["optional-dependencies"]["all"]
    _, _, install = text("start.md").partition("## Install\n")
    listed = re.findall(r"^\| `(\w+)` \|", install.partition("\n## ")[0], re.MULTILINE)
    assert sorted(listed) == sorted(everything.removeprefix("holdfast[").removesuffix("]").split(","))


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop().resolve()
        if document.suffix == ".md" and document not in reached:
            reached.add(document)
            waiting += [target for target, _ in links(document)]
    assert {document.resolve() for document in DOCUMENTS} - reached == set()
