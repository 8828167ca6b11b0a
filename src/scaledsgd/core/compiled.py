"""Numba's `njit`, with a cache on disk that several processes may fill at once.

Numba numbers the files of a function's compiled forms, and the number that is free to one process
is free to another that compiles another form at that moment: the index then names the form of the
one, and the file holds that of the other. Whoever loads it next runs the wrong code and is told
nothing. So a file is named by what is in it, and is there before the index names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numba


def njit(function: Callable | None = None, **options) -> Any:
    """As `numba.njit`.

    >>> @njit
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    """
    if function is None:
        return partial(njit, **options)
    kernel = numba.njit(**options)(function)
    # Where a Numba to come has no such file, its own way is taken.
    file: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(file, "_save_data"):
        file.save = partial(_save, file)
    return kernel


def _save(file: Any, key: tuple, data: Any) -> None:
    """Keep a compiled form. Of two that are kept at the same time one may be lost, and is compiled
    again."""
    told = hashlib.sha256(file._dump((file._source_stamp, key))).hexdigest()[:20]
    name = file._index_name.replace(".nbi", f".{told}.nbc")
    file._save_data(name, data)
    file._save_index(file._load_index() | {key: name})
