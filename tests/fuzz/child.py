"""Edits and reads runs, and says what it is about to do before it does it: whoever listens knows what killed it."""

from __future__ import annotations

import faulthandler
import json
import logging
import random
import sys
import traceback
import warnings
from pathlib import Path

import torch

from tests.fuzz.edits import Documents
from tests.fuzz.reading import read_everything
from tests.fuzz.runs import EDITS, SampleRun, sample_run


def main(folder: Path, seed: int, share: float, names: list[str]) -> None:
    """Edit each of these runs as often as it is worth, or a share of that."""
    faulthandler.enable()
    logging.disable()
    torch.set_num_threads(1)
    for name in names:
        _tell(edit=f"none yet: making {name}")
        run = sample_run(name, folder)
        read_everything(run, random.Random(0)).require_agreement()
        objects = {info.name: bytes(run.store.get(info.name)) for info in run.store.list()}
        documents = Documents(objects)
        for number in range(round(share * EDITS[name])):
            _try(run, objects, documents, random.Random(f"{seed} {name} {number}"), number)
    _tell(done=True)


def _try(run: SampleRun, objects: dict[str, bytes], documents: Documents, chance: random.Random, number: int) -> None:
    edit, changed = documents.edited(chance)
    what = f"{edit.name} {list(edit.path)}: {edit.what}"
    _tell(run=run.name, number=number, edit=what)
    root = Path(run.store.url.removeprefix("file://"))
    try:
        for name, data in changed.items():
            (root / name).write_bytes(data)
        verdict = read_everything(run, chance)
        verdict.require_agreement()
        _tell(run=run.name, number=number, refused=len(verdict.refused), problems=len(verdict.problems))
    except Exception as error:
        _tell(run=run.name, number=number, edit=what, wrong=repr(error), trace=traceback.format_exc())
    finally:
        for name in changed:
            (root / name).write_bytes(objects[name])


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
