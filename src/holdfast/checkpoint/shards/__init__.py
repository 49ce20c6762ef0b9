"""Tables divided over processes: each saves the rows that it holds, and all of them together make one checkpoint.

No torch here. A table is a name, a range of rows and columns (``Shard``); marks come by ids; what the writers of a save
agree on, the *intent*, is plain JSON that travels by whatever means the job has.

```python
from holdfast.checkpoint.shards import Shard, ShardedRun, ShardWriter, SavePolicies

run = ShardedRun("s3://bucket/run-17")
shards = [Shard(table="emb.0", rows=4_000_000, first=800_000, columns={"weight": w, "sum": s}), ...]
writer = ShardWriter(run, shards, part=1, parts=5, policies=SavePolicies(strategy=Grid(), precision=Bits(4)))

term = run.take_over()                                  # the leader, once; the others are told the term
best = run.candidates()                                 # the leader; all are told best[0].id, or the next if one fails
loaded = run.load(shards, best[0].id)                   # every process, into any division; None where best is empty
run.go_back(best[0].id)                                 # the leader, once all have loaded it
writer.start(term, loaded)

writer.mark("emb.0", rows)                              # after every update
intent = writer.intend(step, changed=[...])             # the leader: JSON, or None
writer.capture(intent, RankState(step=step, reader=...))  # every writer; part 0 adds training={...}
for event in writer.poll(): ...                         # SnapshotTaken, SaveCommitted, SaveGivenUp
writer.close()

training = {"model": {"mlp.0.weight": array, ...}, "modules": {}, "extra": {},
            "optimizers": [torch_optimizer(Adagrad(lr=0.1), step=step, tables={"emb.0.weight": (4_000_000, 64), ...}),
                           torch_optimizer(Adam(lr=1e-3), step=step, slots={"mlp.0.weight": {...}, ...}, dense=True)]}

loaded = run.load_newest(shards)                        # a process that takes a dead one's place
writer.start(term, loaded, replaces=True)
```
"""

from holdfast.checkpoint.shards.loaded import Loaded, LoadedState
from holdfast.checkpoint.shards.parts import SavePolicies, reserve_buffer
from holdfast.checkpoint.shards.run import ShardedRun
from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.shards.torch_state import torch_optimizer
from holdfast.checkpoint.shards.warm import warm_up
from holdfast.checkpoint.shards.writer import ShardWriter

__all__ = [
    "Loaded",
    "LoadedState",
    "SavePolicies",
    "Shard",
    "ShardWriter",
    "ShardedRun",
    "reserve_buffer",
    "torch_optimizer",
    "warm_up",
]
