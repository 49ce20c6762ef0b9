"""The index knows which chunk holds a row, and what every chunk lost to which checkpoint: as a dictionary would."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.grid.index import Holding, TableIndex

START, ROWS = 1000, 20

Chunks = list[list[int]]  # of one checkpoint: the rows of each of its chunks
checkpoints = st.lists(st.integers(0, ROWS - 1).map(lambda row: START + row), max_size=ROWS, unique=True).flatmap(
    lambda rows: st.integers(0, len(rows)).map(lambda cut: [part for part in (rows[:cut], rows[cut:]) if part])
)
histories = st.lists(checkpoints | st.just("whole"), max_size=12)


@dataclass
class Model:
    """The same with dictionaries."""

    home: dict[int, int] = field(default_factory=dict)  # of each row, the chunk that holds its newest record
    lost: dict[int, dict[int, set[int]]] = field(default_factory=dict)  # by chunk, by checkpoint

    def add(self, number: int, cohort: int, rows: list[int]) -> None:
        for row in rows:
            if row in self.home:
                self.lost[self.home[row]].setdefault(cohort, set()).add(row)
            self.home[row] = number
        self.lost[number] = {}

    def restart(self) -> None:
        self.home.clear()
        self.lost.clear()


def holding(cohort: int, rows: list[int], through: int = 0) -> Holding:
    return Holding(
        table="t",
        cohort=cohort,
        key=(f"bundle {cohort}", 0),
        alive=len(rows),
        record_bytes=8,
        first=min(rows),
        last=max(rows),
        through=through,
    )


def lost_by(held: Holding) -> dict[int, set[int]]:
    return {by: set(held.lost_to(by).tolist()) for by, _ in held.replaced}


@given(histories)
def test_every_chunk_knows_what_it_lost_to_whom(history: list[Chunks | str]) -> None:
    index, model = TableIndex(START, START + ROWS), Model()
    for cohort, chunks in enumerate(history):
        if chunks == "whole":
            index.restart()
            model.restart()
            continue
        for rows in chunks:
            model.add(len(index.holdings), cohort, rows)
            index.add(holding(cohort, rows), np.array(sorted(rows)))
        assert [lost_by(held) for held in index.holdings] == list(model.lost.values())
        assert [held.dead for held in index.holdings] == [sum(map(len, by.values())) for by in model.lost.values()]


@given(histories)
def test_a_row_is_lost_once(history: list[Chunks | str]) -> None:
    index = TableIndex(START, START + ROWS)
    for cohort, chunks in enumerate(chunks for chunks in history if chunks != "whole"):
        for rows in chunks:
            index.add(holding(cohort, rows), np.array(rows))
    for held in index.holdings:
        lost = [row for _, ids in held.replaced for row in ids.tolist()]
        assert len(lost) == len(set(lost)) == held.dead <= held.alive


@given(st.integers(0, 5), st.integers(1, 8))
def test_what_is_arranged_already_is_not_noted_again(through: int, checkpoints: int) -> None:
    """A chunk of checkpoint 0 whose rows the first ``through`` checkpoints after it had replaced, and split off."""
    rows = list(range(START, START + 10))
    index = TableIndex(START, START + ROWS)
    index.add(holding(0, rows, through), np.array(rows))
    for cohort in range(1, checkpoints + 1):
        index.add(holding(cohort, rows[cohort - 1 : cohort]), np.array(rows[cohort - 1 : cohort]))
    assert lost_by(index.holdings[0]) == {by: {rows[by - 1]} for by in range(through + 1, checkpoints + 1)}


def test_a_checkpoint_that_replaced_nothing_took_nothing() -> None:
    held = holding(0, [START])
    assert held.lost_to(3).tolist() == [] and held.dead == 0


@pytest.mark.parametrize("chunks", [254, 255, 256, 300, 65535, 65536])
def test_the_index_widens_when_there_are_more_chunks_than_it_can_number(chunks: int) -> None:
    rows = 40
    index, chance = TableIndex(0, rows), Random(chunks)
    homes: dict[int, int] = {}
    dead = [0] * chunks
    for number in range(chunks):
        row = chance.randrange(rows)
        if row in homes:
            dead[homes[row]] += 1
        homes[row] = number
        index.add(holding(number, [row]), np.array([row]))
    assert [held.dead for held in index.holdings] == dead
    width = 1 if chunks <= 255 else 2 if chunks <= 65535 else 4
    assert index.nbytes == width * rows + 8 * sum(dead)


def test_a_table_saved_whole_starts_with_a_narrow_index_again() -> None:
    index = TableIndex(0, 10)
    for number in range(300):
        index.add(holding(number, [number % 10]), np.array([number % 10]))
    index.restart()
    assert index.nbytes == 10 and index.holdings == []
    index.add(holding(300, [3]), np.array([3]))
    assert index.holdings[0].dead == 0


def test_a_shard_without_rows_has_an_index_of_nothing() -> None:
    assert TableIndex(START, START).nbytes == 0
