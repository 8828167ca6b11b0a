"""Rounds of choices on threads: blocks of rows of their own, or parts of a block of products."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from threading import Lock

import numpy as np
import scipy.linalg  # noqa: F401 (its BLAS is what Numba calls: loaded before it is looked for)
from threadpoolctl import ThreadpoolController

from ...core.choices import Choices
from ...core.factors import Factors
from ..base import SoftmaxRound, SquaredRound
from . import choice_kernels as kernels
from .intrinsics import CONCURRENT
from .thread_blocks import even_blocks

# A thread gets at least so many choices between two waits: fewer run sooner than a thread wakes.
_LEAST = 4096
_PART = 32  # of a block of the softmax: products of fewer rows are slow

# Threads that wait for each other must all have begun: one such group at a time has the pool.
_together = Lock()


@cache
def _blas() -> ThreadpoolController:
    """The libraries of this process, looked for once: that takes milliseconds."""
    return ThreadpoolController()


def run_squared(
    factors: Factors, choices: Choices, order: np.ndarray, round: SquaredRound,
    threads: Callable, jobs: int,
) -> float:  # fmt: skip
    """Of threads none ever writes to a row that another one has: in sub-round s, thread t has the
    t-th block of users and the (t + s)-th of items. The result is that of some serial order."""
    U, V = kernels.padded(factors.left), kernels.padded(factors.right)
    float32 = [np.ascontiguousarray(part, np.float32) for part in (*round.seen, *round.ridges)]
    frozen = (
        np.float32(round.theta), tuple(float32[:2]), tuple(float32[2:]),
        round.grams.astype(np.float32), round.means.astype(np.float32),
    )  # fmt: skip

    def work(part: np.ndarray) -> float:
        return float(
            kernels.squared(
                U, V, factors.rank, choices.users, choices.items, choices.weights, part, *frozen
            )
        )

    jobs = max(1, min(jobs, int(np.sqrt(len(order) / _LEAST))))
    if jobs == 1:
        return work(order)
    left, right = (even_blocks(seen, jobs).astype(np.int16) for seen in round.seen)
    by_task, ends = kernels.deal(order, choices.users, choices.items, left, right, jobs)
    parts = [by_task[a:b] for a, b in pairwise(ends)]
    rounds = [parts[s * jobs : (s + 1) * jobs] for s in range(jobs)]
    return sum(sum(threads(work, some)) for some in rounds)


def run_softmax(
    factors: Factors, choices: Choices, order: np.ndarray, negatives: np.ndarray,
    round: SoftmaxRound, threads: Callable, jobs: int,
) -> float:  # fmt: skip
    """Threads share a block of choices, each with BLAS of its own; what they find for the
    negatives is added in their order, so that a result can be repeated."""
    jobs = max(1, min(jobs if CONCURRENT else 1, round.block // _PART))
    (blocks, N), r, b = negatives.shape, factors.rank, round.block
    padding = np.zeros(blocks * b - len(order), order.dtype)
    order = np.concatenate([order, padding]).reshape(blocks, b)
    users, items, weights = choices.users[order], choices.items[order], choices.weights[order]
    weights.ravel()[weights.size - len(padding) :] = 0
    rooms = (2, N, r), (2, N), (b, r), (b, r), (jobs, N, r), (jobs, N)
    shared = tuple(np.empty(shape, np.float32) for shape in rooms)
    how = np.float32(round.tau), np.float32(round.c), round.cosine, np.float32(round.ridge)
    alphas = np.linspace(*round.alphas, blocks, dtype=np.float32)
    U, V = kernels.padded(factors.left), kernels.padded(factors.right)
    P = round.P.astype(np.float32)
    counter = np.zeros(1, np.intp)

    def work(thread: int) -> float:
        return kernels.softmax(
            thread, jobs, counter, U, V, users, items, weights, negatives, P, alphas, how, shared
        )

    with _together, _blas().limit(limits=1, user_api="blas"):
        return sum(threads(work, list(range(jobs))))
