"""How much memory may be taken, and how many cores: a file of a kilobyte can ask for a terabyte."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path

_LOOKED_AT = 1 << 28  # bytes: what is smaller is not worth a look
_SHARE = 0.8  # of what is free

_most: float | None = None  # what somebody has said


def limit_memory(size: float | None) -> None:
    """Take no more bytes at a time than so many; None: most of what is free."""
    global _most
    _most = size


def allow(size: float, what: str) -> None:
    """Refuse what would take so many bytes, if that is too much.

    >>> allow(1e18, "x.mtx")
    Traceback (most recent call last):
    MemoryError: x.mtx takes 1000000000.0 GB of memory, more than the ... GB that may be taken: ...
    """
    if size > _LOOKED_AT or _most is not None:
        most = _free() if _most is None else _most
        if size > most:
            may = f"more than the {most / 1e9:.1f} GB that may be taken"
            raise MemoryError(
                f"{what} takes {size / 1e9:.1f} GB of memory, {may}: --max-memory raises that"
            )


def cores() -> int:
    """Cores that this process may use now: what `n_jobs=-1` means.

    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free() -> float:
    """Most of the memory that nobody uses, in bytes, as far as the system tells."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(
            1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        )
        group = Path("/sys/fs/cgroup")  # what a container may take
        most = (group / "memory.max").read_text()
        found.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError, StopIteration):
        pass
    if not found and hasattr(os, "sysconf"):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return _SHARE * max(0, min(found)) if found else inf
