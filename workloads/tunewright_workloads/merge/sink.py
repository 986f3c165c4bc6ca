"""A large file written past the page cache, where the file system can.

A merge writes as much as it reads and reads none of it again. Through the page cache that costs a
copy of every byte and half of a core, fills a small machine's memory with dirty pages, and leaves
the disk's work to the last fsync. O_DIRECT needs aligned memory, offsets and sizes, which is what is
here; where it is refused (tmpfs, some FUSE mounts) the same writes go through the cache.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import queue
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

_CHUNK = 8 << 20
_BUFFERS = 4
_WRITERS = 2
_ALIGN = 4096
"""bytes; a multiple of every disk's block"""


class Sink:
    """Appends to a new file at `path`; `close` returns once everything is on the disk."""

    def __init__(self, path: Path, expected: int = 0) -> None:
        """expected: bytes that will be written; the file system looks for room for them at once."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            self._file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._file = os.open(path, flags, 0o644)
        if expected:
            try:
                os.posix_fallocate(self._file, 0, expected)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    os.close(self._file)
                    raise
        self._free: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(mmap.mmap(-1, _CHUNK))
        self._buffer, self._held = self._free.get(), 0
        self._start = 0
        self._pool = ThreadPoolExecutor(_WRITERS, "write")
        self._under_way: deque[Future[None]] = deque()

    @property
    def size(self) -> int:
        """bytes so far"""
        return self._start + self._held

    def write(self, data: Any) -> None:
        """Appends bytes. Raises what an earlier write ended in."""
        view = memoryview(data)
        while len(view):
            part = view[: _CHUNK - self._held]
            self._buffer[self._held : self._held + len(part)] = part
            self._held += len(part)
            view = view[len(part) :]
            if self._held == _CHUNK:
                self._flush()

    def close(self) -> None:
        """Writes the rest and syncs. Raises what a write ended in."""
        try:
            size = self.size
            if self._held:
                self._flush()
            while self._under_way:
                self._under_way.popleft().result()
            os.ftruncate(self._file, size)
            os.fsync(self._file)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the file as it is."""
        self._pool.shutdown(cancel_futures=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        size = -(-self._held // _ALIGN) * _ALIGN  # the last chunk's padding is cut off again
        self._under_way.append(self._pool.submit(self._put, self._buffer, size, self._start))
        self._start += self._held
        self._held = 0
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()
        self._buffer = self._free.get()

    def _put(self, buffer: mmap.mmap, size: int, offset: int) -> None:
        try:
            with memoryview(buffer) as whole:
                done = 0
                while done < size:
                    done += self._pwrite(whole[done:size], offset + done)
        finally:
            self._free.put(buffer)

    def _pwrite(self, data: memoryview, offset: int) -> int:
        try:
            return os.pwrite(self._file, data, offset)
        except OSError as error:
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            direct = getattr(os, "O_DIRECT", 0)
            if error.errno != errno.EINVAL or not flags & direct:
                raise
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~direct)  # opened, but not written to, directly
            return os.pwrite(self._file, data, offset)
