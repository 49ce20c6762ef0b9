"""What DCP expects of a storage, each on all ranks of a world: its own cases, for our Writer and Reader."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor, init_from_local_shards
from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import holdfast as hf
from holdfast.storage import LocalStore
from holdfast.storage.local_batch import LocalBatch

WORLDS = (1, 2, 4)


class Place:
    """The runs of all worlds, under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str, world: int | None = None) -> str:
        """The run that a case of one world size writes; others may read it after that."""
        return str(self._folder / f"{name}-{world or dist.get_world_size()}")

    def written(self, name: str) -> Iterator[str]:
        """Those of this and of smaller worlds."""
        return (self.run(name, world) for world in WORLDS if world <= dist.get_world_size())


def save(url: str, state: dict[str, Any], step: int, **settings: Any) -> None:
    """With our Writer."""
    dcp.save(state, storage_writer=hf.dcp.Writer(url, step=step, **settings))


def load(url: str, state: dict[str, Any], step: int | None = None, **settings: Any) -> None:
    """With our Reader."""
    dcp.load(state, storage_reader=hf.dcp.Reader(url, step=step), **settings)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """All ranks see that some rank refused, and why."""
    try:
        yield
    except CheckpointException as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was refused for {words}")


def numbers(*shape: int, start: int = 0) -> Tensor:
    """No two alike."""
    return torch.arange(start, start + int(torch.Size(shape).numel()), dtype=torch.float32).reshape(shape)


def spread(tensor: Tensor, *placements: Placement) -> DTensor:
    """Over all ranks."""
    return distribute_tensor(tensor, init_device_mesh("cpu", (dist.get_world_size(),)), placements)


