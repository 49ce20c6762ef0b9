"""What the members of a job know and nobody else does."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field

import zmq

from holdfast.errors import ConfigurationError

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Made by the controller for a job, and given to each process through a pipe: never as an argument or variable.

    The token lets its holder in where nothing is encrypted, the key pair where everything is.
    """

    token: bytes = field(repr=False)
    public_key: bytes  # Z85, as ZeroMQ takes keys
    secret_key: bytes = field(repr=False)

    @classmethod
    def make(cls) -> Credentials:
        """New ones, for one job."""
        if not zmq.has("curve"):
            raise ConfigurationError("this build of pyzmq has no encryption (CURVE); install the official wheel")
        public_key, secret_key = zmq.curve_keypair()
        return cls(token=secrets.token_bytes(_TOKEN_BYTES), public_key=public_key, secret_key=secret_key)

    def to_json(self) -> str:
        """For a pipe to a child."""
        keys = {"public_key": self.public_key.decode(), "secret_key": self.secret_key.decode()}
        return json.dumps({"token": self.token.hex(), **keys})

    @classmethod
    def from_json(cls, text: str) -> Credentials:
        """As ``to_json`` wrote them."""
        try:
            found = json.loads(text)
            token, public_key, secret_key = (found[name] for name in ("token", "public_key", "secret_key"))
            return cls(token=bytes.fromhex(token), public_key=public_key.encode(), secret_key=secret_key.encode())
        except (ValueError, KeyError, TypeError, AttributeError):
            # The text is not quoted: it may hold secrets.
            raise ConfigurationError("these are no credentials of a job; pass what to_json() returned") from None

    def password(self, key: bytes) -> bytes:
        """What lets a member in at the address with this key.

        It differs from address to address: whoever takes the port of a dead process learns nothing that opens another.
        """
        return hmac.new(self.token, b"holdfast " + key, hashlib.sha256).hexdigest().encode()
