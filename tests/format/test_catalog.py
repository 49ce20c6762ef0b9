from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import DamagedData
from holdfast.format.catalog import (
    LINEAGE_LENGTH,
    Catalog,
    CommitEvent,
    Entry,
    Garbage,
    Intent,
    PageRef,
    PartList,
    Ref,
    catalog_name,
    checkpoint_id,
    intent_name,
    object_name,
    part_list_name,
    part_name,
    term_of,
)
from holdfast.format.document import seal, unseal
from holdfast.format.history import Delta, decode_page, encode_page
from holdfast.types import CheckpointInfo, Kind

counts = st.integers(0, 2**63 - 1)
positive = st.integers(1, 2**63 - 1)
times = st.floats(0, 1e12)
names = st.text(max_size=8)
maybe = st.none() | names
several = st.lists(names, max_size=2, unique=True).map(tuple)
metrics = st.dictionaries(names, st.floats(allow_nan=False), max_size=3)
kinds = st.sampled_from(Kind)


def on_a_base(made: Any) -> Any:
    """The same; what is full stands on nothing, all else on something."""
    return replace(made, base=None if made.kind is Kind.FULL else made.base or "base")


refs = st.builds(Ref, name=names, size_bytes=counts, digest=names)
infos = st.builds(
    CheckpointInfo,
    id=names, step=counts, term=counts, kind=kinds, parent=maybe, base=maybe, created_s=times, size_bytes=counts,
    rows_written=counts, full_bytes=counts, tag=maybe, metrics=metrics, abandoned=st.booleans(),
    stall_s=st.none() | times, duration_s=st.none() | times,
).map(on_a_base)  # fmt: skip
entries = st.lists(st.builds(Entry, info=infos, part_list=refs), max_size=3).map(tuple)
garbage = st.lists(st.builds(Garbage, folder=names, dropped_s=times, names=several), max_size=3).map(tuple)
deltas = st.builds(Delta, entries=entries, changed=entries, dropped=several, garbage=garbage, collected=garbage)
intents = st.builds(
    Intent,
    checkpoint=names, step=counts, term=counts, kind=kinds, parent=maybe, base=maybe, world=positive, created_s=times,
    overlap=names, tag=maybe, metrics=metrics,
).map(on_a_base)  # fmt: skip
catalogs = st.builds(
    Catalog,
    run=names, number=st.integers(2**32, 2**63 - 1), parent=st.none() | refs, term=positive,
    writer=names, commit=names, reason=names, created_s=times, head=maybe, entries=entries, changed=entries,
    dropped=several, garbage=garbage, collected=garbage,
    pages=st.lists(st.builds(PageRef, ref=refs, items=positive), max_size=3).map(tuple),
    events=st.lists(
        st.builds(
            CommitEvent,
            reason=names,
            at_s=times,
            term=positive,
            writer=names,
            step=st.none() | counts,
            abandoned=counts,
        ),
        max_size=2,
    ).map(tuple),
    lineage=st.lists(st.tuples(st.integers(1, 2**32 - 1), names), max_size=3, unique_by=lambda each: each[0])
    .map(lambda found: tuple(sorted(found, reverse=True))),
    options=st.dictionaries(names, counts, max_size=2), priority=entries,
)  # fmt: skip


def test_times_that_are_not_known_are_left_out_as_older_releases_did() -> None:
    ref = Ref(name="r", size_bytes=1, digest="d")
    info = CheckpointInfo(
        id="a", step=1, term=1, kind=Kind.FULL, parent=None, base=None, created_s=0.0, size_bytes=1, rows_written=1,
        full_bytes=1,
    )  # fmt: skip
    known = Entry(info=replace(info, stall_s=0.5), part_list=ref).to_json()
    assert (known["stall_s"], "duration_s" in known) == (0.5, False)
    older = Entry(info=info, part_list=ref).to_json()
    assert not {"stall_s", "duration_s"} & older.keys()
    assert Entry.from_json(older).info.stall_s is None


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(catalogs)
def test_every_catalog_comes_back(catalog: Catalog) -> None:
    assert Catalog.decode(catalog.encode(), name="x") == catalog


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(intents)
def test_every_intent_comes_back(intent: Intent) -> None:
    assert Intent.decode(intent.encode(), name="x") == intent


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.builds(PartList, checkpoint=names, parts=st.lists(refs, max_size=3).map(tuple)))
def test_every_part_list_comes_back(part_list: PartList) -> None:
    assert PartList.decode(part_list.encode(), name="x") == part_list


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deltas)
def test_every_history_page_comes_back(page: Delta) -> None:
    assert decode_page(encode_page(page), name="x") == page


def info(**changes: Any) -> CheckpointInfo:
    fixed = CheckpointInfo(
        id="s", step=1, term=1, kind=Kind.FULL, parent=None, base=None, created_s=1.0, size_bytes=1, rows_written=1,
        full_bytes=1,
    )  # fmt: skip
    return replace(fixed, **changes)


REF = Ref(name="n", size_bytes=1, digest="d")


