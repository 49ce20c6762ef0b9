"""A server whose rows came from parities finds out what its next save builds on, and goes on meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.trainer.settings import Settings
from holdfast.cluster.core.notes import Decide
from holdfast.cluster.server import saves as saving
from holdfast.cluster.server.adoption import Adoption
from holdfast.cluster.server.place import Place
from holdfast.cluster.server.saves import SavedRows
from holdfast.errors import StorageUnavailable, TakenOver
from tests.cluster.server.jobs import job

NOBODY = {  # a port on which nothing listens
    "endpoint": "http://127.0.0.1:9",
    "allow_http": "true",
    "aws_access_key_id": "a",
    "aws_secret_access_key": "b",
    "region": "us-east-1",
}


class Answers:
    """What a store says, one answer after another, each when it may."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.may_answer = threading.Event()
        self._answers = iter(answers)

    def read(self) -> None:
        self.may_answer.wait()
        if (error := next(self._answers)) is not None:
            raise error


def test_it_is_known_when_the_store_has_answered() -> None:
    answers = Answers(None)
    adoption = Adoption(answers.read)
    assert not adoption.is_known and "has not yet said" in adoption.problem
    answers.may_answer.set()
    adoption.wait(60.0)
    assert adoption.is_known and adoption.loaded is None


def test_a_store_that_failed_is_asked_again() -> None:
    answers = Answers(StorageUnavailable("the store is away"), None)
    answers.may_answer.set()
    adoption = Adoption(answers.read)
    while "the store is away" not in adoption.problem:
        pass
    assert not adoption.is_known
    adoption.wait(60.0)
    assert adoption.is_known


def test_whoever_waits_for_a_store_that_does_not_answer_goes_on_after_a_while() -> None:
    adoption = Adoption(Answers(None).read)
    adoption.wait(0.01)
    assert not adoption.is_known


@pytest.mark.parametrize("error", [TakenOver("another job"), ValueError("a fault")])
def test_what_asking_again_does_not_mend_is_raised(error: Exception) -> None:
    answers = Answers(error, error)
    answers.may_answer.set()
    with pytest.raises(type(error)):
        Adoption(answers.read).wait(60.0)


def saves_of(found: Any) -> SavedRows:
    saves = Place(found, 0, None, None).saves
    saves.adopt(replaces=True)
    return saves


def test_a_save_waits_until_it_is_known_what_it_builds_on(tmp_path: Path) -> None:
    saves = saves_of(job(str(tmp_path / "run")))
    saves.survey()
    assert saves._is_started and saves._adoption is None
    saves.close()


def test_without_a_store_saves_fail_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_ADOPTION_S", 0.01)
    away = job("s3://bucket/run", settings=Settings(reserve_bytes=0, retry_s=0.2), options=NOBODY)
    saves = saves_of(away)
    surveys = (saves.survey(),) * 3
    assert json.loads(surveys[0]) is None
    decided = saves.decide(Decide(1, 10, surveys))
    assert not decided.intent and "newest checkpoint" in decided.problem
    assert "newest checkpoint" in saves.copy(1, {}, b"{}").problem
    saves.priority_intent = b"{}"
    assert "newest checkpoint" in saves.copy_priority(2, {}).problem
    assert list(saves.outcomes()) == []
    saves.close()
