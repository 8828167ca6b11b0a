"""A second-order finish for few samples: Gauss-Newton steps on all rows of X at once.

Steps on single samples stall where there are hardly more samples than numbers to be learned. There
a few steps of Gauss-Newton (Levenberg and Marquardt's, with the blocks of a row as the metric)
reach an exact fit from nearby (`descend`); from anywhere, a ridge that falls from the size of the
residuals leads there (`follow`). The linear systems are solved by conjugate gradients, of which
each iteration is one pass over the samples: nothing is ever formed but an (r, r) block a row. Of
two sides one is eliminated, its blocks being all that it has: that halves the iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..core.linalg import balance, eigenbasis
from ..core.losses import weight
from ..engines.cpu.crew import Crew
from ..engines.cpu.normal_kernels import Normal

_FALL = 0.8  # of the ridge, from one step to the next
# The same while so much of the targets' norm is left: directions are growing, and in a large matrix
# a ridge that runs ahead of them lets in others that no later step gets rid of.
_SLOWLY, _GROWING = 0.92, (0.05, 0.99)
_BIASED = 5.0  # times the least direction that a ridge lets grow: from there on it is held less
_EXACT = 5e-13  # of the targets: hardly anything is left but rounding
GAIN = 0.999  # a step that leaves more than this of the squares, and
_PATIENCE = 5  # so many of them in a row, end the descent
_LATE, _LOST = 0.01, 0.1  # a ridge so low, and so many of the squares left: there is no exact fit
_MOST = 80  # steps
_SHORTER = tuple(0.5**k for k in range(10))  # of a step with a ridge, until it is one down
# Conjugate gradients: the share that is left of a system's residual, and iterations; without a
# ridge that share is the smaller the more the last step has gained, within limits.
_ROUGH, _COARSE, _FINE, _LONG = (0.1, 100), 0.1, 1e-4, 300
# Of all steps without a ridge: numbers gathered, some 10 s, and at least so many iterations, ten
# times what an exact fit takes.
_WORK, _LEAST = 3e9, 1000
_ALONE = Crew(1)


class _Fit:
    """Where a descent is: X, its residuals, and the sum of their squares."""

    def __init__(self, X, index, targets, scores, begin: int, minus: bool, crew: Crew):
        self.y, self.w = targets.real, np.atleast_1d(weight(targets))
        self.scores, self.begin = scores, begin
        self.size = _square(self.y, self.w)
        self.X, self.e, self.left = X, *self._residuals(X)
        self._normal, self._of = None, (index, len(X), begin, self.w, minus, crew)

    @property
    def normal(self) -> Normal:
        self._normal = self._normal or Normal(*self._of)
        return self._normal

    @property
    def share(self) -> float:
        """What is left of the targets' norm."""
        return float(np.sqrt(self.left / self.size)) if self.size else 0.0

    def step(self, hold: Any, scale: float, enough: float, most: int) -> tuple[np.ndarray, int]:
        """The step with what holds each column, and iterations that it took."""
        g = self.normal.at(self.X, self.e, hold)
        self.normal.factorise(scale)
        return _solved(self.normal, -g, enough, most)

    def at(self, X: np.ndarray, hold: Any) -> tuple[np.ndarray, np.ndarray, float]:
        """X with the rows of one of two sides at their best, its residuals, and their squares."""
        e, left = self._residuals(X)
        if self.begin:
            _best_of_a_side(self.normal, X, e, hold)
            e, left = self._residuals(X)
        return X, e, left

    def _residuals(self, X: np.ndarray) -> tuple[np.ndarray, float]:
        e = self.scores(X) - self.y
        return e, _square(e, self.w)


def descend(
    X: np.ndarray,
    index: np.ndarray,
    targets: Any,
    scores: Callable[[np.ndarray], np.ndarray],
    *,
    begin: int = 0,
    minus: bool = False,
    gain: float = GAIN,
    crew: Crew = _ALONE,
) -> tuple[np.ndarray, float]:
    """Args: X (d, r) to begin with; index (n, 2), targets (n,), with weights or without; scores, z
    of every sample for an X; begin, where in X the second side begins, if there are two; minus,
    whether z is the square of x_i - x_j; gain, the share of the squares that a step has to leave
    behind, or else it ends soon; crew, whose threads compute.
    Returns: X, and what is left of the targets' norm."""
    fit = _Fit(X, index, targets, scores, begin, minus, crew)
    mu, stuck, enough = 1e-3, 0, _COARSE
    budget = max(_LEAST, int(_WORK / max(len(fit.y) * X.shape[1], 1)))
    for _ in range(_MOST):
        if fit.left <= _EXACT**2 * fit.size or stuck >= _PATIENCE or budget <= 0:
            break
        step, passes = fit.step(0.0, 1.0 + mu, enough, min(_LONG, budget))
        budget -= passes
        X, e, left = fit.at(fit.X + step, 0.0)
        if not left < fit.left:
            mu, enough, stuck = 8 * mu, _COARSE, stuck + 1
            continue
        stuck = 0 if left < gain * fit.left else stuck + 1
        mu = max(mu / (8 if left < 0.5 * fit.left else 2), 1e-12)
        enough = min(_COARSE, max(_FINE, left / fit.left))
        fit.X, fit.e, fit.left = X, e, left
    return fit.X, fit.share


