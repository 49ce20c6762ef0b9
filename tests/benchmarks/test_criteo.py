from __future__ import annotations

import gzip
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.data.criteo import CriteoDataset
from benchmarks.data.schema import Batch
from holdfast.errors import ReaderError

CARDINALITIES = tuple(range(1_000, 1_026))
ROWS = 1_003  # a multiple of no batch size used here


def lines_of(rows: int, seed: int = 0) -> list[str]:
    """Lines whose first integer is the row's number, with blanks, negative integers and lines of all lengths."""
    rng = random.Random(seed)
    lines = []
    for row in range(rows):
        integers = [str(row), *(rng.choice(["", "0", "-2", str(rng.randrange(10**6))]) for _ in range(12))]
        categories = [rng.choice(["", f"{rng.randrange(2**32):08x}"]) for _ in range(26)]
        lines.append("\t".join([str(rng.randrange(2)), *integers, *categories]))
    return lines


def write(path: Path, lines: list[str], *, end: str = "\n") -> Path:
    opener: Callable[..., object] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="") as file:  # type: ignore[attr-defined]
        file.write("\n".join(lines) + end)
    return path


def plainly_read(lines: list[str]) -> Batch:
    """The same by Python's own means, a field at a time."""
    rows = [line.split("\t") for line in lines]
    dense = [[math.log1p(max(int(text or 0), 0)) for text in row[1:14]] for row in rows]
    ids = [[int(text or "0", 16) % CARDINALITIES[n] for n, text in enumerate(row[14:])] for row in rows]
    return Batch(torch.tensor(dense), torch.tensor(ids), torch.tensor([float(row[0]) for row in rows]))


def dataset_of(*paths: Path, batch_size: int = 64, span_bytes: int = 10_000) -> CriteoDataset:
    return CriteoDataset(paths, cardinalities=CARDINALITIES, batch_size=batch_size, span_bytes=span_bytes)


def joined(batches: list[Batch]) -> Batch:
    return Batch(*(torch.cat(column) for column in zip(*batches, strict=True)))


def numbers(batches: list[Batch]) -> list[int]:
    """The rows' numbers, out of their first integer."""
    return [round(math.expm1(value)) for batch in batches for value in batch.dense[:, 0].tolist()]


@pytest.fixture(params=["train.txt", "day_0.gz"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / request.param, lines_of(ROWS))


def test_values_are_those_a_plain_reader_finds(file: Path) -> None:
    read, expected = joined(list(dataset_of(file))), plainly_read(lines_of(ROWS))
    torch.testing.assert_close(read.dense, expected.dense)
    assert torch.equal(read.ids, expected.ids)
    assert torch.equal(read.labels, expected.labels)
    assert [tensor.dtype for tensor in read] == [torch.float32, torch.int64, torch.float32]


@pytest.mark.parametrize("batch_size", [1, 64, 1_003, 5_000])
@pytest.mark.parametrize("span_bytes", [97, 1_777, 1 << 30])
def test_every_row_comes_once_in_full_batches_and_one_remainder(
    tmp_path: Path, batch_size: int, span_bytes: int
) -> None:
    paths = [write(tmp_path / "day_0", lines_of(ROWS)[:400]), write(tmp_path / "day_1.gz", lines_of(ROWS)[400:])]
    batches = list(dataset_of(*paths, batch_size=batch_size, span_bytes=span_bytes))
    assert numbers(batches) == list(range(ROWS))
    assert all(len(batch.labels) == batch_size for batch in batches[:-1])


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    assert numbers(list(dataset_of(write(tmp_path / "train.txt", lines_of(10), end="")))) == list(range(10))


def test_an_empty_file_has_no_batches(tmp_path: Path) -> None:
    assert list(dataset_of(write(tmp_path / "train.txt", [], end=""))) == []


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_workers_share_the_rows_without_loss_or_duplicates(tmp_path: Path, workers: int) -> None:
    lines = lines_of(ROWS)
    paths = [write(tmp_path / name, lines[start::3]) for start, name in enumerate(["day_0", "day_1.gz", "day_2.gz"])]
    loader = StatefulDataLoader(dataset_of(*paths), batch_size=None, num_workers=workers)
    assert sorted(numbers(list(loader))) == list(range(ROWS))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 7, 15, 16])
def test_reading_goes_on_exactly_where_the_state_was_taken(file: Path, workers: int, taken: int) -> None:
    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(dataset_of(file), batch_size=None, num_workers=workers)

    whole = numbers(list(loader()))
    first = loader()
    batches = iter(first)
    seen = numbers([next(batches) for _ in range(taken)])
    second = loader()
    second.load_state_dict(first.state_dict())
    assert seen + numbers(list(second)) == whole
    assert sorted(whole) == list(range(ROWS))


def test_a_second_epoch_starts_from_the_beginning(file: Path) -> None:
    dataset = dataset_of(file)
    assert numbers(list(dataset)) == numbers(list(dataset))
    dataset.load_state_dict(dataset.state_dict())
    assert list(dataset) == []
    assert numbers(list(dataset)) == list(range(ROWS))


def test_state_over_another_file_is_refused(tmp_path: Path) -> None:
    state = dataset_of(write(tmp_path / "day_0", lines_of(20))).state_dict()
    with pytest.raises(ReaderError, match="same files"):
        dataset_of(write(tmp_path / "day_1", lines_of(20))).load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        (0, "2", r"field 1 is b'2', not a label"),
        (0, "", r"field 1 is b'', not a label"),
        (3, "12x", r"field 4 is b'12x', not a decimal integer"),
        (3, "-", r"field 4 is b'-', not a decimal integer"),
        (3, "1" * 16, r"field 4 is .*, not a decimal integer"),
        (39, "68fd1e6g", r"field 40 is b'68fd1e6g', not a hexadecimal number"),
        (39, "68fd1e64\r", r"field 40 is .*, not a hexadecimal number"),
        (20, "a\tb", "41 fields separated by tabs, 40 expected"),
    ],
)
@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_a_malformed_line_is_named(tmp_path: Path, name: str, field: int, text: str, message: str) -> None:
    lines = lines_of(ROWS)
    fields = lines[700].split("\t")
    fields[field] = text
    lines[700] = "\t".join(fields)
    with pytest.raises(ValueError, match=rf"{name}, line 701: {message}"):
        list(dataset_of(write(tmp_path / name, lines)))


def test_fields_missing_in_one_line_and_added_to_the_next_are_noticed(tmp_path: Path) -> None:
    lines = lines_of(100)
    lines[50], lines[51] = lines[50].rpartition("\t")[0], lines[51] + "\t"
    with pytest.raises(ValueError, match="line 51: 39 fields"):
        list(dataset_of(write(tmp_path / "train.txt", lines)))


def test_a_cut_off_gzip_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "day_0.gz", lines_of(ROWS))
    path.write_bytes(path.read_bytes()[:-1_000])
    with pytest.raises(ReaderError, match=r"day_0.gz cannot be decompressed after line \d+"):
        list(dataset_of(path))
