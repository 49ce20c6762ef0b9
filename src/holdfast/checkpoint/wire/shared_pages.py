"""Memory that processes share, in huge pages where the system makes them on request.

A small page costs each process that maps it, when it begins to and when it ends. Nobody hears of a process's death
before its memory is unmapped, which takes a tenth of the time in huge pages (design note 010).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

_HUGE_PAGE_BYTES = 2 << 20
_COLLAPSE = 25  # of madvise, since Linux 6.1, whatever the system's settings for shared memory are
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def reserve(fd: int, size_bytes: int) -> None:
    """Make all pages of a new memory file. Raises OSError where there is no room for them.

    Huge pages are gathered from small ones: one in each place is enough, and the rest is never made.
    """
    os.ftruncate(fd, size_bytes + _HUGE_PAGE_BYTES)  # what is behind is for addresses, and never has a page
    if size_bytes >= _HUGE_PAGE_BYTES:
        for offset in range(0, size_bytes, _HUGE_PAGE_BYTES):
            os.pwrite(fd, b"\0", offset)
        pages = SharedPages(fd, size_bytes, populate=False)
        with suppress(OSError):  # an older system, or no memory in such pieces: small pages do as well
            pages.collapse()
        pages.close()
    os.posix_fallocate(fd, 0, size_bytes)


class SharedPages:
    """A memory file that was reserved, mapped to where huge pages can be.

    Python cannot say where a mapping begins. So more addresses are taken than are needed, and the file is put once more
    over those that it shall have; whoever closes the mapping gives back all of them.

    Args:
        fd: Of the file.
        size_bytes: As it was reserved.
        populate: Let the pages be at hand, not only when they are used.
    """

    def __init__(self, fd: int, size_bytes: int, *, populate: bool = True) -> None:
        self._around = mmap.mmap(fd, size_bytes + _HUGE_PAGE_BYTES, mmap.MAP_SHARED)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._around))
        self._start = -address % _HUGE_PAGE_BYTES
        self._size_bytes = size_bytes
        flags = mmap.MAP_SHARED | _FIXED | (_POPULATE if populate else 0)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        if _libc.mmap(address + self._start, size_bytes, protection, flags, fd, 0) == _FAILED:
            self._around.close()
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def view(self) -> memoryview:
        """The file's bytes."""
        return memoryview(self._around)[self._start : self._start + self._size_bytes]

    def collapse(self) -> None:
        """Gather pages in huge ones. Raises OSError where some, or all, stay small."""
        whole = self._size_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        self._around.madvise(_COLLAPSE, self._start, whole)

    def close(self) -> None:
        """Unmap it. Raises BufferError while somebody holds a view."""
        self._around.close()
