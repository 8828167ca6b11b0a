"""Which lines of a stream are events that a model can learn from, and why the others are not.

Nothing here raises: what cannot be an event is refused, with a reason, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..estimators.base import Role

_WORDS = 0.05  # share of words among ids from which on all are: broken lines are fewer
_LONGEST = 19  # digits of a number of 64 bits
_TOLD = 60  # letters of a cell that a reason shows: a cell may be a megabyte
_NUMERIC = {bool, int, float, str}  # of cells that may hold a number


class Validated(NamedTuple):
    columns: list[np.ndarray]  # int64, objects that are strings, or float64
    at: np.ndarray  # which of the rows these are
    refused: list[tuple[int, str]]  # the other rows


def validate(roles: Sequence[Role], columns: Sequence, kinds: dict[int, type]) -> Validated:
    """The rows that are events. `kinds` tells whether ids are numbers (int) or words (str), and is
    told where nobody knew.

    >>> roles = [Role("user", 0), Role("value", low=0)]
    >>> found = validate(roles, [["7", "x", "8"], [1.0, 2.0, -1.0]], {0: int})
    >>> found.columns, found.refused
    ([array([7]), array([1.])], [(1, "user: 'x' is not a whole number from 0 up that fits 64 bits"),
    (2, 'value: -1.0 is outside [0, inf]')])
    """
    cells = [_cells(column) for column in columns]
    for number in {role.ids for role in roles if role.ids is not None} - kinds.keys():
        kinds[number] = _kind([c for r, c in zip(roles, cells, strict=True) if r.ids == number])
    typed, reasons = [], {}
    for role, column in zip(roles, cells, strict=True):
        found, bad = _typed(role, column, kinds)
        typed.append(found)
        for row, why in bad:
            reasons.setdefault(row, f"{role.key}: {why}")
    count = len(cells[0])
    good = np.ones(count, bool)
    good[list(reasons)] = False
    for row in _twice(roles, typed, good):
        reasons[row], good[row] = "an item compared with itself", False
    if good.all():
        return Validated(typed, np.arange(count), [])
    return Validated([c[good] for c in typed], np.flatnonzero(good), sorted(reasons.items()))


def _twice(roles, typed, good) -> np.ndarray:
    """Comparisons of an item with itself, which have no order."""
    at = {role.key: n for n, role in enumerate(roles)}
    if "k" not in at:
        return np.zeros(0, np.int64)
    return np.flatnonzero(good & (typed[at["j"]] == typed[at["k"]]))


def _cells(column) -> Any:
    """A list of Python's own, or an array of numbers."""
    if isinstance(column, list):
        return column
    # An Arrow array: numbers without gaps as they are, the rest one by one.
    kind = str(column.type)
    if kind in ("float", "double") or kind.startswith(("int", "uint")):
        if not column.null_count:
            return column.to_numpy(zero_copy_only=False)
    elif kind in ("string", "large_string", "string_view"):
        column = column.dictionary_encode()
    if not hasattr(column, "dictionary"):
        return column.to_pylist()
    words = np.array([*column.dictionary.to_pylist(), None], dtype=object)
    return words[column.indices.fill_null(len(words) - 1).to_numpy()].tolist()


def _kind(columns: list) -> type:
    """Ids are numbers, unless more than a few of them are words."""
    texts = [cell for c in columns if isinstance(c, list) for cell in c if isinstance(cell, str)]
    words = sum(not _spelled(text) for text in texts)
    return str if words > _WORDS * sum(map(len, columns)) else int


def _typed(role: Role, column, kinds: dict[int, type]) -> tuple[np.ndarray, list]:
    if role.ids is None:
        found, bad = _real(column)
        with np.errstate(invalid="ignore"):
            outside = ~((found >= role.low) & (found <= role.high))
        known = {row for row, _ in bad}
        for row in np.flatnonzero(outside).tolist():
            if row not in known:
                limits = f"[{role.low:g}, {role.high:g}]"
                bad.append((row, f"{found[row]} is outside {limits}"))
        return found, bad
    return (_whole if kinds[role.ids] is int else _worded)(column)


def _real(column) -> tuple[np.ndarray, list]:
    if isinstance(column, np.ndarray):
        return column.astype(np.float64, copy=False), []
    if set(map(type, column)) <= _NUMERIC:
        try:
            return np.fromiter(map(float, column), np.float64, len(column)), []
        except (ValueError, OverflowError):
            pass
    return _one_by_one(column, _one_real, np.zeros(len(column)))


def _whole(column) -> tuple[np.ndarray, list]:
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "f":
            wrong = ~((column >= 0) & (column < 2.0**63) & (column == np.floor(column)))
            found = np.where(wrong, 0, column).astype(np.int64)
        else:
            wrong = (column < 0) | (column > np.iinfo(np.int64).max)
            found = column.astype(np.int64, copy=False)
        return found, [(row, _no_id(column[row].item())) for row in np.flatnonzero(wrong).tolist()]
    found = None
    if set(map(type, column)) == {int}:
        found = column
    elif set(map(type, column)) == {str} and "" not in column and _digits("".join(column)):
        found = list(map(int, column)) if max(map(len, column)) <= _LONGEST else [-1]
        found = found if list(map(str, found)) == column else None
    if found is not None and min(found) >= 0 and max(found) < 2**63:
        return np.array(found, np.int64), []
    return _one_by_one(column, _one_whole, np.zeros(len(column), np.int64))


def _worded(column) -> tuple[np.ndarray, list]:
    found = np.empty(len(column), object)
    if isinstance(column, np.ndarray):
        column = column.tolist()
    if set(map(type, column)) == {str} and "" not in column and _sound("".join(column)):
        found[:] = column
        return found, []
    return _one_by_one(column, _one_word, found)


def _one_by_one(column, convert, found: np.ndarray) -> tuple[np.ndarray, list]:
    bad = []
    for row, cell in enumerate(column):
        try:
            found[row] = convert(cell)
        except (ValueError, TypeError, OverflowError) as why:
            bad.append((row, str(why)))
    return found, bad


def _one_real(cell) -> float:
    try:
        if type(cell) in _NUMERIC:
            return float(cell)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{_shown(cell)} is not a number")


def _one_whole(cell) -> int:
    if type(cell) is str and _spelled(cell):
        cell = int(cell)
    if type(cell) is float and cell.is_integer():  # it has been through a column with gaps
        cell = int(cell)
    if type(cell) is int and 0 <= cell < 2**63:
        return cell
    raise ValueError(_no_id(cell))


def _one_word(cell) -> str:
    if type(cell) is int:  # numbers where others are words: they are words here, too
        cell = str(cell)
    if type(cell) is str and cell and _sound(cell):
        return cell
    raise ValueError(f"{_shown(cell)} is not a word")


def _digits(text: str) -> bool:
    return text.isdecimal() and text.isascii()


def _spelled(text: str) -> bool:
    """Whether a word is a whole number in its usual spelling: `7`, but not `007`."""
    return _digits(text) and len(text) <= _LONGEST and str(int(text)) == text


def _sound(text: str) -> bool:
    """Whether a text can be written to a file: no halves of surrogate pairs, and no NULs."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _no_id(cell) -> str:
    return f"{_shown(cell)} is not a whole number from 0 up that fits 64 bits"


def _shown(cell) -> str:
    try:
        text = ascii(cell)
    except (ValueError, RecursionError):  # a number of thousands of digits
        text = f"a {type(cell).__name__}"
    return text if len(text) <= _TOLD else text[:_TOLD] + "..."
