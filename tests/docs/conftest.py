"""What the examples of all documents start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.pages import SETUP, guide_pages, sections


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """An empty folder, one thread, and the model of the examples."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    (setup,) = [
        block for page in guide_pages() for section in sections(page) for block in section.blocks if block.kind == SETUP
    ]
    exec(setup.compiled(), names)  # type: ignore[arg-type]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield names
    torch.set_num_threads(threads)
