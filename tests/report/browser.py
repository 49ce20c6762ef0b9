"""A page as a browser on a phone shows it, after its scripts ran."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PHONE_WIDTH = 390
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_LOOK = """
<body style="margin:0"><iframe src="{page}" style="width:{width}px;height:800px;border:0"></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
frame.onload = async () => {{
  const page = frame.contentDocument, of = (element, what) => element.querySelectorAll(what).length;
  for (let i = 0; i < 200 && !("drawn" in page.body.dataset); i++) await new Promise(done => setTimeout(done, 50));
  const symbols = figure => of(figure, ".mark-symbol > path"), bars = figure => of(figure, ".mark-rect > path");
  const figures = [...page.querySelectorAll("figure")];
  document.querySelector("pre").textContent = JSON.stringify({{
    text: page.body.innerText,
    drawn: Number(page.body.dataset.drawn),
    captions: figures.map(figure => figure.querySelector("figcaption").innerText),
    symbols: figures.map(symbols),
    bars: figures.map(bars),
    width: page.documentElement.scrollWidth,
    widest: Math.max(...figures.map(figure => figure.querySelector("svg")?.getBoundingClientRect().right ?? 0)),
    requested: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
    harmed: String(frame.contentWindow.harmed),
  }});
}};
</script></body>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is on a page. Lists have one item for each chart."""

    text: str
    drawn: int  # charts
    captions: list[str]
    symbols: list[int]
    bars: list[int]
    width: int  # how wide the page wants to be
    widest: float  # the right edge of the widest chart
    requested: list[str]
    harmed: str  # a global variable that nothing of ours sets

    def symbols_under(self, caption: str) -> int:
        """In the plot and its legend."""
        return next(n for text, n in zip(self.captions, self.symbols, strict=True) if caption in text)

    def bars_under(self, caption: str) -> int:
        """In the plot."""
        return next(n for text, n in zip(self.captions, self.bars, strict=True) if caption in text)


def look_at(page: Path, *, width: int = PHONE_WIDTH) -> Seen:
    """Open a page; skips the test where there is no browser."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("there is no Chromium here: install Debian's package chromium to run this test")
    outer = page.with_suffix(".look.html")
    outer.write_text(_LOOK.format(page=page.name, width=width), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    options += [
        "--allow-file-access-from-files",
        "--virtual-time-budget=60000",
        f"--user-data-dir={page.parent / 'user'}",
    ]
    done = subprocess.run(
        [browser, *options, "--dump-dom", outer.as_uri()], capture_output=True, text=True, timeout=100, check=False
    )
    found = re.search(r"<pre>(\{.*?)</pre>", done.stdout, re.DOTALL)
    assert found, f"the page told nothing: {done.stdout[-300:]} {done.stderr[-1000:]}"
    return Seen(**json.loads(html.unescape(found.group(1))))
