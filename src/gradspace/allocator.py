"""How a process of ours keeps the memory that its tensors leave."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""
LARGEST_KEPT = 256 * 2**20
MOST_KEPT = 512 * 2**20


def keep_freed_memory() -> None:
    """Have large tensors on the CPU take the place of those before them.

    glibc gives every large block back as soon as it is freed, and Linux hands it out again page by
    page, cleared: more than a third of the time of a ResNet-50. Other systems are left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none that can be asked
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
