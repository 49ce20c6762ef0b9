"""The connections of an object store: response timeouts, retries, and the process they belong to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Client: TypeAlias = S3Store | GCSStore | AzureStore

ANSWER_S = 60.0  # within which a request without much data must be answered
_SHORTEST_ANSWER_S = 5.0
_TRANSFER_S = 120.0  # within which megabytes must have gone through
_RETRIES = 3  # short troubles only; longer ones are RetryingStore's


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """One client for each kind of request."""

    repeated: Client  # may be repeated after a lost answer
    once: Client  # may not
    transfer: Client  # may, and moves megabytes


def answer_time_s(patience_s: float | None) -> float:
    """How long one request may go unanswered where a store that does not answer is tried for ``patience_s``."""
    return ANSWER_S if patience_s is None else min(ANSWER_S, max(_SHORTEST_ANSWER_S, patience_s))


def connect(url: str, options: Mapping[str, str], answer_s: float) -> Clients:
    """Clients for the bucket that the URL names; nothing is contacted yet. The option ``timeout`` overrides ours."""
    return Clients(
        repeated=_client(url, options, answer_s, _RETRIES),
        once=_client(url, options, answer_s, 0),
        transfer=_client(url, options, max(answer_s, _TRANSFER_S), _RETRIES),
    )


class ForkGuard:
    """Refuses to work in a process that was forked from one in which object stores were used.

    Their client runs threads, which a fork does not copy: every request of the child would hang, even that of a store
    opened there.
    """

    def __init__(self) -> None:
        self._used_in: int | None = None

    def check(self, url: str) -> None:
        """Call before every request."""
        process = os.getpid()
        if self._used_in is None:
            self._used_in = process
        elif self._used_in != process:
            raise ConfigurationError(
                f"{url}: this process was forked from process {self._used_in} after that process had used an object "
                "store. The client does not survive os.fork(). Start the process with the spawn or forkserver method "
                '(a DataLoader: multiprocessing_context="spawn"), or use no object store before the fork'
            )


FORK_GUARD = ForkGuard()  # one for all stores: they share the client's threads


def _client(url: str, options: Mapping[str, str], answer_s: float, retries: int) -> Client:
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise ConfigurationError(f"{url}: object stores need obstore; pip install holdfast[object]") from error
    parts = urlsplit(url)
    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "gcs": GCSStore, "az": AzureStore, "abfs": AzureStore}
    config = {"timeout": f"{answer_s}s", **_account(parts.netloc), **_checked(url, options)}
    bucket = parts.netloc.partition("@")[0]
    if not bucket:
        raise ConfigurationError(f"{url}: names no bucket; write {parts.scheme}://bucket/path")
    # A request that was not answered in time is not repeated here: whoever waits has waited long enough for one.
    retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=answer_s / 2)}
    try:
        client: Client = kinds[parts.scheme](
            bucket, prefix=parts.path.strip("/") or None, config=config, retry_config=retry
        )
    except Exception as error:
        raise ConfigurationError(f"{url}: {str(error).partition(chr(10))[0]}") from error
    return client


def _account(place: str) -> dict[str, str]:
    """Azure's ``container@account.host`` names the account too."""
    _, separator, host = place.partition("@")
    return {"account_name": host.partition(".")[0]} if separator else {}


def _checked(url: str, options: Mapping[str, str]) -> Mapping[str, str]:
    endpoint = options.get("endpoint", "https://")
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url}: the endpoint {endpoint!r} must begin with https:// or http://")
    return options
