"""The tests every Store must pass. Inherit, and provide the store:

class TestMyStore(StoreSuite):
    @pytest.fixture
    def store(self): ...   # an empty one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Barrier, Event

import pytest

from holdfast.errors import ConfigurationError, DamagedData, ObjectExists, ObjectNotFound
from holdfast.storage.base import Buffer, Store

WRITERS = 4
BAD_NAMES = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a b", "a~b", "a\\b", "a\n", "é", "a%2e"]
# In name order: - and . sort before /, which a directory-wise listing gets wrong.
NAMES = ["a", "b-c/z", "b.c", "b/c", "b/c-d/e", "b/c.d", "b/d/e/f", "b0", "bb/c", "catalogs/09", "catalogs/10", "z"]


def _together(workers: int, act: Callable[[int], bool]) -> list[bool]:
    """Run ``act`` in several threads that start at the same moment."""
    barrier = Barrier(workers)

    def work(number: int) -> bool:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


def _pattern(size_bytes: int, seed: int = 0) -> bytes:
    block = bytes((seed + 31 * position) % 251 for position in range(251))
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


class StoreSuite:
    """What the Store protocol promises, but for power cuts, which need the backend's help."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty store."""
        raise NotImplementedError

    @pytest.fixture
    def filled(self, store: Store) -> Iterator[Store]:
        """A store with an object of each of NAMES, its own name inside."""
        for name in reversed(NAMES):
            store.put(name, name.encode())
        yield store

    def names(self, store: Store, prefix: str = "", after: str = "") -> list[str]:
        return [info.name for info in store.list(prefix, after=after)]

    def test_an_object_is_read_back_as_written(self, store: Store) -> None:
        store.put("dir/object", b"content")
        assert bytes(store.get("dir/object")) == b"content"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put("empty", b"")
        store.put("empty-too", [], create=True)
        assert bytes(store.get("empty")) == bytes(store.get_range("empty-too", 0, 0)) == b""
        assert [(info.name, info.size_bytes) for info in store.list()] == [("empty", 0), ("empty-too", 0)]

    def test_several_buffers_of_any_kind_become_one_object(self, store: Store) -> None:
        words = memoryview(bytearray(_pattern(16))).cast("I")
        buffers: list[Buffer] = [b"head", bytearray(b"-body-"), memoryview(b""), words, memoryview(b"xtailx")[1:5]]
        for name, create in (("plain", False), ("created", True)):
            store.put(name, buffers, create=create)
            assert bytes(store.get(name)) == b"head-body-" + _pattern(16) + b"tail"

    def test_a_thousand_small_buffers_become_one_object(self, store: Store) -> None:
        store.put("many", [bytes([number % 256]) * 3 for number in range(2500)])
        assert bytes(store.get("many")) == b"".join(bytes([number % 256]) * 3 for number in range(2500))

    @pytest.mark.parametrize("create", [False, True])
    def test_a_large_object_is_read_back_as_written(self, store: Store, create: bool) -> None:
        content = _pattern(20 << 20)
        parts = [content[: 7 << 20], content[7 << 20 : 7 << 20], content[7 << 20 :]]
        store.put("large", [memoryview(part) for part in parts], create=create)
        assert bytes(store.get("large")) == content
        assert bytes(store.get_range("large", 5_000_001, 15_000_000)) == content[5_000_001:15_000_000]

    def test_a_buffer_with_holes_is_refused(self, store: Store) -> None:
        with pytest.raises(ConfigurationError, match="contiguous"):
            store.put("holes", memoryview(b"abcdef")[::2])
        assert self.names(store) == []

    def test_a_put_replaces_what_was_there(self, store: Store) -> None:
        store.put("lease", b"a longer first content")
        store.put("lease", b"second")
        assert bytes(store.get("lease")) == b"second"

    def test_a_reader_keeps_what_it_has_read_while_the_object_goes(self, store: Store) -> None:
        store.put("object", b"first")
        content = store.get("object")
        store.put("object", b"other")
        store.delete(["object"])
        assert bytes(content) == b"first"

    def test_an_exclusive_create_loses_to_what_is_there(self, store: Store) -> None:
        store.put("catalog/1", b"first", create=True)
        with pytest.raises(ObjectExists, match="catalog/1"):
            store.put("catalog/1", b"second", create=True)
        assert bytes(store.get("catalog/1")) == b"first"

    def test_of_contending_exclusive_creates_exactly_one_wins(self, store: Store) -> None:
        for round_number in range(3):
            name = f"catalog/{round_number}"

            def create(writer: int, name: str = name) -> bool:
                try:
                    store.put(name, _pattern(1000, writer), create=True)
                except ObjectExists:
                    return False
                return True

            won = _together(WRITERS, create)
            assert won.count(True) == 1
            assert bytes(store.get(name)) == _pattern(1000, won.index(True))

    def test_readers_and_listers_see_all_of_an_object_or_none(self, store: Store) -> None:
        contents = [_pattern(300_000, 0), _pattern(500_000, 1)]
        written = Event()

        def act(worker: int) -> bool:
            if worker == 0:
                for turn in range(6):
                    store.put("object", contents[turn % 2])
                written.set()
                return True
            while not written.is_set():
                sizes = {info.size_bytes for info in store.list()}
                if not sizes <= {300_000, 500_000} or (sizes and bytes(store.get("object")) not in contents):
                    return False
            return True

        assert all(_together(3, act))

    def test_threads_do_not_disturb_each_other(self, store: Store) -> None:
        def act(worker: int) -> bool:
            for turn in range(5):
                store.put(f"shared/{worker}/{turn}", _pattern(2000, worker), create=True)
                store.delete([f"shared/{worker}/{turn - 1}"])
            return bytes(store.get(f"shared/{worker}/4")) == _pattern(2000, worker)

        assert all(_together(WRITERS, act))
        assert self.names(store) == [f"shared/{worker}/4" for worker in range(WRITERS)]

    def test_a_list_is_in_name_order_and_knows_the_sizes(self, filled: Store) -> None:
        assert [(info.name, info.size_bytes) for info in filled.list()] == [(name, len(name)) for name in NAMES]

    def test_a_list_is_bounded_by_prefix_and_after(self, filled: Store) -> None:
        for prefix in ("", "b", "b/", "b/c", "b-", "bb", "catalogs/1", "c", "b/d/e/", "nothing/", "a/"):
            for after in ("", "b", "b.c", "b/c", "b/c-d/e", "b/d", "catalogs/09", "zz"):
                expected = [name for name in NAMES if name.startswith(prefix) and name > after]
                assert self.names(filled, prefix, after) == expected, (prefix, after)

    def test_a_list_can_be_left_early(self, filled: Store) -> None:
        assert [info.name for info in islice(filled.list("b"), 2)] == ["b-c/z", "b.c"]

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        assert self.names(store) == self.names(store, "some/prefix") == []

    def test_a_list_shows_what_was_put_before_it(self, store: Store) -> None:
        for number in range(5):
            store.put(f"catalogs/{number:09}", b"x", create=True)
            assert self.names(store, "catalogs/")[-1] == f"catalogs/{number:09}"

    def test_a_range_is_exactly_the_bytes_asked_for(self, store: Store) -> None:
        store.put("object", b"0123456789")
        for start, stop in [(0, 10), (3, 7), (9, 10), (5, 5), (10, 10), (0, 0)]:
            assert bytes(store.get_range("object", start, stop)) == b"0123456789"[start:stop]

    @pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 11), (10, 11), (11, 11), (20, 30)])
    def test_a_range_beyond_the_end_is_damage_that_names_the_object(self, store: Store, start: int, stop: int) -> None:
        store.put("dir/object", b"0123456789")
        with pytest.raises(DamagedData, match="dir/object"):
            store.get_range("dir/object", start, stop)

    @pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 3)])
    def test_what_is_no_range_is_refused(self, store: Store, start: int, stop: int) -> None:
        store.put("object", b"0123456789")
        with pytest.raises(ConfigurationError):
            store.get_range("object", start, stop)

    def test_a_missing_object_is_not_found(self, filled: Store) -> None:
        for name in ("missing", "missing/deep", "b", "bb", "a/below"):
            with pytest.raises(ObjectNotFound, match=name):
                filled.get(name)
            with pytest.raises(ObjectNotFound, match=name):
                filled.get_range(name, 0, 1)

    def test_deleted_objects_are_gone_and_missing_ones_no_error(self, filled: Store) -> None:
        filled.delete(name for name in ("b/c", "missing", "b/d/e/f", "missing/deep"))
        filled.delete([])
        assert self.names(filled) == [name for name in NAMES if name not in ("b/c", "b/d/e/f")]
        filled.put("b/d/e/f", b"again", create=True)
        assert bytes(filled.get("b/d/e/f")) == b"again"

    def test_a_bad_name_is_refused_before_anything_happens(self, store: Store) -> None:
        for name in BAD_NAMES:
            with pytest.raises(ConfigurationError):
                store.put(name, b"x")
            with pytest.raises(ConfigurationError):
                store.put(name, b"x", create=True)
            with pytest.raises(ConfigurationError):
                store.get(name)
            with pytest.raises(ConfigurationError):
                store.get_range(name, 0, 1)
            with pytest.raises(ConfigurationError):
                store.delete(["good", name])
        assert self.names(store) == []

    def test_a_bad_prefix_is_refused_at_once(self, store: Store) -> None:
        for prefix in ("/", "a//", "../", "a/../b", "./", "a b"):
            with pytest.raises(ConfigurationError):
                store.list(prefix)
            with pytest.raises(ConfigurationError):
                store.list(after=prefix)

    def test_the_clock_goes_with_the_times_of_objects(self, store: Store) -> None:
        before_s = store.now_s()
        store.put("object", b"x")
        (info,) = store.list()
        assert before_s - 1 <= info.modified_s <= store.now_s() + 1
        assert self.names(store) == ["object"]

    def test_it_says_where_it_is(self, store: Store) -> None:
        assert store.url
