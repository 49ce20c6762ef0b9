"""Ray: everything that a launcher promises, on a Ray that these tests start on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.base import Launcher, Launching
from holdfast.cluster.launch.functions import import_name
from holdfast.cluster.launch.ray.head import Head
from holdfast.cluster.launch.ray.settings import Ray
from holdfast.errors import RunError
from tests.cluster.launch import targets
from tests.cluster.launch.launcher_suite import WORKER, LauncherSuite, is_gone, next_deaths, read, refuses, wait_for

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray for all tests of this file, which are connected to it: it takes seconds to start."""
    with ExitStack() as everything:
        head = Head(cpus=16)
        everything.callback(head.close)
        address = head.address()
        patch = everything.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("TEST_RAY", address)
        ray.init(address, logging_level="ERROR", log_to_driver=False)
        everything.callback(ray.shutdown)
        yield address


def groups() -> list[str]:
    """The placement groups that nobody has removed."""
    return [each["name"] for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]


@pytest.mark.usefixtures("address")
class TestRay(LauncherSuite):
    LAUNCHING = "Ray(address=os.environ['TEST_RAY'])"
    IMPORTS = "import os\nfrom holdfast.cluster.launch.ray.settings import Ray"
    MANY = 8
    LARGE_BYTES = 8 << 20

    @pytest.fixture
    def launching(self) -> Ray:
        return Ray()

    @pytest.mark.slow
    def test_many_processes_start_and_end(self, launching: Launching, tmp_path: Path) -> None:
        super().test_many_processes_start_and_end(launching, tmp_path)

    @pytest.mark.slow
    def test_a_target_that_cannot_be_imported_is_named(self, launcher: Launcher) -> None:
        super().test_a_target_that_cannot_be_imported_is_named(launcher)

    @pytest.mark.slow
    def test_a_function_of_the_script_runs_elsewhere(self, tmp_path: Path) -> None:
        super().test_a_function_of_the_script_runs_elsewhere(tmp_path)

    @pytest.mark.slow
    def test_closing_waits_for_those_that_are_ending(self, launching: Launching, tmp_path: Path) -> None:
        super().test_closing_waits_for_those_that_are_ending(launching, tmp_path)

    def test_a_process_notices_that_whoever_started_it_is_gone(self, tmp_path: Path) -> None:
        super().test_a_process_notices_that_whoever_started_it_is_gone(tmp_path)
        wait_for(lambda: not groups())  # the last one gave back the room for all

    def test_a_kill_leaves_the_agent_to_its_commit(self, launcher: Launcher, tmp_path: Path) -> None:
        launcher.start(WORKER, import_name(targets.have_helpers), str(tmp_path).encode())
        found = read(tmp_path / "up")
        launcher.kill(WORKER)
        next_deaths(launcher)
        wait_for(lambda: is_gone(found["pid"]))
        assert not is_gone(found["agent"])
        os.kill(found["agent"], signal.SIGKILL)
        os.kill(found["helper"], signal.SIGKILL)

    def test_a_replacement_that_is_started_before_the_kill_gets_the_room_of_its_predecessor(
        self, tmp_path: Path
    ) -> None:
        launcher = Ray(resources={"server": {"num_cpus": 16}}).open(servers=1, workers=0)  # all that there is
        stopped = self.serving(launcher, Member(Role.SERVER, 0, 1), tmp_path / "1")
        os.kill(stopped["pid"], signal.SIGSTOP)
        launcher.start(Member(Role.SERVER, 0, 2), import_name(targets.describe), str(tmp_path / "told").encode())
        launcher.kill(Member(Role.SERVER, 0, 1))
        assert read(tmp_path / "told")
        told = next_deaths(launcher, 2)
        assert [each.tenant.incarnation for each in told if isinstance(each.tenant, Member)] == [1, 2]
        launcher.close()

    def test_it_is_known_whether_there_is_room_for_more(self, launcher: Launcher) -> None:
        assert launcher.lacks(Role.WORKER, 1) == ""
        assert "too little CPU" in launcher.lacks(Role.WORKER, 1000)

    def test_a_job_for_which_there_is_no_room_is_refused(self) -> None:
        needs = {"server": {"num_cpus": 1}, "worker": {"num_cpus": 2, "resources": {"tpu": 1}}}
        with pytest.raises(RunError, match=r"no room.*SPREAD of 3 CPU, 1 tpu, in a cluster of 16 CPU.*`placement`"):
            Ray(resources=needs, timeout_s=0.5).open(servers=1, workers=1)
        wait_for(lambda: not groups())


