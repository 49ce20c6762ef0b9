"""What a verification makes of suspect checkpoints: cleared, condemned, or left as they are."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.commit.inventory import Inventory
from holdfast.checkpoint.inspect.verify import Verification
from holdfast.format.catalog import Catalog, Entry, Ref
from holdfast.types import CheckpointInfo, Doubt, Kind

REF = Ref(name="r", size_bytes=1, digest="d")


def head(*checkpoints: tuple[str, str | None, Doubt | None]) -> Head:
    """Of checkpoints, each with its base and the doubt in it."""
    entries = [
        Entry(
            info=CheckpointInfo(
                id=name, step=step, term=1, kind=Kind.INCREMENTAL if base else Kind.FULL, parent=base, base=base,
                created_s=0.0, size_bytes=1, rows_written=1, full_bytes=1, doubt=doubt,
            ),
            part_list=REF,
        )
        for step, (name, base, doubt) in enumerate(checkpoints)
    ]  # fmt: skip
    catalog = Catalog(
        run="run", number=1, parent=None, term=1, writer="w", commit="c", reason="r", created_s=0.0, head=None
    )
    return Head(catalog=catalog, ref=REF, inventory=Inventory(by_id={entry.info.id: entry for entry in entries}))


def verification(*, whole: str, damaged: str = "") -> Verification:
    return Verification(problems=(), whole=frozenset(whole), damaged=frozenset(damaged))


SUSPECTS = head(("a", None, None), ("b", "a", Doubt.SUSPECT), ("c", "b", Doubt.SUSPECT))


def test_what_is_whole_on_whole_ground_is_cleared() -> None:
    assert verification(whole="abc").verdicts(SUSPECTS) == {"b": None, "c": None}


def test_what_stands_on_damage_is_condemned_with_it() -> None:
    found = verification(whole="ac", damaged="b").verdicts(SUSPECTS)
    assert found == {"b": Doubt.CONDEMNED, "c": Doubt.CONDEMNED}


def test_where_nothing_is_whole_the_store_may_be_at_fault_and_nothing_is_condemned() -> None:
    assert verification(whole="", damaged="abc").verdicts(SUSPECTS) == {}


def test_what_was_not_looked_at_stays_suspect() -> None:
    assert verification(whole="a").verdicts(SUSPECTS) == {}


@pytest.mark.parametrize("base", ["nowhere", "d"], ids=["a base that is gone", "itself"])
def test_a_suspect_that_stands_on_nothing_is_condemned_and_keeps_no_other_from_its_verdict(base: str) -> None:
    found = verification(whole="abd").verdicts(
        head(("a", None, None), ("b", "a", Doubt.SUSPECT), ("d", base, Doubt.SUSPECT))
    )
    assert found == {"b": None, "d": Doubt.CONDEMNED}
