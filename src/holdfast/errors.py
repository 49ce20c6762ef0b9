"""Every error Holdfast raises, grouped by what a handler would do.

HoldfastError
├── ConfigurationError (ValueError)   the call is wrong: change the code
│   ├── UnsupportedState              a value that cannot be stored without pickle, named by its path
│   ├── ModelMismatch                 model and checkpoint do not match: names the table or parameter
│   └── ReaderError                   the data loader cannot continue where it stopped
├── StorageError                      the store refused or did not respond
│   ├── ObjectNotFound
│   ├── ObjectExists                  an exclusive create lost the race
│   ├── AccessDenied
│   ├── StorageFull
│   └── StorageUnavailable            worth retrying
├── DamagedData                       bytes that do not match their checksum: names the object
│   └── UnreadableData                the disk returns an error instead of the bytes
├── RunError                          the run is not in the state the call needs
│   ├── CheckpointNotFound
│   ├── NotResumed                    a non-empty run was not resumed first
│   ├── RanksMissing                  other ranks of the job did not show up: names them if known
│   ├── TakenOver                     another trainer owns the run now: stop
│   └── JobFailed                     a cluster's job ended before its data did: says why
├── NotFinite                         a gradient is NaN or infinite: names the parameter
└── SaveFailed                        a checkpoint was not committed; training may continue
    ├── AgentDied
    ├── SaveCancelled                 another writer of the job gave it up, and tells why
    └── BaseDropped                   the run no longer holds what it depends on; the next save is a baseline

``HoldfastWarning`` is the category of all warnings: training continues, at a cost that the message states.
``Terminated`` is not an error: it is the ``SystemExit`` that ends a trainer after it received SIGTERM and saved.
"""

from __future__ import annotations

from holdfast.printable import printable, printable_lines


class HoldfastError(Exception):
    """Base of every error that Holdfast raises deliberately."""


class ConfigurationError(HoldfastError, ValueError):
    """The call is wrong; its arguments or the model must change."""


class UnsupportedState(ConfigurationError):
    """A value in the training state cannot be stored without pickle."""


class ModelMismatch(ConfigurationError):
    """The model or optimizer does not match the checkpoint or the tables it was created with."""


class ReaderError(ConfigurationError):
    """The data loader cannot continue exactly where the checkpoint stopped."""


class StorageError(HoldfastError):
    """The store refused an operation or did not respond."""


class ObjectNotFound(StorageError):
    """No object of that name exists."""


class ObjectExists(StorageError):
    """An exclusive create found an object of that name."""


class AccessDenied(StorageError):
    """The credentials or permissions do not allow the operation."""


class StorageFull(StorageError):
    """The store has no space left."""


class StorageUnavailable(StorageError):
    """The store did not respond or asked to slow down; retrying may help."""


class DamagedData(HoldfastError):
    """Bytes in the store do not match the checksum or digest that names them."""

    def __init__(self, object_name: str, what: str) -> None:
        self.object_name, self.what = printable(object_name), printable_lines(what)  # it may quote what it found
        super().__init__(f"{self.object_name}: {self.what}")

    def __reduce__(self) -> tuple[type[DamagedData], tuple[str, str]]:
        return type(self), (self.object_name, self.what)  # ranks send each other what went wrong


class UnreadableData(DamagedData):
    """The store holds the object, but its disk returns an error instead of the bytes."""


class RunError(HoldfastError):
    """The run is not in the state that the call needs."""


class CheckpointNotFound(RunError):
    """The run holds no such checkpoint."""


class NotResumed(RunError):
    """The run already holds checkpoints and ``resume()`` was not called."""


class RanksMissing(RunError):
    """All ranks must call the same methods at the same points, and some did not in time."""


class TakenOver(RunError):
    """Another trainer took over the run; this one can no longer commit."""


class JobFailed(RunError):
    """A job of several processes ended before its data did: ``train`` raised, or a process died in every life."""


class NotFinite(HoldfastError):
    """A gradient is NaN or infinite, and was not sent to servers."""


class SaveFailed(HoldfastError):
    """A checkpoint was not committed. Its rows are still marked and go into the next one."""


class AgentDied(SaveFailed):
    """The agent process ended before it confirmed the checkpoint."""


class SaveCancelled(SaveFailed):
    """Another writer of the same save gave it up, so that nobody commits it."""


class BaseDropped(SaveFailed):
    """The run no longer holds the checkpoint that a delta depends on; the next save is a baseline."""


class Terminated(SystemExit):
    """Ends a trainer that received SIGTERM, after its state was saved and committed. Its exit code is 143.

    Args:
        message: At which step, for logs.
    """

    EXIT_CODE = 143  # 128 + SIGTERM: what a shell reports, so launchers that restart on it need no special case

    def __init__(self, message: str = "") -> None:
        super().__init__(self.EXIT_CODE)
        self.message = message


class HoldfastWarning(UserWarning):
    """Something costs more, or saves less, than expected; the message says how to avoid it."""
