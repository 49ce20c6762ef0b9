"""Recommendation models, small and readable, as the papers configure them."""

from benchmarks.models.deepfm import DeepFM
from benchmarks.models.dlrm import DLRM
from benchmarks.models.logistic import LogisticRegression
from benchmarks.models.pnn import PNN

__all__ = ["DLRM", "PNN", "DeepFM", "LogisticRegression"]
