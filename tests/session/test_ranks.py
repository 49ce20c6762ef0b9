"""Two real processes train one model together, under DistributedDataParallel or by themselves, and save it together."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.lease import TTL_S
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.codec import Asymmetric, Fitted, Logarithmic
from holdfast.format.catalog import Intent, intent_name
from holdfast.format.manifest import EXACT
from holdfast.storage import open_store
from tests.checkpoint.track.ddp_tracker_worker import chosen
from tests.checkpoint.track.tracker_cases import CASES, Case
from tests.checkpoint.track.tracker_values import digests_of
from tests.session.job import Job, Jobs, freeze, kill
from tests.session.rank import Moody, Numbers, build, digests
from tests.tiny import train_step

SLOW_AND_FAST, FAST_AND_SLOW = (0.0, 1e9), (1e9, 0.0)  # the ranks' clocks: one stands still, one races
EVERY_5 = hf.EverySteps(5).to_dict()
STRATEGIES = [hf.Full(), hf.OneShot(), hf.Consecutive(), hf.Intermittent(), hf.Grid(rule=hf.DeadShare(0.1))]
States = dict[int, dict[str, str]]

pytestmark = pytest.mark.timeout(400)  # longer than a rank is waited for, so that its log is seen


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.stop()


@pytest.fixture
def job(jobs: Jobs) -> Job:
    return jobs.get()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def train(job: Job, steps: int) -> States:
    """The states after each step, which are the same on both ranks."""
    first, second = job.call("train", steps=steps)
    assert first == second
    return {int(step): state for step, state in first.items()}


def saved(job: Job) -> dict[str, str]:
    """Save now and wait; the state that must be in it."""
    state: dict[str, str] = job.call("state")[0]
    assert job.call("save", wait=True) == [True, True]
    return state


def restored(url: str, step: int | None = None, *, sparse: bool = True) -> dict[str, str]:
    """A checkpoint as one process alone reads it."""
    model, optimizers = build(sparse=sparse, seed=99)
    hf.open_run(url).restore(step, model=model, optimizer=optimizers, extra={"moody": Moody()})
    return digests(model, optimizers)


def saved_steps(url: str) -> list[int]:
    return [info.step for info in hf.open_run(url).checkpoints()]


def assert_exact(url: str, states: States, *, sparse: bool = True) -> None:
    """Every checkpoint that is listed holds the state that its step had, and every byte of the run is right."""
    for step in saved_steps(url):
        assert restored(url, step, sparse=sparse) == states[step]
    assert hf.open_run(url).verify() == []


@pytest.fixture(params=[False, True], ids=["one machine", "two machines"])
def anywhere(request: pytest.FixtureRequest, job: Job) -> Iterator[Job]:
    """A job on one machine, and one whose ranks cannot reach each other but through torch.distributed."""
    job.call("move", apart=request.param)
    yield job
    if job.whole:
        job.call("move", apart=False)


@pytest.mark.parametrize("lengths", [[0, 3], [3, 9000], [9000, 3], [9000, 70_000]])
def test_ranks_agree_on_short_and_on_long_values(anywhere: Job, lengths: list[int]) -> None:
    assert anywhere.call("agree", lengths=lengths) == [[lengths, lengths[:1]]] * 2


def test_ranks_save_together_wherever_they_are(anywhere: Job, url: str) -> None:
    anywhere.call("open", url=url, save=hf.EverySteps(2).to_dict(), strategy=hf.Consecutive().to_dict())
    states = train(anywhere, 6)
    anywhere.call("close")
    assert saved_steps(url) == [2, 4, 6]
    assert_exact(url, states)


def test_each_rank_writes_its_rows_and_one_commit_holds_both(job: Job, url: str) -> None:
    job.call("open", url=url, save=EVERY_5)
    states = train(job, 10)
    job.call("close")
    assert saved_steps(url) == [5, 10]
    assert_exact(url, states)
    store = open_store(url)
    head = Chain(store).head()
    assert head is not None
    assert head.catalog.number == 3  # the run's creation and two saves: nobody commits twice
    for entry in head.entries:
        parts = Fetcher(store).parts(entry)
        assert [(table.start, table.stop) for part in parts for table in part.tables if table.spec.rows == 300] == [
            (0, 150),
            (150, 300),
        ]


@pytest.mark.parametrize(
    ("strategy", "sparse"),
    [
        pytest.param(strategy, sparse, marks=() if number % 3 == 0 else pytest.mark.slow)
        for number, (strategy, sparse) in enumerate(product(STRATEGIES, [True, False]))
    ],
)
def test_a_resumed_job_goes_on_as_if_nothing_had_happened(job: Job, url: str, strategy: Any, sparse: bool) -> None:
    states: States = {}
    for steps in (7, 4, 9):
        stands_at = job.call("open", url=url, save=EVERY_5, strategy=strategy.to_dict(), sparse=sparse)
        assert stands_at == [max(states, default=0)] * 2
        assert not states or job.call("state") == [states[stands_at[0]]] * 2
        states |= train(job, steps)
        job.call("close")
    assert job.call("reference", steps=20, sparse=sparse) == [states[20]] * 2
    assert saved_steps(url) == [5, 7, 10, 11, 15, 20]
    assert_exact(url, states, sparse=sparse)


@pytest.mark.parametrize("priority", [hf.MFU(r=0.4), hf.SSU(r=0.4), hf.SCAR(r=0.4)], ids=repr)
def test_ranks_save_their_rows_first_and_recover_the_same_part(job: Job, url: str, priority: Any) -> None:
    strategy = hf.Partial(priority=priority, consistent=hf.Consecutive())
    assert job.call("open", url=url, save=EVERY_5, strategy=strategy.to_dict()) == [0, 0]
    states = {0: job.call("state")[0]}
    for _ in range(9):
        states |= train(job, 1)
        job.call("drain")
    run = hf.open_run(url)
    assert [info.step for info in run.priority_saves()] == [6, 8]
    for entry in run.head().catalog.priority:
        assert [part.rank for part in Fetcher(run.store).parts(entry)] == [0, 1]
    first, second = job.call("recover", servers=[1], of=3)
    assert first == second and first != states[9]
    states |= train(job, 4)
    job.call("close")
    assert saved_steps(url) == [0, 5, 10, 13]
    assert_exact(url, states)


@pytest.mark.parametrize("strategy", [hf.Intermittent(), hf.Grid(rule=hf.DeadShare(0.1))], ids=repr)
def test_differences_from_a_baseline_of_two_writers_are_read_by_two_and_by_one(
    job: Job, url: str, strategy: Any
) -> None:
    precision = hf.Bits(2, difference=True)
    warm_up_codecs()  # to compile them for the first time would take the agents longer than a rank waits
    for steps in (3, 3):
        job.call("open", url=url, strategy=strategy.to_dict(), precision=precision.to_dict())
        assert not saved_steps(url) or job.call("state") == [restored(url)] * 2
        for _ in range(steps):
            train(job, 1)
            saved(job)
        job.call("close")
    model, optimizers = build(seed=99)
    with hf.Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        loader=Numbers(0),
        extra={"moody": Moody()},
        strategy=strategy,
        precision=precision,
        retention=hf.KeepAll(),
    ) as guard:
        guard.resume()
        assert digests(model, optimizers) == restored(url)
        train_step(model, optimizers, 7)
        guard.step()
        guard.save(wait=True)
        live = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    again, _ = build(seed=99)
    hf.open_run(url).restore(model=again)
    for name, tensor in again.state_dict().items():
        assert (tensor - live[name]).abs().max() < 0.1 * live[name].abs().max()
    assert hf.open_run(url).verify() == []


def warm_up_codecs() -> None:
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    for codec in (Asymmetric(bits=4), Asymmetric(bits=8), Fitted(bits=2), Logarithmic(bits=8)):
        codec.decode(codec.encode(np.abs(rows)), 4)


@pytest.mark.parametrize("ranks", [[], [0], [1], [0, 1]])
def test_all_ranks_save_at_the_end_what_changed_on_any(job: Job, url: str, ranks: list[int]) -> None:
    job.call("open", url=url)
    states = train(job, 3)
    saved(job)
    job.call("halve", ranks=ranks)
    live = job.call("state")[0]
    job.call("close")
    assert saved_steps(url) == ([3, 3] if ranks else [3])
    assert restored(url) == (live if ranks == [0, 1] else states[3]) or len(ranks) == 1
    assert job.call("open", url=url) == [3, 3]
    job.call("close")
    assert saved_steps(url) == ([3, 3] if ranks else [3])
    assert hf.open_run(url).verify() == []


def test_one_process_alone_can_take_the_job_over(job: Job, url: str) -> None:
    job.call("open", url=url)
    states = train(job, 3)
    saved(job)
    model, optimizers = build(seed=99)
    with hf.Checkpointer(
        url, model=model, optimizer=optimizers, loader=Numbers(0), extra={"moody": Moody()}, retention=hf.KeepAll()
    ) as guard:
        assert guard.resume() == 3
        assert digests(model, optimizers) == states[3]
        assert next(guard.batches(epochs=None)) == 6  # rank 0's fourth
        late = job.outcomes("save", wait=True)
        assert [answer.error for answer in late] == ["TakenOver", "TakenOver"]
        assert [answer.error for answer in job.outcomes("close")] == ["TakenOver", "TakenOver"]
    assert_exact(url, states)


def test_ranks_that_are_new_to_a_job_store_rows_as_precisely_as_the_others(job: Job, url: str) -> None:
    auto = hf.PaperTable(failure_probability=0.001, nodes=10, expected_hours=100)  # one restore expected: 2 bits
    warm_up_codecs()
    for life in range(4):
        model, optimizers = build(seed=99)
        guard = hf.Checkpointer(
            url, model=model, optimizer=optimizers, loader=Numbers(0), extra={"moody": Moody()}, precision=auto
        )
        with guard:
            assert guard.resume() == life
            train_step(model, optimizers, life)
            guard.step()
    job.call("open", url=url, precision=auto.to_dict(), strategy=hf.Full().to_dict())
    job.call("train", steps=1)
    saved(job)
    job.call("close")
    store = open_store(url)
    head = Chain(store).head()
    assert head is not None
    parts = Fetcher(store).parts(head.entries[-1])
    first, second = ({chunk.codec for table in part.tables for chunk in table.chunks} for part in parts)
    assert first == second and EXACT not in first
    intent = Intent.decode(store.get(name := intent_name(head.entries[-1].info.id)), name=name)
    assert {(stored.bits, stored.difference) for stored in intent.stored.values()} == {(8, False)}
    assert intent.restores == 4


def test_a_checkpointer_on_one_rank_only_says_whom_it_waited_for_and_what_to_do(jobs: Jobs, url: str) -> None:
    job = jobs.get()
    job.whole = False  # its ranks have not created the same groups
    job.ranks[0].ask("guard_alone", url=url, ranks_s=0.5)
    answer = job.ranks[0].answer()
    assert answer.error == "RanksMissing"
    assert "s for rank 1, which created none" in answer.message
    assert "create the Checkpointer on every rank" in answer.message


def test_a_rank_that_never_comes_to_a_save_is_waited_for_no_longer_than_was_said(jobs: Jobs, url: str) -> None:
    job = jobs.get()
    job.whole = False
    job.call("open", url=url, settings={"ranks_s": 1.0})
    job.ranks[0].ask("save", wait=False)
    answer = job.ranks[0].answer()
    assert answer.error == "RanksMissing" and "rank 0 of 2 waited" in answer.message


@pytest.mark.parametrize(("seeds", "steps"), [((1, 2), 0), ((1, 1), 3)], ids=["from the start", "after some steps"])
def test_ranks_that_hold_different_tables_under_one_name_are_refused(
    job: Job, url: str, seeds: tuple[int, int], steps: int
) -> None:
    for answer in job.outcomes("train_apart", url=url, seeds=seeds, steps=steps):
        assert answer.error == "ConfigurationError"
        assert "on rank 1 differs from rank 0" in answer.message
    assert not hf.open_run(url).head().entries


def test_a_model_that_is_spread_over_ranks_is_refused_with_words(job: Job, url: str) -> None:
    for answer in job.outcomes("guard_sharded", url=url):
        assert answer.error == "ConfigurationError"
        assert "FSDP" in answer.message and "DistributedDataParallel" in answer.message


@pytest.mark.parametrize("overlap", [overlap.value for overlap in hf.Overlap])
def test_no_row_is_lost_when_saves_overlap(job: Job, url: str, overlap: str) -> None:
    job.call("open", url=url, save=hf.EverySteps(1).to_dict(), overlap=overlap)
    states = train(job, 25)
    job.call("close")
    assert saved_steps(url)[-1] == 25
    assert_exact(url, states)


def test_the_clock_of_rank_0_decides_for_both(job: Job, url: str) -> None:
    policy = (hf.EveryMinutes(1) | hf.EverySteps(20)).to_dict()
    job.call("open", url=url, save=policy, clock_rates=SLOW_AND_FAST)
    states = train(job, 25)
    job.call("close")
    assert saved_steps(url) == [20, 25]
    job.call("open", url=url, save=policy, clock_rates=FAST_AND_SLOW)
    states |= train(job, 20)
    job.call("close")
    assert saved_steps(url)[2:] == [32, 40, 45]
    assert job.call("reference", steps=45) == [states[45]] * 2
    assert_exact(url, states)


def test_readers_that_read_ahead_stay_together_whatever_the_clocks_say(job: Job, url: str) -> None:
    policy = hf.EveryMinutes(1).to_dict()
    job.call("open", url=url, save=policy, clock_rates=SLOW_AND_FAST, read_ahead=True)
    train(job, 20)
    job.call("leave")
    assert saved_steps(url) == []
    job.call("open", url=url, save=policy, clock_rates=FAST_AND_SLOW, read_ahead=True)
    states = train(job, 40)
    job.call("leave")
    assert saved_steps(url) == [16, 32]
    assert job.call("open", url=url, save=policy, read_ahead=True) == [32, 32]
    states |= train(job, 16)
    job.call("leave")
    assert job.call("reference", steps=48) == [states[48]] * 2
    assert_exact(url, states)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("read_ahead", [False, True])
def test_sigterm_on_one_rank_saves_and_ends_both(job: Job, url: str, rank: int, read_ahead: bool) -> None:
    settings = {"url": url, "read_ahead": read_ahead, "save": hf.EverySteps(9).to_dict()}
    job.call("open", **settings)
    states = train(job, 4)
    os.kill(job.ranks[rank].pid, signal.SIGTERM)
    answers = job.outcomes("train", steps=100)
    assert [(answer.error, answer.message) for answer in answers] == [("Terminated", str(hf.Terminated.EXIT_CODE))] * 2
    assert saved_steps(url) == ([9] if read_ahead else [9, 16])
    job.call("open", **settings)
    states |= train(job, 27 - saved_steps(url)[-1])
    job.call("close")
    assert job.call("reference", steps=27) == [states[27]] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_save_whose_agent_is_killed_on_one_rank_is_not_committed_and_the_next_holds_everything(
    job: Job, url: str, rank: int
) -> None:
    job.call("open", url=url)
    states = train(job, 3)
    saved(job)
    states |= train(job, 2)
    agent = job.call("agent")[rank]
    freeze(agent)
    assert job.call("save", wait=False) == [True, True]
    kill(agent)
    states |= train(job, 2)
    saved(job)
    assert job.call("stats")[rank]["agent_deaths"] == 1
    assert [stats["failed"] for stats in job.call("stats")] == [1, 1]
    assert saved_steps(url) == [3, 7]
    job.call("close")
    assert_exact(url, states)


def test_agents_killed_at_random_moments_lose_nothing(job: Job, url: str) -> None:
    chance = random.Random(1)
    job.call("open", url=url)
    states: States = {}
    for number in range(6):
        states |= train(job, 2)
        job.call("save", wait=False)
        time.sleep(0.2 * chance.random())
        kill(job.call("agent")[number % 2])
    states |= train(job, 1)
    job.call("close")  # tries again if the agent of the last save was dead
    assert saved_steps(url)[-1] == 13
    assert_exact(url, states)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_agent_that_dies_while_both_ranks_wait_for_it_does_not_keep_them_waiting(
    job: Job, url: str, rank: int
) -> None:
    job.call("open", url=url)
    states = train(job, 3)
    agent = job.call("agent")[rank]
    freeze(agent)
    assert job.call("save", wait=False) == [True, True]
    for process in job.ranks:
        process.ask("save", wait=True)
    time.sleep(0.2)
    kill(agent)
    assert [process.answer().value for process in job.ranks] == [True, True]
    job.call("close")
    assert saved_steps(url) == [3]
    assert_exact(url, states)


def test_a_rank_that_cannot_take_its_snapshot_fails_the_save_for_all(job: Job, url: str) -> None:
    job.call("open", url=url)
    states = train(job, 3)
    saved(job)
    states |= train(job, 2)
    job.call("refuse", flag=True)
    first, second = job.outcomes("save", wait=False)
    assert first.error == "ArithmeticError"  # extras are saved by rank 0
    assert second.value is True  # has taken its part, which nobody will commit
    first, second = job.outcomes("drain")
    assert first.error == second.error == "SaveFailed"
    assert "was cancelled by another of its 2 writers" in second.message  # and not given up some time later
    job.call("refuse", flag=False)
    states |= train(job, 1)
    saved(job)
    job.call("close")
    assert saved_steps(url) == [3, 6]
    assert_exact(url, states)


@pytest.mark.parametrize("steps", [0, 17])
def test_ranks_come_to_the_next_save_together_after_one_could_not_take_its_part(job: Job, url: str, steps: int) -> None:
    job.call("open", url=url, save=EVERY_5)
    states = train(job, 3)
    job.call("refuse", flag=True)
    assert job.outcomes("save", wait=False)[0].error == "ArithmeticError"
    job.call("refuse", flag=False)
    states |= train(job, steps)
    job.call("close")
    assert saved_steps(url)[-1] == 3 + steps
    assert_exact(url, states)


def test_a_rank_goes_on_before_the_others_of_its_machine_have_come_to_the_save(job: Job, url: str) -> None:
    job.call("open", url=url)
    states = train(job, 3)
    saved(job)  # before the first one ranks compare their tables
    states |= train(job, 2)
    assert job.call_one(0, "save", wait=False)
    assert job.call_one(1, "save", wait=False)
    job.call("close")
    assert saved_steps(url) == [3, 5]
    assert_exact(url, states)


@pytest.mark.slow
def test_a_rank_that_comes_late_to_a_save_is_waited_for_and_one_that_was_killed_is_not(jobs: Jobs, url: str) -> None:
    job = jobs.get()
    job.call("open", url=url)
    states = train(job, 3)
    saved(job)
    states |= train(job, 2)
    assert job.call_one(0, "save", wait=False)
    time.sleep(3 * TTL_S)  # agents that have not begun by now count as dead, unless their ranks live
    assert job.call_one(1, "save", wait=True)
    states |= train(job, 2)
    assert job.call_one(0, "save", wait=False)
    job.kill_rank(1)
    job.ranks[0].ask("drain")
    answer = job.ranks[0].answer(6 * TTL_S)
    assert answer.error == "SaveFailed" and "the parts of ranks [1] are missing" in answer.message
    assert saved_steps(url) == [3, 5]
    assert_exact(url, states)


def test_a_save_that_only_rank_0_asked_for_never_gets_rows_of_a_later_step(jobs: Jobs, url: str) -> None:
    job = jobs.get()
    job.whole = False
    job.call("open", url=url, settings={"part_timeout_s": 1.0})
    states = train(job, 3)
    saved(job)
    states |= train(job, 1)
    assert job.call_one(0, "save", wait=False)
    states |= train(job, 1)
    late = job.outcomes("save", wait=False)[1]
    assert late.error == "RanksMissing" and "rank 0 saves step 4, but rank 1 of 2 is at step 5" in late.message
    job.call("leave")
    assert saved_steps(url) == [3]
    assert_exact(url, states)


def test_a_rank_killed_with_its_agent_commits_nothing_and_the_job_continues_where_it_was(jobs: Jobs, url: str) -> None:
    job = jobs.get()
    job.call("open", url=url)
    states = train(job, 4)
    saved(job)
    job.call("close")
    job.call("open", url=url, settings={"part_timeout_s": 1.0})  # from here on nothing is to be committed
    states |= train(job, 3)
    agent = job.call("agent")[1]
    freeze(agent)
    assert job.call("save", wait=False) == [True, True]
    job.kill_rank(1)
    kill(agent)
    job.ranks[0].ask("train", steps=1)
    assert job.ranks[0].answer().error is not None  # what the process group raises; it left the block by then
    assert saved_steps(url) == [4]
    job = jobs.get()
    assert job.call("open", url=url, settings={"lease_s": 1.0}) == [4, 4]
    again = train(job, 10)
    job.call("close")
    assert {step: again[step] for step in (5, 6, 7)} == {step: states[step] for step in (5, 6, 7)}
    assert job.call("reference", steps=14) == [again[14]] * 2
    assert_exact(url, states | again)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_killed_after_its_snapshot_still_gets_its_checkpoint(jobs: Jobs, url: str, rank: int) -> None:
    job = jobs.get()
    job.call("open", url=url)
    states = train(job, 4)
    assert job.call("save", wait=False) == [True, True]
    job.kill_rank(rank)
    job = jobs.get()
    assert job.call("open", url=url) == [4, 4]
    states |= train(job, 2)
    job.call("close")
    assert job.call("reference", steps=6) == [states[6]] * 2
    assert_exact(url, states)


def saves_together(case: Case) -> bool:
    """Of optimizers that move all rows one case each; of the others all in which rows come from another rank.

    Not with ``max_norm``: it rewrites rows on the rank that looks them up, and nowhere else.
    """
    situation = case.situation.name
    return chosen(case) and "max_norm" not in situation and (bool(case.rule.row_local) or situation == "plain")


@pytest.mark.parametrize("kind", sorted({case.rule.name for case in CASES if chosen(case)}))
def test_deltas_of_every_optimizer_hold_the_rows_of_all_ranks(job: Job, tmp_path: Path, kind: str) -> None:
    cases = {case.name: case for case in CASES if case.rule.name == kind and saves_together(case)}
    saved_by_rank = job.call("cases", folder=str(tmp_path), names=list(cases))
    assert saved_by_rank[0] == saved_by_rank[1]
    for name, states in saved_by_rank[0].items():
        run = hf.open_run(str(tmp_path / name))
        assert [info.step for info in run.checkpoints()] == [int(step) for step in states]
        for step, expected in states.items():
            fresh = cases[name].build()
            run.restore(int(step), model=fresh.model, optimizer=fresh.optimizers)
            assert digests_of(fresh) == expected


def test_a_snapshot_that_an_edit_overtook_on_one_rank_is_taken_again_by_all(job: Job, url: str) -> None:
    job.call("pretend_device")
    settings = {"device_buffer_bytes": 600_000, "buffer_bytes": 2**22}
    job.call("open", url=url, strategy=hf.Full().to_dict(), settings=settings, rows=[40_000, 40])
    job.call("train", steps=2)
    job.call("save", wait=False)
    job.call("train", steps=1)
    job.call("halve", ranks=[1])
    for _ in range(200):  # ranks meet after 16 steps; that the save was given up must have come to all of them
        job.call("train", steps=16)
        if all(stats["committed"] for stats in job.call("stats")):
            break
    first, second = job.call("stats")
    job.call("leave")
    assert (first["thrown_away"], second["thrown_away"]) == (0, 1)
    assert (first["failed"], first["committed"]) == (second["failed"], second["committed"]) == (1, 1)
    run = hf.open_run(url)
    (checkpoint,) = run.checkpoints()
    assert checkpoint.step > 3 and not run.verify()
