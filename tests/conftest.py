"""Fixtures that several test directories share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# A busy machine is no fault: no deadlines. The same examples every time, so that a change alone makes a test fail;
# `make explore` draws others.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady")
os.environ.pop("COLUMNS", None)  # pytest's workers have some: a command sees a pipe unless a test says otherwise
# Read when Ray is imported: it stays on loopback, reports nothing, and writes no token into the home directory.
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
torch.set_num_threads(1)  # tiny models: threads that wait for each other would cost more than they bring

pytest.register_assert_rewrite("holdfast.testing.store_suite")

from holdfast.checkpoint.commit import second_look  # noqa: E402
from holdfast.testing.server import S3Place, S3Server  # noqa: E402


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is really damaged need not be waited for."""
    monkeypatch.setattr(second_look, "PAUSES_S", (0.0, 0.0))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server. A test that stops it must bring it back."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_place(s3_server: S3Server) -> S3Place:
    """An empty place in the server's bucket: its ``url`` and ``options`` are what ``open_store`` needs."""
    return s3_server.place()
