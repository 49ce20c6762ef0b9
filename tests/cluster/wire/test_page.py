"""The worked example of docs/spec/cluster.md, read without the code that wrote it; and what a server imports."""

from __future__ import annotations

import struct
import subprocess
import sys

from tests.cluster.wire.page_examples import frames_of

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module("holdfast.cluster.wire")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
sys.exit("torch" in sys.modules)
"""


def test_the_drawing_of_the_page_is_what_struct_reads() -> None:
    head, array = frames_of("push")
    assert struct.unpack_from("<2sBBQBBHIIII", head) == (b"HF", 5, 3, 5, 1, 0, 0, 2, 1, 0, 3)
    assert struct.unpack_from("<QH", head, 32) == (41, 2)
    assert struct.unpack_from("<BBBQ", head, 42) == (4, 1, 1, 2)
    assert struct.unpack_from("<2q", head, 56) == (7, 9)
    assert struct.unpack_from("<BBB2Q", head, 72) == (1, 0, 2, 2, 1024)
    assert struct.unpack_from("<BI7sQB", head, 91) == (1, 7, b"epoch 3", 40, 0)
    assert len(head) == 112 and len(array) == 8192


def test_nothing_here_imports_torch() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORT_ALL]).returncode == 0
