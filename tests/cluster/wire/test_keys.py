"""Credentials travel as text, and are not shown."""

from __future__ import annotations

import pytest

from holdfast.cluster.wire.keys import Credentials
from holdfast.errors import ConfigurationError


def test_credentials_come_back_from_text() -> None:
    made = Credentials.make()
    assert Credentials.from_json(made.to_json()) == made


def test_two_jobs_have_nothing_in_common() -> None:
    one, other = Credentials.make(), Credentials.make()
    assert one.token != other.token and one.secret_key != other.secret_key
    assert one.password(b"address") != other.password(b"address")


def test_each_address_has_a_password_of_its_own() -> None:
    made = Credentials.make()
    assert made.password(b"one") != made.password(b"other")


def test_secrets_are_not_in_the_repr() -> None:
    made = Credentials.make()
    assert made.secret_key.decode() not in repr(made) and made.token.hex() not in repr(made)
    assert repr(made.token) not in repr(made)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"token": "s3cret", "public_key": "", "secret_key": ""}'])
def test_text_that_is_no_credentials_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no credentials") as refused:
        Credentials.from_json(text)
    assert "s3cret" not in str(refused.value)
