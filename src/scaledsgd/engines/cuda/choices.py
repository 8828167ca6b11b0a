"""Rounds of choices on a GPU: a warp a choice of the squared loss, cuBLAS for the softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.choices import Choices
from ..base import SoftmaxRound, SquaredRound
from . import kernels
from .kernels import cupy

# Choices in flight do not see each other's steps: so many at most, and a small part of a round.
_FLIGHT, _PART = 8192, 64


def run_squared(U: Any, V: Any, choices: tuple, order: np.ndarray, round: SquaredRound) -> float:
    """Args: U, V, the two sides of X on the GPU; choices, their columns there."""
    r, count = U.shape[1], len(order)
    kernel = kernels.squared(r, U.strides[0] // U.itemsize)
    rows = [cupy.asarray(part, np.float32) for part in (*round.seen, *round.ridges)]
    tables = [cupy.asarray(part, np.float32) for part in (round.grams, round.means)]
    squares, warps = cupy.zeros(1), max(1, min(_FLIGHT, count // _PART))
    how = cupy.asarray(order, np.int64), np.int64(count), np.float32(round.theta)
    kernel((-(-warps // 8),), (256,), (U, V, *choices, *how, *rows, *tables, squares))
    return float(squares[0])


def run_softmax(
    U: Any, V: Any, choices: tuple, order: np.ndarray, negatives: np.ndarray, round: SoftmaxRound
) -> float:
    """The steps of cpu/choice_kernels.py, a block at a time."""
    order, negatives = cupy.asarray(order), cupy.asarray(negatives)
    P, total = cupy.asarray(round.P, np.float32), cupy.zeros(1)
    beta = np.float32(1 / round.tau)
    alphas = np.linspace(*round.alphas, len(negatives), dtype=np.float32)
    for block, alpha in enumerate(alphas):
        at = order[block * round.block : (block + 1) * round.block]
        u, i, w = (column[at] for column in choices)
        shared = negatives[block]
        w = w[:, None]
        (A, a), (B, b), (W, n) = (
            _rows(*part, round.cosine) for part in ((U, u), (V, i), (V, shared))
        )
        E = cupy.exp((A * beta) @ W.T)
        sums = E.sum(axis=1, keepdims=True)
        p = round.c * beta * w / sums
        total += (w * (round.c * cupy.log(sums) - beta * (A * B).sum(axis=1, keepdims=True))).sum()
        gu, gi, gn = p * (E @ W) - beta * w * B, -beta * w * A, E.T @ (p * A)
        if round.cosine:
            gu, gi, gn = (_projected(*part) for part in ((gu, A, a), (gi, B, b), (gn, W, n)))
        else:
            lu = ((A @ P[0]) * A).sum(axis=1, keepdims=True)
            li = ((B @ P[1]) * B).sum(axis=1, keepdims=True)
            gu = (gu + round.ridge * w * A) / (1 + alpha * w * (beta**2 * li + round.ridge))
            gi = (gi + round.ridge * w * B) / (1 + alpha * w * (beta**2 * lu + round.ridge))
            gn = gn / (1 + alpha * beta**2 * (E.T @ (lu * round.c * w / sums)))
        _add(U, u, -alpha * (gu @ P[1]))
        _add(V, i, -alpha * (gi @ P[0]))
        _add(V, shared, -alpha * (gn @ P[0]))
    return float(total[0])


def squares(X: Any, weights: np.ndarray) -> np.ndarray:
    return (cupy.asarray(weights) @ cupy.square(X.astype(np.float64))).get()


def set_lengths(X: Any, length: float, rng: np.random.Generator) -> None:
    lengths = cupy.linalg.norm(X, axis=1)
    empty = cupy.flatnonzero(lengths < 1e-6)
    if len(empty):
        drawn = rng.standard_normal((len(empty), X.shape[1])).astype(np.float32)
        X[empty] = cupy.asarray(drawn)
        lengths[empty] = cupy.linalg.norm(X[empty], axis=1)
    X *= (length / lengths)[:, None]


def sent(choices: Choices) -> tuple:
    """Users, items and weights on the GPU."""
    return tuple(cupy.asarray(c) for c in (choices.users, choices.items, choices.weights))


def _rows(X: Any, rows: Any, cosine: bool) -> tuple[Any, Any]:
    """Rows, of unit length for cosines, and 1 over their length."""
    found = X[rows]
    if not cosine:
        return found, None
    inverse = 1 / cupy.sqrt((found * found).sum(axis=1, keepdims=True) + np.float32(1e-20))
    return found * inverse, inverse


def _projected(G: Any, A: Any, inverse: Any) -> Any:
    return (G - (G * A).sum(axis=1, keepdims=True) * A) * inverse


def _add(X: Any, rows: Any, steps: Any) -> None:
    import cupyx  # pyright: ignore[reportMissingImports]

    cupyx.scatter_add(X, rows, steps)
