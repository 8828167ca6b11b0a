"""Names of rows: what users call their items, against the row numbers that kernels use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .numbering import Numbering


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
        self._words: dict[str, int] = {}
        self._numbers: Numbering | None = None
        self.add(names)

    def __len__(self) -> int:
        return len(self._words) + len(self._numbers or ())

    def __contains__(self, name) -> bool:
        if self._numbers is None or not _small(name):
            return name in self._words
        return bool(self._numbers.rows(np.array([name]))[0] >= 0)

    def __eq__(self, other) -> bool:
        return isinstance(other, Ids) and self.names().tolist() == other.names().tolist()

    @property
    def kind(self) -> type | None:
        """int or str, as all the names are; None before the first."""
        return None if not len(self) else str if self._words else int

    def add(self, names, column: str = "id") -> np.ndarray:
        """Row numbers of the names, new ones for those not seen before."""
        names = _checked(names, column)
        kind = int if names.dtype.kind == "i" else str
        if len(names) and self.kind not in (None, kind):
            new, known = (some[:1].tolist()[0] for some in (names, self.names()))
            raise TypeError(
                f"column {column!r}: {new!r} is not of the type of {known!r}, seen before"
            )
        if kind is int and len(names):
            from .numbering import Numbering  # compiled: not loaded for words

            self._numbers = self._numbers or Numbering()
            return self._numbers.add(names)
        rows = self._words
        for name in dict.fromkeys(names):
            rows.setdefault(name, len(rows))
        return np.fromiter(map(rows.__getitem__, names), np.int64, len(names))

    def keep(self, count: int) -> None:
        """Forget all but the first names."""
        if self._numbers is not None:
            self._numbers.keep(count)
        while len(self._words) > count:
            self._words.popitem()

    def rows(self, names, column: str = "id") -> np.ndarray:
        """Row numbers of names that must be known."""
        names = _checked(names, column)
        if self._numbers is not None and names.dtype.kind == "i":
            rows = self._numbers.rows(names)
        else:
            rows = np.fromiter((self._words.get(n, -1) for n in names), np.int64, len(names))
        if len(rows) and rows.min() < 0:
            unknown = names[rows < 0][:1].tolist()[0]
            raise ValueError(f"{column} {unknown!r} was never seen in training")
        return rows

    def names(self, rows=slice(None)) -> np.ndarray:
        """Names of the rows."""
        if self._words:
            return _objects(list(self._words))[rows]
        return np.empty(0, np.int64) if self._numbers is None else self._numbers.names[rows].copy()


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
    if names.dtype.kind == "i":
        return names.astype(np.int64, copy=False)
    if names.dtype.kind in "uf":  # floats are integers that have been through a column with gaps
        wrong = (names != np.floor(names)) | (np.abs(names.astype(np.float64)) >= 2.0**63)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"column {column!r}, row {at}: id {names[at]} is not a whole number of 64 bits"
            )
        return names.astype(np.int64, copy=False)
    names = names.astype(object)
    if set(map(type, names)) == {str}:
        return names
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
