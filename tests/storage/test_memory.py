from __future__ import annotations

import pytest

from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore, Store, open_store
from holdfast.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


def test_openers_of_one_name_share_the_objects() -> None:
    open_store("memory://shared-by-name").put("object", b"content")
    assert bytes(open_store("memory://shared-by-name").get("object")) == b"content"
    assert list(open_store("memory://another-name").list()) == []


def test_times_come_from_the_runtime() -> None:
    store = MemoryStore(runtime=Runtime(wall_s=lambda: 123.0))
    store.put("object", b"")
    assert [info.modified_s for info in store.list()] == [store.now_s()] == [123.0]
