"""Renders the examples of docs/spec from the sample run; ``python -m tests.spec.examples`` writes them into the pages.

An example is a fenced block whose first word says how it is shown and whose second what: ``hexdump NAME`` as
``hexdump -C`` prints the object, ``document NAME`` with its JSON spread over lines, ``skeleton CHECKPOINT``, ``state
CHECKPOINT`` (a skeleton spread over lines), ``listing``, ``numbers``, ``values``, ``frames NAME`` (a message between
members of a job, each of its frames as ``hexdump -C`` prints it), ``messages`` (all of their types), ``stripe`` (its
records and parities), ``rotation`` (where stripes lie), ``dcp`` (a state
that DCP saved).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.checkpoint.commit import chain, lease, pages
from holdfast.format import bundle, catalog, layout, tree
from tests.cluster.train.page_example import sample_place
from tests.cluster.wire.page_examples import frames_of, messages
from tests.codec.page_examples import record
from tests.erasure.page_examples import rotation, stripe
from tests.spec.dcp_example import dcp_skeleton
from tests.spec.grid_life import grid_life
from tests.spec.sample import SampleRun, sample_run

PAGES = Path(holdfast.__file__).parents[2] / "docs" / "spec"
_BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<what>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_WIDTH = 110


def render(kind: str, what: str | None) -> str | None:
    """The example's text; None for a block that is no example of these kinds."""
    draw = _KINDS.get(kind)
    return None if draw is None else draw(sample_run(), what or "")


def examples(page: Path) -> list[tuple[str, str | None, str]]:
    """The fenced blocks of a page: kind, what, text."""
    return [(block["kind"], block["what"], block["text"]) for block in _BLOCK.finditer(page.read_text())]


def update(page: Path) -> None:
    """Write the examples of a page anew."""

    def fresh(block: re.Match[str]) -> str:
        text = render(block["kind"], block["what"])
        title = " ".join(word for word in (block["kind"], block["what"]) if word)
        return block[0] if text is None else f"```{title}\n{text}```"

    page.write_text(_BLOCK.sub(fresh, page.read_text()))


def hexdump(data: bytes) -> str:
    """What ``hexdump -C`` prints: 16 bytes a line, lines like the one before as a single ``*``."""
    lines: list[str] = []
    previous = b""
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        if row == previous:
            if lines[-1] != "*":
                lines.append("*")
            continue
        previous = row
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {left:<23}  {right:<23}  |{text}|")
    return "\n".join([*lines, f"{len(data):08x}", ""])


def spread(value: Any, indent: str = "") -> str:
    """JSON over as many lines as it needs to be read, and no more."""
    flat = json.dumps(value, sort_keys=True)
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(i, dict | list) for i in value))
    if len(indent) + len(flat) <= _WIDTH or not nested:
        return flat
    deeper = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {spread(item, deeper)}" for key, item in sorted(value.items())]
    else:
        items = [spread(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "".join(f"\n{deeper}{item}," for item in items)[:-1] + f"\n{indent}{closing}"


def _document(run: SampleRun, name: str) -> str:
    line, _, body = run.objects[name].decode().partition("\n")
    return f"{line}\n{spread(json.loads(body))}\n"


def _state(run: SampleRun, checkpoint: str) -> str:
    return spread(json.loads(_skeleton(run, checkpoint))) + "\n"


def _skeleton(run: SampleRun, checkpoint: str) -> str:
    step = int(checkpoint[1:13])
    return tree.encode_tree(run.state(step)).skeleton.decode() + "\n"


def _listing(run: SampleRun, _: str) -> str:
    return "".join(f"{len(data):6d}  {name}\n" for name, data in run.objects.items())


def _numbers(_run: SampleRun, _: str) -> str:
    numbers = {
        "bytes of a block": bundle.BLOCK_BYTES,
        "bytes that a head is a multiple of": bundle.PAGE,
        "bytes that a column or piece is aligned to": layout.ALIGNMENT,
        "ancestors that a catalog names": catalog.LINEAGE_LENGTH,
        "items that a catalog says itself, at most": pages._INLINE_ITEMS,
        "times its own size, of a page that a new page takes in, at most": pages._MERGE_RATIO,
        "events that a catalog tells of, at most": chain._EVENTS,
        "levels of nesting in a state tree, at most": tree.MAX_DEPTH,
        "seconds that a lease lives after its last renewal": lease.TTL_S,
    }
    return "".join(f"{value:8g}  {meaning}\n" for meaning, value in numbers.items())


def _values(_run: SampleRun, _: str) -> str:
    lines = (PAGES / "tree.md").read_text()
    block = next(match["text"] for match in _BLOCK.finditer(lines) if match["kind"] == "values")
    return "".join(_value(line.partition("  ->  ")[0]) for line in block.splitlines())


def _value(expression: str) -> str:
    import collections

    import numpy
    import torch

    names = {"np": numpy, "torch": torch, **{kind: getattr(collections, kind) for kind in collections.__all__}}
    root = json.loads(tree.encode_tree(eval(expression, names)).skeleton)["root"]
    return f"{expression}  ->  {json.dumps(root)}\n"


_KINDS: dict[str, Callable[[SampleRun, str], str]] = {
    "hexdump": lambda run, name: hexdump(run.objects[name]),
    "document": _document,
    "skeleton": _skeleton,
    "state": _state,
    "listing": _listing,
    "numbers": _numbers,
    "values": _values,
    "gridlife": lambda _run, _name: grid_life(),
    "record": lambda _run, what: record(what),
    "frames": lambda _run, what: "\n".join(hexdump(frame) for frame in frames_of(what)),
    "messages": lambda _run, _what: messages(),
    "place": lambda _run, _what: hexdump(sample_place()),
    "stripe": lambda _run, _what: stripe(),
    "rotation": lambda _run, _what: rotation(),
    "dcp": lambda _run, _what: spread(json.loads(dcp_skeleton())) + "\n",
}


if __name__ == "__main__":
    for each in sorted(PAGES.glob("*.md")):
        update(each)
