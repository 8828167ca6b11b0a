"""Rows that lag behind: each is solved for by itself while the others stand still.

A row far larger than the others, or one of which little is known, poses a problem of its own that
no P for all rows conditions well, and while it is wrong it disturbs whatever it meets. Alone it is
a linear least squares problem: x in x.p = y, and x with |x|^2 in |x|^2 - 2 x.p = y - |p|^2.
"""

from __future__ import annotations

import numpy as np

from ..core.factors import Factors
from ..core.linalg import floored
from ..core.losses import Loss, weight
from ..engines.base import Engine, Samples, residuals

LINEAR = ("squared", "distance")  # those that are linear in one row

_LAGS = 16.0  # times the mean squared residual: what noise does not do to a row, nor a bad entry
_SPREAD_OUT = 0.5  # median |residual| / rms: 0.67 if Gaussian, near 0 if few rows have it all
_LOOK = 1 << 16  # samples that show whether it is so
_MOST = 2000  # rows at a time: some 0.2 s
_WIDE = 10.0  # a row is expected to change by at most so many times what is usual
_SURE = 1e-6  # of the worst row's variance: no neighbour is trusted more than that


def catch_up(engine: Engine, factors: Factors, loss: Loss, data: Samples) -> int:
    """Solve for rows whose residuals are far larger than the others'. Returns how many there were.
    X has to be in the basis of its spectrum."""
    look = data.fair(_LOOK)
    few = residuals(engine.scores(factors, look.index, loss), look.targets)
    few = np.abs(engine.local(few))
    if np.mean(few > _SPREAD_OUT * np.sqrt(np.mean(few**2))) > 0.5:  # soon told, as a median is not
        return 0
    total, count = engine.tally(factors, loss, data)
    mean = total / np.maximum(count, 1)
    behind = mean > _LAGS * total.sum() / count.sum()
    if behind.sum() > _MOST:
        behind = mean >= np.partition(mean, -_MOST)[-_MOST]
    some = engine.naming(data, behind)
    index, y = some.index, some.targets
    if len(y) == 0:
        return 0
    rows, others = np.where(behind[index[:, 0]], index.T, index.T[::-1])
    # A neighbour is trusted by its residuals elsewhere.
    total, count = engine.tally(factors, loss, data, behind)
    variance = total[others] / np.maximum(count[others], 1)
    variance = np.maximum(variance, _SURE * variance.max())
    if not variance.all():
        return 0
    order = np.argsort(rows, kind="stable")
    names, starts = np.unique(rows[order], return_index=True)
    # Here are only the rows that matter, by their places among them.
    named = np.unique(np.concatenate([names, others]))
    X = engine.rows(factors.X, named)
    for row, its in zip(names, np.split(order, starts[1:]), strict=True):
        its_weights = np.sqrt(weight(y[its]) / variance[its])
        own, P = X[np.searchsorted(named, row)], X[np.searchsorted(named, others[its])]
        own[...] = solved(own, P, y[its].real, its_weights, prior(factors, row), loss)
    engine.set_rows(factors.X, names, X[np.searchsorted(named, names)])
    return len(names)


def prior(factors: Factors, row: int) -> np.ndarray:
    """Inverse standard deviations of a row's change: _WIDE times those of the spectrum."""
    rows = factors.shape[0 if row < len(factors.left) else 1]
    return np.diag(np.sqrt(rows / floored(factors.spectrum)) / _WIDE)


def solved(x, P, y, weights: np.ndarray, prior: np.ndarray, loss: Loss) -> np.ndarray:
    """The row that fits its neighbours best, or as it is where that fits no worse. What they do not
    tell stays: a change is held to be normal. Args: x (r,), the row; P (n, r), its neighbours."""
    old, P, y = (part.astype(np.float64) for part in (x, P, y))
    w = weights[:, None]
    shift, A, b = np.zeros(len(prior)), P, y
    if loss.name == "distance":
        shift = (P * w**2).sum(axis=0) / (w**2).sum()
        A = np.hstack([-2 * (P - shift), np.ones_like(w)])
        b = y - ((P - shift) ** 2).sum(axis=1)
    held = np.hstack([prior, np.zeros((len(prior), A.shape[1] - len(prior)))])
    system = np.vstack([A * w, held]), np.append(b * weights, prior @ (old - shift))
    new = np.linalg.lstsq(*system, rcond=None)[0][: len(prior)] + shift

    def misfit(x: np.ndarray) -> float:
        z = ((P - x) ** 2).sum(axis=1) if loss.name == "distance" else P @ x
        return float((((z - y) * weights) ** 2).sum())

    return new if misfit(new) < misfit(old) else old
