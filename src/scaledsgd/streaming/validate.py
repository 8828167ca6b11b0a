"""Which lines of a stream are events that a model can learn from, and why the others are not.

Nothing here raises: what cannot be an event is refused, with a reason, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..estimators.base import Role
from ..io.ids import Cells, id_column, kind_of
from ..io.tables import converted, plain_numbers, shown

_NUMERIC = {bool, int, float, str}  # of cells that may hold a number


class Validated(NamedTuple):
    columns: list[np.ndarray]  # int64, objects that are strings, or float64
    at: np.ndarray  # which of the rows these are
    refused: list[tuple[int, str]]  # the other rows


def validate(roles: Sequence[Role], columns: Sequence[Cells], kinds: dict[int, type]) -> Validated:
    """The rows that are events. `kinds` tells whether ids are numbers (int) or words (str), and is
    told where nobody knew.

    >>> roles = [Role("user", 0), Role("value", low=0)]
    >>> found = validate(roles, [["7", "x", "8"], [1.0, 2.0, -1.0]], {0: int})
    >>> found.columns, found.refused
    ([array([7]), array([1.])], [(1, "user: 'x' is not a whole number from 0 up that fits 64 bits"),
    (2, 'value: -1.0 is outside [0, inf]')])
    """
    for number in {role.ids for role in roles if role.ids is not None} - kinds.keys():
        kinds[number] = kind_of([c for r, c in zip(roles, columns, strict=True) if r.ids == number])
    typed, reasons = [], {}
    for role, column in zip(roles, columns, strict=True):
        found, bad = _typed(role, column, kinds)
        typed.append(found)
        for row, why in bad:
            reasons.setdefault(row, f"{role.key}: {why}")
    count = len(columns[0])
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


def _typed(role: Role, column, kinds: dict[int, type]) -> tuple[np.ndarray, list]:
    if role.ids is not None:
        return id_column(column, kinds[role.ids])
    found, bad = _real(column)
    outside = ~((found >= role.low) & (found <= role.high))
    known = {row for row, _ in bad}
    for row in np.flatnonzero(outside).tolist():
        if row not in known:
            bad.append((row, f"{found[row]} is outside [{role.low:g}, {role.high:g}]"))
    return found, bad


def _real(column) -> tuple[np.ndarray, list]:
    if isinstance(column, np.ndarray):
        return column.astype(np.float64, copy=False), []
    kinds = set(map(type, column))
    texts = "".join(cell for cell in column if type(cell) is str) if str in kinds else ""
    if kinds <= _NUMERIC and plain_numbers(texts):
        try:
            return np.fromiter(map(float, column), np.float64, len(column)), []
        except (ValueError, OverflowError):
            pass
    return converted(column, _one_real, np.zeros(len(column)))


def _one_real(cell) -> float:
    try:
        if type(cell) in _NUMERIC and (type(cell) is not str or plain_numbers(cell)):
            return float(cell)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{shown(cell)} is not a number")
