"""Where a member can be reached, and what its address tells others of it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cluster.core.members import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Of an endpoint.

    ``key`` is as unique as the endpoint: its public key where the connection is encrypted, else a random number.
    Either way a process that comes to the same url later cannot be mistaken for it.
    """

    url: str
    key: bytes
    is_encrypted: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """A member, and where it is."""

    member: Member
    address: Address
