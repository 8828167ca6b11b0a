"""What a learned factor is held against: the best ranking that ignores i, the best matrix of a
rank, and the number of samples after which a curve gets somewhere."""

from __future__ import annotations

import numba
import numpy as np


def np_maximum(index, targets, items: int, epochs: int = 100, alpha: float = 0.1) -> float:
    """NP-Maximum: the AUC on these comparisons (rows j, k, i) of one ranking for all i, learned
    from the very same comparisons. No non-personalized ranking does better but by luck.

    The settings are those of the paper. It starts from no preference, and a tie counts as right
    where the target is 0, as in the paper's AUC.

    >>> np_maximum(np.array([[0, 1, 2], [0, 1, 3], [1, 0, 4]]), np.array([1, 1, 1]), items=5)
    0.6666666666666666
    """
    x = np.zeros(items)
    for _ in range(epochs):  # out here, so that an interrupt is heard between two of them
        _rank(x, index, targets, alpha)
    return _agreeing(x, index, targets) / len(targets)


@numba.njit(nogil=True, cache=True)
def _rank(x, index, targets, alpha):
    for t in range(len(targets)):
        j, k = index[t, 0], index[t, 1]
        step = alpha * (1.0 / (1.0 + np.exp(x[k] - x[j])) - targets[t])
        x[j] -= step
        x[k] += step


@numba.njit(nogil=True, cache=True)
def _agreeing(x, index, targets):
    right = 0
    for t in range(len(targets)):
        right += (x[index[t, 0]] > x[index[t, 1]]) == (targets[t] > 0.5)
    return right


def noise_floor(M: np.ndarray, rank: int) -> float:
    """Mean of (X X^T - M)^2 / 2 over all entries, for the best X of that rank.

    >>> noise_floor(np.diag([3.0, 2.0, -1.0]), rank=1)
    0.2777777777777778
    """
    values, Q = np.linalg.eigh((M + M.T) / 2)
    Z = Q[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0.0))
    return float(np.mean((Z @ Z.T - M) ** 2) / 2)


def crossing(samples, values, level: float) -> float:
    """How many samples it took until a curve, rising or falling, first reached a level: on the
    straight line between the two evaluations around it, infinity where it never did.

    >>> crossing([0, 100, 200], [0.5, 0.75, 1.0], level=0.875)
    150.0
    >>> crossing([0, 100], [0.5, 0.7], level=0.8)
    inf
    """
    samples, values = np.asarray(samples, np.float64), np.asarray(values, np.float64)
    reached = values >= level if values[0] <= level else values <= level
    if not reached.any():
        return float("inf")
    at = int(np.argmax(reached))
    if at == 0:
        return float(samples[0])
    share = (level - values[at - 1]) / (values[at] - values[at - 1])
    return float(samples[at - 1] + share * (samples[at] - samples[at - 1]))
