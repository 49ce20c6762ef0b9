"""What a Trainer holds beside its model, its optimizers and its loops, as extras of a Checkpointer."""

from __future__ import annotations

import copy
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from holdfast.integrations.lightning.loader import Untyped
from holdfast.integrations.lightning.loops import Loops

_OURS = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks")  # saved by other means

_LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


def extras(trainer: Untyped, loops: Loops) -> dict[str, Any]:
    """All of them, by name: the same names whatever a Trainer has, so that a resume finds what it expects."""
    return {
        "loops": loops,
        "schedulers": Schedulers(trainer),
        "precision": trainer.precision_plugin,
        "callbacks": Callbacks(trainer),
        "logged": Logged(trainer),
        "datamodule": DataModule(trainer),
        "hooks": Hooks(trainer),
    }


class Schedulers:
    """Learning rate schedulers, in the order of ``configure_optimizers``."""

    def __init__(self, trainer: Untyped) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Of each."""
        return {"schedulers": [config.scheduler.state_dict() for config in self._trainer.lr_scheduler_configs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if their number has changed."""
        for config, saved in zip(self._trainer.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)


class Callbacks:
    """The states of all callbacks that have one, by Lightning's keys; one that is not there any more is left out."""

    def __init__(self, trainer: Untyped) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """By key."""
        states = {callback.state_key: callback.state_dict() for callback in self._trainer.callbacks}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To each its own."""
        for callback in self._trainer.callbacks:
            if callback.state_key in state:
                callback.load_state_dict(copy.deepcopy(state[callback.state_key]))


class Logged:
    """The last values of logged metrics: schedulers and callbacks look at a validation's until the next one."""

    def __init__(self, trainer: Untyped) -> None:
        self._connector = trainer._logger_connector

    def state_dict(self) -> dict[str, Any]:
        """By who looks at them."""
        return {name: dict(getattr(self._connector, name)) for name in _LOGGED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Until they are logged again."""
        for name in _LOGGED:
            getattr(self._connector, name).update(state[name])


class DataModule:
    """The state that a datamodule keeps beside the loaders."""

    def __init__(self, trainer: Untyped) -> None:
        self._datamodule: Any = getattr(trainer, "datamodule", None)

    def state_dict(self) -> dict[str, Any]:
        """Empty without a datamodule."""
        return self._datamodule.state_dict() if self._datamodule is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Unless it is empty."""
        if self._datamodule is not None and state:
            self._datamodule.load_state_dict(state)


class Hooks:
    """What ``on_save_checkpoint`` of callbacks and of the module adds to a checkpoint of Lightning's.

    They get one with the usual keys. What a callback puts in the place of the module's weights is kept (the averaged
    ones of ``WeightAveraging``); what the module leaves out of them is not: its weights are saved by other means.
    """

    def __init__(self, trainer: Untyped) -> None:
        self._trainer = trainer
        self._callbacks = [each for each in trainer.callbacks if _overrides(each)]
        self._module = trainer.lightning_module if _overrides(trainer.lightning_module) else None

    def state_dict(self) -> dict[str, Any]:
        """Empty where nobody has such a hook."""
        if not self._callbacks and self._module is None:
            return {}
        checkpoint = self._checkpoint()
        weights = checkpoint["state_dict"]
        for callback in self._callbacks:
            callback.on_save_checkpoint(self._trainer, self._trainer.lightning_module, checkpoint)
        replaced = {"state_dict": found} if (found := checkpoint.get("state_dict")) is not weights else {}
        if self._module is not None:
            self._module.on_save_checkpoint(checkpoint)
        added = {key: value for key, value in checkpoint.items() if key not in (*_OURS, *self._told())}
        return {**added, **replaced}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand it to ``on_load_checkpoint``, the module's first, as Lightning does."""
        if not state:
            return
        checkpoint = {**self._checkpoint(), **copy.copy(state)}
        if self._module is not None:
            self._module.on_load_checkpoint(checkpoint)
        for callback in self._callbacks:
            callback.on_load_checkpoint(self._trainer, self._trainer.lightning_module, checkpoint)

    def _checkpoint(self) -> dict[str, Any]:
        weights = self._trainer.lightning_module.state_dict()
        return {**self._told(), **dict.fromkeys(_OURS), "state_dict": weights}

    def _told(self) -> dict[str, Any]:
        return {"epoch": self._trainer.current_epoch, "global_step": self._trainer.global_step}


def _overrides(owner: Callback | LightningModule) -> bool:
    parent = Callback if isinstance(owner, Callback) else LightningModule
    return is_overridden("on_save_checkpoint", owner, parent=parent)
