"""A small run with every kind of object in it, and everything that can happen to each of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import holdfast as hf
from holdfast.format.bundle import BLOCK_BYTES, DIRECTORY
from holdfast.policy import Strategy
from holdfast.run import Run
from holdfast.storage import LocalStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.runtime import with_runtime
from tests.crash.scripted import State, Training, runtime

ROOT = "/run"
STEPS = (2, 3, 5)
ROWS = (3000, 24)  # the baseline's first table takes more than one block
_SETTINGS = hf.Settings(
    buffer_bytes=2 * 2**19, frame_bytes=2**19, uploads=1, retry_s=0.0, reserve_bytes=0, handle_sigterm=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A run on a disk and what each of its checkpoints holds."""

    disk: SimulatedDisk
    states: dict[int, State]  # by step
    stands_on: dict[int, set[int]]  # by step: itself and the steps its rows stand on
    step_of: dict[str, int]  # by checkpoint id

    def owner(self, name: str) -> int | None:
        """The step of the checkpoint that an object belongs to."""
        return self.step_of[name.split("/")[1]] if name.startswith("data/") else None

    def objects(self) -> dict[str, bytes]:
        """Every object's bytes, by name."""
        files = self.disk.contents().items()
        return {path.removeprefix(f"{ROOT}/"): data for path, data in files if data is not None}

    @property
    def newest_catalog(self) -> str:
        return max(name for name in self.objects() if name.startswith("catalog/"))


def make_sample(strategy: Strategy) -> Sample:
    """Train and save a few times."""
    disk = SimulatedDisk()
    states: dict[int, State] = {}
    training = Training(ROWS)
    with guarded(disk, training, strategy) as guard:
        for step in range(1, STEPS[-1] + 1):
            guard.step(loss=training.step(step))
            if step in STEPS:
                guard.save(wait=True)
                states[step] = training.state()
    infos = Run(LocalStore(ROOT, disk)).checkpoints()
    return Sample(
        disk=disk,
        states=states,
        stands_on={info.step: {i.step for i in infos if i.id in _lineage(infos, info.id)} for info in infos},
        step_of={info.id: info.step for info in infos},
    )


def guarded(disk: SimulatedDisk, training: Training, strategy: Strategy) -> hf.Checkpointer:
    """The guard of a training whose run is on that disk."""
    return with_runtime(hf.Checkpointer, runtime(1))(
        LocalStore(ROOT, disk),
        model=training.model,
        optimizer=training.optimizers,
        extra=training.extra,
        save=hf.Never(),
        strategy=strategy,
        retention=hf.KeepAll(),
        settings=_SETTINGS,
    )


def _lineage(infos: list[hf.CheckpointInfo], wanted: str | None) -> list[str]:
    by_id = {info.id: info for info in infos}
    found = []
    while wanted is not None:
        found.append(wanted)
        wanted = by_id[wanted].base
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What happens to an object, and what it is then (None: gone)."""

    name: str
    what: str
    data: bytes | None
    rows: bool | None = True  # False: only state, which no checkpoint reads that stands on this one; None: not known

    @property
    def gone(self) -> bool:
        return self.data is None


def damages(sample: Sample) -> Iterator[Damage]:
    """Every kind of damage to every object."""
    for name, data in sample.objects().items():
        size = len(data)
        for at, rows in places(name, data):
            yield Damage(name=name, what=f"byte {at} of {size} flipped", data=flipped(data, at), rows=rows)
        for length in (size // 2, size - 1):
            yield Damage(name=name, what=f"cut to {length} of {size} bytes", data=data[:length])
        yield Damage(name=name, what="deleted", data=None)


def places(name: str, data: bytes) -> Iterator[tuple[int, bool]]:
    """Bytes to flip in each region of an object; False for one in the state."""
    if not name.endswith(".safetensors"):
        line = data.index(b"\n")
        yield from ((at, True) for at in (0, line - 66, line - 30, line, (line + len(data)) // 2, len(data) - 1))
        return
    (header,) = struct.unpack_from("<Q", data)
    body = 8 + header
    yield from ((at, True) for at in (0, 7, 8 + header // 2, body - 1))
    state = []
    for key, tensor in json.loads(data[8:body]).items():
        start, stop = (body + offset for offset in tensor.get("data_offsets", (0, 0)))
        if key.startswith("state/"):
            state += [start, stop - 1]
        elif "/" in key or key == DIRECTORY:  # the checksums, a column of a table
            yield (start + stop) // 2, True
            yield from ((at, True) for at in range(start, stop, BLOCK_BYTES))
    yield from ((at, False) for at in (state[0], state[len(state) // 2], state[-1]))
    yield len(data) - 1, True


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << position % 8
    return bytes(changed)


def replace_object(disk: SimulatedDisk, name: str, data: bytes | None) -> None:
    """Behind the back of every checksum."""
    disk.unlink(f"{ROOT}/{name}")
    if data is not None:
        handle = disk.create(f"{ROOT}/{name}")
        disk.write(handle, [memoryview(data)])
        disk.close(handle)
