"""The constants of SHA-256 (FIPS 180-4): roots of the first primes."""

from __future__ import annotations

from decimal import Decimal, localcontext

BLOCK_BYTES = 64  # that one compression takes in
ROUNDS = 64


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % each for each in found):
            found.append(number)
        number += 1
    return found


def _root_bits(number: int, power: int) -> int:
    """The first 32 bits behind the point of a number's square or cube root."""
    with localcontext(prec=40):
        root = Decimal(number) ** (Decimal(1) / power)
        return int((root % 1) * (1 << 32))


START = [_root_bits(prime, 2) for prime in _primes(8)]  # the state of an empty message: a .. h
ADDED = [_root_bits(prime, 3) for prime in _primes(ROUNDS)]  # one for each round
