"""Seeded streams of random numbers that do not depend on how the work is split among threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba.extending import register_jitable

from .memory import cores

# SplitMix64 (Steele, Lea and Flood, 2014): one addition and two multiplications a number, and a
# state of one word, so that every row of a matrix affords a stream of its own.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_TOP = np.uint64(11)  # 64 - 53: the bits that fit a float64


@register_jitable
def uniform(state):
    """The next state of a stream, and its number in (0, 1]: a logarithm of it is finite."""
    state = state + _GAMMA
    z = (state ^ (state >> _SHIFTS[0])) * _MIX[0]
    z = (z ^ (z >> _SHIFTS[1])) * _MIX[1]
    z = z ^ (z >> _SHIFTS[2])
    return state, (np.float64(z >> _TOP) + 1.0) * 2.0**-53


def seeded(seed: int, purpose: str) -> np.random.SeedSequence:
    """What a seed means for one purpose. Two of them never share their random numbers.

    >>> rngs = [np.random.default_rng(seeded(0, what)) for what in ("signal", "noise")]
    >>> rngs[0].random() == rngs[1].random()
    False
    """
    return np.random.SeedSequence([seed, *purpose.encode()])


def streams(seed: int, purpose: str, count: int) -> np.ndarray:
    """First states of `count` streams for `uniform`.

    >>> bool((streams(0, "rows", 3) == streams(0, "rows", 4)[:3]).all())
    True
    """
    return seeded(seed, purpose).generate_state(count, np.uint64)


def threaded(work: Callable, parts: Iterable, n_jobs: int | None = None) -> Iterator:
    """Results of compiled work, in the order of its parts, from all cores (-1, too) unless told
    otherwise.

    >>> list(threaded(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(cores() if n_jobs in (None, -1) else n_jobs) as pool:
        yield from pool.map(work, parts)
