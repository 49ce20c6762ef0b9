"""A table that was saved in any strips is restored into any other ones: here all in one process, without TorchRec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast as hf
from holdfast import session
from holdfast.checkpoint.read.strips import whole_specs
from holdfast.checkpoint.training.divided import Undivided
from holdfast.checkpoint.training.extent import Extent
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ModelMismatch
from holdfast.format.manifest import table_spec_from_json, table_spec_to_json
from holdfast.integrations.torchrec.stand_in import StandIns
from holdfast.storage import MemoryStore
from holdfast.types import ColumnSpec, Strip, TableSpec

ROWS, WIDTH = 12, 6
SETTINGS = hf.Settings(buffer_bytes=2**20, frame_bytes=2**16, handle_sigterm=False)


@dataclass(eq=False, slots=True, kw_only=True)
class Kept(Table):
    """A strip with slots of its own: one entry per value, or per row."""

    kept: dict[str, Tensor] = field(default_factory=dict)

    def slots(self) -> dict[str, Tensor]:
        return dict(self.kept)

    def ensure_slots(self, columns: Sequence[ColumnSpec]) -> dict[str, Tensor]:
        return {column.name: self.kept[column.name] for column in columns}


class Strips(Undivided):
    """The strips of one table, cut at some of its values."""

    def __init__(self, model: nn.Module, cuts: Sequence[int], *, per_row: bool) -> None:
        self.strips = [_strip(model, first, stop, per_row) for first, stop in pairwise((0, *cuts, WIDTH))]
        self.tables = tuple(self.strips)
        stand_ins = StandIns()
        stand_ins.add("Adagrad", {"lr": 0.1}, model.weight)
        stand_ins.build()
        self.optimizers = stand_ins.optimizers

    def train(self, seed: int, rows: Tensor) -> None:
        draw = torch.Generator().manual_seed(seed)
        for strip in self.strips:
            for tensor in (strip.parameter.data, *strip.kept.values()):
                tensor.data[rows] = torch.rand((len(rows), tensor.shape[1]), generator=draw)  # moves no version

    def weights(self) -> Tensor:
        return torch.cat([strip.parameter.detach() for strip in self.strips], dim=1).clone()

    def sums(self) -> list[Tensor]:
        return [strip.kept["sum"].clone() for strip in self.strips]


def _strip(model: nn.Module, first: int, stop: int, per_row: bool) -> Kept:
    extent = Extent(table="emb", rows=ROWS, width=WIDTH, value=first)
    return Kept(
        name=extent.name(stop - first),
        parameter=nn.Parameter(torch.zeros(ROWS, stop - first), requires_grad=False),
        extent=extent,
        stands_for=model.weight,
        kept={"sum": torch.zeros(ROWS, 1 if per_row else stop - first)},
    )


class Model(nn.Module):
    """What the model has of the table: a parameter that stands for it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))


def opened(store: MemoryStore, cuts: Sequence[int], *, per_row: bool = False) -> tuple[hf.Checkpointer, Strips]:
    model = Model()
    strips = Strips(model, cuts, per_row=per_row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "find_divided", lambda *_: strips)
        guard = hf.Checkpointer(
            store, model=model, save=hf.Never(), strategy=hf.Consecutive(), settings=SETTINGS, overlap=hf.Overlap.WAIT
        )
    return guard, strips


def saved(store: MemoryStore, cuts: Sequence[int], *, per_row: bool = False) -> Strips:
    """A baseline and a delta."""
    guard, strips = opened(store, cuts, per_row=per_row)
    guard.resume()
    for seed, rows in enumerate((torch.arange(ROWS), torch.tensor([1, 4, 11]))):
        strips.train(seed, rows)
        guard.mark("emb", rows)
        guard.step()
        guard.save(wait=True)
    guard.close()
    return strips


cuts = st.sets(st.integers(1, WIDTH - 1)).map(sorted)


@settings(max_examples=25)
@given(before=cuts, after=cuts)
def test_any_strips_restore_from_any_others(before: list[int], after: list[int]) -> None:
    store = MemoryStore()
    first = saved(store, before)
    guard, second = opened(store, after)
    with guard:
        assert guard.resume() == 2
        assert torch.equal(second.weights(), first.weights())
        assert torch.equal(torch.cat(second.sums(), dim=1), torch.cat(first.sums(), dim=1))
        second.train(7, torch.tensor([2]))
        guard.mark("emb", [2])
        guard.step()
        guard.save(wait=True)
    rows = hf.open_run(store).read_rows("emb", range(ROWS))
    assert torch.equal(rows["weight"], second.weights())
    newest = hf.open_run(store).checkpoints()[-1]
    old, new = (set(pairwise((0, *each, WIDTH))) for each in (before, after))
    assert newest.rows_written == len(new & old) + ROWS * len(new - old)  # those that were not there begin whole


def test_entries_per_row_and_strip_stay_exact_while_the_strips_stay() -> None:
    store = MemoryStore()
    first = saved(store, [2], per_row=True)
    guard, second = opened(store, [2], per_row=True)
    with guard:
        guard.resume()
        assert all(map(torch.equal, second.sums(), first.sums()))


@pytest.mark.parametrize(("before", "after"), [([2], []), ([], [2]), ([2], [3])])
def test_entries_of_other_strips_are_refused_or_meant(before: list[int], after: list[int]) -> None:
    store = MemoryStore()
    first = saved(store, before, per_row=True)
    guard, second = opened(store, after, per_row=True)
    with pytest.raises(ModelMismatch, match=r"slot 'sum' of table 'emb' .* pass slots='mean'"):
        guard.resume()
    guard.resume(slots="mean")
    guard.close()
    widths = [strip.row_shape[0] for strip in first.strips]
    spread = torch.cat([each.double().expand(ROWS, n) for each, n in zip(first.sums(), widths, strict=True)], dim=1)
    for found, (start, stop) in zip(second.sums(), pairwise((0, *after, WIDTH)), strict=True):
        assert torch.allclose(found.double(), spread[:, start:stop].mean(1, keepdim=True))


def spec(first: int, values: int) -> TableSpec:
    weight = ColumnSpec(name="weight", dtype="F32", row_shape=(values,))
    strip = Strip(table="emb", first=first, width=WIDTH)
    return TableSpec(name=strip.name(values), rows=ROWS, columns=(weight,), strip=strip)


def test_strips_that_leave_a_gap_make_no_table() -> None:
    assert whole_specs([spec(0, 2), spec(2, 4)])["emb"].shape == (ROWS, WIDTH)
    for strips in ([spec(0, 2)], [spec(0, 2), spec(3, 3)], [spec(0, 3), spec(2, 4)], [spec(2, 4)]):
        with pytest.raises(ValueError, match="strip"):
            whole_specs(strips)


def test_a_strip_is_stored_with_its_place_and_a_wrong_one_refused() -> None:
    stored = table_spec_to_json(spec(2, 4))
    assert stored["strip"] == ["emb", 2, WIDTH] and stored["name"] == "emb[2:6]"
    assert table_spec_from_json(stored) == spec(2, 4)
    for wrong in (["emb", 1, WIDTH], ["emb", 2, 5], ["other", 2, WIDTH], ["emb", 2, 4]):
        with pytest.raises(ValueError, match="strip"):
            table_spec_from_json({**stored, "strip": wrong})
