"""Threads that go from turn to turn by themselves, inside compiled code: to start one from Python
takes longer than many a turn.

In a visit every group of blocks has a turn, and whoever runs it may write to the rows of those
blocks. A turn can begin once each of its blocks has had its turn in the visit before; so threads
wait for those they depend on, never for all. A group is somebody's own, whose cache has its rows,
but whoever waits for long takes a turn that nobody has begun: a thread that has no core, or has not
started yet, holds nobody up. Since the schedule says which turn a row has first, results do not
depend on who ran what, nor on how many threads there were.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from .intrinsics import arrive, arrived, claim, give_way, pause

_APART = 8  # counters from one to the next: each has a line of the cache to itself
_LOYAL = 500  # looks at one's own groups, tens of microseconds, before others' are looked at
_PATIENCE = 5_000  # looks, some hundreds of microseconds, before a thread sleeps between them


def counters(groups: int) -> np.ndarray:
    """For a run of visits: of every group how many of its turns were taken, and how many are over;
    and whether to stop."""
    return np.zeros((2 * groups + 1) * _APART, np.intp)


def stop(state: np.ndarray) -> None:
    """Let no turn begin any more."""
    state[-_APART] = 1


@register_jitable
def _ready(state, groups, owner, visits, k, g):
    """Whether turn k of a group can begin."""
    over = groups.shape[1]
    if arrived(state, (over + g) * _APART) < k:
        return False
    if k > 0:
        for place in range(groups.shape[2]):
            before = owner[visits[k - 1], groups[visits[k], g, place]]
            if arrived(state, (over + before) * _APART) < k:
                return False
    return True


@register_jitable
def next_turn(state, thread, threads, groups, owner, visits):
    """Wait for a turn, and take it. Returns: the number of the visit and of the group; -1, -1 if
    there is no turn left to take.

    groups : (visits, groups, blocks of a group); owner (visits, blocks): the group of a block.
    visits : (n,) those of this run, in their order.
    """
    many, tries = groups.shape[1], 0
    first, own = thread * many // threads, (thread + 1) * many // threads - thread * many // threads
    while arrived(state, 2 * many * _APART) == 0:
        soonest, chosen = len(visits), -1
        for place in range(own if tries < _LOYAL else many):
            g = (first + place) % many
            k = arrived(state, g * _APART)
            if k < soonest and _ready(state, groups, owner, visits, k, g):
                soonest, chosen = k, g
        if chosen >= 0:
            if claim(state, chosen * _APART, soonest):
                return soonest, chosen
            continue
        left = 0
        for g in range(many):
            left += len(visits) - arrived(state, g * _APART)
        if left == 0:
            break
        tries += 1
        pause()
        if tries > _PATIENCE:
            give_way()
    return -1, -1


@register_jitable
def end_turn(state, groups, g):
    """What a group's rows have become is there for others."""
    arrive(state, (groups.shape[1] + g) * _APART)
