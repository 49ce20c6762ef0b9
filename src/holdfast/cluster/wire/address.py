"""Where a member can be reached, and what its address tells others of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.cluster.core.members import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Of an endpoint.

    ``key`` is as unique as the endpoint: its public key where the connection is encrypted, else a random number.
    Either way a process that comes to the same url later cannot be mistaken for it.

    Attributes:
        url: Where it listens.
        other_urls: Where it listens as well: what comes in by different ones is moved by different threads.
    """

    url: str
    other_urls: tuple[str, ...] = ()
    key: bytes
    is_encrypted: bool

    def way_in(self, turn: int) -> str:
        """The url for whoever is this one's turn: those who come one after another share its threads evenly."""
        urls = (self.url, *self.other_urls)
        return urls[turn % len(urls)]

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for a process that is to connect to it."""
        return {**asdict(self), "key": self.key.hex()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Address:
        """As ``to_json`` wrote it."""
        return cls(**{**body, "other_urls": tuple(body["other_urls"]), "key": bytes.fromhex(body["key"])})


@dataclass(frozen=True, slots=True)
class Peer:
    """A member, and where it is."""

    member: Member
    address: Address
