from __future__ import annotations

import pytest

from benchmarks.claims import reduction
from benchmarks.claims._metered_store import MeteredStore
from benchmarks.claims.reduction import Interval
from holdfast.types import Kind


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return {name: float(value) for name, value in reduction.run("tiny").figures.items()}


def test_fewer_bits_take_less_to_write_and_to_keep(figures: dict[str, float]) -> None:
    for measure in ("bandwidth", "capacity"):
        found = [figures[f"{measure}_reduction_{setting}"] for setting in ("1", "3", "20", "20plus")]
        assert found == sorted(found, reverse=True) and found[-1] > 1
    assert figures["bandwidth_reduction_20plus_difference"] > figures["bandwidth_reduction_20plus"]


def test_slots_make_the_difference_between_optimizers(figures: dict[str, float]) -> None:
    assert figures["bandwidth_reduction_1_adagrad"] < figures["bandwidth_reduction_1"]


def test_while_two_baselines_are_there_more_is_held_than_at_rest(figures: dict[str, float]) -> None:
    for setting in ("1", "20plus"):
        assert figures[f"transient_capacity_reduction_{setting}"] < figures[f"capacity_reduction_{setting}"]


def test_a_store_counts_what_was_deleted_and_the_most_it_held() -> None:
    store = MeteredStore("meter")
    store.put("data/a/00000-000001.safetensors", b"12345")
    store.put("data/a/part-00000", [b"12", b"3"])
    store.put("catalog/000000000001", b"1")
    store.delete(["data/a/00000-000001.safetensors"])
    store.put("history/000000000001-a", b"12")
    assert store.written == {"bundles": 5, "manifests": 3, "catalogs": 1, "others": 2}
    assert (store.written_bytes, store.held_bytes, store.most_held_bytes) == (11, 6, 9)


def test_means_are_over_whole_cycles_and_capacity_is_the_most_ever_held() -> None:
    sizes = [(Kind.FULL, 100, 100), (Kind.DIFFERENTIAL, 30, 130), (Kind.FULL, 100, 100), (Kind.DIFFERENTIAL, 40, 140)]
    history = [Interval(kind=kind, written=written, held=held, most_held=230) for kind, written, held in sizes]
    cost = reduction._cost(history, MeteredStore("empty"))
    assert (cost.written, cost.mean_held, cost.held, cost.most_held, cost.cycle) == (65, 115, 140, 230, 2)
