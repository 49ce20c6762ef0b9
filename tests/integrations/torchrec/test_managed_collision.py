"""Rows that TorchRec's managed collision gives to raw ids, in one process: all of it comes back exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHEvictionPolicy,
)

import holdfast as hf
from holdfast.integrations.torchrec.managed_collision import ManagedRows
from holdfast.storage import MemoryStore, Store
from tests.integrations.torchrec.managed import CPU, DIM, SIZES, Model, mch
from tests.jobs.job import Jobs

POLICIES = [LFU_EvictionPolicy, LRU_EvictionPolicy, DistanceLFU_EvictionPolicy]
SETTINGS = hf.Settings(buffer_bytes=2**20, frame_bytes=2**16, reserve_bytes=0, handle_sigterm=False)
NAME = "managed._embedding_module.embedding_bags.user"


class Training:
    """The model, its optimizer and a Checkpointer."""

    def __init__(self, store: Store, make: Callable[[int], nn.Module], *, pooled: bool = True, grow: int = 0) -> None:
        self.model = Model(make, pooled=pooled, grow=grow)
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.5)
        self.guard = hf.Checkpointer(
            store,
            model=self.model,
            optimizer=self.optimizer,
            save=hf.Never(),
            strategy=hf.Consecutive(),
            retention=hf.KeepAll(),
            overlap=hf.Overlap.WAIT,
            settings=SETTINGS,
        )

    def train(self, steps: int) -> dict[str, Tensor]:
        for _ in range(steps):
            draw = torch.Generator().manual_seed(self.guard.steps)
            ids = torch.randint(2**40, (40,), generator=draw) // 2**35  # 32 raw ids, more than there are rows
            lengths = torch.full((2 * 10,), 2)
            features = KeyedJaggedTensor.from_lengths_sync(keys=list(SIZES), values=ids * 2**30, lengths=lengths)
            self.optimizer.zero_grad()
            self.model(features).backward()
            self.optimizer.step()
            self.guard.step()
        return self.held()

    def held(self) -> dict[str, Tensor]:
        """Everything, from TorchRec's own books: buffers, counters and histories."""
        found = {name: value.clone() for name, value in self.model.state_dict().items()}
        for name, module in self.model.managed._managed_collision_collection._managed_collision_modules.items():
            used = module._current_history_buffer_offset
            found[f"{name}.counters"] = torch.tensor([module._current_iter, module._last_eviction_iter, used])
            found[f"{name}.history"] = module._history_accumulator[:used].clone()
            found |= {f"{name}.{key}": kept[:used].clone() for key, kept in module._history_metadata.items()}
        for number, state in enumerate(self.optimizer.state.values()):
            found |= {f"{number}.{key}": value.clone() for key, value in state.items()}
        return found

    def close(self) -> None:
        self.guard.__exit__(RuntimeError, RuntimeError("killed"), None)


def assert_same(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    assert now.keys() == before.keys()
    for name, values in before.items():
        assert torch.equal(now[name], values), f"{name} differs"


def lived(
    store: Store, policy: Callable[[], MCHEvictionPolicy], *, pooled: bool = True, grow: int = 0
) -> tuple[Any, Any]:
    """What a training held at a save, and four steps later, its history half full."""
    training = Training(store, lambda size: mch(policy, size), pooled=pooled, grow=grow)
    training.guard.resume()
    for _ in range(7):
        saved = training.train(1)
        training.guard.save(wait=True)
    later = training.train(4)
    training.close()
    return saved, later


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_training_is_the_undisturbed_one(policy: Callable[[], MCHEvictionPolicy], pooled: bool) -> None:
    store = MemoryStore()
    saved, later = lived(store, policy, pooled=pooled)
    again = Training(store, lambda size: mch(policy, size), pooled=pooled)
    assert again.guard.resume() == 7
    assert_same(again.held(), saved)
    assert_same(again.train(4), later)
    again.close()


def test_a_delta_holds_what_was_looked_up_and_evicted() -> None:
    store = MemoryStore()
    training = Training(store, lambda size: mch(LRU_EvictionPolicy, size), grow=500)
    training.guard.resume()
    training.train(2)
    training.guard.save(wait=True)
    training.train(2)
    training.guard.save(wait=True)
    training.close()
    full, delta = hf.open_run(store).checkpoints()
    assert full.rows_written == sum(SIZES.values()) + 1000 and 0 < delta.rows_written < 80
    assert not any("_mch_" in name for name in hf.open_run(store).state()["training"]["model"])


def test_ids_that_are_not_told_of_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ManagedRows.take_changed
    monkeypatch.setattr(ManagedRows, "take_changed", lambda self: whole(self)[:0])
    store = MemoryStore()
    saved, _ = lived(store, LRU_EvictionPolicy, grow=40)
    again = Training(store, lambda size: mch(LRU_EvictionPolicy, size), grow=40)
    again.guard.resume()
    with pytest.raises(AssertionError, match="differs"):
        assert_same(again.held(), saved)
    again.close()


def test_ids_move_to_a_module_of_another_size() -> None:
    store = MemoryStore()
    saved, _ = lived(store, DistanceLFU_EvictionPolicy)
    larger = Training(store, lambda size: mch(DistanceLFU_EvictionPolicy, size), grow=5)
    assert larger.guard.resume() == 7
    held, prefix = larger.held(), "managed._managed_collision_collection._managed_collision_modules.user._mch_"
    weight = f"{NAME}.weight"
    kept = ("sorted_raw_ids", "remapped_ids_mapping", "counts", "last_access_iter")
    before, after = (
        {
            int(key): (each[weight][row].tolist(), int(count), int(time))
            for key, row, count, time in zip(*(each[prefix + what] for what in kept), strict=True)
            if key != torch.iinfo(torch.int64).max
        }
        for each in (saved, held)
    )
    assert before == after and len(before) == SIZES["user"] - 1
    larger.train(3)
    larger.close()


def test_another_eviction_policy_is_refused() -> None:
    store = MemoryStore()
    lived(store, LFU_EvictionPolicy)
    other = Training(store, lambda size: mch(LRU_EvictionPolicy, size))
    with pytest.raises(hf.errors.ModelMismatch, match=r"user has other columns.* counts, last_access_iter differ"):
        other.guard.resume()
    other.close()


def test_what_hashes_zero_collision_is_refused_by_name() -> None:
    def zch(size: int) -> nn.Module:
        return HashZchManagedCollisionModule(
            zch_size=size, device=CPU, total_num_buckets=1, max_probe=4, input_hash_size=0
        )

    with pytest.raises(hf.errors.ConfigurationError, match=r"is managed by HashZch.*Use MCHManaged"):
        Training(MemoryStore(), zch)


def test_a_module_without_its_table_is_refused() -> None:
    configs = [EmbeddingBagConfig(name="t", embedding_dim=DIM, num_embeddings=8, feature_names=["t"])]
    alone = nn.ModuleDict({"map": ManagedCollisionCollection({"t": mch(LFU_EvictionPolicy, 8)}, configs)})
    with pytest.raises(hf.errors.ConfigurationError, match=r"'map._managed_collision_modules.t' .* table is not known"):
        hf.Checkpointer(MemoryStore(), model=alone)


def test_ids_that_are_spread_over_ranks_are_refused_by_name(jobs: Jobs) -> None:
    ((kind, why),) = jobs.get(1).outcomes("guard_managed")
    assert kind == "failed" and "module 'managed' is a ShardedManagedCollisionEmbeddingBagCollection" in why
    assert "Leave this module out of the sharding plan" in why
