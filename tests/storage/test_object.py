from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast.errors import AccessDenied, ConfigurationError, ObjectExists, StorageUnavailable
from holdfast.storage import ObjectStore, RetryingStore, Store, open_store
from holdfast.storage.object_client import answer_time_s
from holdfast.testing.server import S3Place, S3Server
from holdfast.testing.store_suite import StoreSuite

CALLS = ["put", "create", "large put", "get", "list", "delete", "now_s"]


def call(store: Store, kind: str) -> None:
    match kind:
        case "put":
            store.put("object", b"content")
        case "create":
            store.put("created", b"content", create=True)
        case "large put":
            store.put("object", bytes(9 << 20))
        case "get":
            store.get("object")
        case "list":
            list(store.list())
        case "delete":
            store.delete(["object"])
        case "now_s":
            store.now_s()


class TestObjectStore(StoreSuite):
    @pytest.fixture
    def store(self, s3_place: S3Place) -> Store:
        return open_store(s3_place.url, options=s3_place.options)


def test_stores_of_one_bucket_do_not_see_each_other(s3_server: S3Server, s3_place: S3Place) -> None:
    store = open_store(s3_place.url, options=s3_place.options)
    store.put("object", b"content")
    assert list(open_store(s3_place.url + "-2", options=s3_place.options).list()) == []
    whole_bucket = open_store(s3_server.url, options=s3_place.options)
    name = s3_place.url.removeprefix(s3_server.url + "/") + "/object"
    assert bytes(whole_bucket.get(name)) == b"content"


@pytest.mark.parametrize("kind", CALLS)
def test_wrong_credentials_are_access_denied(s3_server: S3Server, kind: str) -> None:
    store = ObjectStore(f"{s3_server.url}/run", s3_server.options(secret="wrong"))
    with pytest.raises(AccessDenied, match="credentials"):
        call(store, kind)


@pytest.mark.parametrize("kind", ["put", "create", "large put", "delete", "now_s"])
def test_who_may_only_read_is_denied_the_rest(s3_server: S3Server, s3_place: S3Place, kind: str) -> None:
    call(open_store(s3_place.url, options=s3_place.options), "put")
    store = ObjectStore(s3_place.url, s3_server.options("reader"))
    assert bytes(store.get("object")) == b"content"
    assert [info.name for info in store.list()] == ["object"]
    with pytest.raises(AccessDenied):
        call(store, kind)


@pytest.mark.parametrize("kind", CALLS)
def test_a_missing_bucket_is_named(s3_server: S3Server, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://missing/run.*bucket does not exist"):
        call(ObjectStore("s3://missing/run", s3_server.options()), kind)


def test_plain_http_without_the_option_is_explained(s3_server: S3Server) -> None:
    options = {**s3_server.options(), "allow_http": "false"}
    with pytest.raises(ConfigurationError, match="allow_http"):
        call(ObjectStore(s3_server.url, options), "put")


@pytest.mark.parametrize("kind", CALLS)
def test_a_server_that_is_down_is_unavailable(s3_server: S3Server, kind: str) -> None:
    options = {**s3_server.options(), "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StorageUnavailable):
        call(ObjectStore(s3_server.url, options), kind)


def test_a_server_that_does_not_answer_is_unavailable(s3_server: S3Server, s3_place: S3Place) -> None:
    store = ObjectStore(s3_place.url, {**s3_place.options, "timeout": "500ms"})
    s3_server.pause()
    try:
        with pytest.raises(StorageUnavailable):
            call(store, "create")
    finally:
        s3_server.unpause()


def test_what_was_acknowledged_survives_a_kill_of_the_server(s3_server: S3Server, s3_place: S3Place) -> None:
    store = RetryingStore(open_store(s3_place.url, options=s3_place.options), total_s=30)
    call(store, "create")
    call(store, "large put")
    s3_server.kill()
    s3_server.start()
    assert [(info.name, info.size_bytes) for info in store.list()] == [("created", 7), ("object", 9 << 20)]
    assert bytes(store.get("object")) == bytes(9 << 20)
    with pytest.raises(ObjectExists):
        call(store, "create")


class MuteServer:
    """Accepts connections and never answers: it has no process that could."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        credentials = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}
        self.options = {"endpoint": endpoint, "allow_http": "true", **credentials}

    def connections(self) -> int:
        """How many were made since the last call."""
        self._listening.settimeout(0.0)
        count = 0
        with suppress(BlockingIOError):
            while True:
                self._listening.accept()[0].close()
                count += 1
        return count


@pytest.fixture
def mute_server() -> Iterator[MuteServer]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield MuteServer(listening)


@pytest.mark.parametrize("kind", [kind for kind in CALLS if kind != "large put"])
def test_a_request_that_a_server_accepted_and_never_answered_is_not_repeated_where_nobody_counts_the_time(
    mute_server: MuteServer, kind: str
) -> None:
    store = ObjectStore("s3://bucket/run", mute_server.options, answer_s=0.5)
    with pytest.raises(StorageUnavailable, match="did not respond"):
        call(store, kind)
    assert mute_server.connections() == 1


def test_how_long_a_request_may_go_unanswered_follows_from_how_long_the_store_is_tried() -> None:
    assert [answer_time_s(patience_s) for patience_s in (None, 0.0, 2.0, 30.0, 120.0)] == [60.0, 5.0, 5.0, 30.0, 60.0]


def test_a_listing_of_a_mute_server_ends_when_the_patience_is_over(
    mute_server: MuteServer,
) -> None:
    store = RetryingStore(open_store("s3://bucket/run", options=mute_server.options, patience_s=2.0), total_s=2.0)
    with pytest.raises(StorageUnavailable, match=r"list of 'catalog/' failed 1 times in \d\.\d s"):
        list(store.list("catalog/"))


def test_a_process_forked_after_an_object_store_was_used_is_told_so(mute_server: MuteServer) -> None:
    program = f"""
import os
from holdfast.errors import ConfigurationError, StorageUnavailable
from holdfast.storage import ObjectStore

options = { ({**mute_server.options, "timeout": "200ms"})!r}
store = ObjectStore("s3://bucket/run", options)
if os.fork() == 0:  # nothing was used yet: a fork is no harm
    try:
        store.get("object")
    except StorageUnavailable:
        os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
try:
    store.get("object")
except StorageUnavailable:
    pass
for each in (store, ObjectStore("s3://bucket/other", options)):
    if os.fork() == 0:
        try:
            each.get("object")
        except ConfigurationError as error:
            os._exit(8 if "spawn" in str(error) and each.url in str(error) else 9)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 8
print("told")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "told\n", ended.stderr
