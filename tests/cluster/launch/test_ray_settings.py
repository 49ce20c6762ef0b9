"""What is asked of Ray, before there is one."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from holdfast.cluster.launch.ray.lifeline import Lifeline, hold
from holdfast.cluster.launch.ray.settings import Ray
from holdfast.errors import ConfigurationError, RunError


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"address": "ray://head:10001"}, "start the script there"),
        ({"address": "local"}, "left out"),
        ({"placement": "ANYWHERE"}, "one of SPREAD, PACK"),
        ({"resources": {"trainer": {}}}, "by 'server' or 'worker', got 'trainer'"),
        ({"resources": {"worker": {"gpus": 1}}}, "made of num_cpus, num_gpus, memory, resources, got 'gpus'"),
        ({"resources": {"server": {"num_cpus": 0}}}, "more than nothing"),
        ({"server_threads": 0}, "server_threads"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Ray(**arguments)


def test_without_ray_its_extra_is_named() -> None:
    code = "import sys; sys.modules['ray'] = None\nfrom holdfast.cluster.launch.ray.settings import Ray\n"
    ended = subprocess.run(
        [sys.executable, "-c", code + "Ray().open(servers=1, workers=1)"], capture_output=True, text=True
    )
    assert "pip install 'holdfast[ray]'" in ended.stderr.splitlines()[-1]


def test_an_address_without_ray_is_named() -> None:
    with pytest.raises(RunError, match=r"no Ray at 127\.0\.0\.1:1: .*leave `address` out"):
        Ray(address="127.0.0.1:1").open(servers=1, workers=1)


def test_ray_is_imported_when_a_launcher_is_opened() -> None:
    code = "import sys; from holdfast.cluster.launch.ray import launcher, settings; settings.Ray()\n"
    assert subprocess.run([sys.executable, "-c", code + "sys.exit('ray' in sys.modules)"]).returncode == 0


def test_a_line_ends_with_whoever_holds_it() -> None:
    lifeline = Lifeline("127.0.0.1")
    connection = hold(lifeline.line)
    connection.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(30)
    lifeline.close()
    assert connection.recv(1) == b""
    connection.close()


def test_a_stranger_on_the_line_is_let_go() -> None:
    lifeline = Lifeline("127.0.0.1")
    with socket.create_connection((lifeline.line.host, lifeline.line.port), timeout=30) as stranger:
        stranger.sendall(b"let me in please")
        assert stranger.recv(1) == b""
    lifeline.close()
