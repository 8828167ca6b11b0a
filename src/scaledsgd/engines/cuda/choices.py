"""Rounds of choices on a GPU: a warp a choice of the squared loss, cuBLAS for the softmax."""

from __future__ import annotations

from importlib import import_module
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
    """Rooms for blocks of the softmax of one shape, and the graph of launches that runs a block: of
    a dozen launches a block, each would take longer to begin than to end."""

    def __init__(self, X: Any, blocks: int, N: int, round: SoftmaxRound):
        r, b = X.shape[1], round.block
        self.X, self.blocks, self.b, self.N, self.count = X, blocks, b, N, 2 * b + N
        self.beta, self.c, self.ridge = (
            np.float32(v) for v in (1 / round.tau, round.c, round.ridge)
        )
        self.cosine = round.cosine
        float32 = {"alphas": blocks, "weights": (blocks, b), "P": (2, r, r), "S": (b, N)}
        float32 |= {name: (self.count, r) for name in ("rows", "G", "H")} | {"C": (b, r)}
        float32 |= {"inverse": self.count, "scale": b, "lever": 2 * b, "mass": (b, 1)}
        float32 |= {"curvature": (N, 1)}
        self.room = {name: cupy.zeros(shape, np.float32) for name, shape in float32.items()}
        self.named = cupy.zeros((blocks, self.count), np.int32)
        self.at, self.loss = cupy.zeros(1, np.int32), cupy.zeros(1)
        names = ("gather", "exp_rows", "levers", "combine", "descend", "advance")
        width = X.strides[0] // X.itemsize
        self.kernels = {name: kernels.choices(name, r, width, round.cosine) for name in names}
        self.stream, self.graph = cupy.cuda.Stream(non_blocking=True), None

    def fits(self, X: Any, blocks: int, N: int, round: SoftmaxRound) -> bool:
        """Whether it is for such a round."""
        how = np.float32(1 / round.tau), np.float32(round.c), np.float32(round.ridge), round.cosine
        same = (self.beta, self.c, self.ridge, self.cosine) == how
        shape = self.b == round.block and self.N == N and blocks <= self.blocks
        return same and shape and self.X is X

    def run(self, named: Any, weights: Any, P: np.ndarray, alphas: np.ndarray) -> float:
        """Args: named (blocks, 2 b + N), rows of users, items and negatives; weights (blocks, b), 0
        where there is no choice. Returns: the sum of the losses."""
        blocks = len(named)
        self.named[:blocks], self.room["weights"][:blocks] = named, weights
        self.room["P"].set(P.astype(np.float32))
        self.room["alphas"][:blocks] = cupy.asarray(alphas)
        self.loss[:], self.at[:] = 0, 0
        cupy.cuda.get_current_stream().synchronize()
        with self.stream:
            if self.graph is None:
                self._block()  # once as it is: what the libraries set up cannot be part of a graph
                self.stream.begin_capture()
                self._block()
                self.graph = self.stream.end_capture()
                blocks -= 1
            for _ in range(blocks):
                self.graph.launch()
            self.stream.synchronize()
        return float(self.loss[0])

    def _block(self) -> None:
        """A block's steps, as in cpu/choice_kernels.py: five products by cuBLAS, and kernels that do
        between them what would take CuPy dozens of launches."""
        b, N, count, room = self.b, np.int32(self.N), np.int32(self.count), self.room
        rows, G, S, P, H = (room[name] for name in ("rows", "G", "S", "P", "H"))
        W = rows[2 * b :]

        def call(name: str, threads: int, *arguments) -> None:
            self.kernels[name]((-(-threads // 256),), (256,), arguments)

        call("gather", 32 * self.count, self.X, self.named, self.at, count, rows, room["inverse"])
        _product(rows[:b], W, S, right="T")
        call("exp_rows", 256 * b, S, N, rows, room["weights"], self.at, self.beta, self.c, room["C"],
             room["scale"], self.loss)  # fmt: skip
        _product(S, W, G[:b])
        _product(S, room["C"], G[2 * b :], left="T")
        if not self.cosine:
            _product(rows[:b], P[0], H[:b])
            _product(rows[b : 2 * b], P[1], H[b : 2 * b])
            call("levers", 64 * b, rows, H, room["scale"], np.int32(b), room["lever"], room["mass"])
            _product(S, room["mass"], room["curvature"], left="T")
        call("combine", 32 * self.count, G, count, np.int32(b), rows, room["inverse"],
             room["scale"], room["weights"], self.at, room["alphas"], self.beta, self.ridge,
             room["lever"], room["curvature"])  # fmt: skip
        _product(G[:b], P[1], H[:b])
        _product(G[b:], P[0], H[b:])
        call("descend", 32 * self.count, self.X, self.named, self.at, count, H, room["alphas"])
        call("advance", 1, self.at)


def _product(A: Any, B: Any, out: Any, left: str = "N", right: str = "N") -> None:
    """out <- A B, of which either may be transposed, into memory that is there."""
    import_module("cupy.cublas").gemm(left, right, A, B, out=out)


def run_softmax(
    room: Blocks | None, X: Any, begin: int, choices: tuple, order: np.ndarray,
    negatives: np.ndarray, round: SoftmaxRound,
) -> tuple[Blocks, float]:  # fmt: skip
    """Args: X on the GPU, of which the rows of items begin there; choices, their columns on the GPU;
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
