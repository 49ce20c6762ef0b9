"""The site: every page builds without a warning, and its reference has every public name."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import errors
from tests.docs.docstrings import handed_out
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make docs`` builds it: a broken link, anchor or docstring is an error."""
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason='the site needs `pip install "holdfast[docs]"`')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def named(site: Path) -> set[str]:
    """The names that the reference has an entry for, by the inventory that Sphinx and others read."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.split()[0] for line in zlib.decompress(inventory[4]).decode().splitlines()}


def test_the_reference_has_every_public_name(site: Path) -> None:
    assert {f"holdfast.{name}" for name in hf.__all__} - named(site) == set()


def test_the_reference_has_every_class_that_public_methods_return(site: Path) -> None:
    kinds = {each for each in handed_out() if each.__name__ not in hf.__all__}
    assert {f"{each.__module__}.{each.__qualname__}" for each in kinds} - named(site) == set()
    assert {"SaveStats", "RunSummary", "RestorePlan", "Recovered", "Update", "Epoch"} <= {
        each.__name__ for each in kinds
    }


def test_the_reference_has_every_error(site: Path) -> None:
    raised = {name for name, item in vars(errors).items() if isinstance(item, type) and name not in hf.__all__}
    assert {f"holdfast.errors.{name}" for name in raised} - named(site) == set()


def test_the_reference_has_the_members_of_what_users_hold(site: Path) -> None:
    members = [(kind.__name__, name) for kind in (hf.Checkpointer, hf.Run, hf.Follower) for name in vars(kind)]
    public = {f"holdfast.{kind}.{name}" for kind, name in members if not name.startswith("_")}
    assert public and public - named(site) == set()


def test_fences_that_say_more_than_their_language_are_still_code(site: Path) -> None:
    page = (site / "guide" / "operating.html").read_text(encoding="utf-8")
    assert "```" not in page and 'class="language-python' in page
