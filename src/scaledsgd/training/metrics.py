"""How good a factor is, without ever building the matrix it stands for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.factors import Factors
from ..core.losses import Loss, weighed
from ..core.observations import Chunk, Observations
from ..engines.base import Engine, Samples

Scored = Chunk | Observations | Samples  # whatever has an index and targets

_BLOCK = 1 << 16  # targets looked at together: temporaries stay in the cache


def _scored(engine: Engine, factors: Factors, samples: Scored, loss: Loss):
    block = engine.scored_at_once
    for start in range(0, len(samples.targets), block):
        part = slice(start, start + block)
        yield engine.scores(factors, samples.index[part], loss), samples.targets[part]


def _mean(of: Callable, engine: Engine, factors: Factors, samples: Scored, loss: Loss) -> float:
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # diverged factors have an infinite loss
        for z, y in _scored(engine, factors, samples, loss):
            total += float(weighed(of, z.astype(np.float64), y).sum())
    return total / len(samples.targets)


def mean_loss(engine: Engine, factors: Factors, samples: Scored, loss: Loss) -> float:
    """Mean of psi(z, y) over the samples."""
    return _mean(loss.value, engine, factors, samples, loss)


def zero_loss(targets, loss: Loss) -> float:
    """The mean loss of X = 0, which tells what a small loss is.

    >>> from scaledsgd.core.losses import LOSSES
    >>> zero_loss(np.array([1.0, 3.0]), LOSSES["squared"])
    2.5
    """
    blocks = (targets[at : at + _BLOCK] for at in range(0, len(targets), _BLOCK))
    return sum(float(weighed(loss.value, 0.0, block).sum()) for block in blocks) / len(targets)


def rms_slope(engine: Engine, factors: Factors, samples: Scored, loss: Loss) -> float:
    """Root mean square of psi'(z, y), the residual that damping goes by."""
    squares = _mean(lambda z, y: loss.slope(z, y) ** 2, engine, factors, samples, loss)
    return float(np.sqrt(squares))


def auc(engine: Engine, factors: Factors, samples: Scored, loss: Loss) -> float:
    """Share of the comparisons that the factors order as observed."""
    scored = _scored(engine, factors, samples, loss)
    return sum(auc_of(z, y) * len(y) for z, y in scored) / len(samples.targets)


def auc_of(z: np.ndarray, y: np.ndarray) -> float:
    """Share of z > 0 where y = 1 and z <= 0 where y = 0: as in the paper, that tie is right.

    >>> auc_of(np.array([0.5, 0.0, 0.0]), np.array([1, 0, 1]))
    0.6666666666666666
    """
    return int(np.count_nonzero((z > 0) == (y > 0.5))) / len(y)


def recovery_error(left, right, true_left, true_right) -> float:
    """|L R^T - A B^T|_F / |A B^T|_F from r x r Gram products.

    >>> A = np.array([[1.0], [2.0]])
    >>> round(recovery_error(2 * A, A, A, A), 12)
    1.0
    """
    stacked_left = np.hstack([left, -np.asarray(true_left)])
    stacked_right = np.hstack([right, true_right])
    # Triangular factors instead of Grams: those would lose half of the digits to the subtraction.
    return _product_norm(stacked_left, stacked_right) / _product_norm(true_left, true_right)


def _product_norm(A, B) -> float:
    """|A B^T|_F from the triangular factors of both."""
    return float(np.linalg.norm(np.linalg.qr(A).R @ np.linalg.qr(B).R.T))
