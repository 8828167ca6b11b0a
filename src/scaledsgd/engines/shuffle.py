"""The order of samples: shuffled once for good, dealt anew every epoch.

Reading samples in a random order costs more than stepping on them (100 against 20 ns: each is a
cache miss). So the training copy is shuffled once, uniformly, and an epoch then deals it out like
cards: blocks of consecutive samples are drawn in random order, and the blocks of a hand are
interleaved. Neighbours in one epoch are strangers in the next, and memory is read in whole lines.
"""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np

from . import Chunk

_BLOCK = 64  # consecutive samples that travel together: 10 cache lines or more
_HAND = 1024  # blocks dealt at once: 65,536 samples, about 1 MB, stay in the second-level cache


@numba.njit(nogil=True, cache=True)
def _fisher_yates(index, targets, seed):
    np.random.seed(seed)
    for t in range(len(targets) - 1, 0, -1):
        s = np.random.randint(0, t + 1)
        for c in range(index.shape[1]):
            index[t, c], index[s, c] = index[s, c], index[t, c]
        targets[t], targets[s] = targets[s], targets[t]


@numba.njit(nogil=True, cache=True)
def _deal(index, targets, blocks, turns, out_index, out_targets):
    """Interleave the blocks, each begun at its own turn."""
    hand = len(blocks)
    for g in range(hand):
        start, turn = blocks[g] * _BLOCK, turns[g]
        for t in range(_BLOCK):
            card = ((t + turn) % _BLOCK) * hand + g
            for c in range(index.shape[1]):
                out_index[card, c] = index[start + t, c]
            out_targets[card] = targets[start + t]


class Samples:
    """A training copy of the observations, in the engine's own order."""

    def __init__(self, index: np.ndarray, targets: np.ndarray, rng: np.random.Generator):
        self.index, self.targets = index, targets
        _fisher_yates(index, targets, _seed(rng))

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """Every sample once, in chunks; a chunk is only valid until the next one."""
        m = len(self)
        if m <= _BLOCK * _HAND:
            hand = Chunk(self.index.copy(), self.targets.copy())
            _fisher_yates(*hand, _seed(rng))
            yield hand
            return
        whole = m // _BLOCK
        blocks = rng.permutation(whole)
        turns = rng.integers(0, _BLOCK, size=whole)
        hand = Chunk(
            np.empty((_BLOCK * _HAND, self.index.shape[1]), self.index.dtype),
            np.empty(_BLOCK * _HAND, self.targets.dtype),
        )
        for start in range(0, whole, _HAND):
            drawn = slice(start, start + _HAND)
            n = _BLOCK * len(blocks[drawn])
            dealt = Chunk(hand.index[:n], hand.targets[:n])
            _deal(self.index, self.targets, blocks[drawn], turns[drawn], *dealt)
            yield dealt
        if whole * _BLOCK < m:  # fewer than a block are left over
            yield Chunk(self.index[whole * _BLOCK :], self.targets[whole * _BLOCK :])


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))
