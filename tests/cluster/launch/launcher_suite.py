"""The tests every launcher must pass. Inherit, and provide the value that opens one."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.base import Death, Launcher, Launching, Spare
from holdfast.cluster.launch.functions import import_name
from holdfast.errors import RunError
from tests.cluster.launch import targets

PATIENCE_S = 60.0  # of a test that fails; none of them waits that long
SERVER = Member(Role.SERVER, 0, 1)
WORKER = Member(Role.WORKER, 0, 1)
SCRIPT = """
import sys
from pathlib import Path
{imports}

def tell(payload, surroundings):
    from tests.cluster.launch import targets
    targets.put(Path(payload.decode()), module=__name__)

def serve(payload, surroundings):
    from tests.cluster.launch import targets
    targets.serve(payload, surroundings)

if __name__ == "__main__":
    from holdfast.cluster.core.members import Member, Role
    from holdfast.cluster.launch.functions import import_name
    launcher = {launching}.open(servers=1, workers=0)
    target = {{"tell": tell, "serve": serve}}[sys.argv[1]]
    launcher.start(Member(Role.SERVER, 0, 1), import_name(target), sys.argv[2].encode())
    launcher.close(grace_s=60.0)
"""


def wait_for(found: Callable[[], Any]) -> Any:
    """What a function finds, as soon as it finds something."""
    end_s = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < end_s, "nothing came"
        time.sleep(0.01)
    return result


def read(path: Path) -> Any:
    """What a process put into this file."""
    wait_for(path.exists)
    return json.loads(path.read_text(encoding="utf-8"))


def next_deaths(launcher: Launcher, count: int = 1) -> list[Death]:
    """So many deaths, waited for at the launcher's descriptor."""
    told: list[Death] = []
    while len(told) < count:
        assert select.select([launcher], [], [], PATIENCE_S)[0], "no death was told of"
        told.extend(launcher.deaths())
    return told


def is_gone(pid: int) -> bool:
    """Whether a process is dead, buried or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def refuses(host: str, port: int) -> bool:
    """Whether nobody listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


