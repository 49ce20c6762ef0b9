from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import Value
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.nodes import Loader, SamplerWrapper
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.errors import HoldfastWarning, ReaderError
from holdfast.format.tree import decode_tree, encode_tree

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*set_vital.*", "ignore:.*has no state.*", "ignore:.*worker processes of the PlainDataLoader.*"
)
SAMPLES = 11
EPOCHS = 2


class Samples(Dataset[Any]):
    """Each item carries a random number, as augmentation would."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random() + torch.rand(1).item() + np.random.rand()


class Numbers(Samples):
    """Nothing is drawn for its items; counts how many were loaded."""

    def __init__(self) -> None:
        self.loaded = Value("i", 0)  # in worker processes, too

    def __getitem__(self, index: int) -> tuple[int, float]:
        with self.loaded:
            self.loaded.value += 1
        return index, 0.0


class Stream(IterableDataset[Any]):
    """Sharded over workers, without state; worker 0 has more to give."""

    def positions(self) -> range:
        worker = get_worker_info()
        return range(SAMPLES) if worker is None else (range(0, 7), range(7, SAMPLES))[worker.id]

    def __iter__(self) -> Iterator[Any]:
        for position in self.positions():
            yield position, 0.0


class RestartingStream(Stream):
    """Keeps its position and how often it was read; sets its position back at its end."""

    def __init__(self) -> None:
        self.done = 0
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        for position in self.positions()[self.done :]:
            self.done += 1
            yield position + 100 * self.passes, 0.0
        self.done = 0
        self.passes += self.counts_passes

    counts_passes = True

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "passes": self.passes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done, self.passes = state_dict["done"], state_dict["passes"]


class UncountedRestartingStream(RestartingStream):
    counts_passes = False


class StatefulStream(RestartingStream):
    """Keeps its position until it is read again."""

    loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.done, self.passes = 0, self.passes + 1
        self.loaded = False
        return self.rest()

    def rest(self) -> Iterator[Any]:
        for position in self.positions()[self.done :]:
            self.done += 1
            yield position + 100 * self.passes, random.random()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.loaded = True


class StreamOfStatefulIterators(Stream):
    """The dataset has no state, its iterator has one."""

    def __iter__(self) -> Iterator[Any]:
        return StatefulIterator(self.positions())


class StatefulIterator(Iterator[Any]):
    def __init__(self, positions: range) -> None:
        self.positions = positions
        self.done = 0

    def __next__(self) -> Any:
        if self.done == len(self.positions):
            raise StopIteration
        self.done += 1
        return self.positions[self.done - 1], 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = state_dict["done"]


class OwnLoader:
    """Any iterable with a state will do; this one shuffles when it is opened and begins anew after its end."""

    restarts = True

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[Any]:
        return self.rest(random.sample(range(4), 4))

    def rest(self, order: list[int]) -> Iterator[Any]:
        while self.done < 4:
            self.done += 1
            yield [order[self.done - 1]]
        if self.restarts:
            self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = state_dict["done"]


class OwnLoaderThatStaysAtItsEnd(OwnLoader):
    restarts = False
    loaded = False

    def __iter__(self) -> Iterator[Any]:
        self.done = self.done if self.loaded else 0
        self.loaded = False
        return super().__iter__()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.loaded = True


def loader(dataset: object = None, **options: Any) -> StatefulDataLoader:
    options = {"batch_size": 3, **options}
    if "batch_sampler" in options:
        del options["batch_size"]
    return StatefulDataLoader(Samples() if dataset is None else dataset, **options)


def torchs(dataset: object = None, **options: Any) -> DataLoader[Any]:
    """torch's own, without a state."""
    options = options if "batch_sampler" in options else {"batch_size": 3, **options}
    return DataLoader(Samples() if dataset is None else dataset, **options)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def sharing(make_sampler: Callable[[torch.Generator], Any], **options: Any) -> StatefulDataLoader:
    generator = seeded()
    return loader(generator=generator, sampler=make_sampler(generator), **options)


def torch_batches() -> BatchSampler:
    return BatchSampler(RandomSampler(range(SAMPLES)), 3, drop_last=False)


