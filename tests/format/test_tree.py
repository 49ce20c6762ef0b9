from __future__ import annotations

import contextlib
import enum
import json
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from holdfast.errors import DamagedData, UnsupportedState
from holdfast.format.tree import MAX_DEPTH, check_tree, decode_tree, encode_tree


def round_trip(value: object) -> object:
    tree = encode_tree(value)
    return decode_tree(tree.skeleton, [tensor.clone() for tensor in tree.tensors])


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def same(left: object, right: object) -> bool:
    """Equal in every bit and type, all the way down, with dictionaries in the same order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*raw)
    if isinstance(left, np.ndarray):
        return left.dtype.str == right.dtype.str and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, np.generic):
        return left.dtype.str == right.dtype.str and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return bits(left) == bits(right)
    if isinstance(left, complex):
        return bits(left.real) == bits(right.real) and bits(left.imag) == bits(right.imag)
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(*keys) and same(left[keys[0]], right[keys[1]]) for keys in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
    return left == right


def float_of(pattern: int) -> float:
    return struct.unpack("<d", pattern.to_bytes(8, "little"))[0]


floats = st.floats() | st.integers(0, 2**64 - 1).map(float_of)
text = st.text(st.characters(codec=None, exclude_categories=())) | st.text(st.sampled_from("a\ud83d\ude00\ud800é"))
array_types = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes(sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(sizes=(64, 128))
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
)
arrays = array_types.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | text | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)
tensors = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
).flatmap(lambda dtype: st.sampled_from([(), (0,), (3,), (2, 0, 4), (2, 3)]).map(lambda s: torch.ones(s, dtype=dtype)))
leaves = (
    keys
    | st.complex_numbers()
    | tensors
    | arrays
    | arrays.filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
    | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
    | st.sampled_from([torch.bfloat16, torch.uint32, torch.device("cpu"), torch.device("cuda:3"), torch.device("cuda")])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(text, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(text, inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.dictionaries(text, st.integers(), max_size=3).map(Counter)
        | st.sets(keys, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(values)
def test_every_storable_value_comes_back_bit_for_bit_and_type_for_type(value: object) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("-inf"),
        -0.0,
        5e-324,
        float_of(0x7FF8_0000_DEAD_BEEF),
        float_of(0xFFF0_0000_0000_0001),
        complex(-0.0, float_of(0x7FF8_0000_0000_0001)),
        2**53 + 1,
        -(10**6000),
        "\ud83d\ude00",
        "😀",
        {True: 1, 2: "x", None: [], (1, (2.0, "a")): ()},
        defaultdict(dict, {"a": {}}),
        defaultdict(None, {}),
        np.float32("nan"),
        np.uint64(2**64 - 1),
        np.array([1, 2], dtype=">i4"),
        np.array(3.5),
        np.datetime64("2026-11-15T08:00", "m"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_awkward_values_come_back(value: object) -> None:
    assert same(round_trip(value), value)


def test_tensors_are_handed_on_live_and_detached() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    (stored,) = encode_tree({"w": weight}).tensors
    with torch.no_grad():
        weight[0] = 7.0
    assert stored[0] == 7.0 and not stored.requires_grad


def test_conjugate_views_are_stored_by_value() -> None:
    view = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert round_trip(view).tolist() == [1 - 2j, 3 + 4j]


def test_arrays_of_any_layout_are_stored_by_value() -> None:
    array = np.arange(24.0).reshape(4, 6)[::2, ::-1]
    array.flags.writeable = False
    assert same(round_trip(array), np.ascontiguousarray(array))


def test_skeleton_is_canonical_json_that_any_reader_parses() -> None:
    tree = encode_tree({"b": {3, 1, 2}, "a": [0.1, float("nan")], "w": torch.zeros(2)})
    again = encode_tree({"b": {2, 3, 1}, "a": [0.1, float("nan")], "w": torch.zeros(2)})
    assert tree.skeleton == again.skeleton
    assert json.loads(tree.skeleton)["root"] == {
        "dict": [
            ["b", {"set": [1, 2, 3]}],
            ["a", [0.1, {"float": "7ff8000000000000"}]],
            ["w", {"tensor": 0}],
        ]
    }


class Colour(enum.IntEnum):
    RED = 1


@dataclass
class Config:
    lr: float


Point = namedtuple("Point", "x y")


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        lambda step: 0.1,
        Colour.RED,
        Config(lr=0.1),
        Point(1, 2),
        object(),
        slice(1),
        np.str_("a"),
        bytearray(b"x"),
        defaultdict(lambda: 0),
        np.array([object()]),
        np.zeros(2, dtype=[("a", "f4")]),
        np.longdouble(1),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.empty(2, device="meta"),
        torch.ones(2, dtype=torch.complex128),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.ones(2).as_subclass(Tagged),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_needs_code_to_come_back_is_refused_by_its_path(value: object) -> None:
    with pytest.raises(UnsupportedState) as caught:
        check_tree({"scheduler": [1, {"lambda": value}]})
    assert str(caught.value).startswith("state['scheduler'][1]['lambda']")


def test_refusal_names_the_type_and_the_remedy() -> None:
    with pytest.raises(UnsupportedState, match=r"extra\['ema'\] is a .*Config, which .* state_dict\(\).* leave it out"):
        encode_tree({"ema": Config(lr=1)}, root="extra")


@pytest.mark.parametrize("key", [torch.ones(1), Colour.RED, Config])
def test_keys_that_are_not_plain_are_refused(key: object) -> None:
    with pytest.raises(UnsupportedState, match=r"a key of state\['a'\]"):
        check_tree({"a": {key: 1}})


def test_cycles_and_bottomless_nesting_are_refused() -> None:
    loop: dict[str, object] = {}
    loop["again"] = [loop]
    with pytest.raises(UnsupportedState, match=r"state\['again'\]\[0\] contains itself"):
        check_tree(loop)
    deep: list[object] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with pytest.raises(UnsupportedState, match="levels deep"):
        check_tree(deep)
    assert same(round_trip(deep[0]), deep[0])


def test_a_value_met_twice_is_no_cycle() -> None:
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


def document(root: object, *, tensors: int = 0, version: int = 1) -> bytes:
    return json.dumps({"tree": version, "tensors": tensors, "root": root}).encode()


@pytest.mark.parametrize(
    "skeleton",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"tree":1,"tensors":0,"root":NaN}',
        document(None, version=2),
        document(None, tensors=1),
        document({"tensor": 0}),
        document({"tensor": -1}),
        document({"tensor": True}),
        document({"unknown": 1}),
        document({"dict": 1, "tuple": []}),
        document({}),
        document({"tuple": "ab"}),
        document({"dict": [["a", 1], ["a", 2]]}),
        document({"dict": [[[], 1]]}),
        document({"defaultdict": ["eval", []]}),
        document({"dtype": "nn"}),
        document({"device": "nowhere"}),
        document({"int": "x"}),
        document({"int": 5}),
        document({"float": "00"}),
        document({"bytes": "%%%"}),
        document({"size": ["a"]}),
        document({"scalar": ["|O", "00"]}),
        document({"scalar": ["<f4", "00"]}),
        document({"array": ["<f4", [2], 0]}),
        b'{"tree":1,"tensors":0,"root":' + b"[" * 100_000,
    ],
    ids=lambda skeleton: skeleton[:60].decode("latin-1"),
)
def test_malformed_skeletons_are_reported_as_damage(skeleton: bytes) -> None:
    with pytest.raises(DamagedData, match="dense state"):
        decode_tree(skeleton, [], name="dense state")


@pytest.mark.parametrize("shape", [[3], [-2], [2, 2**40], ["2"]])
def test_an_array_that_does_not_fit_its_tensor_is_damage(shape: list[object]) -> None:
    skeleton = document({"array": ["<f4", shape, 0]}, tensors=1)
    with pytest.raises(DamagedData):
        decode_tree(skeleton, [torch.zeros(8, dtype=torch.uint8)])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_byte_gives_a_value_or_damage_and_nothing_else(data: st.DataObject) -> None:
    tree = encode_tree({"a": [1, 2.5, float("inf")], ("b", 2): {b"x", "y"}, "c": np.arange(3), "d": torch.ones(2)})
    skeleton = bytearray(tree.skeleton)
    skeleton[data.draw(st.integers(0, len(skeleton) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedData):
        decode_tree(skeleton, tree.tensors)
