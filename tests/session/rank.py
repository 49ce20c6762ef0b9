"""One rank of a job in a process of its own: does what it is told, line by line, and answers in JSON."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adagrad, Adam, Optimizer, SparseAdam

import holdfast as hf
import holdfast.session
from holdfast.checkpoint.ranks.lines import machine_of_this_rank
from holdfast.checkpoint.ranks.process_group import find_agreement
from holdfast.checkpoint.snapshot import side_streams
from holdfast.policy import Precision, SavePolicy, Strategy
from holdfast.runtime import Runtime
from holdfast.storage import open_store
from holdfast.testing.runtime import with_runtime
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams
from tests.checkpoint.track.ddp_tracker_worker import distributed
from tests.checkpoint.track.tracker_cases import CASES, Case
from tests.checkpoint.track.tracker_values import digests_of
from tests.exchange import exchange_gradients
from tests.tiny import ROWS, Tiny, ids_of, snapshot, train_step

WORLD = 2
PATIENCE_S = 150.0  # how long a call may take: agents on a busy machine may have kernels to compile first
SETTINGS = {"buffer_bytes": 2**20, "frame_bytes": 2**16, "agent_timeout_s": 1e18}  # agents know nothing of fast clocks


class Numbers:
    """The batches of one rank, by number; refuses the place of another rank's reader."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._position = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self._position += 1
            yield WORLD * (self._position - 1) + self._rank

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self._rank, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert state["rank"] == self._rank
        self._position = state["position"]


class NumbersReadAhead(Numbers):
    """Reads what it is granted at once, and counts what it read."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._granted = 0

    def grant(self, batches: int) -> None:
        self._granted += batches

    def __iter__(self) -> Iterator[int]:
        numbers = super().__iter__()
        while True:
            ahead = [next(numbers) for _ in range(self._granted)]
            self._granted = 0
            yield from ahead


class Moody:
    """An extra that refuses to be saved when told to."""

    refuses = False

    def state_dict(self) -> dict[str, Any]:
        if self.refuses:
            raise ArithmeticError("not now")
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def build(*, sparse: bool = True, rows: Sequence[int] = ROWS, seed: int = 0) -> tuple[Tiny, list[Optimizer]]:
    """The model before it is wrapped; dense gradients with an optimizer that takes them."""
    torch.manual_seed(seed)
    model = Tiny(rows, sparse=sparse)
    embeddings = list(model.emb.parameters())
    tables: Optimizer = SparseAdam(embeddings) if sparse else Adagrad(embeddings, lr=0.1)
    return model, [tables, Adam(model.top.parameters())]


def digests(model: nn.Module, optimizers: list[Optimizer]) -> dict[str, str]:
    """Every bit of the training state, in few."""
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: _digest(tensor) for name, tensor in snapshot(bare, optimizers).items()}


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@dataclass
class Training:
    """A model in training, under DDP unless its gradients are sparse; each batch draws from this rank's generator."""

    model: nn.Module
    optimizers: list[Optimizer]
    loader: Numbers
    moody: Moody = field(default_factory=Moody)

    @classmethod
    def start(cls, rank: int, *, sparse: bool, read_ahead: bool = False, rows: Sequence[int] = ROWS) -> Training:
        model, optimizers = build(sparse=sparse, rows=rows)
        torch.manual_seed(100 + rank)
        kind = NumbersReadAhead if read_ahead else Numbers
        whole: nn.Module = model if sparse else DistributedDataParallel(model)
        return cls(model=whole, optimizers=optimizers, loader=kind(rank))

    def step(self, number: int) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        ids = ids_of(number) + torch.randint(0, 1000, (1,))
        (self.model(ids) - 1.0).square().mean().backward()
        if not isinstance(self.model, DistributedDataParallel):
            exchange_gradients(self.model)
        for optimizer in self.optimizers:
            optimizer.step()

    def digests(self) -> dict[str, str]:
        return digests(self.model, self.optimizers)