WEIGHTS = [1.0 + index for index in range(SAMPLES)]
IN_PROCESS: dict[str, Callable[[], Any]] = {
    "in order": lambda: loader(),
    "shuffled": lambda: loader(shuffle=True),
    "shuffled by a generator": lambda: loader(shuffle=True, generator=seeded()),
    "shuffled, last dropped": lambda: loader(shuffle=True, drop_last=True),
    "single samples": lambda: loader(shuffle=True, batch_size=None),
    "torch's random sampler": lambda: loader(sampler=RandomSampler(range(SAMPLES))),
    "torch's random sampler with its generator": lambda: loader(
        sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=40, generator=seeded())
    ),
    "weighted sampler with the loader's generator": lambda: sharing(
        lambda generator: WeightedRandomSampler(WEIGHTS, SAMPLES, generator=generator)
    ),
    "weighted sampler": lambda: loader(sampler=WeightedRandomSampler(WEIGHTS, SAMPLES)),
    "subset sampler": lambda: loader(sampler=SubsetRandomSampler([1, 2, 3, 5, 7])),
    "torch's batch sampler": lambda: loader(batch_sampler=torch_batches()),
    "distributed sampler": lambda: loader(sampler=DistributedSampler(range(SAMPLES), num_replicas=2, rank=1)),
    "stateful distributed sampler": lambda: loader(
        sampler=StatefulDistributedSampler(range(SAMPLES), num_replicas=2, rank=1)
    ),
    "stateful stream": lambda: loader(StatefulStream()),
    "stateful stream, single samples": lambda: loader(StatefulStream(), batch_size=None),
    "stream that restarts at its end": lambda: loader(RestartingStream()),
    "stream of stateful iterators": lambda: loader(StreamOfStatefulIterators()),
    "stream without state": lambda: loader(Stream()),
    "own loader": OwnLoader,
    "own loader that stays at its end": OwnLoaderThatStaysAtItsEnd,
    "torchdata node": lambda: Loader(SamplerWrapper(SequentialSampler(range(5)))),
}
IN_PROCESS |= {
    "plain, in order": lambda: torchs(),
    "plain, shuffled": lambda: torchs(shuffle=True),
    "plain, shuffled by a generator": lambda: torchs(shuffle=True, generator=seeded()),
    "plain, single samples": lambda: torchs(shuffle=True, batch_size=None),
    "plain, random sampler with its generator": lambda: torchs(
        sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=40, generator=seeded())
    ),
    "plain, weighted sampler": lambda: torchs(sampler=WeightedRandomSampler(WEIGHTS, SAMPLES), drop_last=True),
    "plain, batch sampler": lambda: torchs(batch_sampler=torch_batches()),
    "plain, distributed sampler": lambda: torchs(sampler=DistributedSampler(range(SAMPLES), num_replicas=2, rank=1)),
}
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torchs(Numbers(), shuffle=True, num_workers=2),
    "plain, persistent workers": lambda: torchs(
        Numbers(), shuffle=True, num_workers=2, persistent_workers=True, generator=seeded()
    ),
    "shuffled": lambda: loader(shuffle=True, num_workers=2),
    "persistent workers": lambda: loader(shuffle=True, num_workers=2, persistent_workers=True, generator=seeded()),
    "persistent workers, weighted sampler": lambda: loader(
        num_workers=2, persistent_workers=True, sampler=WeightedRandomSampler(WEIGHTS, SAMPLES)
    ),
    "torch's batch sampler": lambda: loader(batch_sampler=torch_batches(), num_workers=2),
    "rare snapshots, far ahead": lambda: loader(
        shuffle=True, num_workers=2, prefetch_factor=4, snapshot_every_n_steps=3, generator=seeded()
    ),
    "stateful stream": lambda: loader(StatefulStream(), num_workers=2),
    "stateful stream, persistent": lambda: loader(StatefulStream(), num_workers=2, persistent_workers=True),
    "stateful stream, single samples": lambda: loader(StatefulStream(), num_workers=2, batch_size=None),
    "stream of stateful iterators": lambda: loader(StreamOfStatefulIterators(), num_workers=2),
    "stream without state": lambda: loader(Stream(), num_workers=2),
}


def asked_early(make: Callable[[], Any]) -> Callable[[], Any]:
    """A loader whose state somebody has asked for, so that its iterator exists before it is read."""

    def make_and_ask() -> Any:
        made = make()
        made.state_dict()
        return made

    return make_and_ask


