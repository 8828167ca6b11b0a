"""Rounds of choices on a GPU: a warp a choice of the squared loss, cuBLAS for the softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class Blocks:
    """Rooms for blocks of the softmax of one shape, and the launches that run a block: their
    arguments are made once, and the GPU counts the blocks, since launches with views of arrays
    would take longer to prepare than to run."""

    def __init__(self, X: Any, blocks: int, N: int, round: SoftmaxRound):
        r, b, count = X.shape[1], round.block, 2 * round.block + N
        self.X, self.blocks, self.N, self.round = X, blocks, N, round
        shapes = {
            "alphas": blocks,
            "weights": (blocks, b),
            "P": (2, r, r),
            "S": (b, N),
            "C": (b, r),
        }
        shapes |= {"rows": (count, r), "G": (count, r), "inverse": count}
        shapes |= {"scale": b, "lever": 2 * b, "mass": (b, 1), "curvature": (N, 1)}
        room = {name: cupy.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.room = room  # cuBLAS is handed addresses, which keep nothing alive
        self.alphas, self.weights, self.P = room["alphas"], room["weights"], room["P"]
        self.named = cupy.zeros((blocks, count), np.int32)
        self.next, self.at, self.loss = *cupy.zeros((2, 1), np.int32), cupy.zeros(1)
        self.launches = list(self._block(**room))

    def fits(self, X: Any, blocks: int, N: int, round: SoftmaxRound) -> bool:
        """Whether it is for such a round."""
        same = self.round[2:] == round[2:]  # but for P and alphas
        return same and self.N == N and blocks <= self.blocks and self.X is X

    def run(self, named: Any, weights: Any, P: np.ndarray, alphas: np.ndarray) -> float:
        """Args: named (blocks, 2 b + N), rows of users, items and negatives; weights (blocks, b), 0
        where there is no choice. Returns: the sum of the losses."""
        blocks = len(named)
        self.named[:blocks], self.weights[:blocks] = named, weights
        self.P.set(P.astype(np.float32))
        self.alphas[:blocks] = cupy.asarray(alphas)
        self.loss[:], self.next[:] = 0, 0
        for _ in range(blocks):
            for launch, arguments in self.launches:
                launch(*arguments)
        return float(self.loss[0])

    def _block(
        self, alphas, weights, P, S, C, rows, G, inverse, scale, lever, mass, curvature
    ) -> Iterator[tuple[Callable, tuple]]:
        """A block's steps, as in cpu/choice_kernels.py: three products by cuBLAS, and kernels that
        do between them what would take CuPy dozens of launches."""
        (b, N), count, X, round = S.shape, len(rows), self.X, self.round
        W, at = rows[2 * b :], self.at
        beta, c, ridge = (np.float32(v) for v in (1 / round.tau, round.c, round.ridge))

        def call(name: str, threads: int, *arguments) -> tuple[Callable, tuple]:
            width = X.strides[0] // X.itemsize
            kernel = kernels.choices(name, X.shape[1], width, round.cosine)
            whole = tuple(np.int32(one) if isinstance(one, int) else one for one in arguments)
            return kernel, ((-(-threads // 256),), (256,), whole)

        yield call("gather", 32 * count, X, self.named, self.next, at, count, rows, inverse)
        yield _product(rows[:b], W, S, right=True)
        told = C, scale, self.loss
        yield call("exp_rows", 256 * b, S, N, rows, weights, self.next, at, beta, c, *told)
        yield _product(S, W, G[:b])
        yield _product(S, C, G[2 * b :], left=True)
        if not round.cosine:
            yield call("levers", 64 * b, rows, P, scale, b, lever, mass)
            yield _product(S, mass, curvature, left=True)
        block = self.named, at, count, b, G, P, rows, inverse, scale, weights, alphas
        yield call("descend", 32 * count, X, *block, beta, ridge, lever, curvature)


_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


def _product(A: Any, B: Any, out: Any, left: bool = False, right: bool = False) -> tuple:
    """The launch of out <- A B, of which either may be transposed; all lie row by row, and to
    cuBLAS, which goes by columns, they are out^T, A^T and B^T."""
    (m, n), k = out.shape, A.shape[0 if left else 1]
    lines = B.data.ptr, B.shape[1], A.data.ptr, A.shape[1]
    pointers = _ONE.ctypes.data, *lines, _ZERO.ctypes.data, out.data.ptr, n
    handle = cupy.cuda.device.get_cublas_handle()
    return cupy.cuda.cublas.sgemm, (handle, int(right), int(left), n, m, k, *pointers)


def run_softmax(
    room: Blocks | None, X: Any, begin: int, choices: tuple, order: np.ndarray,
    negatives: np.ndarray, round: SoftmaxRound,
) -> tuple[Blocks, float]:  # fmt: skip
    """Args: X on the GPU, where rows of items begin at `begin`; choices, their columns on the GPU;
    room, what the last call has returned. Returns: that, and the sum of the losses."""
    blocks, N = negatives.shape
    if room is None or not room.fits(X, blocks, N, round):
        room = Blocks(X, blocks, N, round)
    padded = np.zeros(blocks * round.block, np.int64)
    padded[: len(order)] = order
    at = cupy.asarray(padded)
    users, items, weights = (column[at].reshape(blocks, -1) for column in choices)
    weights.ravel()[len(order) :] = 0
    shared = cupy.asarray(negatives, np.int32)
    named = cupy.concatenate([users, items + np.int32(begin), shared + np.int32(begin)], axis=1)
    alphas = np.linspace(*round.alphas, blocks, dtype=np.float32)
    return room, room.run(named, weights, round.P, alphas)


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