def sharded(tensor: Tensor) -> ShardedTensor:
    """A ShardedTensor, in blocks of rows: the last rank has the fewest."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = -(-len(tensor) // world)
    own = tensor[rank * rows : (rank + 1) * rows].clone()
    shard = LocalShard.from_tensor_and_offsets(own, [rank * rows, 0], rank)
    return init_from_local_shards([shard], *tensor.shape)


def plain_state(seed: int = 0) -> dict[str, Any]:
    """Tensors of many types, and values of many kinds."""
    return {
        "model": {
            "weight": numbers(40, 5, start=seed),
            "half": numbers(3, 7, start=seed).to(torch.bfloat16),
            "flags": torch.tensor([True, False, True]),
            "count": torch.tensor(5 + seed),
            "nothing": torch.empty(0, 4),
            "complex": torch.complex(numbers(3), numbers(3, start=9)),
            "large": numbers(3 * 2**20, start=seed),  # in two sections
        },
        "groups": [{"lr": 0.1 + seed, "betas": (0.9, 0.99), "params": [0, 1], "eps": float("inf")}],
        "epoch": 3 + seed,
        "name": "naïve",
        "none": None,
        "pair": (1, torch.tensor([1.5, 2.5])),
        "names": {"a", "b"},
    }


def emptied(state: Any) -> Any:
    """The same form, with other values."""
    if isinstance(state, Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [emptied(value) for value in state]
    return None


def same(one: Any, other: Any) -> bool:
    """To the bit, types included."""
    if isinstance(one, DTensor):
        return isinstance(other, DTensor) and same(one.full_tensor(), other.full_tensor())
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


# The cases: each is called on all ranks of worlds of 1, 2 and 4 processes, in this order.


def plain_state_comes_back(place: Place) -> None:
    url, state = place.run("plain"), plain_state()
    save(url, state, 1)
    loaded = emptied(state)
    load(url, loaded)
    assert same(state, loaded)


def sharded_tensors_are_stored_once_by_the_ranks_that_hold_them(place: Place) -> None:
    url, whole = place.run("dtensor"), numbers(11, 6)
    state = {"rows": spread(whole, Shard(0)), "columns": spread(whole, Shard(1)), "all": spread(whole, Replicate())}
    save(url, state, 3)
    stored = [info for info in hf.open_run(url).store.list("data/") if info.name.endswith(".safetensors")]
    ranks = {info.name.rpartition("/")[2].partition("-")[0] for info in stored}
    assert len(ranks) == dist.get_world_size() + 1  # rank 0 also stores the tree, in a bundle of its own
    loaded = {name: spread(torch.zeros(11, 6), *each.placements) for name, each in state.items()}
    load(url, loaded)
    assert same(state, loaded)


def other_shardings_of_other_worlds_are_read(place: Place) -> None:
    whole = numbers(11, 6)
    for url in place.written("dtensor"):
        for placement in (Shard(0), Shard(1), Replicate()):
            loaded: dict[str, Any] = {
                name: spread(torch.zeros(11, 6), placement) for name in ("rows", "columns", "all")
            }
            load(url, loaded)
            assert all(torch.equal(each.full_tensor(), whole) for each in loaded.values())
        plain = {"rows": torch.zeros(11, 6), "columns": torch.zeros(11, 6, dtype=torch.float64)}
        load(url, plain)
        assert torch.equal(plain["rows"], whole)
        assert torch.equal(plain["columns"], whole.double())  # as DCP does: the target's type counts


def sharded_tensor_class_is_stored_and_read(place: Place) -> None:
    url, whole = place.run("sharded"), numbers(10, 4)
    save(url, {"table": sharded(whole)}, 1)
    for written in place.written("sharded"):
        loaded = {"table": sharded(torch.zeros(10, 4))}
        load(written, loaded)
        shard = loaded["table"].local_shards()[0]
        first, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        assert torch.equal(shard.tensor, whole[first : first + count])


def fsdp2_training_goes_on_after_a_load(place: Place) -> None:
    url = place.run("fsdp")
    model, optimizer = _fsdp(seed=1)
    _train(model, optimizer, 2)
    state = _state(model, optimizer)
    save(url, state, 2)
    _train(model, optimizer, 2)
    after = _full(_state(model, optimizer))

    model, optimizer = _fsdp(seed=2)
    _train(model, optimizer, 1)  # so that the optimizer has state to load into
    loaded = _state(model, optimizer)
    load(url, loaded)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    _train(model, optimizer, 2)
    assert same(after, _full(_state(model, optimizer)))


def fsdp2_state_of_other_worlds_is_resharded(place: Place) -> None:
    model, optimizer = _fsdp(seed=3)
    _train(model, optimizer, 1)
    found = []
    for url in place.written("fsdp"):
        loaded = _state(model, optimizer)
        load(url, loaded)
        found.append(_full(loaded)["model"])
    model, optimizer = _fsdp(seed=1)
    _train(model, optimizer, 2)
    whole = _full(_state(model, optimizer))["model"]
    for each in found:
        for name, value in each.items():
            torch.testing.assert_close(value, whole[name])  # sums over other numbers of ranks are rounded differently


def thread_mode_saves_what_the_state_was_then(place: Place) -> None:
    _asynchronously(place.run("thread"), AsyncCheckpointerType.THREAD)


def process_mode_saves_what_the_state_was_then(place: Place) -> None:
    _asynchronously(place.run("process"), AsyncCheckpointerType.PROCESS)


def part_of_a_checkpoint_can_be_loaded(place: Place) -> None:
    url, state = place.run("part"), plain_state()
    save(url, state, 1)
    some = {"model": {"weight": torch.zeros(40, 5)}, "epoch": 0}
    load(url, some)
    assert same(some, {"model": {"weight": state["model"]["weight"]}, "epoch": 3})
    more = {"model": {"weight": torch.zeros(40, 5), "new": torch.ones(2)}, "epoch": 0}
    load(url, more, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert same(more["model"], {"weight": state["model"]["weight"], "new": torch.ones(2)})


def missing_keys_and_wrong_shapes_are_refused(place: Place) -> None:
    url = place.run("mismatch")
    save(url, {"weight": numbers(4, 3)}, 1)
    with refused("Missing key", "bias"):
        load(url, {"weight": torch.zeros(4, 3), "bias": torch.zeros(3)})
    with refused("Size mismatch", "weight"):
        load(url, {"weight": torch.zeros(5, 3)})
    with refused("no checkpoint of step 9", "the steps 1"):
        load(url, {"weight": torch.zeros(4, 3)}, 9)
    with refused("holds no run yet"):
        load(url + "-nowhere", {"weight": torch.zeros(4, 3)})


def objects_that_need_pickle_are_refused_by_their_path(place: Place) -> None:
    url = place.run("pickle")
    save(url, {"weight": numbers(4)}, 1)
    with refused("trainer.callback", "would need pickle", "Opinion"):
        save(url, {"weight": numbers(4), "trainer": {"callback": Opinion()}}, 2)
    with refused("cache", "sparse tensor"):
        save(url, {"cache": numbers(4, 4).to_sparse()}, 3)
    assert [info.step for info in hf.open_run(url).checkpoints()] == [1]
    loaded = {"weight": torch.zeros(4)}
    load(url, loaded)
    assert torch.equal(loaded["weight"], numbers(4))


def unchanged_tensors_are_referred_to(place: Place) -> None:
    url = place.run("unchanged")
    state = {f"t{number}": spread(torch.rand(8, 20_000), Shard(0)) for number in range(10)}
    save(url, state, 1, retention=hf.KeepAll())
    state["t3"] = spread(torch.rand(8, 20_000), Shard(0))
    save(url, state, 2)  # keeps this one alone, with what it refers to
    loaded = {name: spread(torch.zeros(8, 20_000), Shard(0)) for name in state}
    load(url, loaded)
    assert same(state, loaded)
    (info,) = hf.open_run(url).checkpoints()
    assert info.size_bytes < 0.15 * info.full_bytes
    dist.barrier()


def failure_of_one_rank_commits_nothing(place: Place) -> None:
    url, rank = place.run("failure"), dist.get_world_size() - 1
    state: dict[str, Any] = {"rows": spread(numbers(12, 2), Shard(0))}
    save(url, state, 1)
    writer = hf.dcp.Writer(url, step=2)
    if dist.get_rank() == rank:
        writer = _Failing(url, step=2)
    with refused("the disk is on fire"):
        dcp.save({"rows": spread(numbers(12, 2, start=50), Shard(0))}, storage_writer=writer)
    assert [info.step for info in hf.open_run(url).checkpoints()] == [1]
    loaded = {"rows": spread(torch.zeros(12, 2), Shard(0))}
    load(url, loaded)
    assert same(state, loaded)
    dist.barrier()
    save(url, state, 3)


def damage_that_one_rank_finds_is_told_to_all(place: Place) -> None:
    url, last = place.run("damage"), dist.get_world_size() - 1
    save(url, {"rows": spread(numbers(8, 4), Shard(0))}, 1)
    if dist.get_rank() == 0:
        store = LocalStore(url)
        (name,) = [each.name for each in store.list("data/") if each.name.endswith(f"/{last:05d}-000001.safetensors")]
        data = bytearray(store.get(name))
        data[-1] ^= 1
        store.put(name, bytes(data))
    dist.barrier()
    with refused(f"{last:05d}-000001.safetensors", "does not match its checksum"):
        load(url, {"rows": spread(torch.zeros(8, 4), Shard(0))})


def rows_of_a_job_of_another_size_are_read(place: Place) -> None:
    """A Checkpointer on all ranks divides the rows of its tables among them."""
    model = nn.EmbeddingBag(97, 6, mode="sum", sparse=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for number in range(2):
        optimizer.zero_grad()
        model(torch.arange(number, 60).unsqueeze(0)).sum().backward()
        optimizer.step()
    if dist.get_world_size() < 4:  # the largest world reads what the smaller ones wrote
        with hf.Checkpointer(place.run("trainer"), model=model, optimizer=optimizer, save=hf.Never()) as guard:
            guard.resume()
            guard.save()
        dist.barrier()
    rows, sums = model.weight.detach(), optimizer.state[model.weight]["sum"]
    for world in WORLDS[: WORLDS.index(dist.get_world_size()) + 1][:2]:
        loaded: dict[str, Any] = {
            "model": {"weight": spread(torch.zeros(97, 6), Shard(0))},
            "optimizer": {"state": {"weight": {"sum": spread(torch.zeros(97, 6), Shard(1))}}},
        }
        load(place.run("trainer", world), loaded)
        assert torch.equal(loaded["model"]["weight"].full_tensor(), rows)
        assert torch.equal(loaded["optimizer"]["state"]["weight"]["sum"].full_tensor(), sums)


def ranks_that_find_different_checkpoints_are_refused(place: Place) -> None:
    url = place.run("different")
    save(url, {"weight": numbers(4)}, 1, retention=hf.KeepAll())
    save(url, {"weight": numbers(4, start=4)}, 2, retention=hf.KeepAll())
    if dist.get_world_size() > 1:
        with refused("different checkpoints"):
            load(url, {"weight": torch.zeros(4)}, 1 + min(1, dist.get_rank()))


CASES = [
    plain_state_comes_back,
    sharded_tensors_are_stored_once_by_the_ranks_that_hold_them,
    other_shardings_of_other_worlds_are_read,
    sharded_tensor_class_is_stored_and_read,
    fsdp2_training_goes_on_after_a_load,
    fsdp2_state_of_other_worlds_is_resharded,
    thread_mode_saves_what_the_state_was_then,
    part_of_a_checkpoint_can_be_loaded,
    missing_keys_and_wrong_shapes_are_refused,
    objects_that_need_pickle_are_refused_by_their_path,
    unchanged_tensors_are_referred_to,
    failure_of_one_rank_commits_nothing,
    damage_that_one_rank_finds_is_told_to_all,
    rows_of_a_job_of_another_size_are_read,
    ranks_that_find_different_checkpoints_are_refused,
]
SLOW_CASES = [process_mode_saves_what_the_state_was_then]


def rank_dies_in_its_plan(place: Place) -> None:
    _die(place, rank=1, where="prepare_local_plan")


def rank_dies_before_it_writes(place: Place) -> None:
    _die(place, rank=1, where="write_data")


def rank_dies_before_what_it_wrote_is_durable(place: Place) -> None:
    _die(place, rank=1, where="seal", of=LocalBatch)


def rank_dies_after_it_wrote(place: Place) -> None:
    _die(place, rank=1, where="write_data", done=True)


def coordinator_dies_in_its_plan(place: Place) -> None:
    _die(place, rank=0, where="prepare_global_plan")


def coordinator_dies_before_what_it_wrote_is_durable(place: Place) -> None:
    _die(place, rank=0, where="seal", of=LocalBatch)


def coordinator_dies_after_it_wrote(place: Place) -> None:
    _die(place, rank=0, where="write_data", done=True)


def coordinator_dies_before_it_commits(place: Place) -> None:
    _die(place, rank=0, where="finish")


def coordinator_dies_after_it_committed(place: Place) -> None:
    _die(place, rank=0, where="finish", done=True, left=1)


DEATHS = {
    rank_dies_in_its_plan: 1,
    rank_dies_before_it_writes: 1,
    rank_dies_before_what_it_wrote_is_durable: 1,
    rank_dies_after_it_wrote: 1,
    coordinator_dies_in_its_plan: 0,
    coordinator_dies_before_what_it_wrote_is_durable: 0,
    coordinator_dies_after_it_wrote: 0,
    coordinator_dies_before_it_commits: 0,
    coordinator_dies_after_it_committed: 0,
}


def _die(place: Place, rank: int, where: str, *, of: type | None = None, done: bool = False, left: int = 0) -> None:
    """One rank is killed in a save, in a method of its Writer or ``of`` another class: the others are left to DCP's
    collectives, and the last checkpoint is whole."""
    url, whole = place.run(where), numbers(12, 2)
    save(url, {"rows": spread(whole, Shard(0))}, 1)
    writer = hf.dcp.Writer(url, step=2)
    if dist.get_rank() == rank:
        dying = of or writer
        act = getattr(dying, where)

        def die(*given: Any, **named: Any) -> None:
            if done:
                act(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(dying, where, die)
    try:
        dcp.save({"rows": spread(whole + 1, Shard(0))}, storage_writer=writer)
    except (CheckpointException, RuntimeError):
        loaded = {"rows": torch.zeros(12, 2)}
        dcp.load(loaded, storage_reader=hf.dcp.Reader(url), no_dist=True)
        assert torch.equal(loaded["rows"], whole + left)
        assert hf.open_run(url).verify() == []
    else:
        raise AssertionError("nobody noticed")


class Opinion:
    """Something that pickle would store."""


class _Failing(hf.dcp.Writer):
    """Fails when it is to write."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        raise OSError("the disk is on fire")


def _asynchronously(url: str, mode: AsyncCheckpointerType) -> None:
    state: dict[str, Any] = {"model": {"rows": spread(numbers(12, 3), Shard(0))}, "lr": 0.5}
    for step in (1, 2):
        saving = dcp.async_save(state, storage_writer=hf.dcp.Writer(url, step=step), async_checkpointer_type=mode)
        getattr(saving, "upload_completion", saving).result()
        dist.barrier()
    state["model"]["rows"].to_local().zero_()
    loaded = {"model": {"rows": spread(torch.ones(12, 3), Shard(0))}, "lr": 0.0}
    load(url, loaded, 2)
    assert torch.equal(loaded["model"]["rows"].full_tensor(), numbers(12, 3))  # type: ignore[index]
    assert loaded["lr"] == 0.5


def _fsdp(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 6), 0.1 + number)).square().mean().backward()
        optimizer.step()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def _full(state: Any) -> Any:
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: _full(value) for key, value in state.items()}
    return [_full(each) for each in state] if isinstance(state, Sequence) and not isinstance(state, str) else state
