"""Where the processes of a job spend their time while a server's rows come back: ``parity --profile FOLDER``.

Servers run a function of this module in place of their own, which samples what they do every millisecond, times
every message that they handle, and looks at what each of their threads has used. Each writes one file when it ends;
``summarize`` reads them.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.claims._other_servers import OtherServers
from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.launch.local import LocalProcesses

FOLDER = "HOLDFAST_BENCHMARK_PROFILE"  # a variable
_EVERY_S = 0.001
_DEPTH = 6  # frames of a sample
_LOOK_S = 0.01  # between two looks at the threads


def profiled(folder: Path) -> Callable[..., LocalProcesses]:
    """A launcher of servers that write into a folder what they do."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("server-*.json"):
        path.unlink()
    os.environ[FOLDER] = str(folder.absolute())
    return partial(OtherServers, target=f"{__name__}:{run.__name__}")


def run(payload: bytes, surroundings: Surroundings) -> None:
    """Be a server, and write down what it does."""
    from holdfast.cluster.server import process
    from holdfast.cluster.server.spare import Spare

    sampler, watch, handled = _Sampler(), _ThreadWatch(), []
    take, wait = process._Life._take, Spare.wait_for_place

    def waited(spare: Any) -> Any:
        """A spare does nothing, and is to be seen to do nothing."""
        sampler.stop()
        watch.is_watching.clear()
        found = wait(spare)
        watch.look()
        watch.is_watching.set()
        sampler.start()
        return found

    @functools.wraps(take)
    def timed(life: Any, sender: Any, message: Any) -> None:
        began_s = time.time()
        take(life, sender, message)
        handled.append((began_s, time.time() - began_s, type(message).__name__, str(sender)))

    def noted(name: str, make: Any) -> Any:
        """What a spare does when it takes a place, as if that were messages."""

        def making(*arguments: Any) -> Any:
            began_s = time.time()
            made = make(*arguments)
            handled.append((began_s, time.time() - began_s, name, ""))
            return made

        return making

    changed: Any = process
    waiting: Any = Spare
    changed._Life._take = timed
    waiting.wait_for_place = waited
    changed.Link.close = noted("(a link's end)", changed.Link.close)
    changed.Place, changed.Link = noted("(a place)", changed.Place), noted("(a link)", changed.Link)
    sampler.start()
    watch.start()
    try:
        process.run(payload, surroundings)
    finally:
        sampler.stop()
        found = {"samples": sampler.samples, "handled": handled, "threads": watch.looks}
        Path(os.environ[FOLDER], f"server-{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


class _Sampler:
    """Notes where the process is, with the time since the last note: signals that come together count as one."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, str]] = []
        self._last_s = 0.0

    def start(self) -> None:
        """From now on."""
        self._last_s = time.time()
        signal.signal(signal.SIGALRM, self._note)
        signal.setitimer(signal.ITIMER_REAL, _EVERY_S, _EVERY_S)

    def stop(self) -> None:
        """No more."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _note(self, _: int, frame: FrameType | None) -> None:
        now_s = time.time()
        self.samples.append((now_s, now_s - self._last_s, " < ".join(_places(frame))))
        self._last_s = now_s


class _ThreadWatch(threading.Thread):
    """Looks now and then at what each thread of the process has used, those of sockets among them."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self.looks: list[tuple[float, dict[str, tuple[str, float, float, int]]]] = []
        self.is_watching = threading.Event()
        self.is_watching.set()

    def run(self) -> None:
        while self.is_watching.wait():
            self.look()
            time.sleep(_LOOK_S)

    def look(self) -> None:
        """Of each thread: its name, seconds on a core, seconds that it waited for one, and pages that it took."""
        found = {}
        for path in Path("/proc/self/task").iterdir():
            try:
                name = (path / "comm").read_text().strip()
                ran, waited, _ = (path / "schedstat").read_text().split()
                faults = (path / "stat").read_text().rpartition(") ")[2].split()[7]
            except (OSError, ValueError):  # it has ended, or the system does not count
                continue
            found[path.name] = name, int(ran) / 1e9, int(waited) / 1e9, int(faults)
        self.looks.append((time.time(), found))


def _places(frame: FrameType | None) -> Iterator[str]:
    for _ in range(_DEPTH):
        if frame is None:
            return
        code = frame.f_code
        yield f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back


def summarize(folder: Path, began_s: float, ended_s: float) -> str:
    """What every server did between two times."""
    lines = []
    for path in sorted(folder.glob("server-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        parts = _threads(found, began_s, ended_s), _messages(found, began_s, ended_s), _hot(found, began_s, ended_s)
        lines += [f"== {path.stem}", *(line for part in parts for line in part)]
    return "\n".join(lines)


def _threads(found: Mapping[str, Any], began_s: float, ended_s: float) -> Iterator[str]:
    looks: list[tuple[float, dict[str, list[Any]]]] = found["threads"]
    nothing: dict[str, list[Any]] = {}
    before = next((used for at_s, used in reversed(looks) if at_s <= began_s), nothing)
    after = next((used for at_s, used in looks if at_s >= ended_s), nothing)
    for thread, (name, *used) in after.items():
        _, *earlier = before.get(thread, ("", 0, 0, 0))
        ran_s, waited_s, faults = (now - then for now, then in zip(used, earlier, strict=True))
        if ran_s > 0.001:
            yield f"{name:16} ran {ran_s:6.3f} s, waited for a core {waited_s:6.3f} s, {faults:7} pages"


def _messages(found: Mapping[str, Any], began_s: float, ended_s: float) -> Iterator[str]:
    kinds: dict[str, list[tuple[float, float]]] = {}
    for at_s, took_s, kind, _ in found["handled"]:
        if began_s <= at_s <= ended_s:
            kinds.setdefault(kind, []).append((at_s - began_s, took_s))
    for kind, each in sorted(kinds.items(), key=lambda item: -sum(took for _, took in item[1])):
        total_s, when = sum(took for _, took in each), f"{each[0][0]:.3f}-{each[-1][0]:.3f}"
        yield f"{kind:12} {len(each):6} x {1e6 * total_s / len(each):9.0f} us = {total_s:7.3f} s, {when}"


def _hot(found: Mapping[str, Any], began_s: float, ended_s: float) -> Iterator[str]:
    places: Counter[str] = Counter()
    for at_s, weight_s, place in found["samples"]:
        if began_s <= at_s <= ended_s:
            places[place] += weight_s
    for place, seconds in places.most_common(25):
        yield f"   {seconds:7.3f} s  {place}"
