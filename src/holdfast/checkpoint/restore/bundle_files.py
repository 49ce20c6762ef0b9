"""Bundles as local files, where a store has files, in the form of addresses that kernels can use."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Numbers
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.format.bundle import Directory
from holdfast.format.manifest import BundleRef
from holdfast.format.outline import Outline


class Files:
    """Finds the files that bundles are, each once."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self._found: dict[str, _File] = {}

    def of(self, outline: Outline, bundles: Numbers) -> tuple[list[_File], Numbers, Numbers, Numbers]:
        """Addresses of the file names of these bundles, 0 for none (as for number -1), and of their checksums, and how
        many these are. All stay valid as long as the files that come first.
        """
        used, which = np.unique(bundles, return_inverse=True)
        files = [self._file(outline.bundles[number]) if number >= 0 else _NO_FILE for number in used.tolist()]
        paths, checksums, blocks = np.array([file[:3] for file in files], dtype=np.int64).reshape(-1, 3).T
        return files, paths[which], checksums[which], blocks[which]

    def _file(self, bundle: BundleRef) -> _File:
        if (found := self._found.get(bundle.name)) is None:
            found = self._found[bundle.name] = self._look(bundle)
        return found

    def _look(self, bundle: BundleRef) -> _File:
        path = self.fetcher.path(bundle)
        if path is None:
            return _NO_FILE
        name = np.frombuffer(os.fsencode(path) + b"\0", dtype=np.uint8)
        directory = self.fetcher.directory(bundle)
        return _File(address_of(name), address_of(directory), len(directory), name, directory)


class _File(NamedTuple):
    path: int  # address of its name
    checksums: int  # address of its blocks'
    blocks: int
    name: NDArray[np.uint8] | None = None
    directory: Directory | None = None


_NO_FILE = _File(0, 0, 0)


def address_of(array: NDArray[Any]) -> int:
    """Of an array's first byte."""
    found: int = array.__array_interface__["data"][0]
    return found
