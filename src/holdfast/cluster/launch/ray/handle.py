"""One actor as seen by whoever started it: where it runs, how it ended, and a way to kill it."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.cluster.launch.base import Death, Tenant
from holdfast.cluster.launch.ray.actor import Ending, Home, Job, machine
from holdfast.cluster.launch.ray.mailbox import Mailbox
from holdfast.cluster.launch.ray.places import Place
from holdfast.printable import printable_lines

_TAIL = 4000
_ADVICE = " Some common causes include"  # what follows is the same for every death


class Handle:
    """An actor that was asked to run a target; its end is posted."""

    def __init__(
        self, tenant: Tenant, actor: Any, place: Place | None, *, ray: ModuleType, job: Job, mailbox: Mailbox[Handle]
    ) -> None:
        self.tenant = tenant
        self.place = place
        self._actor, self._ray = actor, ray
        self._lock = threading.Lock()  # Ray calls back on a thread of its own
        self._is_buried = False
        self._pidfd: int | None = None
        self.home: Future[Home] = actor.home.remote().future()
        self.home.add_done_callback(self._watch)
        self._ending: Future[Ending] = actor.run.remote(job).future()
        self._ending.add_done_callback(lambda _: mailbox.post(self))

    def kill(self) -> None:
        """End its process. Ray takes seconds to end a stopped one: on this machine, that is done here.

        Not to one that runs: Ray would report that somebody killed its process.
        """
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor, no_restart=True)
        if self._pidfd is not None and _is_stopped(self.home.result().pid):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def bury(self) -> Death:
        """Say how it ended, and let go of it."""
        self.kill()  # its target has ended; its process may not have
        with self._lock:
            self._is_buried = True
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        error = self._ending.exception()
        if error is not None:
            how, last_words = _told(str(error))
            return Death(tenant=self.tenant, how=how, exit_code=None, last_words=last_words)
        ending = self._ending.result()
        how = f"exit code {ending.exit_code}"
        return Death(tenant=self.tenant, how=how, exit_code=ending.exit_code, last_words=_words(ending.last_words))

    def _watch(self, home: Future[Home]) -> None:
        with self._lock, suppress(OSError):
            if home.exception() is None and home.result().machine == machine() and not self._is_buried:
                self._pidfd = os.pidfd_open(home.result().pid)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def _told(error: str) -> tuple[str, str]:
    """Why an actor is dead, in Ray's words: the sentence that says so, and the rest of it."""
    _, found, why = error.partition("The actor is dead because ")
    if not found:
        return "Ray could not run it", _words(error)
    sentence, _, rest = why.partition(_ADVICE)[0].partition(". ")
    return sentence.strip().rstrip("."), _words(rest)


def _words(text: str) -> str:
    return printable_lines(text[-_TAIL:].strip().expandtabs(2))