class Rank:
    """The calls that a test can make."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def open(
        self,
        url: str,
        *,
        resume: bool = True,
        step: int | None = None,
        save: dict[str, Any] | None = None,
        strategy: dict[str, Any] | None = None,
        precision: dict[str, Any] | None = None,
        overlap: str = "wait",
        sparse: bool = True,
        read_ahead: bool = False,
        clock_rates: tuple[float, float] = (1.0, 1.0),
        settings: dict[str, Any] | None = None,
        rows: Sequence[int] = ROWS,
    ) -> int:
        """Start training under a Checkpointer; the step it stands at."""
        rate = clock_rates[self._rank]
        self._training = Training.start(self._rank, sparse=sparse, read_ahead=read_ahead, rows=rows)
        clock = Runtime(monotonic_s=lambda: rate * time.monotonic())
        self._guard = with_runtime(hf.Checkpointer, clock)(
            url,
            model=self._training.model,
            optimizer=self._training.optimizers,
            loader=self._training.loader,
            extra={"moody": self._training.moody},
            save=SavePolicy.from_dict(save) if save else hf.Never(),
            strategy=Strategy.from_dict(strategy) if strategy else hf.Consecutive(),
            precision=Precision.from_dict(precision) if precision else hf.Exact(),
            retention=hf.KeepAll(),
            overlap=hf.Overlap(overlap),
            settings=hf.Settings(**{**SETTINGS, **(settings or {})}),
        )
        if resume:
            self._guard.resume(step)
        self._batches = self._guard.batches(epochs=None)
        return self._guard.steps

    def pretend_device(self) -> None:
        """From now on all tensors are as if on a device."""
        streams = DelayedStreams()
        side_streams.streams_for = lambda tensors: streams

    def guard_alone(self, url: str, *, ranks_s: float) -> None:
        """Create a Checkpointer, whatever the other ranks do."""
        model, optimizers = build()
        hf.Checkpointer(url, model=model, optimizer=optimizers, settings=hf.Settings(ranks_s=ranks_s))

    def train_apart(self, url: str, *, seeds: tuple[int, int], steps: int) -> None:
        """Train without exchanging anything, from these seeds, and save."""
        model, optimizers = build(seed=seeds[self._rank])
        with hf.Checkpointer(url, model=model, optimizer=optimizers, save=hf.Never()) as guard:
            guard.resume()
            for number in range(steps):
                train_step(model, optimizers, WORLD * number + self._rank)
                guard.step()
            guard.save(wait=True)

    def guard_sharded(self, url: str) -> None:
        """Give a Checkpointer a model that is spread over the ranks."""
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4))
        hf.Checkpointer(url, model=FullyShardedDataParallel(model, device_id=torch.device("cpu")))

    def train(self, steps: int) -> dict[str, dict[str, str]]:
        """Go on; the state after each step. Leaves the block if something is raised, as the loop would."""
        states = {}
        try:
            for number in (next(self._batches) for _ in range(steps)):
                self._training.step(number)
                self._guard.step()
                states[str(self._guard.steps)] = self._training.digests()
        except BaseException as error:
            self._guard.__exit__(type(error), error, error.__traceback__)
            raise
        return states

    def save(self, *, wait: bool) -> bool:
        return self._guard.save(wait=wait)

    def drain(self) -> None:
        self._guard.drain()

    def recover(self, servers: list[int], of: int) -> dict[str, str]:
        """Lose a part of the tables and bring it back; the state after it."""
        self._guard.emulate_failure(servers, of=of)
        self._guard.recover(servers, of=of)
        return self._training.digests()

    def refuse(self, flag: bool) -> None:
        """Whether the extra state refuses to be saved from now on."""
        self._training.moody.refuses = flag

    def halve(self, ranks: list[int]) -> None:
        """Change a table after the last step, on some ranks."""
        if self._rank in ranks:
            with torch.no_grad():
                next(self._training.model.parameters()).div_(2)

    def state(self) -> dict[str, str]:
        return self._training.digests()

    def move(self, *, apart: bool) -> None:
        """To a machine of its own, as far as agreements can see, or back."""
        machine = partial(str, self._rank) if apart else machine_of_this_rank
        holdfast.session.find_agreement = partial(find_agreement, machine=machine)

    def agree(self, lengths: list[int]) -> list[list[int]]:
        """How many letters come from each rank, and from rank 0, where the ranks say so many."""
        agreement = holdfast.session.find_agreement(PATIENCE_S)
        said = "é" * lengths[agreement.rank]
        return [[len(each) for each in agreement.gather(said)], [len(agreement.broadcast(said))]]

    def agent(self) -> int | None:
        return self._guard.agent_pid

    def stats(self) -> dict[str, int]:
        stats = self._guard.stats
        return {name: getattr(stats, name) for name in ("agent_deaths", "failed", "committed", "sliced", "thrown_away")}

    def close(self) -> None:
        self._guard.close()

    def leave(self) -> None:
        """Leave the block as on an error: nothing more is saved."""
        self._guard.__exit__(RuntimeError, RuntimeError(), None)

    def cases(self, folder: str, names: list[str]) -> dict[str, dict[str, dict[str, str]]]:
        """Train tracker cases, with a baseline and two deltas of each; the states that were saved, by step."""
        chosen = [case for case in CASES if case.name in names]
        return {case.name: self._save_case(f"{folder}/{case.name}", case) for case in chosen}

    def _save_case(self, url: str, case: Case) -> dict[str, dict[str, str]]:
        training = distributed(case, self._rank)
        states = {}
        with hf.Checkpointer(
            open_store(url),  # not its URL: an agent on a thread is there at once
            model=training.model,
            optimizer=training.optimizers,
            save=hf.Never(),
            strategy=hf.Consecutive(),
            retention=hf.KeepAll(),
            settings=hf.Settings(buffer_bytes=2**18, frame_bytes=2**16),
        ) as guard:
            for number in range(6):
                training.train(number, guard.mark)
                guard.step()
                if number % 2:
                    guard.save(wait=True)
                    states[str(guard.steps)] = digests_of(training)
        return states

    def reference(self, steps: int, *, sparse: bool = True) -> dict[str, str]:
        """Where a run ends that nothing happens to."""
        training = Training.start(self._rank, sparse=sparse)
        for _, number in zip(range(steps), training.loader, strict=False):
            training.step(number)
        return training.digests()


def main(rank: int, meeting_file: str) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=PATIENCE_S)
    )
    calls = Rank(rank)
    say({"value": "ready"})
    for line in sys.stdin:
        name, arguments = json.loads(line)
        faulthandler.dump_traceback_later(PATIENCE_S)
        try:
            answer = {"value": getattr(calls, name)(**arguments)}
        except BaseException as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        faulthandler.cancel_dump_traceback_later()
        say(answer)


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
