"""Whether entries tie all rows and columns together.

Where two groups of rows and columns share but a few entries, each may be told to the last digit and
what one is to the other is not: L T and R T^-T explain a group as well as L and R, for any (r, r)
matrix T. Walks from row to column and back show it: those that begin in a group stay there.
"""

from __future__ import annotations

import numpy as np

from ..core.compiled import njit

_STAYS = 0.8  # share of walks, there and back, that stay in a group: in a random matrix, under 0.6
_SETTLED = 20  # steps of walks after which the groups are told
_ENOUGH = 2.6  # times the numbers of T: entries between two groups that determine it
_FEWEST, _MOST = 3, 12  # steps of walks until the largest share is seen


def apart(index: np.ndarray, shape, symmetric: bool, r: int, seed: int) -> list[np.ndarray]:
    """The rows, as booleans, of each side in a group that fewer entries tie to the others than r
    directions need. Args: index (n, 2), of the matrix.

    >>> i, j = np.indices((8, 8)).reshape(2, -1)
    >>> block = (i < 5) == (j < 5)
    >>> apart(np.stack([i, j], axis=1)[block], (8, 8), False, 2, seed=0)[0].nonzero()[0]
    array([5, 6, 7])
    """
    sides = 1 if symmetric else 2
    nowhere = [np.zeros(rows, bool) for rows in shape[:sides]]
    counts = [np.zeros(rows) for rows in shape]
    for side in (0, 1):
        _walk(index, 1 - side, symmetric, np.ones(shape[1 - side]), counts[side])
    # In a random matrix all but a share of the walks have left after one step.
    lively = sum(1 / np.sqrt(count.mean()) for count in counts)
    steps = np.log(len(index)) / (-4 * np.log(min(lively, 0.9)))
    scales = [1 / np.sqrt(np.maximum(count, 1)) for count in counts]
    everywhere = np.sqrt(counts[1])
    x = np.random.default_rng([seed, 9]).standard_normal(shape[1])
    y, steps, done, stays = np.zeros(shape[0]), int(np.clip(steps, _FEWEST, _MOST)), 0, 0.0
    while done < steps:
        x -= everywhere * (everywhere @ x) / (everywhere @ everywhere)
        x /= max(float(np.linalg.norm(x)), 1e-300)
        y[:] = 0.0
        _walk(index, 1, symmetric, scales[1] * x, y)
        y *= scales[0]
        x[:] = 0.0
        _walk(index, 0, symmetric, scales[0] * y, x)
        x *= scales[1]
        done, stays = done + 1, float(np.linalg.norm(x))
        if done == steps and stays > _STAYS:
            steps += _SETTLED if steps <= _MOST else 0
    if stays <= _STAYS:
        return nowhere
    row, column = y > 0, x > 0
    between = np.count_nonzero(row[index[:, 0]] != column[index[:, 1]])
    groups = [[row == which, column == which] for which in (False, True)]
    group = min(groups, key=lambda both: sum(map(np.count_nonzero, both)))
    group = [rows & (count > 0) for rows, count in zip(group, counts, strict=True)]
    few = min(map(np.count_nonzero, group)) < r
    return nowhere if few or between >= _ENOUGH * r**2 else group[:sides]


@njit(nogil=True, cache=True)
def _walk(index, start, symmetric, x, out):
    """Add what walkers x bring to where entries lead them, from side `start` to the other."""
    for t in range(len(index)):
        a, b = index[t, start], index[t, 1 - start]
        out[b] += x[a]
        if symmetric:
            out[a] += x[b]
