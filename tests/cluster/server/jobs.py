"""A job as servers are told of it, small, and without a controller."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from holdfast.checkpoint.trainer.settings import Settings
from holdfast.cluster.core.members import View
from holdfast.cluster.job import Job, Pacing, Saving
from holdfast.cluster.parity.seats import seats
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.policy import SGD, Exact, Full, KeepLast, Overlap, Parity, Tables, Uniform

SERVERS = 3
VIEW = View.first(servers=SERVERS, workers=1)


def job(
    url: str,
    *,
    machines: tuple[str, ...] = ("a", "b", "c"),
    rows: int = 300,
    dense: int = 6,
    settings: Settings = Settings(reserve_bytes=0),  # noqa: B008 - frozen
    options: dict[str, str] | None = None,
) -> Job:
    """With parity, two rows to each, whose rows come back fast."""
    plan = ModelPlan(
        tables=(TableSpec(name="t.weight", rows=rows, width=4, init=Uniform(-1, 1)),),
        dense=(DenseSpec(name="mlp", shape=(dense,)),),
    )
    return Job(
        model="",
        train="",
        plan=plan,
        dense=np.zeros(plan.dense_size, np.float32),
        servers=len(machines),
        optimizer=SGD(0.1),
        dense_optimizer=SGD(0.1),
        tables=Tables(),
        saving=Saving(
            url=url,
            options=options,
            term=1,
            strategy=Full(),
            precision=Exact(),
            retention=KeepLast(1),
            overlap=Overlap.SKIP,
            settings=settings,
        ),
        pacing=Pacing(
            synchronous=False,
            ahead=1,
            save_steps=None,
            pulls=1,
            pushes=1,
            beat_s=1.0,
            silence_s=10.0,
            on_bad_ids="raise",
            on_nan="raise",
            is_rebuilt_fast=True,
        ),
        contacts=cast(Any, None),  # nobody is called
        rings=seats(Parity(data=2, parity=1), machines).rings,
    )
