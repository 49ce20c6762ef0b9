"""Each push carries from where the next step starts: whoever goes on there does what would have been done."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast.checkpoint.training.rng import capture_rng
from holdfast.cluster.train.place import Place, PlaceEncoder
from holdfast.errors import DamagedData
from holdfast.policy import Adagrad, Adam, tables
from tests.cluster.train.tiny_worker import Worker, loader_of


class Noisy(Dataset[Any]):
    """Samples that draw random numbers as they are read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        noise = torch.rand(1).item() + random.random() + np.random.random()
        return {"ids": torch.tensor([number, (number * 7) % 40]), "noise": torch.tensor(noise), "number": number}


class Model(nn.Module):
    """With everything that a place must hold: random numbers of the step itself, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(40, 4, mode="sum")
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)
        self.top = nn.Linear(4, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        rows = self.table(batch["ids"]) * batch["noise"].float().unsqueeze(1)
        return self.top(self.drop(self.norm(rows))).sum()


def worker_of(**how: Any) -> Worker:
    declared = tables(min_bytes=0)
    return Worker(Model, declared=declared, optimizer=Adagrad(0.1), dense_optimizer=Adam(0.01), **how)


def run(worker: Worker, *, until: int | None = None, accumulate: int = 1) -> list[list[int]]:
    """Samples in their order, up to a step."""
    read = []
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    for number, batch in enumerate(worker.loop.batches(loader, epochs=2)):
        worker.loop.model(batch).backward()
        read.append(batch["number"].tolist())
        if number % accumulate == accumulate - 1:
            worker.loop.step()
        if worker.loop.steps == until:
            break
    return read


def seed() -> None:
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)


@pytest.mark.parametrize(("ahead", "accumulate"), [(0, 1), (0, 2), (1, 1), (2, 1), (1, 2), (2, 5)])
@pytest.mark.parametrize("until", [1, 3])
def test_a_worker_that_goes_on_at_a_place_reads_what_was_to_come(ahead: int, accumulate: int, until: int) -> None:
    seed()
    undisturbed = worker_of(ahead=ahead)
    expected = run(undisturbed, accumulate=accumulate)
    seed()
    first = worker_of(ahead=ahead)
    read = run(first, until=until, accumulate=accumulate)
    torch.manual_seed(99)
    second = worker_of(ahead=ahead, exchange=first.exchange, place=first.exchange.place)
    assert second.loop.steps == until
    read += run(second, accumulate=accumulate)
    assert read == expected and second.loop.steps == undisturbed.loop.steps
    if ahead == 0:  # otherwise rows that were pulled ahead had missed a step, and are pulled anew
        assert second.bytes() == undisturbed.bytes()


def test_batches_that_were_read_and_not_used_come_again() -> None:
    seed()
    expected = run(worker_of(ahead=2))
    seed()
    first = worker_of(ahead=2)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    batches = first.loop.batches(loader, epochs=2)
    for _ in range(2):
        first.loop.model(next(batches)).backward()
        first.loop.step()
    next(batches)  # read, and never in a step
    second = worker_of(ahead=2, exchange=first.exchange, place=first.exchange.place)
    assert run(second) == expected[2:]


def test_a_loop_that_was_left_goes_on_with_the_next_batch() -> None:
    loader = loader_of(96, 16)
    worker = Worker(ahead=2)
    seen = []
    for _ in range(3):
        for batch in worker.loop.batches(loader):
            seen.append(batch.dense[0, 0].item())
            if len(seen) % 2 == 0:
                break
    assert seen == [batch.dense[0, 0].item() for batch in loader_of(96, 16)]


def test_a_skipped_batch_is_not_read_again_after_a_restart() -> None:
    def batches() -> Any:
        rows = [[1, 2], [3, 99], [4, 5], [6, 7], [8, 9]]
        return DataLoader(torch.tensor(rows), batch_size=1)

    def make() -> nn.Module:
        return nn.ModuleDict({"user": nn.Embedding(40, 4)})

    def read(worker: Worker, until: int) -> list[int]:
        found = []
        for batch in worker.loop.batches(batches(), ids=lambda batch: {"user": batch}):
            worker.loop.model["user"](batch).sum().backward()
            worker.loop.step()
            found.append(int(batch[0, 0]))
            if worker.loop.steps == until:
                break
        return found

    for until in (1, 2, 3):
        how: dict[str, Any] = {"declared": tables(min_bytes=0), "on_bad_ids": "skip", "ahead": 1}
        first = Worker(make, **how)
        found = read(first, until)
        second = Worker(make, exchange=first.exchange, place=first.exchange.place, **how)
        assert found + read(second, 9) == [1, 4, 6, 8]


def test_a_place_comes_back_from_bytes_as_it_was() -> None:
    worker = worker_of()
    run(worker, until=2)
    assert worker.exchange.place is not None
    place = Place.from_bytes(worker.exchange.place)
    assert place.steps == 2 and place.reader is not None and set(place.buffers) >= {"norm.running_mean"}
    assert place.to_bytes() == worker.exchange.place


def test_an_encoder_gives_the_bytes_of_every_place_whatever_changed_since_the_last() -> None:
    encoder, reader, buffers = PlaceEncoder(), {"next": 0, "seen": [1, 2]}, {"mean": torch.zeros(3)}
    moves = [
        lambda: None,
        lambda: torch.rand(1),
        lambda: np.random.random(),
        lambda: random.random(),
        lambda: reader.update(next=1),
        lambda: reader["seen"].append(3),
        lambda: buffers["mean"].add_(1),
        lambda: buffers.update(mean=torch.zeros(4)),
        lambda: reader.update(next=1.0),
    ]
    for steps, move in enumerate(moves):
        move()
        place = Place(steps=steps, reader=reader, rng=capture_rng(), buffers=buffers)
        assert encoder.encode(place) == place.to_bytes()


def test_a_place_is_laid_out_as_its_page_says() -> None:
    worker = worker_of()
    run(worker, until=2)
    data = worker.exchange.place
    assert data is not None and data[:4] == b"HFP3" and int.from_bytes(data[4:12], "little") == 2
    lengths = [int.from_bytes(data[at : at + 4], "little") for at in (12, 16, 20, 24, 28)]
    assert len(data) == 32 + sum(lengths)
    at = 32
    for length in lengths:
        listed, skeleton = (int.from_bytes(data[at + each : at + each + 4], "little") for each in (0, 4))
        tensors = json.loads(data[at + 8 : at + 8 + listed])
        tree = json.loads(data[at + 8 + listed : at + 8 + listed + skeleton])
        sizes = [int(np.prod(shape)) * {"U8": 1, "F32": 4, "I64": 8}[code] for code, shape in tensors]
        assert 8 + listed + skeleton + sum(sizes) == length and tree["tensors"] == len(tensors)
        at += length


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-1], lambda data: b"x" + data, lambda data: b"", lambda data: data + b"0"]
)
def test_bytes_that_are_no_place_are_refused(spoil: Any) -> None:
    worker = worker_of()
    with pytest.raises(DamagedData, match="a worker's place"):
        Place.from_bytes(spoil(worker.loop.place()))
