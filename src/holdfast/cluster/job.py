"""What every process of a job is told when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from holdfast.checkpoint.trainer.settings import Settings
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.payload import Floats
from holdfast.cluster.plan import ModelPlan
from holdfast.cluster.wire.address import Address
from holdfast.cluster.wire.keys import Credentials
from holdfast.erasure.ring import Ring
from holdfast.policy import Overlap, Precision, Retention, Strategy
from holdfast.policy.optimizer import Optimizer
from holdfast.policy.tables import Tables

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Where and how servers save."""

    url: str
    options: Mapping[str, str] | None
    term: int  # of this job: an older one can commit nothing
    strategy: Strategy
    precision: Precision
    retention: Retention
    overlap: Overlap
    settings: Settings

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        policies = {name: getattr(self, name) for name in ("strategy", "precision", "retention")}
        return {
            **{name: policy.to_dict() for name, policy in policies.items()},
            "url": self.url,
            "options": None if self.options is None else dict(self.options),
            "term": self.term,
            "overlap": self.overlap.value,
            "settings": asdict(self.settings),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Saving:
        """As ``to_json`` wrote it."""
        return cls(
            url=body["url"],
            options=body["options"],
            term=body["term"],
            strategy=Strategy.from_dict(body["strategy"]),
            precision=Precision.from_dict(body["precision"]),
            retention=Retention.from_dict(body["retention"]),
            overlap=Overlap(body["overlap"]),
            settings=Settings(**body["settings"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contacts:
    """Where the controller is, and what proves that one belongs to its job."""

    controller: Address
    beats: Address
    credentials: Credentials

    def to_json(self) -> dict[str, Any]:
        """As JSON values, secrets among them."""
        return {
            "controller": self.controller.to_json(),
            "beats": self.beats.to_json(),
            "credentials": self.credentials.to_json(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Contacts:
        """As ``to_json`` wrote it."""
        return cls(
            controller=Address.from_json(body["controller"]),
            beats=Address.from_json(body["beats"]),
            credentials=Credentials.from_json(body["credentials"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How processes keep in touch, and how far workers run ahead."""

    synchronous: bool
    ahead: int  # batches whose rows are pulled before they are needed
    save_steps: int | None  # between two saves, of all workers; None: time alone decides
    pulls: int  # of a worker that a server may have to answer
    pushes: int  # of a worker that a server may have to apply
    beat_s: float
    silence_s: float  # after which a process is taken for dead
    on_bad_ids: Literal["raise", "skip"]
    on_nan: Literal["raise", "skip", "push"]
    is_rebuilt_fast: bool = False  # where parities give what a server lost

    def report_steps(self, workers: int) -> int | None:
        """After so many steps each worker says how far it is, so that a save by steps is not late."""
        if self.save_steps is None or self.synchronous:
            return self.save_steps
        return max(1, self.save_steps // workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The same for all processes."""

    model: str  # import name of the function that builds it
    train: str  # import name of the function that every worker runs
    plan: ModelPlan
    dense: Floats  # the dense vector, as the model begins
    servers: int
    optimizer: Optimizer
    dense_optimizer: Optimizer
    tables: Tables
    saving: Saving
    pacing: Pacing
    contacts: Contacts
    rings: tuple[Ring, ...] = ()  # of servers that protect each other; none where the job has no parity
    together: int = 1  # the most servers that share a machine
    spares: int = 1  # that may get ready on one machine at the same time

    def ring_of(self, server: int) -> Ring | None:
        """The servers that protect each other, this one among them."""
        return next((ring for ring in self.rings if server in ring.servers), None)

    def pack(self, member: Member) -> bytes:
        """For the process that is to be this member."""
        body = {
            "member": [member.role.value, member.index, member.incarnation],
            **{name: getattr(self, name) for name in ("model", "train", "servers", "together", "spares")},
            **{name: getattr(self, name).to_dict() for name in ("optimizer", "dense_optimizer", "tables")},
            "plan": self.plan.to_json(),
            "saving": self.saving.to_json(),
            "pacing": asdict(self.pacing),
            "contacts": self.contacts.to_json(),
            "rings": [asdict(ring) for ring in self.rings],
        }
        header = json.dumps(body).encode()
        return len(header).to_bytes(_LENGTH_BYTES, "little") + header + self.dense.tobytes()

    @classmethod
    def unpack(cls, payload: bytes) -> tuple[Job, Member]:
        """The inverse of ``pack``."""
        end = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        body = json.loads(payload[_LENGTH_BYTES:end])
        role, index, incarnation = body["member"]
        job = cls(
            model=body["model"],
            train=body["train"],
            plan=ModelPlan.from_json(body["plan"]),
            dense=np.frombuffer(payload, np.float32, offset=end),
            servers=body["servers"],
            optimizer=Optimizer.from_dict(body["optimizer"]),
            dense_optimizer=Optimizer.from_dict(body["dense_optimizer"]),
            tables=Tables.from_dict(body["tables"]),
            saving=Saving.from_json(body["saving"]),
            pacing=Pacing(**body["pacing"]),
            contacts=Contacts.from_json(body["contacts"]),
            rings=tuple(Ring(**{**each, "servers": tuple(each["servers"])}) for each in body["rings"]),
            together=body["together"],
            spares=body["spares"],
        )
        return job, Member(Role(role), index, incarnation)
