"""What contributors are told is so."""

from __future__ import annotations

from tests.docs.pages import ROOT, sections


def test_the_layers_name_every_module() -> None:
    (drawn, *_) = [block for section in sections(ROOT / "CONTRIBUTING.md") for block in section.blocks]
    package = ROOT / "src" / "holdfast"
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = {word for line in drawn.text.splitlines() for word in line.split("   ")[0].split()}
    assert {module for module in modules if not module.startswith("_")} - named == set()
