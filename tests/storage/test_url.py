from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from holdfast.storage import LocalStore, ObjectStore, open_store


def test_a_path_in_any_spelling_is_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "a run"
    for url in (run, str(run), "a run", "./a run", f"file://{run}".replace(" ", "%20"), f"file://localhost{run}"):
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert store.url == str(run)
    assert list(tmp_path.iterdir()) == []  # opening creates nothing


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://bucket/run", "gcs://bucket"])
def test_a_bucket_is_an_object_store(url: str) -> None:
    store = open_store(url, options={"skip_signature": "true"})
    assert isinstance(store, ObjectStore)
    assert store.url == url


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("az://container/run", {"account_name": "account", "account_key": "a2V5"}),
        ("abfs://container@account.dfs.core.windows.net/run", {"account_key": "a2V5"}),
    ],
)
def test_an_azure_container_is_an_object_store(url: str, options: dict[str, str]) -> None:
    assert open_store(url, options=options).url == url


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'ftp'.*file://.*memory://.*s3://.*gs://.*az://.*abfs://"):
        open_store("ftp://host/run")


@pytest.mark.parametrize("url", ["", "s3:/bucket", "s3:bucket", "file:/data", "file://host/data", "s3://", "s3:///run"])
def test_a_url_that_means_nothing_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    assert open_store(tmp_path / "s3" / "run:1").url == str(tmp_path / "s3" / "run:1")


def test_options_where_they_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="endpoint"):
        open_store(tmp_path, options={"endpoint": "http://127.0.0.1"})


@pytest.mark.parametrize(
    "options",
    [{"no_such_option": "1"}, {"endpoint": "127.0.0.1:9000"}, {"timeout": "soon"}],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://bucket/run"):
        open_store("s3://bucket/run", options=options)


def test_without_obstore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigurationError, match=r"pip install holdfast\[object\]"):
        open_store("s3://bucket/run")
