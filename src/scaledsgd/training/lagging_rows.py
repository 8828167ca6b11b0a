"""Rows that lag behind: each is solved for by itself while the others stand still.

A row far larger than the others, or one of which little is known, poses a problem of its own that
no P for all rows conditions well, and while it is wrong it disturbs whatever it meets. Alone it is
a linear least squares problem: x in x.p = y, and x with |x|^2 in |x|^2 - 2 x.p = y - |p|^2.
"""

from __future__ import annotations

import numpy as np

from ..core.factors import Factors
from ..core.linalg import floored
from ..core.losses import Loss
from ..engines.base import Engine, Samples

LINEAR = ("squared", "distance")  # those that are linear in one row

_LAGS = 16.0  # times the mean squared residual: what noise does not do to a row, nor a bad entry
_SPREAD_OUT = 0.5  # median |residual| / rms: 0.67 if Gaussian, near 0 if few rows have it all
_LOOK = 1 << 16  # samples that show whether it is so
_MOST = 2000  # rows at a time: some 0.2 s
_WIDE = 10.0  # a row is expected to change by at most so many times what is usual
_SURE = 1e-6  # of the worst row's variance: no neighbour is trusted more than that


def catch_up(engine: Engine, factors: Factors, loss: Loss, data: Samples) -> int:
    """Solve for rows whose residuals are far larger than the others'. Returns how many there were.
    X has to be here (`engine.solves_rows`), in the basis of its spectrum."""
    look = data.fair(_LOOK)
    few = np.abs(_residuals(engine, factors, loss, look.index, look.targets))
    if np.median(few) > _SPREAD_OUT * np.sqrt(np.mean(few**2)):
        return 0
    parts = _parts(factors, data)
    total, count = _tally(engine, factors, loss, data, parts)
    mean = total / np.maximum(count, 1)
    behind = mean > _LAGS * total.sum() / count.sum()
    if behind.sum() > _MOST:
        behind = mean >= np.partition(mean, -_MOST)[-_MOST]
    touching = [np.flatnonzero(behind[data.index[part]].sum(axis=1) == 1) for part in parts]
    at = np.concatenate([part.start + some for part, some in zip(parts, touching, strict=True)])
    if len(at) == 0:
        return 0
    index, y = data.index[at], data.targets[at].astype(np.float64)
    rows, others = np.where(behind[index[:, 0]], index.T, index.T[::-1])
    # A neighbour is trusted by its residuals elsewhere.
    total, count = _tally(engine, factors, loss, data, parts, behind)
    variance = total[others] / np.maximum(count[others], 1)
    variance = np.maximum(variance, _SURE * variance.max())
    if not variance.all():
        return 0
    order = np.argsort(rows, kind="stable")
    names, starts = np.unique(rows[order], return_index=True)
    for row, its in zip(names, np.split(order, starts[1:]), strict=True):
        _solve(factors, int(row), others[its], y[its], 1 / np.sqrt(variance[its]), loss)
    return len(names)


def _parts(factors: Factors, data: Samples) -> list[slice]:
    """Pieces of the data so large that a sum for every row costs nothing beside them."""
    size = max(_LOOK, len(factors.X))
    return [slice(start, start + size) for start in range(0, len(data), size)]


def _tally(engine, factors, loss, data: Samples, parts, without: np.ndarray | None = None):
    """The sum of squared residuals of every row, and their number; without samples that name some
    of the rows."""
    d = len(factors.X)
    total, count = np.zeros(d), np.zeros(d)
    for part in parts:
        index, targets = data.index[part], data.targets[part]
        if without is not None:
            kept = ~without[index].any(axis=1)
            index, targets = index[kept], targets[kept]
        squares = _residuals(engine, factors, loss, index, targets) ** 2
        for column in index.T:
            total += np.bincount(column, squares, minlength=d)
            count += np.bincount(column, minlength=d)
    return total, count


def _residuals(engine: Engine, factors: Factors, loss: Loss, index, targets) -> np.ndarray:
    return engine.scores(factors, index, loss).astype(np.float64) - targets


def _solve(factors: Factors, row: int, others, y, weights, loss: Loss) -> None:
    """The row that fits its neighbours best. What they do not tell stays: a change is held to be
    normal, with the spectrum's variances times _WIDE^2. Kept if it fits better."""
    X = factors.X
    P, w = X[others].astype(np.float64), weights[:, None]
    rows = factors.shape[0 if row < len(factors.left) else 1]
    prior = np.diag(np.sqrt(rows / floored(factors.spectrum)) / _WIDE)
    old, shift, A, b = X[row].astype(np.float64), np.zeros(len(prior)), P, y
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

    if misfit(new) < misfit(old):
        X[row] = new
