"""The crafted documents that once crashed a restore, hung it, or gave wrong rows: each is refused, and verify tells."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.read.fetcher import lineage
from holdfast.errors import DamagedData
from holdfast.format.document import digest
from holdfast.format.manifest import Manifest
from holdfast.run import Run
from holdfast.testing.runtime import with_runtime
from tests.fuzz.edits import Documents
from tests.fuzz.reading import read_everything
from tests.fuzz.runs import AT_ONCE, SampleRun, sample_run

Body = dict[str, Any]


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return sample_run("deltas", tmp_path_factory.mktemp("runs"))


@pytest.fixture
def objects(deltas: SampleRun) -> Iterator[dict[str, bytes]]:
    """The run's objects, which are put back afterwards."""
    found = {info.name: bytes(deltas.store.get(info.name)) for info in deltas.store.list()}
    yield found
    for name, data in found.items():
        _path(deltas, name).write_bytes(data)


def _path(run: SampleRun, name: str) -> Path:
    path = run.store.path(name)
    assert path is not None
    return Path(path)


def refused(run: SampleRun, changed: dict[str, bytes]) -> str:
    """What a restore of the run says of these objects; verify says something, too."""
    assert changed
    for name, data in changed.items():
        _path(run, name).write_bytes(data)
    verdict = read_everything(run, random.Random(0))
    assert verdict.refused and verdict.problems
    return verdict.refused[0]


def part(run: SampleRun, age: int) -> str:
    """The manifest of one of the run's checkpoints, counted from the baseline."""
    entry = with_runtime(Run, AT_ONCE)(run.store).head().entries[age]
    return f"data/{entry.info.id}/part-00000"


def table(body: Body) -> Body:
    return next(each for each in body["tables"] if each["name"] == "item")


def chunk(body: Body) -> list[Any]:
    return table(body)["chunks"][0]  # type: ignore[no-any-return]


CRAFTED: dict[str, tuple[int, Callable[[Body], object]]] = {
    "a length that its rows exceed": (0, lambda body: chunk(body)[0].__setitem__(2, 64)),
    "a block far before the directory": (-1, lambda body: chunk(body)[0].__setitem__(3, -(2**40))),
    "a negative length": (-1, lambda body: chunk(body)[0].__setitem__(2, -64)),
    "a negative count": (-1, lambda body: chunk(body).__setitem__(1, -3)),
    "a bundle before the first": (-1, lambda body: chunk(body)[0].__setitem__(0, -1)),
    "a place in the head": (-1, lambda body: chunk(body)[0].__setitem__(1, 8)),
    "a whole share that lacks a chunk": (0, lambda body: table(body)["chunks"].pop()),
    "a delta that lacks a chunk": (-1, lambda body: table(body)["chunks"].clear()),
    "a chunk twice": (-1, lambda body: table(body)["chunks"].append(chunk(body))),
    "rows that are moved by one": (-1, lambda body: chunk(body).__setitem__(2, chunk(body)[2] + 1)),
    "a share that leaves the table": (-1, lambda body: table(body).update(stop=2**40)),
    "a table of more rows": (0, lambda body: table(body).update(rows=table(body)["rows"] + 1)),
    "rows so long that their bytes cannot be counted": (0, lambda body: table(body)["columns"][0][2].append(2**62)),
    "columns exchanged": (0, lambda body: table(body)["columns"].reverse()),
    "another number of writers": (-1, lambda body: body.update(world=2)),
    "a piece of the state that is left out": (-1, lambda body: body["state"][0]["pieces"].pop()),
    "pieces of the state exchanged": (-1, lambda body: body["state"][0]["pieces"].reverse()),
    "true where a number is meant": (-1, lambda body: chunk(body).__setitem__(1, True)),
    "a number beyond 64 bits": (-1, lambda body: chunk(body).__setitem__(3, 2**70)),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_manifest_is_refused_by_restore_and_verify(
    case: str, deltas: SampleRun, objects: dict[str, bytes]
) -> None:
    age, craft = CRAFTED[case]
    assert "DamagedData" in refused(deltas, Documents(objects).changed(part(deltas, age), craft))


def test_a_checkpoint_that_stands_on_itself_is_refused_instead_of_looked_for_for_ever(
    deltas: SampleRun, objects: dict[str, bytes]
) -> None:
    documents = Documents(objects)
    name = max(each for each in documents.objects if each.startswith("catalog/"))

    def in_a_circle(body: Body) -> None:
        last = body["entries"][-1]
        first = body["entries"][1]
        assert first["base"] == body["entries"][0]["id"]
        first["base"] = last["id"]

    assert "depends on itself" in refused(deltas, documents.changed(name, in_a_circle))
    head = Chain(deltas.store, runtime=AT_ONCE).head(skip_damaged=True)
    assert head is not None
    with pytest.raises(DamagedData, match="depends on itself"):
        lineage(head, head.entries[-1].info.id)


@pytest.mark.parametrize("how", ["twice", "unsorted", "of another row", "outside of the table"])
def test_ids_that_are_not_the_rows_of_their_chunk_are_refused(
    how: str, deltas: SampleRun, objects: dict[str, bytes]
) -> None:
    """In a bundle whose checksums are right, so that nothing else can tell."""
    name = part(deltas, -1)
    manifest = Manifest.decode(objects[name], name=name)
    found = next(each for each in manifest.tables if each.spec.name == "item").chunks[0]
    bundle, place = manifest.bundles[found.place.bundle], found.place
    data = bytearray(objects[bundle.name])
    ids = np.frombuffer(data, dtype="<u4", count=found.rows, offset=place.offset)
    craft = {
        "twice": lambda: ids.__setitem__(1, ids[2]),
        "unsorted": lambda: ids.__setitem__([1, 2], ids[[2, 1]]),
        "of another row": lambda: ids.__setitem__(-1, ids[-1] + 1),
        "outside of the table": lambda: ids.__setitem__(-1, 2**31),
    }
    craft[how]()
    (header,) = struct.unpack_from("<Q", data)
    crc = zlib.crc32(data[place.offset : place.offset + place.length])
    struct.pack_into("<I", data, 8 + header + 4 * place.block, crc)
    head = digest(data[: bundle.head_bytes])
    changed = Documents(objects).changed(name, lambda body: body["bundles"][place.bundle].__setitem__(3, head))
    assert "wrong ids" in refused(deltas, {**changed, bundle.name: bytes(data)})
