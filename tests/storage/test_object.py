from __future__ import annotations

import pytest

from holdfast.errors import AccessDenied, ConfigurationError, ObjectExists, StorageUnavailable
from holdfast.storage import ObjectStore, RetryingStore, Store, open_store
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
