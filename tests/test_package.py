"""What an index shows of the package: complete, and the same as what the repository says."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def core() -> Any:
    """The metadata as the build backend reads and checks it."""
    backend = pytest.importorskip("hatchling.metadata.core", reason="hatchling is part of holdfast[dev]")
    from hatchling.plugin.manager import PluginManager

    return backend.ProjectMetadata(str(ROOT), PluginManager()).core


def test_an_index_can_show_what_the_package_is(core: Any) -> None:
    core.validate_fields()  # classifiers that do not exist, a licence that is no expression
    assert core.name == "holdfast"
    assert core.description.endswith(".")
    assert core.readme_content_type == "text/markdown"
    assert core.license_expression == "Apache-2.0"
    assert core.keywords == sorted(set(core.keywords))
    assert core.authors


def test_classifiers_name_every_python_that_is_supported(core: Any) -> None:
    minors = [int(found) for found in re.findall(r":: Python :: 3\.(\d+)\n", "\n".join([*core.classifiers, ""]))]
    assert minors == [11, 12, 13]
    assert core.requires_python == f">=3.{minors[0]}"
    assert "Typing :: Typed" in core.classifiers
    assert (ROOT / "src" / "holdfast" / "py.typed").exists()


def test_the_changelog_begins_with_this_version(core: Any) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([^]]+)\] - ", text, re.MULTILINE)[0] == core.version == version("holdfast")


def test_the_source_archive_holds_what_the_readme_links_to() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    links = re.findall(r"\]\(([^)#:]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if link.split("/")[0] not in packed] == []
