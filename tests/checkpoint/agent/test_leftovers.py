"""What agents leave that die in the middle of their work goes within the term, and nothing else does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.agent.leftovers import Leftovers
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import take_over
from holdfast.checkpoint.commit.collect import referenced_folders
from holdfast.checkpoint.write.committer import Committer
from holdfast.errors import SaveFailed
from holdfast.format.catalog import PartList, Ref, checkpoint_id, part_list_name
from holdfast.policy import Strategy
from holdfast.storage import LocalStore, MemoryStore, Store
from tests.session.mortal import MortalAgent, Trainer, mortal_agents
from tests.tiny import same

TERM = 1
DEAD, BUSY, BEGUN, ROUND, OLDER = (checkpoint_id(step, TERM, "ab") for step in range(1, 6))


def unreferenced(store: Store) -> list[str]:
    head = Chain(store).head()
    assert head is not None
    known = referenced_folders(head)
    return [info.name for info in store.list("data/") if info.name.split("/")[1] not in known]


@pytest.mark.parametrize("strategy", [hf.Full(), hf.Grid(rule=hf.DeadShare(0.05), reset=False)], ids=repr)
def test_whatever_operation_an_agent_dies_at_its_successor_leaves_nothing_behind(strategy: Strategy) -> None:
    leaks = 0
    for after in range(0, 16, 3):
        store = MemoryStore()
        with mortal_agents():
            trainer = Trainer(
                store,
                save=hf.Never(),
                strategy=strategy,
                retention=hf.KeepAll(),
                overlap=hf.Overlap.WAIT,
                seed=0,
            )
            trainer.resume()
            trainer.train([0], None)
            trainer.save(None, wait=True)
            trainer.train([1], None)
            MortalAgent.born[-1].die(after=after)
            with suppress(SaveFailed):
                trainer.save(None, wait=True)
            leaks += bool(unreferenced(store))
            for batch in (2, 3):  # the first commit of a successor deletes, unless it was that of the dead one's save
                trainer.train([batch], None)
                with suppress(SaveFailed):
                    trainer.save(None, wait=True)
            trainer.guard.drain(arranged=True)
            trainer.guard.close()
        left = [name for name in unreferenced(store) if not name.endswith("/checkpoint")]  # that it was called off
        assert left == [], after
        run = hf.open_run(store)
        assert run.verify() == []
        assert same(trainer.state(), trainer.states[run.checkpoints()[-1].step])
    assert leaks  # there was something to delete


def written(store: Store, *names: str) -> None:
    for name in names:
        store.put(f"data/{name}", b"content")


def leftovers(store: Store, *, rank: int, world: int) -> Leftovers:
    chain = Chain(store)
    committer = Committer(store, chain, rank=rank, retention=hf.KeepAll())
    return Leftovers(store, chain, committer, term=TERM, rank=rank, world=world, under_way=lambda: {BUSY})


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    Chain(store).commit(take_over())
    written(store, f"{DEAD}/intent", f"{DEAD}/00000-000001.safetensors", f"{DEAD}/part-00000")
    written(store, f"{DEAD}/00001-000001.safetensors", f"{DEAD}/part-00001")
    written(store, f"{BUSY}/intent", f"{BUSY}/00000-000001.safetensors", f"{BUSY}/00001-000001.safetensors")
    written(store, f"{BEGUN}/intent", f"{BEGUN}/00000-000001.safetensors", f"{BEGUN}/part-00000")
    part = Ref(name=f"data/{BEGUN}/part-00000", size_bytes=7, digest="d" * 64)
    store.put(part_list_name(BEGUN), PartList(checkpoint=BEGUN, parts=(part,)).encode())
    written(store, f"{ROUND}/rows-00000-000000.safetensors", f"{ROUND}/part-{OLDER}-00000")
    written(store, f"{ROUND}/rows-00001-000000.safetensors", f"{ROUND}/outline-00001")
    for name in (f"{DEAD}/00000-000002.safetensors", f"{DEAD}/00001-000002.safetensors", f"{BUSY}/00000-000002"):
        (tmp_path / "data" / f"{name}~0badcafe").write_bytes(b"half")
    return store


def names(store: LocalStore) -> set[str]:
    root = Path(store.url) / "data"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_rank_deletes_its_own_leftovers_alone_and_only_of_saves_that_nobody_can_commit(store: LocalStore) -> None:
    before = names(store)
    leftovers(store, rank=0, world=2).collect()
    gone = {f"{DEAD}/00000-000001.safetensors", f"{DEAD}/part-00000", f"{DEAD}/00000-000002.safetensors~0badcafe"}
    gone |= {f"{ROUND}/rows-00000-000000.safetensors", f"{ROUND}/part-{OLDER}-00000"}
    assert before - names(store) == gone
    assert names(store) - before == {f"{DEAD}/checkpoint"}  # that it is called off: others of this term are told
    assert not PartList.decode(store.get(part_list_name(DEAD)), name="record").parts


def test_a_job_of_one_rank_deletes_all_that_it_left(store: LocalStore) -> None:
    before = names(store)
    leftovers(store, rank=0, world=1).collect()
    leftovers(store, rank=0, world=1).collect()
    assert names(store) == {name for name in before if name.startswith((BUSY, BEGUN))}


def test_nothing_of_another_term_is_touched(store: LocalStore) -> None:
    Chain(store).commit(take_over())
    before = names(store)
    chain = Chain(store)
    committer = Committer(store, chain, rank=0, retention=hf.KeepAll())
    Leftovers(store, chain, committer, term=2, rank=0, world=1, under_way=set).collect()
    assert names(store) == before