# Ray has loopback for one machine only: it would look for the first node at an address that is not loopback.
NODE = """
from ray._private import services
services.resolve_ip_for_localhost = lambda host: host
from ray.scripts.scripts import main
main()
"""


@contextmanager
def another_machine(address: str, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """A second node of the cluster, at another address of this machine."""
    arguments = [
        "start",
        "--block",
        "--num-cpus=4",
        "--num-gpus=0",
        f"--address={address}",
        f"--node-ip-address={host}",
    ]
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    with subprocess.Popen([sys.executable, "-c", NODE, *arguments], env=environment) as process:
        wait_for(lambda: any(each["NodeManagerAddress"] == host and each["Alive"] for each in ray.nodes()))
        yield process
        process.terminate()


@pytest.mark.slow
def test_servers_on_several_machines_die_apart_and_bind_where_they_are(address: str, tmp_path: Path) -> None:
    suite = TestRay()
    with another_machine(address, "127.0.0.2") as node:
        launcher = Ray(placement="STRICT_SPREAD").open(servers=2, workers=0)
        members = [Member(Role.SERVER, index, 1) for index in range(2)]
        found = [suite.serving(launcher, each, tmp_path / str(each.index)) for each in members]
        domains = [launcher.domain(each) for each in members]
        assert len(set(domains)) == 2
        assert {each["host"] for each in found} == {"127.0.0.1", "127.0.0.2"}
        node.terminate()
        (death,) = next_deaths(launcher)
        assert launcher.domain(death.tenant) in domains
        launcher.close(grace_s=0.0)


@pytest.mark.slow
def test_the_working_directory_travels_to_other_machines(address: str, tmp_path: Path) -> None:
    suite = TestRay()
    with another_machine(address, "127.0.0.3"):
        script = suite.script(tmp_path)
        (tmp_path / "told").mkdir()
        process = suite.run(str(script), "serve", str(tmp_path / "told"), directory=tmp_path)
        found = read(tmp_path / "told" / "up")
        process.kill()
        process.wait()
        wait_for(lambda: is_gone(found["pid"]))
    assert found["directory"] != str(tmp_path)
    assert "working_dir" in found["directory"]


OWN = """
import os, signal, sys
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.ray.settings import Ray
from tests.cluster.launch import targets

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    mine = signal.getsignal(signal.SIGTERM)
    launcher = Ray().open(servers=1, workers=0)
    assert signal.getsignal(signal.SIGTERM) is mine
    import ray
    targets.put(targets.Path(sys.argv[1]) / "ray", address=ray.get_runtime_context().gcs_address)
    launcher.start(Member(Role.SERVER, 0, 1), "tests.cluster.launch.targets:serve", sys.argv[1].encode())
    if sys.argv[2] == "close":
        launcher.close(grace_s=0.0)
    signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_ray_of_its_own_ends_with_the_job_and_not_before(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end == "close":  # and one that asks for a token, as Ray does unless told otherwise
        monkeypatch.delenv("RAY_AUTH_MODE")
        monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    process = TestRay().run(str(tmp_path / "own.py"), str(tmp_path), end, directory=tmp_path)
    host, port = read(tmp_path / "ray")["address"].split(":")
    if end == "kill":
        found = read(tmp_path / "up")
        process.kill()
        wait_for((tmp_path / "orphaned").exists)
        wait_for(lambda: is_gone(found["pid"]))
    wait_for(lambda: refuses(host, int(port)))
    process.kill()
    process.wait()
