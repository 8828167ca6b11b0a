"""Rounds of choices on threads: blocks of rows of their own, or parts of a block of products."""

from __future__ import annotations

import numpy as np

from ...core.choices import Choices
from ...core.factors import Factors
from ..base import SoftmaxRound, SquaredRound
from ..schedule import shifts
from . import choice_kernels as kernels
from .crew import Crew, one_thread_each
from .thread_blocks import even_blocks, owners, sort_by

# A thread gets at least so many choices, and so many in a turn: fewer run sooner than it wakes.
_WOKEN, _TURN = 1 << 16, 512
_PART = 32  # of a block of the softmax: a thread gets the products of so many rows, or more
_DEEP = 4  # parts of its choices, before its negatives are cut as well


def run_squared(
    factors: Factors, choices: Choices, order: np.ndarray, round: SquaredRound, crew: Crew
) -> float:
    """Of threads none ever writes to a row that another one has: in visit s, group t has the t-th
    block of users and the (t + s)-th of items. The result is that of some serial order."""
    U, V = kernels.padded(factors.left), kernels.padded(factors.right)
    float32 = [np.ascontiguousarray(part, np.float32) for part in (*round.seen, *round.ridges)]
    events = choices.users, choices.items, choices.weights
    frozen = (
        np.float32(round.theta), tuple(float32[:2]), tuple(float32[2:]),
        round.grams.astype(np.float32), round.means.astype(np.float32),
    )  # fmt: skip
    jobs = min(crew.jobs, len(order) // _WOKEN, int(np.sqrt(len(order) / _TURN)))
    if jobs <= 1:
        return float(kernels.squared(U, V, factors.rank, *events, order, *frozen))
    left, right = (even_blocks(seen, jobs).astype(np.int16) for seen in round.seen)
    tasks, by = order.copy(), (order, *events[:2], left, right, jobs)
    starts = sort_by(lambda *part: kernels.number(*by, *part), [tasks], jobs * jobs, crew)
    meet, visits, sums = shifts(jobs), np.arange(jobs), np.zeros((jobs, jobs))
    plan = meet.groups, owners(meet), visits

    def work(thread: int, threads: int, state: np.ndarray) -> None:
        steps = (U, V, factors.rank), events, frozen
        kernels.squared_turns(thread, threads, state, plan, tasks, starts, *steps, sums)

    crew.together(work, jobs)
    return float(sums.sum())


def run_softmax(
    factors: Factors, choices: Choices, order: np.ndarray, negatives: np.ndarray,
    round: SoftmaxRound, crew: Crew,
) -> float:  # fmt: skip
    """Threads share a block of choices; what several of them find for one row is added in their
    order, so that a result can be repeated."""
    deep, wide = grid = _grid(crew.count(round.block // _PART))
    jobs, (blocks, N), r, b = deep * wide, negatives.shape, factors.rank, round.block
    padding = np.zeros(blocks * b - len(order), order.dtype)
    order = np.concatenate([order, padding]).reshape(blocks, b)
    users, items, weights = choices.users[order], choices.items[order], choices.weights[order]
    del order  # which would add to the peak of a fit's memory
    weights.ravel()[weights.size - len(padding) :] = 0
    owners = tuple(
        np.remainder(rows, jobs, np.empty(rows.shape, np.uint8), casting="unsafe", dtype=np.int32)
        for rows in (users, items, negatives)
    )  # in as little memory as they need
    rooms = (
        (2, N, r), (2, N), (2, b, r), (2, b), (wide, b), (wide, b, r), (deep, N, r), (deep, N),
        (2, b, r),
    )  # fmt: skip
    shared = tuple(np.empty(shape, np.float32) for shape in rooms)
    how = np.float32(round.tau), np.float32(round.c), round.cosine, np.float32(round.ridge)
    alphas = np.linspace(*round.alphas, blocks, dtype=np.float32)
    tables = kernels.padded(factors.left), kernels.padded(factors.right)
    events = (users, items, weights), negatives, owners
    P = round.P.astype(np.float32)
    counter = np.zeros(1, np.intp)

    def work(thread: int) -> float:
        return kernels.softmax(thread, grid, counter, *tables, *events, P, alphas, how, shared)

    with one_thread_each(alone=jobs > 1):
        return sum(crew.each(work, list(range(jobs))))


def _grid(jobs: int) -> tuple[int, int]:
    """Parts of the choices, and of the negatives, for so many threads: of four parts or more the
    choices of one are few, and what each finds for all negatives is much.

    >>> [_grid(jobs) for jobs in (0, 2, 4, 6, 8, 16)]
    [(1, 1), (2, 1), (4, 1), (6, 1), (4, 2), (4, 4)]
    """
    wide = max(1, jobs // _DEEP)
    return max(1, jobs) // wide, wide
