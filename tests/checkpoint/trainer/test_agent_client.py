"""An agent goes to work when it may, and not while other ranks of its machine still copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.checkpoint.trainer.agent_client import AgentClient
from holdfast.checkpoint.trainer.launcher import AgentThread
from holdfast.checkpoint.trainer.liveness import Limits
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import Configure
from holdfast.policy import KeepAll
from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore
from tests.intents import some_intent

STAND_BACK_S = 7.0
INTENT = some_intent(1)
CONFIG = Configure(
    url="memory",
    options=None,
    rank=0,
    world=1,
    term=1,
    retention=KeepAll().to_dict(),
    grace_s=0.0,
    reserve_bytes=0,
    uploads=1,
    retry_s=1.0,
    part_timeout_s=60.0,
    lease_s=60.0,
    niceness=0,
)


class Pauses:
    """The pauses that an agent makes, and what its store holds then."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.seen: list[tuple[float, list[str]]] = []

    def sleep(self, seconds: float) -> None:
        self.seen.append((seconds, [each.name for each in self.store.list("")]))


@pytest.fixture
def buffer() -> Iterator[FrameBuffer]:
    with closing(FrameBuffer.reserve(frames=1, frame_bytes=4096)) as buffer:
        yield buffer


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def client(buffer: FrameBuffer, pauses: Pauses) -> Iterator[AgentClient]:
    agent = AgentThread(buffer, CONFIG, pauses.store, runtime=Runtime(sleep=pauses.sleep))
    client = AgentClient(buffer, agent, Limits(silent_s=60.0, store_s=60.0))
    yield client
    client.close()


def await_end(client: AgentClient) -> None:
    """Until the agent has reported the end of the save."""
    while not client.poll(1.0):
        pass


def test_an_agent_that_is_to_stand_back_does_so_before_it_writes_anything(client: AgentClient, pauses: Pauses) -> None:
    client.begin(INTENT, (), ())
    client.submit_frame(client.acquire_frame(), 0, [])
    client.seal(0, stand_back_s=STAND_BACK_S)
    await_end(client)
    assert pauses.seen[0] == (STAND_BACK_S, [])
    assert list(pauses.store.list(""))


def test_an_agent_that_is_waited_for_does_not_stand_back(client: AgentClient, pauses: Pauses) -> None:
    client.begin(INTENT, (), ())
    client.submit_frame(client.acquire_frame(), 0, [])
    client.submit_frame(client.acquire_frame(), 0, [])  # there is one frame: the agent has to give it back first
    client.seal(0, stand_back_s=STAND_BACK_S)
    await_end(client)
    assert STAND_BACK_S not in [seconds for seconds, _ in pauses.seen]
