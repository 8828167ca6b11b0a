"""Columns of data frames of any make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path  # noqa: F401  (for the example)

import narwhals as nw


def columns_of(table, names: Iterable[str]) -> list:
    """Columns of a data frame (pandas, polars, ...) or of a mapping of arrays, by name."""
    if not isinstance(table, Mapping):
        table = nw.from_native(table, eager_only=True)
        held, get = table.columns, lambda name: table[name].to_numpy()
    else:
        held, get = list(table), table.__getitem__
    for name in names:
        if name not in held:
            raise ValueError(f"unknown column {name!r}: the table has {', '.join(map(str, held))}")
    return [get(name) for name in names]


def are_files(data) -> bool:
    """Whether data is given by the names of files.

    >>> are_files("events/*.parquet"), are_files([Path("a.parquet")]), are_files([[1.0]])
    (True, True, False)
    """
    several = data if isinstance(data, list | tuple) else [data]
    return bool(several) and all(isinstance(name, str | PathLike) for name in several)
