"""Starts agents: as a separate process or, for a store object that lives in this process, as a thread."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from holdfast.checkpoint.agent import start as agent_start
from holdfast.checkpoint.agent.service import Agent
from holdfast.checkpoint.commit.space import patient_store
from holdfast.checkpoint.trainer.policies import Policies
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import Channel, ChannelClosed, Configure
from holdfast.policy import Exact, Grid
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

_LOG_TAIL = 2000
_THREAD_END_S = 1.0


class Handle(Protocol):
    """A running agent."""

    channel: Channel

    @property
    def pid(self) -> int | None:
        """Its process id; None if it is a thread."""
        ...

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time."""
        ...

    def kill(self, timeout_s: float) -> bool:
        """Kill it now; whether it ended in time. If it did, nothing it had started can take effect later."""
        ...

    def last_words(self) -> str:
        """What it wrote before it ended, for the user."""
        ...


def configuration(
    url: str,
    options: Mapping[str, str] | None,
    policies: Policies,
    settings: Settings,
    *,
    rank: int,
    world: int,
    peers: Mapping[int, int] = MappingProxyType({}),
) -> Configure:
    """The first message to an agent of this rank; the term is filled in when it starts.

    ``peers`` are pidfds of the other ranks, as far as they are on this machine.
    """
    return Configure(
        url=url,
        options=dict(options) if options else None,
        rank=rank,
        world=world,
        term=0,
        retention=policies.retention.to_dict(),
        grace_s=settings.grace_s,
        reserve_bytes=settings.reserve_bytes,
        uploads=settings.uploads,
        retry_s=settings.retry_s,
        part_timeout_s=settings.part_timeout_s,
        lease_s=settings.lease_s,
        niceness=settings.niceness,
        grid=policies.strategy.to_dict() if isinstance(policies.strategy, Grid) else None,
        baseline_in_memory=settings.baseline_in_memory,
        encodes=policies.precision != Exact(),
        peers=list(peers.items()),
    )


class Launcher:
    """Starts the agents of one trainer, each with the same configuration but for the term."""

    def __init__(self, buffer: FrameBuffer, config: Configure, store: Store | None, *, runtime: Runtime) -> None:
        self._buffer = buffer
        self._config = config
        self._store = store  # an object of this process; None: the configuration's URL
        self._runtime = runtime

    def __call__(self, term: int, *, alone: bool, announce: Callable[[], str | None] | None = None) -> Handle:
        """Another agent; ``alone``: all before it are dead; ``announce`` writes a lease for one that starts slowly.

        A thread is up at once, and dies with its trainer: nobody has to wait for it.
        """
        config = replace(self._config, term=term, alone=alone)
        if self._store is not None:
            return AgentThread(self._buffer, config, self._store, runtime=self._runtime)
        return AgentProcess(self._buffer, replace(config, starting=announce() if announce else None))


class AgentProcess:
    """An agent in a process and session of its own.

    ``subprocess`` and not ``multiprocessing``: spawn would run the user's script again. A new session, because
    launchers and Ctrl-C kill the whole group. Its own stdio, because a trainer's pipe must end with the trainer.
    """

    def __init__(self, buffer: FrameBuffer, config: Configure) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the agent
        numbers = [theirs.fileno(), buffer.fd, buffer.frames, buffer.frame_bytes, os.getpid()]
        with theirs:
            self._process = subprocess.Popen(
                agent_start.command([*map(str, numbers)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno(), buffer.fd, *[pidfd for _, pidfd in config.peers]],
                start_new_session=True,
                env=agent_start.environment(),
            )
        self.channel = Channel(ours)
        with suppress(ChannelClosed):  # it died at once: whoever receives from it learns that
            self.channel.send(config)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def wait(self, timeout_s: float | None) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._log.flush()
        return True

    def kill(self, timeout_s: float) -> bool:
        self._process.kill()
        return self.wait(timeout_s)

    def last_words(self) -> str:
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").strip()
        code = self._process.poll()
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{how}{': ' + text[-_LOG_TAIL:] if text else ''}"


class AgentThread:
    """An agent on a thread of this process: for a store object that cannot be sent elsewhere.

    It dies with us, and we with it: what would have ended a process (anything but an Exception) is raised by ``wait``.
    Dropped without a word, it ends like a process whose trainer is gone: its thread holds only its own end of the
    conversation.
    """

    def __init__(self, buffer: FrameBuffer, config: Configure, store: Store, *, runtime: Runtime = SYSTEM) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self._service = _Service(Channel(theirs), buffer.shared())
        retrying = patient_store(store, retry_s=config.retry_s, grace_s=config.grace_s, runtime=runtime)
        agent = Agent(self._service.channel, retrying, self._service.buffer, config, runtime=runtime)
        self._thread = threading.Thread(target=self._service.run, args=(agent,), name="holdfast-agent", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None

    def wait(self, timeout_s: float | None) -> bool:
        self._thread.join(timeout_s)
        error = self._service.error
        if error is not None and not isinstance(error, Exception):
            raise error
        return not self._thread.is_alive()

    def kill(self, timeout_s: float) -> bool:
        self._service.channel.hang_up()  # no more can be done to a thread
        return self.wait(min(timeout_s, _THREAD_END_S))

    def last_words(self) -> str:
        return repr(self._service.error) if self._service.error else "ended"


class _Service:
    """What an agent's thread has."""

    def __init__(self, channel: Channel, buffer: FrameBuffer) -> None:
        self.channel = channel
        self.buffer = buffer
        self.error: BaseException | None = None

    def run(self, agent: Agent) -> None:
        """Serve, and keep what ends it."""
        try:
            agent.run()
        except BaseException as error:
            self.error = error
        finally:
            self.channel.close()
            self.buffer.close()
