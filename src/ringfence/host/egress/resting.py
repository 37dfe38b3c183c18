"""Gives memory that is free back to the system, once a worker has nothing to do: the C library keeps what a burst has taken.

For a worker alone, whose other objects are frozen (gc.freeze): elsewhere a collection would cost more than it brings. Must never
be called while something is connected: it takes some milliseconds.
"""

from __future__ import annotations

import ctypes
import gc

# glibc (malloc_trim(3)); a C library without it gives its memory back by itself. Found now: a worker can load nothing.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def rest() -> None:
    gc.collect()
    if _trim is not None:
        _trim(ctypes.c_size_t(0))