class LauncherSuite:
    """What the Launcher protocol promises."""

    LAUNCHING = ""  # how a script opens one like it: an expression
    IMPORTS = ""
    MANY = 20
    LARGE_BYTES = 64 << 20

    @pytest.fixture
    def launching(self) -> Launching:
        """The value under test."""
        raise NotImplementedError

    @pytest.fixture
    def launcher(self, launching: Launching) -> Iterator[Launcher]:
        launcher = launching.open(servers=2, workers=1, spares=1)
        yield launcher
        launcher.close(grace_s=0.0)

    def serving(self, launcher: Launcher, tenant: Member | Spare, folder: Path) -> dict[str, Any]:
        """Start a process that waits, and say its pid and port once it is up."""
        folder.mkdir()
        launcher.start(tenant, import_name(targets.serve), str(folder).encode())
        found: dict[str, Any] = read(folder / "up")
        return found

    def script(self, folder: Path, name: str = "train.py") -> Path:
        """A user's script that starts a process with a function of its own."""
        path = folder / name
        path.write_text(SCRIPT.format(imports=self.IMPORTS, launching=self.LAUNCHING), encoding="utf-8")
        return path

    def run(self, *arguments: str, directory: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        return subprocess.Popen([sys.executable, *arguments], cwd=directory, env=environment)

    def test_a_process_gets_a_large_and_secret_payload_and_its_surroundings(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        payload = str(tmp_path / "told").encode() + b"\n" + os.urandom(self.LARGE_BYTES)
        launcher.start(SERVER, import_name(targets.describe), payload)
        told = read(tmp_path / "told")
        assert told["digest"] == hashlib.sha256(payload).hexdigest()
        assert told["is_secret"]
        assert told["host"] == launcher.host == "127.0.0.1"
        assert told["threads"] == "1"
        assert not told["has_torch"]
        assert [each.is_return for each in next_deaths(launcher)] == [True]

    def test_a_kill_from_outside_is_told_of_once(self, launcher: Launcher, tmp_path: Path) -> None:
        found = self.serving(launcher, SERVER, tmp_path / "server")
        assert launcher.deaths() == []
        assert not select.select([launcher], [], [], 0)[0]
        os.kill(found["pid"], signal.SIGKILL)
        (death,) = next_deaths(launcher)
        assert (death.tenant, death.exit_code) == (SERVER, None)
        assert launcher.deaths() == []
        assert not select.select([launcher], [], [], 0)[0]

    def test_an_exit_code_is_told(self, launcher: Launcher) -> None:
        launcher.start(SERVER, import_name(targets.leave), b"3")
        launcher.start(WORKER, import_name(targets.leave), b"0")
        told = {each.tenant: each.exit_code for each in next_deaths(launcher, 2)}
        assert told == {SERVER: 3, WORKER: 0}

    def test_an_exception_is_told_in_its_own_words(self, launcher: Launcher) -> None:
        launcher.start(SERVER, import_name(targets.fail), b"users")
        (death,) = next_deaths(launcher)
        assert death.exit_code == 1
        assert "ValueError: there is no table users" in death.last_words
        assert str(death).startswith("server 0 (1): exit code 1\n")

    def test_a_target_that_cannot_be_imported_is_named(self, launcher: Launcher) -> None:
        launcher.start(SERVER, "tests.cluster.launch.nowhere:serve", b"")
        (death,) = next_deaths(launcher)
        assert death.exit_code == 1
        assert "tests.cluster.launch.nowhere" in death.last_words

    def test_a_stopped_process_can_be_killed(self, launcher: Launcher, tmp_path: Path) -> None:
        found = self.serving(launcher, WORKER, tmp_path / "worker")
        os.kill(found["pid"], signal.SIGSTOP)
        launcher.kill(WORKER)
        assert [each.tenant for each in next_deaths(launcher)] == [WORKER]
        launcher.kill(WORKER)  # of one that is gone: nothing
        wait_for(lambda: is_gone(found["pid"]))

    def test_closing_leaves_no_process_and_no_port(self, launching: Launching, tmp_path: Path) -> None:
        launcher = launching.open(servers=2, workers=0)
        found = [self.serving(launcher, Member(Role.SERVER, i, 1), tmp_path / str(i)) for i in range(2)]
        os.kill(found[1]["pid"], signal.SIGSTOP)
        launcher.close(grace_s=0.0)
        launcher.close()
        assert launcher.deaths() == []
        for each in found:
            wait_for(lambda each=each: is_gone(each["pid"]))
            wait_for(lambda each=each: refuses("127.0.0.1", each["port"]))
        with pytest.raises(RunError, match=r"server 0 \(2\).*closed"):
            launcher.start(Member(Role.SERVER, 0, 2), import_name(targets.leave), b"0")

    def test_closing_waits_for_those_that_are_ending(self, launching: Launching, tmp_path: Path) -> None:
        launcher = launching.open(servers=1, workers=0)
        launcher.start(SERVER, import_name(targets.describe), str(tmp_path / "told").encode())
        launcher.close(grace_s=PATIENCE_S)
        assert read(tmp_path / "told")

    def test_a_place_is_not_taken_twice(self, launcher: Launcher, tmp_path: Path) -> None:
        launcher.start(SERVER, import_name(targets.serve), str(tmp_path).encode())
        with pytest.raises(RunError, match="next incarnation"):
            launcher.start(SERVER, import_name(targets.serve), b"")

    def test_a_spare_that_was_adopted_is_known_as_the_member(self, launcher: Launcher, tmp_path: Path) -> None:
        spare = Spare(Role.SERVER, 1)
        found = self.serving(launcher, spare, tmp_path / "spare")
        member = Member(Role.SERVER, 1, 2)
        launcher.adopt(spare, member)
        assert launcher.domain(member)
        launcher.kill(spare)
        assert not is_gone(found["pid"])
        launcher.kill(member)
        assert [each.tenant for each in next_deaths(launcher)] == [member]

    def test_a_replacement_starts_in_the_place_of_the_dead(self, launcher: Launcher, tmp_path: Path) -> None:
        for incarnation in (1, 2):
            member = Member(Role.SERVER, 0, incarnation)
            self.serving(launcher, member, tmp_path / str(incarnation))
            launcher.kill(member)
            assert [each.tenant for each in next_deaths(launcher)] == [member]

    def test_the_memory_of_every_machine_is_known_before_anything_starts(self, launcher: Launcher) -> None:
        (machine,) = set(launcher.machines(Role.SERVER, 1))
        assert launcher.free_bytes()[machine] > 1_000_000

    def test_many_processes_start_and_end(self, launching: Launching, tmp_path: Path) -> None:
        launcher = launching.open(servers=self.MANY, workers=0)
        members = [Member(Role.SERVER, index, 1) for index in range(self.MANY)]
        for member in members:
            launcher.start(member, import_name(targets.describe), str(tmp_path / str(member.index)).encode())
        told = next_deaths(launcher, self.MANY)
        assert sorted(each.tenant.index for each in told) == list(range(self.MANY))
        assert all(each.is_return for each in told)
        launcher.close()

    def test_a_process_notices_that_whoever_started_it_is_gone(self, tmp_path: Path) -> None:
        parent = self.run(str(self.script(tmp_path)), "serve", str(tmp_path), directory=tmp_path)
        found = read(tmp_path / "up")
        assert not (tmp_path / "orphaned").exists()
        parent.kill()
        parent.wait()
        wait_for((tmp_path / "orphaned").exists)
        wait_for(lambda: is_gone(found["pid"]))

    def test_a_function_of_the_script_runs_elsewhere(self, tmp_path: Path) -> None:
        script = self.script(tmp_path)
        with self.run(str(script), "tell", str(tmp_path / "told"), directory=tmp_path) as process:
            assert process.wait(PATIENCE_S) == 0
        assert read(tmp_path / "told") == {"module": "train"}
