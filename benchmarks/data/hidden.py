"""Who clicks: the model behind the labels, which a trained model tries to find again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.schema import DENSE_FIELDS, KAGGLE_CARDINALITIES

FIELDS = len(KAGGLE_CARDINALITIES)
POSITIVE_RATE = 0.26
TASTE_DIM = 4
BUCKETS = 1024  # values of a field that are equal modulo this share their effect, so no table grows with the field

# Standard deviations of the three parts of the logit. They bound any model's AUC by 0.80 to 0.82, depending on the
# seed. A logistic regression, which cannot express the tastes, reached 0.754 to 0.757, a DLRM 0.776 to 0.790.
VALUE_STRENGTH = 1.0
TASTE_STRENGTH = 1.0
DENSE_STRENGTH = 0.5
TASTE_FADES = -0.2  # tastes scale with cardinality^-0.2: a taste in a value seen once can never be learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Samples to calibrate on."""

    ids: NDArray[np.int64]
    dense: NDArray[np.float32]


class HiddenModel:
    """Click probabilities: an effect per value, user vector · ad vector, and the dense features.

    Even fields describe the user and odd ones the ad; each side's vector is the sum over its fields' values.
    Calibrated on a probe of samples, so that rate and strengths are alike for every seed and scale.
    """

    def __init__(self, rng: np.random.Generator, probe: Probe) -> None:
        fade = np.array(KAGGLE_CARDINALITIES)[:, None, None] ** TASTE_FADES
        self._effects = rng.standard_normal((FIELDS * BUCKETS,), dtype=np.float32)
        tastes = rng.standard_normal((FIELDS, BUCKETS, TASTE_DIM)) * fade
        self._tastes = tastes.reshape(-1, TASTE_DIM).astype(np.float32)
        self._dense_effects = rng.standard_normal(DENSE_FIELDS, dtype=np.float32)
        self._scales = np.ones(3, np.float32)
        self._bias = np.float32(0)
        self._calibrate(probe)

    def probabilities(self, ids: NDArray[np.int64], dense: NDArray[np.float32]) -> NDArray[np.float32]:
        """The chance of a click, per sample."""
        return _sigmoid(self._logits(ids, dense))

    def _logits(self, ids: NDArray[np.int64], dense: NDArray[np.float32]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = (self._parts(ids, dense) * self._scales).sum(axis=1) + self._bias
        return logits

    def _parts(self, ids: NDArray[np.int64], dense: NDArray[np.float32]) -> NDArray[np.float32]:
        # Sums along a row, never a matrix product: BLAS rounds differently for batches of different sizes.
        keys = ids % BUCKETS + np.arange(FIELDS) * BUCKETS
        values = self._effects[keys].sum(axis=1)
        user, ad = (self._tastes[keys[:, side::2]].sum(axis=1) for side in (0, 1))
        return np.stack([values, (user * ad).sum(axis=1), (dense * self._dense_effects).sum(axis=1)], axis=1)

    def _calibrate(self, probe: Probe) -> None:
        strengths = np.array([VALUE_STRENGTH, TASTE_STRENGTH, DENSE_STRENGTH])
        self._scales = (strengths / self._parts(probe.ids, probe.dense).std(axis=0)).astype(np.float32)
        logits = self._logits(probe.ids, probe.dense)
        low, high = -30.0 - float(logits.max()), 30.0 - float(logits.min())
        for _ in range(40):
            middle = (low + high) / 2
            too_many = _sigmoid(logits + np.float32(middle)).mean() > POSITIVE_RATE
            low, high = (low, middle) if too_many else (middle, high)
        self._bias = np.float32(low)


def _sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    probabilities: NDArray[np.float32] = np.reciprocal(1 + np.exp(-logits), dtype=np.float32)
    return probabilities
