"""Tables whose optimizer is part of the operator that looks rows up: FBGEMM updates them in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor
from torch.optim import Optimizer

from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError
from holdfast.types import ColumnSpec

# By what an optimizer is in FBGEMM: what it is called where tables are not sharded, and the slot that it keeps.
_KINDS = {
    EmbOptimType.EXACT_SGD: ("SGD", None),
    EmbOptimType.EXACT_ADAGRAD: ("Adagrad", "sum"),
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: ("RowWiseAdagrad", "sum"),
}
_IN_PLACE = (EmbeddingLocation.DEVICE, EmbeddingLocation.HOST)
_DECAYS = (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE)  # of rows with a gradient, no others


@dataclass(eq=False, slots=True, kw_only=True)
class FusedTable(Table):
    """A table with the slots that its operator keeps."""

    kept: Mapping[str, Tensor] = field(default_factory=dict)
    is_current: Callable[[Tensor], bool] = lambda rows: True  # whether lookups still use these rows

    def is_replaced(self) -> bool:
        """Whether lookups use other memory, as after ``dmp.reshard``."""
        return bool(self.rows) and not self.is_current(self.parameter)

    def attach(self, optimizer: Optimizer) -> None:
        """Its rows are updated in the backward pass: another optimizer would have nothing to do, and state to save."""
        raise ConfigurationError(
            f"{type(optimizer).__name__} holds table {self.whole_name!r}, whose optimizer is fused into the backward "
            "pass. Leave it out: pass in_backward_optimizer_filter(dmp.named_parameters()) to the optimizer"
        )

    def slots(self) -> dict[str, Tensor]:
        """The operator's tensors, always the same ones."""
        return dict(self.kept)

    def ensure_slots(self, columns: Sequence[ColumnSpec]) -> dict[str, Tensor]:
        """Those of them that are wanted; what an operator keeps does not change."""
        wanted = {column.name for column in columns}
        return {name: slot for name, slot in self.kept.items() if name in wanted}


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedFacts:
    """What other ranks, which may have no rows of a table, must know of the operator that has some."""

    kind: str
    dtype: str
    slots: Mapping[str, str]  # types, by name
    options: Mapping[str, float]

    @classmethod
    def of(cls, operator: Any, number: int, table: str, sharding_type: str) -> FusedFacts:
        """Those of an operator's table; raises ConfigurationError for what is not supported."""
        _require_supported(operator, number, f"table {table!r} ({sharding_type})")
        kind, slot = _KINDS[operator.optimizer]
        weight = operator.split_embedding_weights()[number]
        kept = fused_slots(operator, number, slot)
        return cls(
            kind=kind,
            dtype=str(weight.dtype).removeprefix("torch."),
            slots={name: str(each.dtype).removeprefix("torch.") for name, each in kept.items()},
            options={
                "lr": operator.get_learning_rate(),
                **({} if slot is None else {"eps": float(operator.optimizer_args.eps)}),
            },
        )

    def to_json(self) -> dict[str, Any]:
        """To be sent to other ranks."""
        return {"kind": self.kind, "dtype": self.dtype, "slots": dict(self.slots), "options": dict(self.options)}


def slots_of(operator: Any, number: int) -> dict[str, Tensor]:
    """The slots that an operator keeps for one of its tables."""
    return fused_slots(operator, number, _KINDS[operator.optimizer][1])


def fused_slots(operator: Any, number: int, slot: str | None) -> dict[str, Tensor]:
    """The same, by the slot's name. An entry per row has a dimension of its own, as in TorchRec's own optimizer."""
    if slot is None:
        return {}
    (kept,) = operator.split_optimizer_states()[number]
    return {slot: kept.view(-1, 1) if kept.dim() == 1 else kept}


def row_shape_of(kind: str, values: int) -> tuple[int, ...]:
    """The shape of a row's slot of an optimizer."""
    return (1,) if kind == "RowWiseAdagrad" else (values,)


def _require_supported(operator: Any, number: int, table: str) -> None:
    if not isinstance(operator, SplitTableBatchedEmbeddingBagsCodegen):
        raise ConfigurationError(
            f"{table} is looked up by {type(operator).__name__}, which is not supported. Constrain it to the compute "
            "kernel 'fused', with ParameterConstraints(compute_kernels=['fused'])"
        )
    place = operator.embedding_specs[number][2]
    if place not in _IN_PLACE:
        raise ConfigurationError(
            f"{table} is placed in {place.name}, which is not supported. Place it on the device, with the compute "
            "kernel 'fused' and no caching"
        )
    if operator.optimizer not in _KINDS:
        raise ConfigurationError(
            f"{table} has the fused optimizer {operator.optimizer.name}, which is not supported. Use EXACT_SGD, "
            "EXACT_ADAGRAD or EXACT_ROWWISE_ADAGRAD, or the compute kernel 'dense' with an optimizer of torch.optim"
        )
    if operator.weight_decay_mode not in _DECAYS:
        raise ConfigurationError(
            f"{table} has the weight decay mode {operator.weight_decay_mode.name}, which is not supported: its "
            "counters are not saved. Use NONE, L2 or DECOUPLE"
        )
