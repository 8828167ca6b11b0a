"""Who chose or rated what: from a frame, a file or a sparse matrix to columns that are checked."""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.validation import LARGEST, finite, real, refuse
from ..io.readers import open_file
from ..io.tables import columns_of, moments

UNNAMED = "events need the names of two columns: user=... and item=..."


class Interactions(NamedTuple):
    """An event a row, in the order in which they happened, users and items under their own names.

    >>> table = {"who": ["ann", "bob"], "what": [7, 9], "at": [5, 1]}
    >>> told = read(table, ("who", "what", None, "at"))
    >>> told.users, told.items, told.values
    (array(['bob', 'ann'], dtype='<U3'), array([9, 7]), None)
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray | None  # stars, counts or weights; None: all alike
    times: np.ndarray | None = None  # seconds, or what the input counts in

    def kept(self, keep) -> Interactions:
        values, times = (None if column is None else column[keep] for column in self[2:])
        return Interactions(self.users[keep], self.items[keep], values, times)


def read(data, names: tuple, weights: bool = False) -> Interactions:
    """Events from a table whose columns (user, item, value, time) have these names, or from a
    sparse matrix of users x items, which are then known by their numbers. Values that are
    `weights` are above 0."""
    if isinstance(data, str | PathLike):
        data = _opened(data, names)
    if sp.issparse(data):
        table = sp.coo_array(data)
        users, items = table.coords
        return _checked(users, items, table.data, None, weights)
    given = [name for name in names if name is not None]
    found = dict(zip(given, columns_of(data, given), strict=True))
    user, item, value, time = (None if name is None else found[name] for name in names)
    return _checked(user, item, value, time, weights)


def _opened(path, names: tuple):
    source = open_file(path)
    if not source.names:
        return source.matrix(names[2])
    if names[0] is None or names[1] is None:
        raise ValueError(f"{path}: {UNNAMED}")
    ids, numbers = list(names[:2]), [name for name in names[2:] if name is not None]
    return source.table(ids, numbers, times=names[3:])


def _checked(users, items, values, times, weights: bool) -> Interactions:
    users, items = np.asarray(users), np.asarray(items)
    values = None if values is None else finite(real(values, "value"), "value")
    if weights and values is not None:  # told by the numbers that events have in the input
        refuse(~(values > 0), values, "weight {} is not above 0")
        most = LARGEST["float32"]
        refuse(
            ~((values <= most) & (values * most >= 1)), values,
            f"weight {{}} is not from {1 / most:g} to {most:g}",
        )  # fmt: skip
    times = None if times is None else finite(moments(np.asarray(times)), "time")
    for name, column in (("items", items), ("values", values), ("times", times)):
        if column is not None and len(column) != len(users):
            raise ValueError(f"{len(users)} users and {len(column)} {name} do not pair up")
    if not len(users):
        raise ValueError("no observations: the input is empty")
    told = Interactions(users, items, values, times)
    if times is None or (times[1:] >= times[:-1]).all():
        return told
    return told.kept(np.argsort(times, kind="stable"))
