"""glibc's allocator, told what a merge does: a few large blocks of one size, over and over.

By default every thread gets an arena of its own, each keeps what it once had, and peak memory creeps
up with the number of blocks. One arena that keeps its blocks holds less and zeroes no page twice.
"""

from __future__ import annotations

import contextlib
import ctypes

# Source: mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def settle() -> None:
    """Call before threads are started. Does nothing where the C library is another one."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for setting, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 64 << 20)):
            library.mallopt(setting, value)