def accelerated(make: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    """The loader as Accelerate prepares it."""

    def prepare() -> Any:
        config = DataLoaderConfiguration(**{"use_stateful_dataloader": True, **options})
        return Accelerator(cpu=True, dataloader_config=config).prepare(make())

    return prepare


for name in ("shuffled", "torch's batch sampler", "torch's random sampler", "weighted sampler", "stateful stream"):
    IN_PROCESS[f"{name}, asked early"] = asked_early(IN_PROCESS[name])
for name in ("in order", "shuffled", "shuffled by a generator", "torch's random sampler", "torch's batch sampler"):
    IN_PROCESS[f"{name}, by Accelerate"] = accelerated(IN_PROCESS[name])
IN_PROCESS["seedable, by Accelerate"] = accelerated(IN_PROCESS["torch's random sampler"], use_seedable_sampler=True)
for name in ("stateful stream", "stream without state"):
    IN_PROCESS[f"{name}, by Accelerate"] = accelerated(IN_PROCESS[name], dispatch_batches=False)
WITH_WORKERS["torch's batch sampler, asked early"] = asked_early(WITH_WORKERS["torch's batch sampler"])
WITH_WORKERS["shuffled, by Accelerate"] = accelerated(WITH_WORKERS["shuffled"])


def plain(batch: object) -> object:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(item) for item in batch] if isinstance(batch, (list, tuple)) else batch


def stored(state: object) -> Any:
    tree = encode_tree(state)
    return decode_tree(tree.skeleton, [tensor.clone() for tensor in tree.tensors])


class Trainer:
    """A process that trains: what it reads and draws is its trace, what it would save are its checkpoints."""

    def __init__(self, make: Callable[[], Any], checkpoint: Any = None, *, seed: int = 0) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.reader = Reader(make())
        self.rng = checkpoint["rng"] if checkpoint else None
        if checkpoint and checkpoint["reader"] is not None:
            self.reader.load_state(checkpoint["reader"])

    def train(self, epochs: int, steps: int | None = None) -> list[Any]:
        trace = []
        batches = self.reader.batches(epochs, on_iterator=lambda: restore_rng(self.rng))
        for batch in batches:
            trace.append((plain(batch), torch.rand(1).item(), random.random(), np.random.rand()))
            if len(trace) == steps:
                break
        return trace

    def checkpoint(self) -> Any:
        state = self.reader.state()
        self.reader.warn_gaps(state)
        return stored({"reader": state, "rng": capture_rng()})


