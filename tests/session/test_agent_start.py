"""An agent imports the standard library's modules, whatever lies near its trainer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import holdfast as hf

PACKAGE = Path(hf.__file__).parent
NAMES = ("queue", "random", "selectors", "socket", "numpy", "numba", "typing_extensions", "sitecustomize")
# Says who executes it, then makes way for the module that it hides: a trainer may go on with it.
SHADOW = """
import os, sys
with open({told!r}, "a") as told:
    told.write(f"{{os.getpid()}} {{__file__}}\\n")
path = sys.path[:]
sys.path[:] = [each for each in path if os.path.abspath(each) not in {places!r}]
del sys.modules[__name__]
try:
    __import__(__name__)
finally:
    sys.path[:] = path
"""
TRAINER = """
import os, sys, queue, random, numpy
import torch
import holdfast as hf

model = torch.nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with hf.Checkpointer({url!r}, model=model, optimizer=optimizer) as guard:
    guard.resume()
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    guard.step()
    guard.save(wait=True)
    print(os.getpid(), guard.agent_pid, guard.stats.agent_deaths)
"""


def test_neither_working_directory_nor_script_nor_pythonpath_nor_package_root_comes_before_the_standard_library(
    tmp_path: Path,
) -> None:
    places = [tmp_path / name for name in ("working", "beside-the-script", "root")]
    told = tmp_path / "told"
    for place in places:
        place.mkdir()
        for name in NAMES:
            (place / f"{name}.py").write_text(SHADOW.format(told=str(told), places=[str(each) for each in places]))
    working, beside, root = places
    (root / "holdfast").symlink_to(PACKAGE)  # found through PYTHONPATH, with neighbours
    (beside / "train.py").write_text(TRAINER.format(url=str(tmp_path / "run")))
    ended = subprocess.run(
        [sys.executable, str(beside / "train.py")],
        cwd=working,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{working}"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr
    trainer, agent, deaths = ended.stdout.split()
    executed = [line.split(" ", 1) for line in told.read_text().splitlines()]
    assert {pid for pid, _ in executed} == {trainer}, executed  # which is its own affair
    assert deaths == "0" and agent != trainer
    assert len(hf.open_run(tmp_path / "run").checkpoints()) == 1
