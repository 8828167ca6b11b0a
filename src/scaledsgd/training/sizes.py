"""The sizes of targets, and of rows and columns: by what they are divided before anything is
learned, so that all are about one."""

from __future__ import annotations

import numpy as np

from ..core.observations import Chunk, Observations

LOOK = 200_000  # samples that show what all are like
_ORDINARY = 2.0**32  # targets larger than that, or smaller than its inverse, are scaled
_UNEQUAL = 20.0  # mean square of the rows' sizes over their median: 2 where one direction rules
_SWEEPS = 3  # that bring rows and columns to one size


def sizes(seen: Observations, seed: int) -> list[np.ndarray] | None:
    """By what the rows of each side are to be divided, if by anything.

    >>> i, j = np.indices((4, 3)).reshape(2, -1)
    >>> sizes(Observations.pairs(i, j, np.full(12, 1e20)), seed=0)[1]
    array([8.58993459e+09, 8.58993459e+09, 8.58993459e+09])
    >>> sizes(Observations.pairs(i, j, np.full(12, 5.0)), seed=0)
    """
    size = seen.size
    if not size:
        return None
    unit = 1.0
    if not 1 / _ORDINARY < size < _ORDINARY:
        unit = 2.0 ** round(np.log2(size) / 2)  # of one side
    sides = [np.full(rows, unit) for rows in seen.shape]
    if seen.loss.name == "squared" and _are_unequal(seen, size, seed):
        return [own * scale for own, scale in zip(sides, _equal(seen, size), strict=True)]
    return None if unit == 1.0 else sides


def divided(seen: Observations | Chunk, sides: list[np.ndarray]) -> np.ndarray:
    """The targets in other units; weights have none."""
    y, (i, j) = seen.targets.copy(), seen.index.T
    y.real /= sides[0][i]
    y.real /= sides[-1][j]
    return y


def _are_unequal(seen: Observations, size: float, seed: int) -> bool:
    """Whether a few rows or columns are larger than the others by an order of magnitude."""
    index, squares = seen.index, seen.targets
    if len(seen) > LOOK:
        look = np.random.default_rng(seed).integers(0, len(seen), LOOK)
        # In a tenth of the time of [look].
        index, squares = index.take(look, axis=0), squares.take(look)
    squares = (squares.real / size) ** 2
    for column in index.T:
        total, count = np.bincount(column, squares), np.bincount(column)
        mean = total[count > 0] / count[count > 0]
        if mean.mean() > _UNEQUAL * max(float(np.median(mean)), np.finfo(float).tiny):
            return True
    return False


def _equal(seen: Observations, size: float) -> list[np.ndarray]:
    """The sizes of rows and columns of a matrix that is scaled to have entries of one size."""
    scales = [np.ones(rows) for rows in seen.shape]
    index, squares = seen.index.T, (seen.targets.real / size) ** 2
    counts = [
        np.bincount(column, minlength=len(own)) for column, own in zip(index, scales, strict=True)
    ]
    if seen.symmetric:
        counts = [counts[0] + counts[1]] * 2
    for _ in range(_SWEEPS):
        for side in (0, 1):
            left = squares / (scales[0][index[0]] * scales[1][index[1]]) ** 2
            total = np.bincount(index[side], left, minlength=len(scales[side]))
            if seen.symmetric:
                total = total + np.bincount(index[1 - side], left, minlength=len(scales[side]))
            mean = total / np.maximum(counts[side], 1)
            mean[mean <= 0] = 1.0
            scales[side] = scales[side] * mean ** (0.25 if seen.symmetric else 0.5)
            if seen.symmetric:
                scales = [scales[side]] * 2
    return scales
