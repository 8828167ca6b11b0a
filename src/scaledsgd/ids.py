"""Names of rows: what users call their items, against the row numbers that kernels use."""

from __future__ import annotations

import numpy as np


class Ids:
    """Row numbers for names, given out in order of first appearance.

    Names are all integers or all strings.

    >>> ids = Ids()
    >>> ids.add(["tea", "rye", "tea"])
    array([0, 1, 0])
    >>> ids.rows(["rye"]), ids.names([0])
    (array([1]), array(['tea'], dtype=object))
    """

    def __init__(self, names=()):
        first = dict.fromkeys(_checked(names, "id").tolist())
        self._rows: dict[int | str, int] = {name: row for row, name in enumerate(first)}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name) -> bool:
        return name in self._rows

    def __eq__(self, other) -> bool:
        return isinstance(other, Ids) and list(self._rows) == list(other._rows)

    def add(self, names, column: str = "id") -> np.ndarray:
        """Row numbers of the names, new ones for those not seen before."""
        names = _checked(names, column)
        known = next(iter(self._rows), None)
        if known is not None and len(names) and isinstance(known, str) == (names.dtype.kind == "i"):
            raise TypeError(
                f"column {column!r}: {names[0]!r} is not of the type of {known!r}, seen before"
            )
        rows = self._rows
        if names.dtype.kind == "i":
            unique, back = np.unique(names, return_inverse=True)
            numbers = [rows.setdefault(int(name), len(rows)) for name in unique]
            return np.array(numbers, dtype=np.int64)[back]
        return np.fromiter((rows.setdefault(n, len(rows)) for n in names), np.int64, len(names))

    def keep(self, count: int) -> None:
        """Forget all but the first names."""
        while len(self._rows) > count:
            self._rows.popitem()

    def rows(self, names, column: str = "id") -> np.ndarray:
        """Row numbers of names that must be known."""
        names = _checked(names, column)
        if names.dtype.kind == "i":
            names = names.tolist()
        try:
            return np.fromiter((self._rows[name] for name in names), np.int64, len(names))
        except KeyError as unknown:
            raise ValueError(f"{column} {unknown.args[0]!r} was never seen in training") from None

    def names(self, rows=slice(None)) -> np.ndarray:
        """Names of the rows."""
        names = list(self._rows)
        if names and isinstance(names[0], str):
            return _objects(names)[rows]
        return np.array(names, dtype=np.int64)[rows]


def _small(name) -> bool:
    whole = isinstance(name, int | np.integer) and not isinstance(name, bool)
    return whole and -(2**63) <= int(name) < 2**63


def _objects(names) -> np.ndarray:
    objects = np.empty(len(names), dtype=object)
    objects[:] = names
    return objects


def _checked(names, column: str) -> np.ndarray:
    """An int64 array, or an object array of strings."""
    if isinstance(names, list | tuple) and any(isinstance(n, str) for n in names):
        names = _objects(names)  # or NumPy makes strings of numbers and drops trailing NULs
    names = np.asarray(names)
    if names.dtype.kind in "iuf":  # floats are integers that have been through a column with gaps
        wrong = (names != np.floor(names)) | (np.abs(names.astype(np.float64)) >= 2.0**63)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"column {column!r}, row {at}: id {names[at]} is not a whole number of 64 bits"
            )
        return names.astype(np.int64, copy=False)
    names = names.astype(object)
    kinds = [str if isinstance(n, str) else int if _small(n) else None for n in names]
    for at, kind in enumerate(kinds):
        if kind is None:
            raise TypeError(
                f"column {column!r}, row {at}: id {names[at]!r} is neither a string nor an "
                "integer of 64 bits"
            )
        if kind is not kinds[0]:
            raise TypeError(
                f"column {column!r}: ids of mixed types, {names[0]!r} in row 0 and "
                f"{names[at]!r} in row {at}"
            )
    return names.astype(np.int64) if kinds and kinds[0] is int else names
