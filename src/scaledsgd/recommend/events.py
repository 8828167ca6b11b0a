"""Events in the order of time, as comparisons of what came next with something else."""

from __future__ import annotations

import numba
import numpy as np

from ..core.observations import Observations
from ..core.validation import refuse, whole

_TRIES = 16  # events that are drawn before any item will do


@numba.njit(nogil=True, cache=True)
def _successions(previous, users, items, count, seed, out):
    """Fills `out` with rows (j, k, i): the user went from i to j, and k is another item, of the
    same events if that can be had. Returns how many there are."""
    np.random.seed(seed)
    found = 0
    for t in range(len(users)):
        i, j = previous[users[t]], items[t]
        previous[users[t]] = j
        if i < 0 or i == j:
            continue
        for _ in range(_TRIES):
            k = np.int64(items[np.random.randint(len(items))])
            if k != i and k != j:
                break
        else:
            low, high = (i, j) if i < j else (j, i)
            k = np.random.randint(count - 2)
            k += k >= low
            k += k >= high
        out[found, 0], out[found, 1], out[found, 2] = j, k, i
        found += 1
    return found


def successions(previous: np.ndarray, users, items, shape, *, seed: int = 0) -> Observations | None:
    """Comparisons "the item before is nearer to the one after it than to another", among items.

    Events are in the order of time. `previous` holds the row of the last item of each user, -1
    where there was none, and is brought up to date in place; refused events leave it as it is. An
    item that is chosen twice in a row says nothing. Another item is that of any of the same events,
    or any at all where they have no other. None if no comparison came of it.

    >>> last = np.array([-1, 4], np.int32)
    >>> after = successions(last, [0, 1, 0], [2, 3, 1], shape=(5, 5))
    >>> after.index[:, [2, 0]], last  # from 4 to 3, and from 2 to 1
    (array([[4, 3],
           [2, 1]], dtype=int32), array([1, 3], dtype=int32))
    """
    count = int(shape[1])
    users, items = whole(users, "user"), whole(items, "item")
    if len(users) != len(items):
        raise ValueError(f"{len(users)} users and {len(items)} items do not pair up")
    if len(users) == 0:
        raise ValueError("no events: the input is empty")
    for rows, limit, what in ((users, len(previous), "user"), (items, count, "item")):
        wrong = (rows < 0) | (rows >= limit)
        refuse(wrong, rows, f"{what} {{}} is not one of {limit}", unit="event")
    out = np.empty((len(users), 3), np.int32 if 2 * count < 2**31 else np.int64)
    if count < 3:  # there is no third item to compare with
        previous[users] = items
        return None
    found = _successions(previous, users, items, count, seed, out)
    if not found:
        return None
    ones = np.ones(found, np.float32)
    return Observations(out[:found], ones, (count, count), "bpr", symmetric=True)
