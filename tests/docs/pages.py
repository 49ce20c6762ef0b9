"""The documents as their readers see them: pages, sections, fenced blocks, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
SETUP = "python setup"  # runs before every section
RUN = ("python", SETUP, "console")
KINDS = (*RUN, "python no-run", "text", "sh")  # needs a cluster or an account; what was printed; for the reader alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; ``line`` is that of its fence."""

    kind: str
    text: str
    path: Path
    line: int

    def compiled(self) -> object:
        """The code, with the page's own line numbers."""
        return compile("\n" * self.line + self.text, str(self.path), "exec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What stands under one heading."""

    path: Path
    title: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """For test reports."""
        return f"{self.path.name}#{anchor(self.title)}"

    @property
    def runs(self) -> bool:
        """Whether it holds anything to run."""
        return any(block.kind in RUN for block in self.blocks)


def guide_pages() -> list[Path]:
    """Every page of the guide."""
    return sorted(GUIDE.glob("*.md"))


def sections(path: Path) -> Iterator[Section]:
    """The page cut at its headings; what stands before the first one is dropped."""
    title, blocks = "", list[Block]()
    for kind, text, line in _pieces(path.read_text(encoding="utf-8")):
        if kind is None:
            if title:
                yield Section(path=path, title=title, blocks=tuple(blocks))
            title, blocks = text, []
        else:
            blocks.append(Block(kind=kind, text=text, path=path, line=line))
    yield Section(path=path, title=title, blocks=tuple(blocks))


def links(path: Path) -> Iterator[tuple[Path, str]]:
    """Every relative link: the file it names and the anchor in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            name, _, fragment = target.partition("#")
            yield (path.parent / name if name else path), fragment


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    return {anchor(title) for title in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


def anchor(title: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _pieces(text: str) -> Iterator[tuple[str | None, str, int]]:
    """Headings (without a kind) and fenced blocks, in order."""
    fence: int | None = None
    kind, lines = "", list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if fence is not None and line == "```":
            yield kind, "".join(f"{each}\n" for each in lines), fence
            fence, lines = None, []
        elif fence is not None:
            lines.append(line)
        elif line.startswith("```"):
            fence, kind = number, line.removeprefix("```")
        elif line.startswith("#"):
            yield None, line.lstrip("# "), number
    assert fence is None, f"the block that begins in line {fence} does not end"
