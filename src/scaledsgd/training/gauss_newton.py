"""A second-order finish for few samples: Gauss-Newton steps on all rows of X at once.

Steps on single samples stall where there are hardly more samples than numbers to be learned. There
a few steps of Gauss-Newton (Levenberg and Marquardt's, with the blocks of a row as the metric)
reach an exact fit from nearby; from further off, a ridge that falls from the size of the residuals
leads there. The linear systems are solved by conjugate gradients, of which each iteration is one
pass over the samples: nothing is ever formed but an (r, r) block a row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..engines.cpu import normal_kernels as kernels

_FALL = 0.8  # of the ridge, from one step to the next
_NEAR = 1e-3  # of the residuals at the start: from there on no ridge is needed
_EXACT = 1e-13  # of the targets: nothing is left but rounding
_GAIN = 0.999  # a step that leaves more than this of the squares, and
_PATIENCE = 5  # so many of them in a row, end the descent
_LATE, _LOST = 0.01, 0.1  # a ridge so low, and so many of the squares left: there is no exact fit
_MOST = 80  # steps: with a ridge it takes 50
_SHORTER = tuple(0.5**k for k in range(10))  # of a step with a ridge, until it is one down
_ROUGH, _FINE = (0.3, 30), (0.1, 300)  # CG: the residual's share that is left, and iterations


def descend(
    X: np.ndarray,
    index: np.ndarray,
    targets: np.ndarray,
    scores: Callable[[np.ndarray], np.ndarray],
    *,
    minus: bool = False,
    ridge: float = 0.0,
) -> tuple[np.ndarray, float]:
    """Args: X (d, r) to begin with; index (n, 2), targets (n,); scores, z of every sample for an X;
    minus, whether z is the square of x_i - x_j; ridge, from which it falls to nothing. Returns: X,
    and what is left of the targets' norm."""
    e = scores(X) - targets
    size, left, start = float(targets @ targets), float(e @ e), float(e @ e)
    hold, mu, stuck, gained = ridge, 1e-3, 0, False
    for _ in range(_MOST):
        if left <= _EXACT**2 * size or stuck >= _PATIENCE:
            break
        if hold and hold < _LATE * ridge and left > _LOST * start:
            break
        g, C = hold * X, np.zeros((*X.shape, X.shape[1]))
        kernels.blocks(X, index, e, minus, C, g)
        diagonal = np.arange(X.shape[1])
        C[:, diagonal, diagonal] += hold
        damp = 0.0 if hold else mu
        kernels.factorise(C, 1.0 + damp)
        step = _solved(X, index, minus, C, g, hold, damp, *(_ROUGH if hold else _FINE))
        before, down = left + hold * float(np.vdot(X, X)), False
        for length in _SHORTER if hold else _SHORTER[:1]:
            new = X + length * step
            e_new = scores(new) - targets
            left_new = float(e_new @ e_new)
            down = left_new + hold * float(np.vdot(new, new)) < before
            if down:
                gained = left_new < _GAIN * left
                mu = max(mu / (8 if left_new < 0.5 * left else 2), 1e-12)
                X, e, left = new, e_new, left_new
                break
        if not down:
            gained, mu = False, 8 * mu
        stuck = 0 if gained or hold else stuck + 1
        hold = _FALL * hold if left > _NEAR**2 * start else 0.0
    return X, float(np.sqrt(left / size)) if size else 0.0


def _solved(X, index, minus, C, g, hold, mu, enough, most) -> np.ndarray:
    """D of (J'J + hold + mu B) D = -g by conjugate gradients, with the blocks in C."""
    D, R, Z = np.zeros_like(X), -g, np.empty_like(X)
    kernels.solve(C, R, Z)
    direction, rho = Z.copy(), float(np.vdot(R, Z))
    goal = enough**2 * rho
    for _ in range(most):
        if not rho > goal:
            break
        Q = hold * direction
        kernels.times(X, index, minus, direction, Q)
        # C has the factors of (1 + mu) B: mu B is that less a share of it.
        kernels.add_blocks(C, direction, mu / (1 + mu), Q)
        alpha = rho / float(np.vdot(direction, Q))
        D += alpha * direction
        R -= alpha * Q
        kernels.solve(C, R, Z)
        rho, old = float(np.vdot(R, Z)), rho
        direction = Z + (rho / old) * direction
    return D
