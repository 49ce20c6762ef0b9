"""Where a member can be reached, and what its address tells others of it."""

from __future__ import annotations

import json
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

    def to_json(self) -> str:
        """For a process that is to connect to it."""
        return json.dumps({"url": self.url, "key": self.key.hex(), "is_encrypted": self.is_encrypted})

    @classmethod
    def from_json(cls, text: str) -> Address:
        """As ``to_json`` wrote it."""
        found = json.loads(text)
        return cls(url=found["url"], key=bytes.fromhex(found["key"]), is_encrypted=found["is_encrypted"])


@dataclass(frozen=True, slots=True)
class Peer:
    """A member, and where it is."""

    member: Member
    address: Address
