"""What the site needs beyond Markdown: fences in this repository say more than their language."""

from __future__ import annotations

import re
from typing import Any

_FENCE = re.compile(r"^```(\w+) [\w-]+$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """``python no-run`` is plain ``python`` to a highlighter."""
    return _FENCE.sub(r"```\1", markdown)
