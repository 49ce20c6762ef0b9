"""One local process: started in a session of its own, watched by a pidfd, with a place for its last words."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.cluster.launch import child
from holdfast.cluster.launch.base import Death, Tenant, label
from holdfast.printable import printable_lines

_TAIL_BYTES = 4000
_EXIT_CODE, _SIGNAL = 49, 0x7F  # of a process's status: where the code stands behind its name, and the signal in it


class LocalProcess:
    """A process, and what it leaves behind.

    It has a session of its own: Ctrl-C in a terminal reaches a whole process group, and what to do about it is the
    controller's decision. Its payload is in memory that only it and we can see: a pipe would make us wait until it
    reads.

    Attributes:
        tenant: Who it is.
        ending_fd: Hung up as soon as the process begins to end, where it may have a thread that sees to that.
        pidfd: Readable when it has ended: its memory is free, and its number not yet another's.
        is_mourned: Whether its death was told.
    """

    def __init__(
        self,
        tenant: Tenant,
        job: Iterable[bytes],
        environment: Mapping[str, str],
        log: Path | None,
        cores: frozenset[int] | None = None,
    ) -> None:
        self.tenant = tenant
        self.is_mourned = False
        self._log = log
        with ExitStack() as cleanup:
            job_fd = _memory("job", job)
            cleanup.callback(os.close, job_fd)
            self._words_fd = _memory("last words", ())
            undo = cleanup.enter_context(ExitStack())
            undo.callback(os.close, self._words_fd)
            self.ending_fd, held_fd = os.pipe()
            cleanup.callback(os.close, held_fd)
            undo.callback(os.close, self.ending_fd)
            output = None if log is None else cleanup.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                child.command(job_fd, self._words_fd, held_fd, label(tenant)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[job_fd, self._words_fd, held_fd],
                start_new_session=True,
                env=environment,
            )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            if cores is not None:  # its threads inherit them; it has none yet
                os.sched_setaffinity(self._process.pid, cores)
            self.pidfd = os.pidfd_open(self._process.pid)  # ours until it is reaped, dead or alive
            undo.pop_all()

    def kill(self) -> None:
        """End it and its process group: a stopped process, or helpers that it started, too.

        The group is there until ``bury``: nobody else can have its number.
        """
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def mourn(self) -> Death | None:
        """How it ends, where a signal ends it. None: it ends by itself, or nobody can tell before it has ended."""
        if not (number := _fatal_signal(self._process.pid)):
            return None
        self.is_mourned = True
        self.kill()  # helpers that it leaves behind
        return self._death(-number)

    def bury(self) -> Death:
        """Say how it ended, and let go of it. Waits until it has ended."""
        with suppress(ChildProcessError):  # a program that ignores SIGCHLD leaves no dead ones
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        self.kill()  # helpers that it left behind
        death = self._death(self._process.wait())
        os.close(self.pidfd)
        os.close(self.ending_fd)
        os.close(self._words_fd)
        return death

    def _death(self, code: int) -> Death:
        exit_code = code if code >= 0 else None
        return Death(tenant=self.tenant, how=_how(code), exit_code=exit_code, last_words=self._last_words())

    def _last_words(self) -> str:
        size_bytes = os.fstat(self._words_fd).st_size
        words = os.pread(self._words_fd, _TAIL_BYTES, max(0, size_bytes - _TAIL_BYTES))
        if not words and self._log is not None:
            with suppress(OSError), self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                words = file.read(_TAIL_BYTES)
        return printable_lines(words.decode(errors="replace").strip())


def _memory(name: str, pieces: Iterable[bytes]) -> int:
    """A file without a place in any directory, read from its start."""
    fd = os.memfd_create(f"holdfast {name}")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.writelines(pieces)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _fatal_signal(pid: int) -> int:
    """Which signal ends a process of ours that was not waited for; 0 if none does, or if the system does not say."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        return int(status.rpartition(")")[2].split()[_EXIT_CODE]) & _SIGNAL
    except (OSError, ValueError, IndexError):  # no such file, or an older format
        return 0


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"
