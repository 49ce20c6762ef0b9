"""Reads a run's directory by docs/spec alone: the standard library and NumPy, nothing of Holdfast.

It takes nothing on trust, not even what the pages call an invariant, and is written to be checked against them rather
than to be fast. Types that NumPy lacks (BF16, F8_...) come as unsigned integers of the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.independent.objects import DTYPES, Array, Damaged, Json, Objects, as_array, cut, require, size_of
from tests.independent.records import baseline_digest, columns_of, read_encoded
from tests.independent.states import check_state
from tests.independent.tree import plain_value

__all__ = ["Damaged", "IndependentRun"]


class IndependentRun:
    """One run as its newest catalog lists it. Raises Damaged at the first thing that is not as specified."""

    def __init__(self, path: str | Path) -> None:
        self._objects = Objects(Path(path))
        numbers = [name.removeprefix("catalog/") for name in self.objects() if name.startswith("catalog/")]
        newest = max((int(number) for number in numbers if number.isdigit()), default=None)
        require(newest is not None, "catalog/", "the run is empty")
        self._name = f"catalog/{newest:012d}"
        self.catalog = self._objects.document("catalog", self._name)
        require(self.catalog["number"] == newest, self._name, "holds another number")
        self._garbage: list[Any] = []
        self._entries: list[Json] = self._listed()
        self._priority: list[Json] = self.catalog.get("priority", [])
        listed = self._entries + self._priority
        self._by_id: dict[str, Json] = {entry["id"]: entry for entry in listed}
        require(len(self._by_id) == len(listed), self._name, "lists a checkpoint twice")

    def objects(self) -> dict[str, int]:
        """Every object's size by its name, in name order, whether anything refers to it or not."""
        return self._objects.sizes()

    def checkpoints(self) -> list[Json]:
        """Every checkpoint as its catalog or history page lists it, oldest first."""
        return self._entries

    def garbage(self) -> list[Any]:
        """What waits for deletion."""
        return self._garbage

    def tables(self, checkpoint: str) -> dict[str, dict[str, Array]]:
        """All rows of all tables, by table name and column name."""
        history = [self._parts(step) for step in self._stands_on(checkpoint)]
        return {table["name"]: self._table(table["name"], history) for table in history[0][0]["tables"]}

    def newest(self) -> dict[str, dict[str, Array]]:
        """The newest row of each kind: the head's checkpoint with the priority saves on top."""
        saves = [*reversed(self._priority), *map(self._entry, self._stands_on(self.catalog["head"]))]
        history = [self._parts(entry["id"]) for entry in saves]
        return {table["name"]: self._table(table["name"], history) for table in history[0][0]["tables"]}

    def state(self, checkpoint: str, rank: int = 0) -> tuple[Json, list[Array]]:
        """A writer's state: the skeleton of the tree, parsed, and the tensors it refers to."""
        part = self._parts(checkpoint)[rank]
        buffers = [bytearray(size_of(dtype, shape)) for dtype, shape in part["tensors"]]
        covered = [0] * len(buffers)
        for (tensor, start, length), data in self._pieces(part):
            require(start == covered[tensor], part["name"], f"state tensor {tensor} has a hole or an overlap")
            buffers[tensor][start : start + length] = data
            covered[tensor] += length
        require(covered == [len(buffer) for buffer in buffers], part["name"], "a state tensor is not complete")
        tensors = [as_array(buffer, *spec) for buffer, spec in zip(buffers, part["tensors"], strict=True)]
        skeleton = json.loads(tensors[0].tobytes())
        require(skeleton["tree"] == 1 and skeleton["tensors"] == len(tensors) - 1, part["name"], "another state tree")
        return skeleton, tensors[1:]

    def value(self, checkpoint: str, rank: int = 0) -> Any:
        """A writer's state as a plain value with arrays in it; what only torch has comes as ``(tag, text)``."""
        return plain_value(*self.state(checkpoint, rank))

    def verify(self) -> None:
        """Check every byte that counts: what the head refers to, and each other document by itself."""
        self._check_catalog()
        for entry in self._entries:
            doubt = entry.get("doubt")
            require(doubt in (None, "suspect", "condemned"), self._name, f"knows no doubt {doubt!r}")
            require(doubt is None or entry["abandoned"], self._name, f"doubts {entry['id']}, which is alive")
            for part in self._parts(entry["id"]):
                check_state(self.value(entry["id"], part["rank"]), entry, part["rank"])
            self.tables(entry["id"])
        for entry in self._priority:
            require(entry["kind"] == "priority" and entry["base"] == self.catalog["head"], self._name, "another base")
            require(self.value(entry["id"]) == {"step": entry["step"]}, entry["id"], "holds another state")
        require(all(entry["kind"] != "priority" for entry in self._entries), self._name, "lists rows as a checkpoint")
        if self.catalog["head"] is not None:
            self.newest()
        self._check_bundles()
        for name in self.objects():
            if not name.endswith(".safetensors"):
                self._objects.document(None, name)

    def _listed(self) -> list[Json]:
        """What the pages and then the catalog do to the list, one after another; the garbage beside it."""
        listed: dict[str, Json] = {}
        for delta in [*map(self._page, self.catalog["pages"]), self.catalog]:
            for gone in delta.get("dropped", []):
                require(listed.pop(gone, None) is not None, self._name, "drops what was not listed")
            for entry in delta.get("changed", []):
                require(entry["id"] in listed, self._name, "changes what was not listed")
                listed[entry["id"]] = entry
            for entry in delta["entries"]:
                require(entry["id"] not in listed, self._name, "lists a checkpoint twice")
                listed[entry["id"]] = entry
            for item in delta.get("collected", []):
                require(item in self._garbage, self._name, "has collected what was not garbage")
                self._garbage.remove(item)
            self._garbage += delta.get("garbage", [])
        return list(listed.values())

    def _page(self, page: list[Any]) -> Json:
        delta: Json = self._objects.referred("history", page[:3])
        require(sum(map(len, delta.values())) == page[3], page[0], "has another number of items")
        return delta

    def _check_catalog(self) -> None:
        name, catalog = self._name, self.catalog
        dropped = [item[0] for item in self._garbage if len(item) == 2]  # others name single objects
        require(not any(gone in self._by_id for gone in dropped), name, "keeps what it dropped")
        require(catalog["head"] is None or catalog["head"] in self._by_id, name, "stands on what it does not list")
        if catalog["parent"] is None:
            require(catalog["lineage"] == [], name, "has ancestors and no parent")
        elif catalog["parent"][0] in self.objects():  # it may have been deleted long ago
            parent = self._objects.referred("catalog", catalog["parent"])
            lineage = [[parent["number"], parent["commit"]], *parent["lineage"]][:32]
            require(catalog["lineage"] == lineage, name, "has other ancestors than its parent")
            require(catalog["number"] > parent["number"], name, "is older than its parent")
            require(catalog["run"] == parent["run"], name, "belongs to another run than its parent")
            require(0 <= catalog["term"] - parent["term"] <= 1, name, "jumps over a term")

    def _check_bundles(self) -> None:
        """Every bundle against all chunks that lie in it, whoever refers to them."""
        bundles: dict[str, list[Any]] = {}
        places: dict[str, list[list[int]]] = {}
        rearranged: set[str] = set()  # where rows were moved away from, or shared with what was dropped since
        for entry in self._entries + self._priority:
            for part in self._parts(entry["id"]):
                chunks = [chunk[0] for table in part["tables"] for chunk in table["chunks"]]
                for place in chunks + [chunk["place"] for chunk in part["state"]]:
                    bundle = part["bundles"][place[0]]
                    require(bundles.setdefault(bundle[0], bundle) == bundle, part["name"], "tells another bundle")
                    places.setdefault(bundle[0], []).append(place)
                    rearranged |= {bundle[0]} if entry.get("rounds") else set()
                named = {bundle[0] for bundle in part["bundles"]}
                require(named <= places.keys(), part["name"], "names a bundle that nothing of it lies in")
        for name, bundle in bundles.items():
            self._objects.check_bundle(bundle, places[name], complete=name not in rearranged)

    def _stands_on(self, checkpoint: str) -> Iterator[str]:
        """The checkpoint and what its rows stand on, newest first."""
        wanted: str | None = checkpoint
        while wanted is not None:
            yield wanted
            entry = self._entry(wanted)
            require((entry["base"] is None) == (entry["kind"] == "full"), self._name, f"{wanted} has no base")
            wanted = entry["base"]

    def _entry(self, checkpoint: str) -> Json:
        require(checkpoint in self._by_id, self._name, f"lists no checkpoint {checkpoint}")
        return self._by_id[checkpoint]

    def _parts(self, checkpoint: str) -> list[Json]:
        ref = self._entry(checkpoint)["record"]
        record = self._objects.referred("checkpoint", ref)
        require(record["checkpoint"] == checkpoint, ref[0], "is the part list of another checkpoint")
        parts = [{**self._objects.referred("manifest", part), "name": part[0]} for part in record["parts"]]
        if "manifest" in record:
            require(parts == [], ref[0], "has parts and a manifest of its own")
            parts = [{**record["manifest"], "name": ref[0]}]
        for rank, part in enumerate(parts):
            expected = (checkpoint, rank, len(parts))
            require((part["checkpoint"], part["rank"], part["world"]) == expected, part["name"], "is another's part")
        return parts

    def _table(self, name: str, history: list[list[Json]]) -> dict[str, Array]:
        """Back to the checkpoint that holds the table whole, then forward again; the newest row wins."""
        generations: list[list[tuple[Json, Json]]] = []
        for parts in history:
            shares = [(part, table) for part in parts for table in part["tables"] if table["name"] == name]
            shares.sort(key=lambda share: (share[1]["start"], share[1]["stop"]))
            require(len(shares) == len(parts), parts[0]["name"], f"a writer does not list table {name}")
            generations.append(shares)
            if all(table["whole"] for _, table in shares):
                break
        else:
            raise Damaged(history[-1][0]["name"], f"table {name} is whole nowhere below")
        shape = (generations[0][0][1]["rows"], generations[0][0][1]["columns"])
        result = {column: np.zeros((shape[0], *row), DTYPES[dtype]) for column, dtype, row in shape[1]}
        oldest = generations[-1]
        base = ({"checkpoint": oldest[0][0]["checkpoint"], "digest": baseline_digest(oldest)}, {})
        later: list[tuple[str, set[int]]] = []  # checkpoints above, oldest first, with the rows that each of them wrote
        written = [self._written(shares) for shares in generations]
        for age in range(len(generations) - 1, -1, -1):
            shares = generations[age]
            later = [(history[above][0]["checkpoint"], written[above]) for above in range(age - 1, -1, -1)]
            edges = [0] + [table["stop"] for _, table in shares]
            require(edges == [table["start"] for _, table in shares] + [shape[0]], name, "its shares leave rows out")
            for part, table in shares:
                require((table["rows"], table["columns"]) == shape, part["name"], f"{name} changes its shape")
                self._apply(part, table, result, later, base)
            if shares is oldest:
                base = (base[0], {column: rows.copy() for column, rows in result.items()})
        return result

    def _written(self, shares: list[tuple[Json, Json]]) -> set[int]:
        """The rows that one checkpoint wrote."""
        chunks = [(part, table, chunk) for part, table in shares for chunk in table["chunks"]]
        return {int(row) for part, table, chunk in chunks for row in self._rows(part, table, chunk, None)[0]}

    def _apply(
        self,
        part: Json,
        table: Json,
        result: dict[str, Array],
        later: list[tuple[str, set[int]]],
        base: tuple[Json, dict[str, Array]],
    ) -> None:
        written = np.zeros(table["rows"], bool)
        common = 0
        while common < min(len(later), len(part["replacing"])) and part["replacing"][common] == later[common][0]:
            common += 1
        for chunk in table["chunks"]:
            ids, columns = self._rows(part, table, chunk, base)
            require(not written[ids].any(), part["name"], f"a row of {table['name']} is saved twice")
            written[ids] = True
            needed = self._needed(part, chunk, ids, later[:common])
            for name, rows in columns.items():
                result[name][ids[:needed]] = rows[:needed]
        share = written[table["start"] : table["stop"]]
        require(share.sum() == written.sum(), part["name"], f"a row of {table['name']} is not in its writer's share")
        require(not table["whole"] or bool(share.all()), part["name"], f"{table['name']} is not whole")

    def _needed(self, part: Json, chunk: list[Any], ids: Array, later: list[tuple[str, set[int]]]) -> int:
        """How many records at the chunk's beginning no later checkpoint is said to have replaced; it must be true."""
        start = needed = 0
        order = []
        for replaced, count in chunk[6] if len(chunk) > 6 and chunk[6] else [[-1, len(ids)]]:
            order.append(replaced if replaced >= 0 else len(part["replacing"]))
            if 0 <= replaced < len(later):
                rows = {int(row) for row in ids[start : start + count]}
                require(rows <= later[replaced][1], part["name"], "says that rows were replaced which were not")
            else:
                needed = start + count
            start += count
        require(start == len(ids) and order == sorted(order, reverse=True), part["name"], "has other segments")
        return needed

    def _rows(
        self, part: Json, table: Json, chunk: list[Any], base: tuple[Json, dict[str, Array]] | None
    ) -> tuple[Array, dict[str, Array]]:
        """A chunk's global row ids and its columns; of an encoded one without a baseline to differ from, the ids."""
        place, count, first, last, ids_dtype, codec = chunk[:6]
        bundle = part["bundles"][place[0]]
        name = bundle[0]
        gaps = ("G8", "G16") if codec != "exact" else ()
        width = "U64" if last - first >= 2**32 else "U32"
        require(ids_dtype in (None, width, *gaps), name, "has ids of the wrong width")
        columns = columns_of(chunk, table) if codec != "exact" else _plain_columns(chunk, table)
        data = self._objects.chunk(bundle, place)
        pieces = cut(data, [size_of(dtype, shape) for _, dtype, shape in columns], name)
        if codec != "exact" and base is not None:
            found, arrays = read_encoded(data, name, chunk, table, base)
        else:
            arrays = {c: as_array(piece, d, shape) for (c, d, shape), piece in zip(columns, pieces, strict=True)}
            found = arrays.pop("ids", None)
            if ids_dtype in gaps:
                found = np.cumsum(found.astype(np.int64))
        ids = first + (found.astype(np.int64) if ids_dtype else np.arange(count))
        segments = [rows for _, rows in chunk[6]] if len(chunk) > 6 else []  # several of them may be alive
        runs = np.split(ids, np.cumsum(segments)[:-1]) if segments else [ids]
        ordered = count > 0 and all((np.diff(run) > 0).all() for run in runs)
        stated = ordered and (ids.min(), ids.max()) == (first, last)
        require(stated and first >= 0 and last < table["rows"], name, "has row ids that are not as stated")
        return ids, arrays

    def _pieces(self, part: Json) -> Iterator[tuple[list[int], bytes]]:
        """Every piece of the part's state and its bytes."""
        for chunk in part["state"]:
            bundle = part["bundles"][chunk["place"][0]]
            lengths = [length for _, _, length in chunk["pieces"]]
            data = self._objects.chunk(bundle, chunk["place"])
            yield from zip(chunk["pieces"], cut(data, lengths, bundle[0]), strict=True)


def _plain_columns(chunk: list[Any], table: Json) -> list[tuple[str, str, list[int]]]:
    ids = [("ids", chunk[4], [chunk[1]])] if chunk[4] else []
    return ids + [(name, dtype, [chunk[1], *row]) for name, dtype, row in table["columns"]]
