"""Any k of k + r units give back the others, parities follow differences, and ISA-L computes the same bytes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure import field
from holdfast.erasure.code import Code
from holdfast.errors import ConfigurationError
from holdfast.kernels import galois

codes = st.builds(Code, data=st.integers(1, 12), parity=st.integers(1, 2))
seeds = st.integers(0, 2**32)
WORDS = 9


def stripe(code: Code, seed: int, rows: int = 5) -> np.ndarray:
    """All units of some rows: ``[units, rows, words]``."""
    members = np.random.default_rng(seed).integers(0, 2**32, (code.data, rows, WORDS), dtype=np.uint32)
    return np.concatenate([members, code.encode(members)])


def test_two_generates_every_element_but_zero() -> None:
    assert {field.power(exponent) for exponent in range(field.ORDER)} == set(range(1, 256))
    assert field.power(-1) == field.power(254) and field.power(255) == 1


@given(st.integers(0, 255), st.integers(1, 255))
def test_a_quotient_times_its_divisor_is_the_dividend(dividend: int, divisor: int) -> None:
    assert field.multiply(field.divide(dividend, divisor), divisor) == dividend
    with pytest.raises(ZeroDivisionError):
        field.divide(dividend, 0)


def test_the_first_parity_is_xor_and_the_second_takes_powers_of_two() -> None:
    code, units = Code(data=5, parity=2), stripe(Code(data=5, parity=2), 1)
    np.testing.assert_array_equal(units[5], np.bitwise_xor.reduce(units[:5]))
    assert [code.coefficient(0, member) for member in range(5)] == [1] * 5
    assert [code.coefficient(1, member) for member in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 29, 58]


@settings(deadline=None)
@given(codes, seeds, st.data())
def test_any_k_units_give_back_the_others(code: Code, seed: int, data: st.DataObject) -> None:
    units = stripe(code, seed)
    present = data.draw(st.permutations(range(code.units)))[: code.data]
    missing = [unit for unit in range(code.units) if unit not in present]
    for unit, records in code.decode({each: units[each] for each in present}, missing).items():
        np.testing.assert_array_equal(records, units[unit])


@pytest.mark.parametrize("data", [1, 2, 4, 10])
def test_every_choice_of_k_units_suffices(data: int) -> None:
    code = Code(data=data, parity=2)
    units = stripe(code, data)
    for present in combinations(range(code.units), data):
        found = code.decode({each: units[each] for each in present}, range(code.units))
        assert all(np.array_equal(found[unit], units[unit]) for unit in range(code.units))


def test_as_many_members_as_the_field_allows_still_differ_in_the_second_parity() -> None:
    code = Code(data=255, parity=2)
    assert len({code.coefficient(1, member) for member in range(255)}) == 255
    units = stripe(code, 6, rows=1)
    found = code.decode({unit: units[unit] for unit in range(code.units) if unit not in (3, 254)}, [3, 254])
    assert np.array_equal(found[3], units[3]) and np.array_equal(found[254], units[254])


@settings(deadline=None)
@given(codes, seeds, st.integers(1, 30))
def test_differences_in_any_order_bring_parities_up_to_date(code: Code, seed: int, changes: int) -> None:
    """Each of a few rows of a random member, some of them twice in one difference."""
    units, draw = stripe(code, seed), np.random.default_rng(seed)
    members, parities = units[: code.data], units[code.data :].copy()
    sent = []
    for _ in range(changes):
        member, rows = int(draw.integers(code.data)), draw.integers(0, 5, 3)
        difference = draw.integers(0, 2**32, (3, WORDS), dtype=np.uint32)
        np.bitwise_xor.at(members[member], rows, difference)
        sent.append((member, rows, difference))
    for parity in range(code.parity):
        for number in draw.permutation(changes):
            member, rows, difference = sent[number]
            code.update(parities[parity], parity, rows, member, difference)
    np.testing.assert_array_equal(parities, code.encode(members))


@settings(deadline=None)
@given(codes, seeds, st.data())
def test_a_lost_unit_can_be_summed_up_as_the_others_come(code: Code, seed: int, data: st.DataObject) -> None:
    units = stripe(code, seed)
    arrivals = data.draw(st.permutations(range(code.units)))
    present, lost = arrivals[: code.data], arrivals[-1]
    accumulator = np.zeros((5, WORDS), np.uint32)
    for unit, coefficient in zip(present, code.recovery([lost], present)[0], strict=True):
        galois.add(accumulator, None, units[unit], coefficient)
    np.testing.assert_array_equal(accumulator, units[lost])


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 12), st.integers(1, 2), st.integers(1, 7), seeds)
def test_isa_l_computes_the_same_parities_and_decodes_them(data: int, parity: int, rows: int, seed: int) -> None:
    """Reed-Solomon over Vandermonde rows, in which ISA-L multiplies by 2^(p·i) as well."""
    isa_l = pytest.importorskip("pyeclib.ec_iface", reason="pyeclib (ISA-L) is not installed")
    driver = isa_l.ECDriver(k=data, m=parity, ec_type="isa_l_rs_vand")
    code = Code(data=data, parity=parity)
    members = np.random.default_rng(seed).integers(0, 2**32, (data, rows, 16), dtype=np.uint32)
    fragments = driver.encode(members.tobytes())
    header = len(fragments[0]) - members[0].nbytes
    payloads = [np.frombuffer(each[header:], "<u4").reshape(rows, 16) for each in fragments]
    np.testing.assert_array_equal(payloads[:data], members)
    np.testing.assert_array_equal(payloads[data:], code.encode(members))
    lost = np.random.default_rng(seed).choice(data + parity, parity, replace=False).tolist()
    kept = [unit for unit in range(code.units) if unit not in lost]
    assert driver.decode([fragments[unit] for unit in kept]) == members.tobytes()
    for unit, records in code.decode({each: payloads[each] for each in kept}, lost).items():
        np.testing.assert_array_equal(records, payloads[unit])


def test_a_code_that_cannot_be_is_refused() -> None:
    for data, parity, message in ((0, 1, "1 to 255 members"), (256, 1, "1 to 255 members"), (4, 3, "1 to 2 parities")):
        with pytest.raises(ConfigurationError, match=message):
            Code(data=data, parity=parity)
    code = Code(data=3, parity=1)
    with pytest.raises(ConfigurationError, match="3 units are needed to rebuild others"):
        code.recovery([0], [1, 2])
    with pytest.raises(ConfigurationError, match="3 units are needed to rebuild others"):
        code.recovery([0], [1, 2, 2])
    with pytest.raises(ConfigurationError, match="numbered from 0 to 3, got 4"):
        code.recovery([4], [1, 2, 3])
    with pytest.raises(ConfigurationError, match="3 members, got 2"):
        code.encode(np.zeros((2, 1, 1), np.uint32))
