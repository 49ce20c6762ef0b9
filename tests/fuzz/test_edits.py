"""Documents with right digests and wrong numbers: a clean error or exact rows, and a verification that tells.

Every edit changes one number of one document of a run (to its neighbours, to zero, to negative or huge numbers, to
values of other types), or deletes, doubles or exchanges items of a list, and makes the digests right again, up to the
catalog. Numbers that outlines pack into bytes and those in a chunk's codecs are edited, too. Then the run is read in
every way there is, with the kernels that need no GIL among them, in a process of its own: if one of the edits kills or
stops it, its last line says which.

What is *wrong*:

- any other end of the process, a hang, or an exception that is not one of Holdfast's own;
- a row, an optimizer slot or a state that is not, bit for bit, what the checkpoint of that id was saved with;
- a row of the newest view (partial recovery) that no save since the newest checkpoint had;
- a reader that refuses what a verification finds nothing wrong with.

What is *not*, because nothing above the catalog could tell it from a run that was written so:

- which checkpoints and priority saves there are, their metrics, times and sizes, and whether they are abandoned: that
  is the catalog's word, so what is read is compared by the checkpoint's id. An unreadable catalog is passed over;
- a table that a checkpoint no longer lists, or lists in another shape, and a state tensor whose values are all there in
  another shape (2 by 3 for 3 by 2): a restore refuses them as another model's;
- a verification that tells more than a restore met, of an intent for instance, which no restore reads.

One thing no reader can know: rows of at most two values take as many bytes in 2, 3 or 4 bits each, so how many of them
a chunk has is its manifest's word. The quantized tables here are wider.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.runs import EDITS

SILENCE_S = 100.0  # of a process that works: more is a hang
HALVES = (list(EDITS)[::2], list(EDITS)[1::2])


class Reader:
    """A process that edits and reads runs, and what it says."""

    def __init__(self, folder: Path, names: list[str], *, seed: int = 1, share: float = 1.0) -> None:
        command = [sys.executable, "-m", "tests.fuzz.child", str(folder), str(seed), str(share), *names]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.told: list[dict[str, object]] = [{}]
        self.open = True
        self._rest = b""

    def take_in(self) -> None:
        """What it says now."""
        assert self.process.stdout is not None
        data = self.process.stdout.read1(2**16)  # type: ignore[attr-defined]
        self.open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.told += [json.loads(line) for line in lines]

    def finish(self) -> None:
        """It said all, and went well."""
        _, errors = self.process.communicate(timeout=SILENCE_S)
        last = self.told[-1]
        assert last == {"done": True}, f"ended with {self.process.returncode} at {last}:\n{errors.decode()[-4000:]}"


def listen(readers: list[Reader]) -> Iterator[Reader]:
    """Each that has said something, until all have said everything."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.process.stdout, selectors.EVENT_READ, reader)  # type: ignore[arg-type]
        while selector.get_map():
            ready = selector.select(SILENCE_S)
            assert ready, f"nothing was heard for {SILENCE_S:g} s: {[reader.told[-1] for reader in readers]}"
            for key, _ in ready:
                reader: Reader = key.data
                reader.take_in()
                if not reader.open:
                    selector.unregister(key.fileobj)
                yield reader


def edited(folder: Path, *, seed: int = 1, share: float = 1.0) -> list[dict[str, object]]:
    """What two processes say of all edits."""
    readers = [Reader(folder / str(at), names, seed=seed, share=share) for at, names in enumerate(HALVES)]
    try:
        for _ in listen(readers):
            pass
        for reader in readers:
            reader.finish()
    finally:
        for reader in readers:
            reader.process.kill()
            reader.process.wait()
    return [each for reader in readers for each in reader.told]


@pytest.mark.timeout(600)
def test_any_edited_number_is_a_clean_error_or_exact_rows_and_a_verification_agrees(tmp_path: Path) -> None:
    told = edited(tmp_path)
    wrong = [f"{each['run']} #{each['number']}, {each['edit']}:\n{each['trace']}" for each in told if "wrong" in each]
    assert not wrong, f"{len(wrong)} edits:\n" + "\n".join(wrong[:5])
    judged = Counter("refused" if each["refused"] else "read" for each in told if "refused" in each)
    assert sum(judged.values()) == sum(EDITS.values()) >= 2000
    assert min(judged.values()) > 300  # both happen