@pytest.mark.parametrize("value", [math.nan, np.float64("nan"), np.float32("inf"), -math.inf, np.float32(0.5), 3, True])
def test_metrics_of_any_number_type_come_back_as_floats(value: float) -> None:
    entry = Entry(info=info(metrics={"auc": value}), part_list=REF)
    (found,) = decode_page(encode_page(Delta(entries=(entry,))), name="x").entries
    assert type(found.info.metrics["auc"]) is float
    assert repr(found.info.metrics["auc"]) == repr(float(value))


EXAMPLE = Catalog(
    run="r",
    number=7,
    parent=REF,
    term=2,
    writer="w",
    commit="c7",
    reason="save",
    created_s=1.5,
    head="s",
    entries=(Entry(info=info(metrics={"auc": math.inf}), part_list=REF),),
    pages=(PageRef(ref=REF, items=64),),
    garbage=(Garbage(folder="old", dropped_s=2.5),),
    lineage=((6, "c6"), (4, "c4")),
)


def test_every_flipped_byte_and_truncation_is_damage() -> None:
    data = EXAMPLE.encode()
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 0x04]) + data[position + 1 :]
        for damaged in (flipped, data[:position]):
            with pytest.raises(DamagedData):
                Catalog.decode(damaged, name="x")


@pytest.mark.parametrize(
    "breakage",
    [
        dict.clear,
        lambda body: body.update(unknown=1),
        lambda body: body.pop("term"),
        lambda body: body.update(parent=[1]),
        lambda body: body["entries"][0].update(metrics=[]),
        lambda body: body["entries"][0].update(metrics={"auc": "good"}),
        lambda body: body["entries"][0].update(kind="partial"),
        lambda body: body["entries"][0].pop("record"),
        lambda body: body.update(pages=[[]]),
        lambda body: body.update(garbage=3),
        lambda body: body.update(lineage=[[1]]),
        lambda body: body.update(lineage=[[6, "c6"], [6, "c6"]]),
        lambda body: body.update(number=0),
        lambda body: body.update(term=True),
        lambda body: body.update(created_s="1.5"),
        lambda body: body["pages"][0].__setitem__(3, -1),
        lambda body: body["entries"][0].update(step=2**63),
        lambda body: body["entries"][0].update(rows_written=1.0),
        lambda body: body["entries"][0].update(size_bytes=-1),
        lambda body: body["entries"][0].update(abandoned=0),
        lambda body: body["entries"][0].update(base="s"),
        lambda body: body["entries"][0].update(id="s000000000002-t00001-00000001"),
        lambda body: body["entries"][0]["record"].__setitem__(1, None),
        lambda body: body["garbage"][0].__setitem__(1, 10**400),
    ],
)
def test_a_sealed_catalog_with_malformed_fields_is_damage(breakage: Callable[[dict[str, Any]], object]) -> None:
    body = unseal("catalog", 1, EXAMPLE.encode(), name="x")
    breakage(body)
    with pytest.raises(DamagedData, match="malformed field"):
        Catalog.decode(seal("catalog", 1, body), name="x")


@pytest.mark.parametrize("body", [None, 3, [], {}, "text"])
@pytest.mark.parametrize(
    ("kind", "decode"),
    [("catalog", Catalog.decode), ("intent", Intent.decode), ("checkpoint", PartList.decode), ("history", decode_page)],
)
def test_a_sealed_body_of_another_shape_is_damage(kind: str, decode: Callable[..., object], body: object) -> None:
    with pytest.raises(DamagedData, match="malformed field"):
        decode(seal(kind, 1, body), name="x")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 10**12 - 1), min_size=2))
def test_catalog_names_sort_like_their_numbers(numbers: list[int]) -> None:
    assert sorted(map(catalog_name, numbers)) == [catalog_name(number) for number in sorted(numbers)]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 2**32 - 1))
def test_a_checkpoint_id_tells_its_term(step: int, term: int, token: int) -> None:
    assert term_of(checkpoint_id(step, term, f"{token:08x}")) == term


@pytest.mark.parametrize(
    "name", ["", "x", "s1-t1-a", "s000000000001-t00001-", "s000000000001-t00001-XY", "xs000000000001-t00001-a"]
)
def test_other_names_have_no_term(name: str) -> None:
    assert term_of(name) is None


def test_all_objects_of_a_checkpoint_lie_under_its_prefix() -> None:
    names = {intent_name("s"), part_list_name("s"), part_name("s", 0), part_name("s", 70000), object_name("s", "b")}
    assert len(names) == 5 and all(name.startswith("data/s/") for name in names)


def test_a_catalog_descends_from_itself_and_from_the_ancestors_it_names() -> None:
    assert EXAMPLE.descends_from(7, "c7") and EXAMPLE.descends_from(6, "c6") and EXAMPLE.descends_from(4, "c4")
    assert not EXAMPLE.descends_from(7, "other") and not EXAMPLE.descends_from(5, "c5")


def test_a_child_names_the_nearest_ancestors_and_forgets_the_farthest() -> None:
    catalog = replace(EXAMPLE, number=1, commit="c1", lineage=())
    for number in range(2, 3 * LINEAGE_LENGTH):
        catalog = replace(catalog, number=number, commit=f"c{number}", lineage=catalog.ancestors())
    assert len(catalog.lineage) == LINEAGE_LENGTH
    assert catalog.descends_from(catalog.number - LINEAGE_LENGTH, f"c{catalog.number - LINEAGE_LENGTH}")
    assert not catalog.descends_from(1, "c1")
