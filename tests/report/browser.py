"""A page as a browser on a phone shows it, by day or in the dark, and as it prints it."""

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
frame.onload = () => {{
  const page = frame.contentDocument, of = (element, what) => element.querySelectorAll(what).length;
  const symbols = figure => of(figure, ".mark-symbol > path"), bars = figure => of(figure, ".mark-rect > path");
  const style = element => frame.contentWindow.getComputedStyle(element);
  const shade = color => color.match(/[0-9]+/g).map(Number);
  const figures = [...page.querySelectorAll("figure")];
  document.querySelector("pre").textContent = JSON.stringify({{
    text: page.body.innerText,
    drawn: of(page, "figure > svg"),
    captions: figures.map(figure => figure.querySelector("figcaption").innerText),
    symbols: figures.map(symbols),
    bars: figures.map(bars),
    width: page.documentElement.scrollWidth,
    widest: Math.max(...figures.map(figure => figure.querySelector("svg")?.getBoundingClientRect().right ?? 0)),
    requested: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
    harmed: String(frame.contentWindow.harmed),
    ink: shade(style(page.body).color),
    paper: shade(style(page.body).backgroundColor),
    series: shade(style(page.querySelector("figure .mark-symbol > path")).fill),
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
    ink: list[int]  # red, green, blue of the text
    paper: list[int]  # of what is behind it
    series: list[int]  # of the first mark in a chart

    def symbols_under(self, caption: str) -> int:
        """In the plot and its legend."""
        return next(n for text, n in zip(self.captions, self.symbols, strict=True) if caption in text)

    def bars_under(self, caption: str) -> int:
        """In the plot."""
        return next(n for text, n in zip(self.captions, self.bars, strict=True) if caption in text)


def look_at(page: Path, *, width: int = PHONE_WIDTH, dark: bool = False) -> Seen:
    """Open a page; skips the test where there is no browser."""
    outer = page.with_suffix(".look.html")
    outer.write_text(_LOOK.format(page=page.name, width=width), encoding="utf-8")
    mode = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    told = _browse(outer, mode, "--allow-file-access-from-files", "--virtual-time-budget=60000", "--dump-dom")
    found = re.search(r"<pre>(\{.*?)</pre>", told, re.DOTALL)
    assert found, f"the page told nothing: {told[-1000:]}"
    return Seen(**json.loads(html.unescape(found.group(1))))


def sheets(page: Path) -> int:
    """How many sheets of paper a page fills; skips the test where there is no browser."""
    paper = page.with_suffix(".pdf")
    _browse(page, f"--print-to-pdf={paper}")
    return len(re.findall(rb"/Type /Page\b", paper.read_bytes()))


def _browse(page: Path, *options: str) -> str:
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("there is no Chromium here: install Debian's package chromium to run this test")
    always = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    profile = f"--user-data-dir={page.parent / 'user'}"
    command = [browser, *always, profile, *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout
