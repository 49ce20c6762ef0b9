from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast.format.document import canonical_json
from tests.spec.examples import PAGES, examples, render
from tests.spec.sample import sample_run

NAMES = [
    "README", "bundle", "catalog", "cluster", "codec", "dcp", "document", "grid", "job", "lease", "manifest", "parity",
    "place", "state", "tree",
]  # fmt: skip
REMEDY = "run `python -m tests.spec.examples` to write the examples anew, and read what changed"


def page(name: str) -> Path:
    return PAGES / f"{name}.md"


def test_there_is_a_page_for_every_concept_and_the_map_names_each() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == NAMES
    for name in NAMES[1:]:
        assert f"]({name}.md)" in page("README").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_what_the_code_writes(name: str) -> None:
    rendered = [(text, render(kind, what)) for kind, what, text in examples(page(name))]
    checked = [(text, fresh) for text, fresh in rendered if fresh is not None]
    assert checked, f"{name}.md shows no example"
    for text, fresh in checked:
        assert text == fresh, REMEDY


@pytest.mark.parametrize("name", NAMES)
def test_a_document_on_a_page_is_its_object_byte_for_byte(name: str) -> None:
    for kind, what, text in examples(page(name)):
        if kind == "document" and what is not None:
            line, _, body = text.partition("\n")
            assert f"{line}\n".encode() + canonical_json(json.loads(body)) == sample_run().objects[what]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page(name).read_text()):
        assert (PAGES / target).exists(), target
