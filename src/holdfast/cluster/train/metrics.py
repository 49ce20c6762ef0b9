"""Metrics: running loss and AUC of a worker, in a form that adds up over workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import ConfigurationError

BUCKETS = 1 << 16


def _no_counts() -> NDArray[np.int64]:
    return np.zeros(BUCKETS, np.int64)


@dataclass(slots=True, eq=False)
class Metrics:
    """Sums that do not depend on the order in which they were made, losses aside.

    Scores fall into buckets by the upper 16 bits of their float32 (sign, exponent, 7 bits of fraction), in the order of
    the numbers: logits and probabilities alike, near 0 as finely as near 1. Scores in one bucket count as equal, half a
    win each, so that AUC is off by at most half the share of such pairs.
    """

    losses: float = 0.0
    steps: int = 0
    positives: NDArray[np.int64] = field(default_factory=_no_counts)  # labels above one half, by bucket
    negatives: NDArray[np.int64] = field(default_factory=_no_counts)
    invalid: int = 0  # scores or labels that are NaN

    def add_loss(self, loss: float) -> None:
        """Of one step."""
        self.losses += loss
        self.steps += 1

    def add(self, scores: Tensor, labels: Tensor) -> None:
        """Of one batch.

        Args:
            scores: Logits or probabilities, one for each sample.
            labels: 1 for positive samples, 0 for others; the same number of them.
        """
        if scores.numel() != labels.numel():
            raise ConfigurationError(f"{scores.numel()} scores came with {labels.numel()} labels: one each is needed")
        flat, marks = scores.detach().reshape(-1).float(), labels.detach().reshape(-1).to(scores.device)
        is_number = ~(flat.isnan() | marks.isnan())
        self.invalid += int((~is_number).sum())
        buckets, is_positive = _buckets(flat[is_number]), marks[is_number] > 0.5
        self.positives += torch.bincount(buckets[is_positive], minlength=BUCKETS).cpu().numpy()
        self.negatives += torch.bincount(buckets[~is_positive], minlength=BUCKETS).cpu().numpy()

    def merge(self, others: Iterable[Metrics]) -> Metrics:
        """With those of other workers, in a new one."""
        together = [self, *others]
        return Metrics(
            losses=sum(each.losses for each in together),
            steps=sum(each.steps for each in together),
            positives=np.sum([each.positives for each in together], axis=0, dtype=np.int64),
            negatives=np.sum([each.negatives for each in together], axis=0, dtype=np.int64),
            invalid=sum(each.invalid for each in together),
        )

    @property
    def loss(self) -> float | None:
        """The mean over steps; None before the first."""
        return self.losses / self.steps if self.steps else None

    @property
    def samples(self) -> int:
        """Scores that were counted."""
        return int(self.positives.sum() + self.negatives.sum())

    @property
    def auc(self) -> float | None:
        """The share of pairs of a positive and a negative sample in which the positive one has the higher score."""
        positives, negatives = self.positives.astype(np.float64), self.negatives.astype(np.float64)
        pairs = positives.sum() * negatives.sum()
        if not pairs:
            return None
        below = np.cumsum(negatives) - negatives
        return float((positives * (below + negatives / 2)).sum() / pairs)

    def to_plain(self) -> dict[str, Any]:
        """As JSON values, with filled buckets only."""
        filled = np.flatnonzero(self.positives | self.negatives)
        counts = [filled.tolist(), self.positives[filled].tolist(), self.negatives[filled].tolist()]
        return {"losses": self.losses, "steps": self.steps, "invalid": self.invalid, "counts": counts}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_plain`` described."""
        made = cls(losses=float(data["losses"]), steps=int(data["steps"]), invalid=int(data["invalid"]))
        filled, positives, negatives = (np.array(each, np.int64) for each in data["counts"])
        made.positives[filled], made.negatives[filled] = positives, negatives
        return made


def _buckets(scores: Tensor) -> Tensor:
    """Of two numbers the greater one has no lower bucket."""
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
    upper = bits >> 16
    return torch.where(upper >= 0, upper + (BUCKETS >> 1), -1 - (upper & 0x7FFF) + (BUCKETS >> 1))
