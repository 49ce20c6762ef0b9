"""Two acts: a trainer is killed and resumes, to the same end; a cluster's processes are killed, and it trains on."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import holdfast as hf
from benchmarks.demo import second_act
from benchmarks.demo.job import SAVE_EVERY, STEPS, train_uninterrupted

KILLS_AT_RANDOM = 3
REPORT = Path("build/demo.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When to kill a life of the trainer: at its n-th step, or right after its first snapshot."""

    after_steps: int | None

    def due(self, word: str, steps_in_life: int) -> bool:
        """Whether the line the trainer just printed is the last one it prints."""
        if self.after_steps is None:
            return word == "snapshot"
        return word == "step" and steps_in_life >= self.after_steps


def plan(seed: int) -> list[Kill | None]:
    """The trainer's lives: some end at random moments, one right after a snapshot, the last one by itself."""
    chance = random.Random(seed)
    kills: list[Kill | None] = [
        Kill(after_steps=chance.randint(SAVE_EVERY // 2, 3 * SAVE_EVERY)) for _ in range(KILLS_AT_RANDOM)
    ]
    kills.insert(1, Kill(after_steps=None))
    return [*kills, None]


def live(url: str, kill: Kill | None, progress: Progress, task: TaskID) -> str | None:
    """One life of the trainer; the fingerprint of its model if it reached the end."""
    command = [sys.executable, "-m", "benchmarks.demo.job", url]
    steps, at = 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        for line in trainer.stdout:
            word, _, value = line.strip().partition(" ")
            if word == "finished":
                return value
            if word == "resumed":
                progress.console.print(f"  trainer {trainer.pid} resumed at step {value}")
            if word in ("step", "snapshot", "resumed"):
                at = int(value)
                progress.update(task, completed=at)
            steps += word == "step"
            if kill is not None and kill.due(word, steps):
                trainer.kill()
                moment = "right after a snapshot" if kill.after_steps is None else "in the middle of its work"
                progress.console.print(f"  [red]SIGKILL[/red] after step {at}, {moment}")
                break
    if trainer.wait() and kill is None:
        raise SystemExit("the trainer failed; its own message is above")
    return None


def table_of(run: hf.Run) -> Table:
    """What each checkpoint cost beside saving everything each time."""
    table = Table(title="What each checkpoint wrote, beside saving everything each time")
    for name in ("step", "term", "kind", "rows", "MB", "full MB", "share"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    written = full = 0
    for info in run.checkpoints():
        written, full = written + info.size_bytes, full + info.full_bytes
        share = f"{info.size_bytes / info.full_bytes:.0%}"
        sizes = f"{info.size_bytes / 1e6:.1f}", f"{info.full_bytes / 1e6:.1f}"
        table.add_row(str(info.step), str(info.term), info.kind.value, f"{info.rows_written:,}", *sizes, share)
    table.add_section()
    table.add_row("all", "", "", "", f"{written / 1e6:.1f}", f"{full / 1e6:.1f}", f"{written / full:.0%}")
    return table


def main() -> int:
    """Run the demo; the exit code says whether both acts ended well."""
    seed = int(sys.argv[1]) if sys.argv[1:] else random.randrange(10**6)
    console = Console()
    console.print(f"The first act's kills are drawn from {seed}; python -m benchmarks.demo {seed} repeats them.")
    console.rule("1. A trainer is killed and resumes")
    is_same = first_act(seed, console)
    console.rule("2. A cluster's processes are killed, and it climbs down its ladder")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        is_survived = second_act.play(str(Path(folder) / "run"), REPORT, console=console)
    return 0 if is_same and is_survived else 1


def first_act(seed: int, console: Console) -> bool:
    """Kill the trainer several times; whether it ends where an uninterrupted run does."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder,
        Progress(*columns, console=console) as progress,
    ):
        url = str(Path(folder) / "run")
        task = progress.add_task("training DLRM, killed and resumed", total=STEPS)
        finished = [live(url, kill, progress, task) for kill in plan(seed)][-1]
        task = progress.add_task("training DLRM, uninterrupted", total=None)
        expected = train_uninterrupted()
        progress.update(task, total=STEPS, completed=STEPS)
        run = hf.open_run(url)
        problems = run.verify()
        console.print(table_of(run))
    same = finished == expected
    console.print(f"interrupted run    {finished}\nuninterrupted run  {expected}", soft_wrap=True)
    console.print(
        f"verify: {len(problems)} problems; the models are " + ("the same, bit for bit" if same else "different")
    )
    return same and not problems


if __name__ == "__main__":
    raise SystemExit(main())
