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
    kernel = kernels.choices("squared", r, U.strides[0] // U.itemsize)
    rows = [cupy.asarray(part, np.float32) for part in (*round.seen, *round.ridges)]
    tables = [cupy.asarray(part, np.float32) for part in (round.grams, round.means)]
    squares, warps = cupy.zeros(1), max(1, min(_FLIGHT, count // _PART))
    how = cupy.asarray(order, np.int64), np.int64(count), np.float32(round.theta)
    kernel((-(-warps // 8),), (256,), (U, V, *choices, *how, *rows, *tables, squares))
    return float(squares[0])


def run_softmax(
    U: Any, V: Any, choices: tuple, order: np.ndarray, negatives: np.ndarray, round: SoftmaxRound
) -> float:
    """The steps of cpu/choice_kernels.py, a block at a time: five products by cuBLAS, and kernels
    that do between them what would take CuPy dozens of launches."""
    r, width = U.shape[1], U.strides[0] // U.itemsize

    names = ("gather", "exp_rows", "combine", "descend")
    found = {name: kernels.choices(name, r, width, round.cosine) for name in names}

    def call(name: str, count: int, *arguments, blocks: int | None = None) -> None:
        found[name]((blocks or -(-count // 8),), (256,), arguments)

    P, loss = cupy.asarray(round.P, np.float32), cupy.zeros(1)
    beta, c = np.float32(1 / round.tau), np.float32(round.c)
    alphas = np.linspace(*round.alphas, len(negatives), dtype=np.float32)
    users, items, weights = (column[cupy.asarray(order)] for column in choices)
    negatives, none = cupy.asarray(negatives, np.int32), np.uint64(0)
    N = negatives.shape[1]
    room = [cupy.empty((n, r), np.float32) for n in (round.block, round.block, N, round.block)]
    inverses = [cupy.empty(n, np.float32) for n in (round.block, round.block, N)]
    scales = cupy.empty(round.block, np.float32)
    for block, alpha in enumerate(alphas):
        at = slice(block * round.block, (block + 1) * round.block)
        u, i, w, shared = users[at], items[at], weights[at], negatives[block]
        n = len(u)
        A, B, W, C = room[0][:n], room[1][:n], room[2], room[3][:n]
        named = zip((U, V, V), (u, i, shared), (A, B, W), inverses, strict=True)
        for X, rows, out, inverse in named:
            call("gather", len(rows), X, rows, np.int32(len(rows)), out, inverse)
        S = A @ W.T
        call(
            "exp_rows", n, S, np.int32(n), np.int32(N), A, B, w, beta, c, C, scales, loss, blocks=n
        )
        gu, gn, gi = S @ W, S.T @ C, cupy.zeros_like(A)
        call("combine", n, gu, np.int32(n), scales, w, beta, B, A, inverses[0])
        call("combine", n, gi, np.int32(n), none, w, beta, A, B, inverses[1])
        if round.cosine:
            call("combine", N, gn, np.int32(N), none, none, beta, none, W, inverses[2])
        else:
            _shorten(gu, gi, gn, A, B, S, w, P, alpha, scales[:n], round)
        call("descend", n, U, u, np.int32(n), gu @ P[1], alpha)
        call("descend", n, V, i, np.int32(n), gi @ P[0], alpha)
        call("descend", N, V, shared, np.int32(N), gn @ P[0], alpha)
    return float(loss[0])


def _shorten(gu, gi, gn, A, B, S, w, P, alpha, scales, round: SoftmaxRound) -> None:
    """The ridge of dot products, and each step divided by 1 + its own curvature."""
    w, beta = w[:, None], 1 / round.tau
    lu, li = (((rows @ P[k]) * rows).sum(axis=1, keepdims=True) for k, rows in ((0, A), (1, B)))
    for G, rows, lever in ((gu, A, li), (gi, B, lu)):
        G += round.ridge * w * rows
        G /= 1 + alpha * w * (beta**2 * lever + round.ridge)
    gn /= 1 + alpha * beta * (S.T @ (lu * scales[:, None]))


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