def uninterrupted(make: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """The trace, and the checkpoint after each of its steps and after the end."""
    trainer = Trainer(make)
    trace: list[Any] = []
    checkpoints = []
    while step := trainer.train(EPOCHS + 1, steps=1):
        trace += step
        checkpoints.append(trainer.checkpoint())
    return trace, checkpoints


def samples(trace: list[Any]) -> list[int]:
    return [index for batch, *_ in trace for index in np.ravel(batch[0])]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_resumed_run_reads_and_draws_what_the_uninterrupted_one_did(name: str) -> None:
    make = IN_PROCESS[name]
    trace, checkpoints = uninterrupted(make)
    for step, checkpoint in enumerate(checkpoints, start=1):
        assert Trainer(make, checkpoint, seed=step).train(EPOCHS + 1) == trace[step:], f"killed after step {step}"


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_resumed_run_with_worker_processes_reads_what_the_uninterrupted_one_did(name: str) -> None:
    make = WITH_WORKERS[name]
    trace, checkpoints = uninterrupted(make)
    steps = len(trace)
    for step in {1, 3, steps // 3 - 1, steps // 3, steps // 3 + 1, steps}:
        resumed = Trainer(make, checkpoints[step - 1], seed=step)
        assert resumed.train(EPOCHS + 1) == trace[step:], f"killed after step {step}"


@pytest.mark.parametrize("name", ["shuffled", "persistent workers", "stateful stream"])
def test_a_reader_that_nobody_needs_any_more_ends_its_workers_without_the_garbage_collector(name: str) -> None:
    trainer = Trainer(WITH_WORKERS[name])
    trainer.train(EPOCHS, steps=1)
    loader = weakref.ref(trainer.reader._loader)
    gc.disable()
    try:
        del trainer
        assert loader() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [*IN_PROCESS.values()], ids=[*IN_PROCESS])
def test_run_killed_after_every_single_batch_is_the_uninterrupted_run(make: Callable[[], Any]) -> None:
    expected = Trainer(make).train(EPOCHS)
    checkpoint, trace = None, []
    while step := (trainer := Trainer(make, checkpoint)).train(EPOCHS, steps=1):
        trace += step
        checkpoint = trainer.checkpoint()
    assert trace == expected


@pytest.mark.parametrize("make", [IN_PROCESS["shuffled"], WITH_WORKERS["shuffled"]], ids=["in process", "workers"])
def test_every_sample_is_handed_out_once_per_epoch(make: Callable[[], Any]) -> None:
    trace, _ = uninterrupted(make)
    read = samples(trace)
    for epoch in range(EPOCHS + 1):
        assert sorted(read[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


def test_every_sample_is_handed_out_once_even_if_the_next_epoch_is_shuffled_differently() -> None:
    make = lambda: sharing(lambda generator: RandomSampler(range(SAMPLES), generator=generator))  # noqa: E731
    trace, checkpoints = uninterrupted(make)
    for step, checkpoint in enumerate(checkpoints, start=1):
        read = samples(trace[:step] + Trainer(make, checkpoint).train(EPOCHS + 1))
        assert [sorted(read[start : start + SAMPLES]) for start in range(0, len(read), SAMPLES)] == [
            list(range(SAMPLES))
        ] * (EPOCHS + 1)


@pytest.mark.parametrize("name", ["shuffled", "stateful stream", "own loader", "torchdata node", "distributed sampler"])
def test_finished_run_has_nothing_left_and_can_be_given_more_epochs(name: str) -> None:
    make = IN_PROCESS[name]
    expected = Trainer(make).train(EPOCHS + 1)
    first = Trainer(make)
    trace = first.train(EPOCHS)
    checkpoint = first.checkpoint()
    assert Trainer(make, checkpoint).train(EPOCHS) == []
    assert trace + Trainer(make, checkpoint).train(EPOCHS + 1) == expected


def test_rng_is_restored_even_if_nothing_is_left_to_read() -> None:
    trainer = Trainer(IN_PROCESS["shuffled"])
    trainer.train(1)
    checkpoint = trainer.checkpoint()
    expected = torch.rand(1)
    resumed = Trainer(IN_PROCESS["shuffled"], checkpoint, seed=9)
    resumed.train(1)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("name", ["persistent workers", "stateful stream", "stateful stream, persistent"])
def test_finished_run_with_worker_processes_can_be_given_more_epochs(name: str) -> None:
    make = WITH_WORKERS[name]
    expected = Trainer(make).train(2)
    first = Trainer(make)
    trace = first.train(1)
    assert trace + Trainer(make, first.checkpoint()).train(2) == expected


def test_epochs_count_from_the_start_of_training() -> None:
    trainer = Trainer(IN_PROCESS["in order"])
    trainer.train(2, steps=6)  # 4 batches an epoch
    assert len(Trainer(IN_PROCESS["in order"], trainer.checkpoint()).train(2)) == 2


def test_state_is_none_before_the_first_batch_and_the_loaded_one_until_the_next() -> None:
    trainer = Trainer(IN_PROCESS["shuffled"])
    assert trainer.reader.state() is None
    trainer.train(2, steps=2)
    state = stored(trainer.reader.state())
    reader = Reader(loader(shuffle=True))
    reader.load_state(state)
    assert reader.state() == state
    assert (state["epoch"], state["epoch_batches"], state["batches"]) == (0, 2, 2)


def test_a_left_loop_continues_where_it_was() -> None:
    reader = Reader(loader())
    for batch in reader.batches(1):
        assert plain(batch)[0] == [0, 1, 2]
        break
    assert [plain(batch)[0] for batch in reader.batches(1)] == [[3, 4, 5], [6, 7, 8], [9, 10]]


def test_two_loops_at_once_are_an_error() -> None:
    reader = Reader(loader())
    batches = reader.batches(1)
    next(batches)
    with pytest.raises(ReaderError, match="already being iterated"):
        next(reader.batches(1))
    with pytest.raises(ReaderError, match="leave that loop"):
        reader.load_state(reader.state())
    batches.close()
    assert len(list(reader.batches(1))) == 3


class OwnDataLoader(DataLoader[Any]):
    """Nobody knows what it does with its sampler."""

    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_skips_indices_and_loads_no_sample_to_throw_it_away(workers: int) -> None:
    made = torchs(Numbers(), shuffle=True, num_workers=workers)
    trainer = Trainer(lambda: made)
    trainer.train(1, steps=3)  # of 4 batches; the last one has 2 samples
    dataset = Numbers()
    resumed = Trainer(lambda: torchs(dataset, shuffle=True, num_workers=workers), trainer.checkpoint(), seed=3)
    (rest,) = resumed.train(1)
    assert len(rest[0][0]) == 2
    assert dataset.loaded.value == 2
    assert made.batch_sampler is not None and len(made) == 4


def test_random_numbers_of_a_plain_loaders_workers_are_told_to_differ() -> None:
    trainer = Trainer(WITH_WORKERS["plain"])
    trainer.train(1, steps=2)
    with pytest.warns(HoldfastWarning, match=r"worker processes of the PlainDataLoader.*StatefulDataLoader"):
        Trainer(WITH_WORKERS["plain"], trainer.checkpoint())


@pytest.mark.parametrize(
    "stateless",
    [
        DataLoader(Stream()),
        DataLoader(StatefulStream()),
        DataLoader(Samples(), sampler=iter([2, 1])),
        OwnDataLoader(Samples()),
        iter([1, 2]),
        (i for i in range(3)),
        [1, 2],
        5,
    ],
    ids=["stream", "stateful stream", "sampler once", "own DataLoader", "iterator", "generator", "list", "int"],
)
def test_a_loader_without_state_is_refused_with_the_remedy(stateless: object) -> None:
    with pytest.raises(ReaderError, match=rf"a {type(stateless).__qualname__} has no state.*StatefulDataLoader"):
        Reader(stateless)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: DataLoader(Stream()),
            {"use_stateful_dataloader": False, "dispatch_batches": False},
            "has no state.*use_stateful_dataloader=True",
        ),
        (lambda: loader(StatefulStream()), {}, "DataLoaderDispatcher.*dispatch_batches=False"),
        (lambda: loader(StatefulStream(), num_workers=2), {"dispatch_batches": False}, "has no exact state"),
    ],
    ids=["without state", "dispatched", "stream with workers"],
)
def test_prepared_loaders_whose_state_is_not_what_it_seems_are_refused(
    make: Callable[[], Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReaderError, match=message):
        Reader(accelerated(make, **options)())


def test_batches_out_of_order_are_refused() -> None:
    with pytest.raises(ReaderError, match="in_order=True"):
        Reader(loader(num_workers=1, in_order=False))


def test_another_number_of_workers_is_refused() -> None:
    trainer = Trainer(IN_PROCESS["shuffled"])
    trainer.train(1, steps=1)
    with pytest.raises(ReaderError, match=r"num_workers was 0 .* is 2 now.*Set it back to 0"):
        Reader(loader(num_workers=2)).load_state(trainer.reader.state())


def test_another_kind_of_loader_is_refused() -> None:
    trainer = Trainer(OwnLoader)
    trainer.train(1, steps=1)
    with pytest.raises(ReaderError, match="type was OwnLoader"):
        Reader(OwnLoaderThatStaysAtItsEnd()).load_state(trainer.reader.state())


def test_a_generator_that_came_or_went_is_refused() -> None:
    trainer = Trainer(lambda: loader())
    trainer.train(1, steps=1)
    reader = Reader(loader(generator=seeded()))
    reader.load_state(trainer.reader.state())
    with pytest.raises(ReaderError, match="generator="):
        next(reader.batches(1))


def test_an_iterable_dataset_that_must_be_read_again_is_announced_and_then_counted() -> None:
    with pytest.warns(HoldfastWarning, match=r"Stream has no state.*state_dict\(\)"):
        trainer = Trainer(lambda: loader(Stream()))
    trainer.train(1, steps=3)
    resumed = Reader(loader(Stream()))
    with pytest.warns(HoldfastWarning, match="rereading 3 batches"):
        resumed.load_state(trainer.reader.state())


@pytest.mark.parametrize("batch_size", [3, None])
def test_a_stream_that_restarts_at_its_end_is_not_read_twice_by_workers(batch_size: int | None) -> None:
    make = lambda: loader(UncountedRestartingStream(), num_workers=2, batch_size=batch_size)  # noqa: E731
    trainer = Trainer(make)
    trainer.train(1, steps=3 if batch_size else 8)
    continued = Trainer(make, trainer.checkpoint())
    continued.train(1, steps=1)
    trainer.train(1, steps=1 if batch_size else 2)  # now one of the workers has ended
    with pytest.warns(HoldfastWarning, match="UncountedRestartingStream resets its position"):
        checkpoint = trainer.checkpoint()
    with pytest.raises(ReaderError, match=r"resets its position.*Keep the position until the next __iter__"):
        Trainer(make, checkpoint)


def test_a_stream_that_restarts_elsewhere_is_caught_when_it_would_be_read_twice() -> None:
    make = lambda: loader(RestartingStream(), num_workers=2)  # noqa: E731
    trainer = Trainer(make)
    trainer.train(1, steps=4)
    resumed = Trainer(make, trainer.checkpoint())
    with pytest.raises(ReaderError, match="yield its samples twice"):
        resumed.train(1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: loader(num_workers=1), False),
        (lambda: loader(StatefulStream(), num_workers=1), False),
        (lambda: loader(Stream(), num_workers=2), False),
        (lambda: loader(StreamOfStatefulIterators(), num_workers=2), True),
        (lambda: loader(list(range(9)), num_workers=1), True),
    ],
    ids=["map-style", "stateful stream", "stream without state", "stateful iterators", "list"],
)
def test_a_resume_tells_where_workers_draw_other_random_numbers(make: Callable[[], Any], told: bool) -> None:
    trainer = Trainer(make)
    trainer.train(1, steps=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HoldfastWarning)
        Reader(make()).load_state(trainer.reader.state())
    assert any("random numbers drawn by the worker processes" in str(warning.message) for warning in caught) == told


