"""``holdfast follow``."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.common import StoreOptions, UrlArgument, errors, opened, output
from holdfast.cli.drawing import checkpoints, count, label, size
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime import SYSTEM

if TYPE_CHECKING:
    from holdfast.checkpoint.follow.news import News
    from holdfast.checkpoint.follow.update import Update
    from holdfast.run import Run
    from holdfast.types import CheckpointInfo

Tell = Callable[[str, dict[str, object]], None]  # a line for people, and the same for programs


def follow(
    url: UrlArgument,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Keep this .safetensors file up to date.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Check once, then exit.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="S", help="Check every S seconds.", min=0.01)] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, including errors.")] = False,
    option: StoreOptions = None,
) -> None:
    """Report every checkpoint as it is committed, and keep an exported file up to date."""
    from holdfast.checkpoint.follow.news import CatalogWatch

    run = opened(url, option)
    tell = _as_json if json else _as_text
    watch, exported = CatalogWatch(), _Export(run, export) if export else None
    while True:
        try:
            _tell_news(watch.look(run.head()), tell)
            if exported and (update := exported.update()):
                _tell_news(watch.look(run.head()), tell)  # it may hold a checkpoint committed since the last look
                _tell_update(update, exported.path, tell)
        except ConfigurationError:
            raise
        except HoldfastError as error:
            if once:
                raise
            errors().print(f"warning: {error}", style="yellow", soft_wrap=True)
        if once:
            return
        SYSTEM.sleep(every)


class _Export:
    """A file that holds a run's newest weights."""

    def __init__(self, run: Run, path: Path) -> None:
        from holdfast.checkpoint.follow.targets import LooseWeights
        from holdfast.checkpoint.follow.updater import Updater
        from holdfast.checkpoint.transfer.export import require_safetensors

        require_safetensors(path)
        self.path = path
        self._weights = LooseWeights()
        self._updater = Updater(run.store, self._weights)

    def update(self) -> Update | None:
        """Bring the weights to the newest checkpoint, then replace the file."""
        from holdfast.checkpoint.transfer.export import write_file

        update = self._updater.update()
        if update is not None:
            write_file(self.path, self._weights.named())
        return update


def _tell_news(news: News, tell: Tell) -> None:
    if news.abandoned:
        step = news.newest.step if news.newest else None
        tell(
            f"went back to {'the beginning' if step is None else f'step {step}'}: "
            f"{checkpoints(len(news.abandoned))} abandoned",
            {"event": "went back", "step": step, "abandoned": [info.id for info in news.abandoned]},
        )
    for info in news.committed:
        tell(*_committed(info, max(0.0, SYSTEM.wall_s() - info.created_s)))


def _committed(info: CheckpointInfo, age_s: float) -> tuple[str, dict[str, object]]:
    facts = {"step": info.step, "id": info.id, "kind": info.kind.value, "rows": info.rows_written}
    return (
        f"{label(info)}: {count(info.rows_written)} rows, {age_s:.0f} s ago",
        {"event": "committed", **facts, "size_bytes": info.size_bytes, "age_s": round(age_s, 3)},
    )


def _tell_update(update: Update, path: Path, tell: Tell) -> None:
    why = f" (full reload: {update.reload.value})" if update.reload else ""
    tell(
        f"{path} holds step {update.step}: {count(update.rows)} rows changed, {size(update.read_bytes)} read{why}",
        {
            "event": "exported",
            "file": str(path),
            "step": update.step,
            "from_step": update.from_step,
            "rows": update.rows,
            "read_bytes": update.read_bytes,
            "whole": update.whole,
        },
    )


def _as_text(text: str, facts: dict[str, object]) -> None:
    output().print(text, soft_wrap=True)


def _as_json(text: str, facts: dict[str, object]) -> None:
    typer.echo(json_module.dumps(facts))
