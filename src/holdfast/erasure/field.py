"""The field GF(2^8) of one byte: sums are XOR, products are modulo a polynomial; 2 generates every element but 0."""

from __future__ import annotations

from functools import cache

from holdfast.kernels.galois import GENERATOR, POLYNOMIAL, double, multiply

__all__ = ["GENERATOR", "ORDER", "POLYNOMIAL", "divide", "multiply", "power"]

ORDER = 255  # of the generator: how many powers of it differ


def power(exponent: int) -> int:
    """The generator to this power, which may be negative."""
    return _powers()[exponent % ORDER]


def divide(dividend: int, divisor: int) -> int:
    """The element whose product with the divisor is the dividend."""
    if divisor == 0:
        raise ZeroDivisionError("division by zero in GF(2^8)")
    return multiply(dividend, power(-_exponents()[divisor]))


@cache
def _powers() -> tuple[int, ...]:
    found = [1]
    while len(found) < ORDER:
        found.append(double(found[-1]))
    return tuple(found)


@cache
def _exponents() -> dict[int, int]:
    return {element: exponent for exponent, element in enumerate(_powers())}
