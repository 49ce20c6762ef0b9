"""Models of TorchRec: tables that ``DistributedModelParallel`` divides over the ranks.

Nothing here imports TorchRec before a model of it is found: what is not imported is not in use.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch import nn

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.training.divided import Divided, Undivided
from holdfast.checkpoint.training.keyed_rows import KeyedRows


def is_divided(models: Mapping[str, nn.Module]) -> bool:
    """Whether TorchRec divides tables of these models."""
    torchrec = sys.modules.get("torchrec.distributed.model_parallel")
    wrapper = getattr(torchrec, "DistributedModelParallel", None)
    if wrapper is None:
        return False
    return any(isinstance(each, wrapper) for model in models.values() for each in model.modules())


def find_divided(models: Mapping[str, nn.Module], agreement: Agreement) -> Divided:
    """The divided tables of these models; all ranks ask together."""
    if not is_divided(models):
        return Undivided()
    from holdfast.integrations.torchrec.adoption import adopt

    return adopt(models, agreement)


def find_keyed(models: Mapping[str, nn.Module]) -> list[KeyedRows]:
    """The tables of these models whose rows are found by managed collision modules."""
    modules = sys.modules.get("torchrec.modules.mc_modules")
    base = getattr(modules, "ManagedCollisionModule", None)
    if base is None or not any(isinstance(each, base) for model in models.values() for each in model.modules()):
        return []
    from holdfast.integrations.torchrec.managed_collision import adopt_keyed

    return adopt_keyed(models)
