"""Rounds of choices on threads: blocks of rows of their own, or parts of a block of products."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import scipy.linalg  # noqa: F401 (its BLAS is what Numba calls: loaded before it is looked for)
from threadpoolctl import ThreadpoolController

from ...core.choices import Choices
from ...core.factors import Factors
from ..base import SoftmaxRound, SquaredRound
from . import choice_kernels as kernels
from .thread_blocks import even_blocks

# A thread gets at least so many choices between two waits: fewer run sooner than a thread wakes.
_LEAST = 4096
_PART = 128  # of a block of the softmax: with fewer, threads wait for each other


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
    left, right = (even_blocks(seen, jobs) for seen in round.seen)
    u, v = left[choices.users[order]], right[choices.items[order]]
    task = (v.astype(np.int16) - u) % jobs * jobs + u  # by sub-round, then by thread
    by_task = order[np.argsort(task, kind="stable")]
    ends = np.searchsorted(np.sort(task), np.arange(jobs * jobs + 1))
    parts = [by_task[a:b] for a, b in pairwise(ends)]
    rounds = [parts[s * jobs : (s + 1) * jobs] for s in range(jobs)]
    return sum(sum(threads(work, some)) for some in rounds)


def run_softmax(
    factors: Factors, choices: Choices, order: np.ndarray, negatives: np.ndarray,
    round: SoftmaxRound, threads: Callable, jobs: int,
) -> float:  # fmt: skip
    """Threads share a block of choices, each with BLAS of its own; what they find for the
    negatives is added in their order, so that a result can be repeated."""
    U, V, r = kernels.padded(factors.left), kernels.padded(factors.right), factors.rank
    jobs = max(1, min(jobs, round.block // _PART))
    N, P = negatives.shape[1], round.P.astype(np.float32)
    how = np.float32(round.tau), np.float32(round.c), round.cosine, np.float32(round.ridge)
    W, inverse = np.empty((N, r), np.float32), np.empty(N, np.float32)
    gu, gi = (np.empty((round.block, r), np.float32) for _ in range(2))
    gn, mass = np.empty((jobs, N, r), np.float32), np.zeros((jobs, N), np.float32)
    room = np.empty((round.block, N), np.float32)
    alphas, total = np.linspace(*round.alphas, len(negatives), dtype=np.float32), 0.0
    with _blas().limit(limits=1, user_api="blas"):
        for block, (alpha, shared) in enumerate(zip(alphas, negatives, strict=True)):
            at = order[block * round.block : (block + 1) * round.block]
            users, items, weights = choices.users[at], choices.items[at], choices.weights[at]
            kernels.gather(V, shared, W, inverse, round.cosine)
            cuts = np.linspace(0, len(at), jobs + 1).astype(int)

            def work(t, part=(users, items, weights), cuts=cuts, alpha=alpha):
                at = slice(cuts[t], cuts[t + 1])
                users, items, weights = (column[at] for column in part)
                rooms = room[at], gu[at], gi[at], gn[t], mass[t]
                return kernels.softmax(U, V, users, items, weights, W, P, alpha, *how, *rooms)

            total += sum(threads(work, list(range(jobs))))
            G = gn.sum(axis=0) if jobs > 1 else gn[0]
            if round.cosine:
                kernels.project(G, W, inverse)
            else:
                G /= (1 + alpha / round.tau**2 * mass.sum(axis=0))[:, None]
            kernels.descend(U, users, gu[: len(at)], P[1], alpha)
            kernels.descend(V, items, gi[: len(at)], P[0], alpha)
            kernels.descend(V, shared, G, P[0], alpha)
    return total