def follow(
    X: np.ndarray, index: np.ndarray, targets: Any, scores: Callable[[np.ndarray], np.ndarray], *,
    ridge: float, near: float, begin: int = 0, crew: Crew = _ALONE,
) -> tuple[np.ndarray, float, float]:  # fmt: skip
    """The way to a fit with few directions, from wherever: a ridge that falls until the fit is
    near. What is larger than it lets grow is held the less, the larger it is, as if the logarithms
    of all directions were to be small: large ones are then not biased, and others vanish.

    Args: as `descend`'s; ridge, to begin with; near, what is left of the targets' norm at the end.
    Returns: X, what is left of that norm, and the ridge then."""
    fit = _Fit(X, index, targets, scores, begin, False, crew)
    dense = len(index) / (begin * (len(X) - begin)) if begin else 2 * len(index) / len(X) ** 2
    first, start = ridge, fit.left
    for _ in range(_MOST):
        if fit.share <= near or (ridge < _LATE * first and fit.left > _LOST * start):
            break
        fit.X, S = _balanced(fit.X, begin)
        hold = ridge * np.minimum(1.0, _BIASED * ridge / np.maximum(dense * S, 1e-300))
        step, _ = fit.step(hold, 1.0, *_ROUGH)
        before = fit.left + _held(fit.X, hold)
        for length in _SHORTER:
            X, e, left = fit.at(fit.X + length * step, hold)
            if left + _held(X, hold) < before:
                fit.X, fit.e, fit.left = X, e, left
                break
        ridge *= _SLOWLY if _GROWING[0] < fit.share < _GROWING[1] else _FALL
    return fit.X, fit.share, ridge


def _square(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.vdot(values if len(weights) == 1 else weights * values, values)) * (
        float(weights[0]) if len(weights) == 1 else 1.0
    )


def _held(X: np.ndarray, hold: np.ndarray) -> float:
    return float(np.einsum("dr,dr,r->", X, X, hold))


def _balanced(X: np.ndarray, begin: int) -> tuple[np.ndarray, np.ndarray]:
    """X in the basis in which its directions are those of the matrix, and how large they are."""
    if not begin:
        Q, S = eigenbasis(X.T @ X)
        return X @ Q, S
    L, R = X[:begin], X[begin:]
    T, U, S = balance(L.T @ L, R.T @ R)
    return np.concatenate([L @ T, R @ U]), S


def _best_of_a_side(normal: Normal, X: np.ndarray, e: np.ndarray, hold: Any) -> None:
    """X with the rows of the larger side, each of which is a linear problem once the other side is
    given: the few that a step has thrown far off would else hold up all. Args: X, changed in place;
    e, its residuals."""
    side = normal.larger
    g = normal.at(X, e, hold, side)
    normal.factorise(1.0, side)
    normal.solve(side, g, g)
    rows = slice(*normal.sides[side])
    X[rows] -= g[rows]


def _solved(normal: Normal, g: np.ndarray, enough: float, most: int) -> tuple[np.ndarray, int]:
    """D of (J'J + hold + mu B) D = g, with the blocks as they are factorised, and iterations."""
    D, U = np.zeros_like(g), np.zeros_like(g)
    if len(normal.sides) == 1:
        return D, _conjugate(normal, 0, g, D, partial(normal.across, 0), enough, most)
    own, other = 1 - normal.larger, normal.larger
    rest = slice(*normal.sides[other])

    def eliminated(P: np.ndarray, Q: np.ndarray) -> None:
        """Q = -K' B^-1 K P on one's own side, K and B being what the other has to do with it."""
        normal.across(other, P, U)
        normal.solve(other, U, U)
        U[rest] *= -1.0
        normal.across(own, U, Q)

    R = g.copy()
    normal.solve(other, g, U)
    normal.across(own, U, D)
    at = slice(*normal.sides[own])
    R[at] -= D[at]
    D[:] = 0.0
    passes = _conjugate(normal, own, R, D, eliminated, enough, most)
    normal.across(other, D, U)
    R[rest] = g[rest] - U[rest]
    normal.solve(other, R, D)
    return D, passes


def _conjugate(normal: Normal, side: int, R, D, beside: Callable, enough, most) -> int:
    """Conjugate gradients for D of (B + C) D = R on the rows of a side, with B as preconditioner.
    Args: R, which is what is left afterwards; beside, that writes C P for a P. Returns: how many
    iterations there were."""
    at = slice(*normal.sides[side])
    Z, P, Q = np.zeros_like(R), np.zeros_like(R), np.zeros_like(R)
    normal.solve(side, R, Z)
    r, d, z, p, q = R[at], D[at], Z[at], P[at], Q[at]
    p[:], rho = z, float(np.vdot(r, z))
    blocks, goal = r.copy(), enough**2 * rho  # B P, which need not be multiplied out
    for done in range(most):
        if not rho > goal:
            return done
        beside(P, Q)
        q += blocks
        alpha = rho / float(np.vdot(p, q))
        d += alpha * p
        r -= alpha * q
        normal.solve(side, R, Z)
        rho, old = float(np.vdot(r, z)), rho
        p *= rho / old
        p += z
        blocks *= rho / old
        blocks += r
    return most
