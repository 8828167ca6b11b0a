"""What a learned factor is held against: the best ranking that ignores i, the best matrix of a
rank, and the number of samples after which a curve gets somewhere."""

from __future__ import annotations

import numpy as np

from ..core.factors import Factors
from ..core.losses import LOSSES
from ..core.observations import Observations
from ..engines.base import Engine, open_engine
from ..training import metrics


def np_maximum(
    seen: Observations, engine: Engine | None = None, epochs: int = 100, alpha: float = 0.1
) -> float:
    """NP-Maximum: the AUC on these comparisons of one ranking for all i, learned from the very
    same comparisons. No non-personalized ranking does better but by luck.

    The settings are those of the paper. It starts from no preference, and a tie counts as right
    where the target is 0, as in the paper's AUC.

    >>> np_maximum(Observations.triplets([2, 3, 4], [0, 0, 1], [1, 1, 0]))
    0.6666666666666666
    """
    engine, loss, rng = engine or open_engine(), LOSSES["bpr"], np.random.default_rng(0)
    d, items = seen.shape
    # One ranking for all is a model of rank 1 in which every i has the vector 1, and keeps it.
    factors = Factors(np.r_[np.ones(d), np.zeros(items)][:, None], d, spectrum=np.array([float(d)]))
    shift = [d * side for side in loss.sides]
    data = engine.samples(seen, shift, factors.X.dtype, rng)
    P, rates = np.ones(1), np.array([alpha, alpha, 0.0])  # of the rows j, k and i
    factors.X = engine.put(factors.X)
    for _ in range(epochs):
        for chunk in data.epoch(rng):
            engine.run(factors, P, rates, loss, chunk)
    return metrics.auc(engine, factors, data, loss)


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
