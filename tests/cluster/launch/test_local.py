"""Local processes: everything that a launcher promises, and what holds on one machine only."""

from __future__ import annotations

import ctypes
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.base import Spare
from holdfast.cluster.launch.cores import Cores
from holdfast.cluster.launch.functions import import_name
from holdfast.cluster.launch.local import LocalProcesses
from holdfast.errors import ConfigurationError
from tests.cluster.launch import targets
from tests.cluster.launch.launcher_suite import SERVER, WORKER, LauncherSuite, is_gone, next_deaths, read, wait_for

CLONE_FILES = 0x400  # for ``unshare``


class TestLocalProcesses(LauncherSuite):
    LAUNCHING = "LocalProcesses()"
    IMPORTS = "from holdfast.cluster.launch.local import LocalProcesses"

    @pytest.fixture
    def launching(self) -> LocalProcesses:
        return LocalProcesses()

    def test_a_script_whose_name_is_no_module_name_runs_elsewhere(self, tmp_path: Path) -> None:
        script = self.script(tmp_path, "train-all.py")
        with self.run(str(script), "tell", str(tmp_path / "told"), directory=tmp_path) as process:
            assert process.wait(60) == 0
        assert read(tmp_path / "told") == {"module": "__mp_main__"}

    def test_a_script_that_another_module_hides_runs_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "job").mkdir()
        script = self.script(tmp_path / "job", "queue.py")
        with self.run("-P", str(script), "tell", str(tmp_path / "told"), directory=tmp_path) as process:
            assert process.wait(60) == 0
        assert read(tmp_path / "told") == {"module": "__mp_main__"}

    def test_a_module_that_is_run_is_imported_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "jobs").mkdir()
        self.script(tmp_path / "jobs")
        with self.run("-m", "jobs.train", "tell", str(tmp_path / "told"), directory=tmp_path) as process:
            assert process.wait(60) == 0
        assert read(tmp_path / "told") == {"module": "jobs.train"}


@pytest.fixture
def launcher():
    launcher = LocalProcesses(worker_threads=2).open(servers=1, workers=1)
    yield launcher
    launcher.close(grace_s=0.0)


def test_a_terminal_s_signals_reach_the_controller_only(launcher, tmp_path: Path) -> None:
    launcher.start(SERVER, import_name(targets.serve), str(tmp_path).encode())
    pid = read(tmp_path / "up")["pid"]
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_a_process_takes_its_helpers_along_but_not_its_agent(launcher, tmp_path: Path) -> None:
    launcher.start(WORKER, import_name(targets.have_helpers), str(tmp_path).encode())
    found = read(tmp_path / "up")
    os.kill(found["pid"], signal.SIGKILL)
    next_deaths(launcher)
    wait_for(lambda: is_gone(found["helper"]))
    assert not is_gone(found["agent"])
    os.kill(found["agent"], signal.SIGKILL)


def test_what_tells_of_a_death_is_open_in_one_thread_alone_which_ends_before_any_memory_is_unmapped(
    launcher, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as thread:
        if thread.submit(ctypes.CDLL(None).unshare, CLONE_FILES).result():
            pytest.skip("threads may not have files of their own here")
    launcher.start(SERVER, import_name(targets.serve), str(tmp_path).encode())
    threads = Path("/proc", str(read(tmp_path / "up")["pid"]), "task")
    held = [[os.readlink(file) for file in (thread / "fd").iterdir()] for thread in threads.iterdir()]
    ((pipe,),) = (files for files in held if len(files) == 1)
    assert pipe.startswith("pipe:")
    assert sum(pipe in files for files in held) == 1


def test_a_crash_below_python_tells_where_it_happened(launcher) -> None:
    launcher.start(SERVER, import_name(targets.crash), b"")
    (death,) = next_deaths(launcher)
    assert death.how == "killed by SIGSEGV"
    assert "targets.py" in death.last_words


def test_workers_have_the_arguments_the_directory_and_the_threads_of_the_controller(launcher, tmp_path: Path) -> None:
    launcher.start(WORKER, import_name(targets.describe), str(tmp_path / "told").encode())
    told = read(tmp_path / "told")
    assert told["directory"] == os.getcwd()
    assert told["threads"] == "2"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_worker_has_cores_to_itself(tmp_path: Path) -> None:
    launcher = LocalProcesses(worker_cores=1).open(servers=1, workers=1)
    try:
        for tenant in (WORKER, SERVER, Spare(Role.SERVER, 1)):
            launcher.start(tenant, import_name(targets.describe), str(tmp_path / f"{tenant}").encode())
        first, *others = sorted(os.sched_getaffinity(0))
        assert read(tmp_path / f"{WORKER}")["cores"] == [first]
        assert read(tmp_path / f"{SERVER}")["cores"] == others
        assert read(tmp_path / f"{Spare(Role.SERVER, 1)}")["cores"] == others
    finally:
        launcher.close(grace_s=0.0)


def test_a_worker_that_joins_later_runs_where_servers_do() -> None:
    cores = Cores({3, 5, 6, 7, 8}, workers=2, each=2)
    assert [cores.of(Member(Role.WORKER, index, 1)) for index in range(3)] == [{3, 5}, {6, 7}, {8}]


def test_servers_must_have_a_core_left() -> None:
    with pytest.raises(ConfigurationError, match="leave none of 4 cores to servers; pass worker_cores=1 or less"):
        Cores(range(4), workers=2, each=2)
    with pytest.raises(ConfigurationError, match="leave worker_cores out"):
        Cores(range(2), workers=2, each=1)


def test_processes_print_where_the_controller_does(launcher, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    launcher.start(SERVER, import_name(targets.describe), str(tmp_path / "told").encode())
    next_deaths(launcher)
    assert capfd.readouterr().out == "described\n"


def test_logs_are_kept_by_process_and_their_end_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    launcher = LocalProcesses(logs=tmp_path / "logs").open(servers=1, workers=1)
    launcher.start(Member(Role.SERVER, 3, 2), import_name(targets.give_up), b"")
    launcher.start(Spare(Role.SERVER, 1), import_name(targets.describe), str(tmp_path / "told").encode())
    told = {str(each.tenant): each for each in next_deaths(launcher, 2)}
    launcher.close()
    assert told["server 3 (2)"].how == "exit code 7"
    assert told["server 3 (2)"].last_words == "the disk is full"
    assert (tmp_path / "logs" / "server-3.2.log").read_text() == "the disk is full\n"
    assert (tmp_path / "logs" / "spare-server-1.log").read_text() == "described\n"
    assert capfd.readouterr() == ("", "")


def test_a_launcher_keeps_no_descriptor_of_the_dead(launcher) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for incarnation in range(1, 4):
        launcher.start(Member(Role.SERVER, 0, incarnation), import_name(targets.leave), b"0")
        next_deaths(launcher)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_for_logs_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="logs must be a folder"):
        LocalProcesses(logs=tmp_path / "file").open(servers=1, workers=1)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_a_number_of_threads_that_is_none_is_refused(threads: object) -> None:
    with pytest.raises(hf.HoldfastError, match="LocalProcesses: server_threads"):
        LocalProcesses(server_threads=threads)