def test_the_users_worker_init_fn_still_runs() -> None:
    made = loader(Noting(), num_workers=1, worker_init_fn=note)
    assert {number for batch in Reader(made).batches(1) for number in batch.tolist()} == {7}


class Noting(Dataset[Any]):
    number = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return self.number


def note(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.number = 7


@pytest.mark.parametrize("dataset", [Samples, StatefulStream, StreamOfStatefulIterators])
def test_datasets_that_continue_are_not_warned_about(dataset: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastWarning)
        trainer = Trainer(lambda: loader(dataset()))
        trainer.train(1, steps=2)
        Reader(loader(dataset())).load_state(trainer.reader.state())


def test_a_loader_that_can_be_read_only_once_is_reported_in_the_second_epoch() -> None:
    class Once(OwnLoader):
        restarts = False

    with pytest.raises(ReaderError, match="no batch in epoch 1"):
        list(Reader(Once()).batches(2))


def test_endless_reading_of_nothing_is_an_error_and_not_a_hang() -> None:
    empty = StatefulDataLoader([], batch_size=1)
    assert list(Reader(empty).batches(3)) == []
    with pytest.raises(ReaderError, match="no batch in epoch 0"):
        next(Reader(empty).batches())


class Queue(OwnLoader):
    """Reads everything it is granted at once; its state counts what it has read."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.position = 0

    def grant(self, batches: int) -> None:
        self.read += range(self.position, self.position + batches)
        self.position += batches

    def __iter__(self) -> Iterator[Any]:
        while self.read:
            batch = self.read.pop(0)
            yield [batch]
            if batch % 5 == 4:
                return

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position, self.read = state_dict["position"], []


def test_a_loader_that_reads_ahead_has_nothing_in_flight_at_a_checkpoint() -> None:
    reader = Reader(Queue())
    batches = reader.batches()
    seen, state = [], None
    for step in range(12):
        if step % 4 == 0:
            assert reader.at_boundary
            reader.grant(4)
        seen += next(batches)
        assert reader.outstanding == 3 - step % 4
        if step == 7:
            state = stored(reader.state())
    assert seen == list(range(12))
    resumed = Reader(Queue())
    resumed.load_state(state)
    resumed.grant(4)
    rest = resumed.batches()
    assert [next(rest)[0] for _ in range(4)] == [8, 9, 10, 11]
    assert resumed.at_boundary


def test_reading_beyond_the_grant_is_an_error_and_not_a_hang() -> None:
    reader = Reader(Queue())
    reader.grant(1)
    batches = reader.batches()
    next(batches)
    with pytest.raises(ReaderError, match="not granted"):
        next(batches)


def test_what_was_granted_beyond_the_last_epoch_is_not_waited_for() -> None:
    reader = Reader(Queue())
    reader.grant(8)
    assert len(list(reader.batches(1))) == 5
    assert reader.at_boundary


def test_grants_are_nothing_to_a_loader_that_does_not_read_ahead() -> None:
    reader = Reader(loader())
    reader.grant(3)
    assert reader.at_boundary and reader.outstanding == 0 and not reader.reads_ahead
