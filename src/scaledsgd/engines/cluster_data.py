"""What the driver of a cluster knows of the samples, which lie on the workers' disks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..observations import Chunk
from . import Samples as AnySamples
from .shuffle import Span
from .splits import Plan

# So little of a sub-round or of an epoch is run at once with what comes before it, and so little of
# what was asked for is left to the next time: blocks would change hands for it.
_REST = 0.2


class ClusterSamples(AnySamples):
    """The samples of a run, by sub-rounds."""

    def __init__(self, plan: Plan, box: list, sizes: dict[int, int], seen: Chunk):
        self.plan, self.box, self.sizes = plan, box, sizes
        self.index, self.targets = seen
        groups = plan.schedule.groups
        self.rounds = [0] * len(groups)  # samples of each sub-round
        for bucket, size in sizes.items():
            self.rounds[bucket // groups.shape[1]] += size
        self.key = 0

    def __len__(self) -> int:
        return sum(self.rounds)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """All samples, of which the engine runs as many at a time as it is told to."""
        self.key = int(rng.integers(2**63))
        self._order, self._turn = rng.permutation(len(self.rounds)), 0
        self._done, self._asked = [0] * len(self.rounds), 0
        whole: Any = Span(self, len(self))
        yield Chunk(whole, whole)

    def visits(self, count: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """The next samples, as parts of sub-rounds, about as many as asked for. Each call goes on
        to the next sub-round, so that no rows meet for long and then never again: blocks would
        learn in bases of their own, and have to unlearn them."""
        self._asked += count
        done = sum(self._done)
        due, left = self._asked - done, len(self) - done
        few = _REST * due
        if left <= due + few:
            due, few = left, 0
        while due > few:
            s = int(self._order[self._turn % len(self._order)])
            self._turn += 1
            start, size = self._done[s], self.rounds[s]
            stop = start + due if size - start - due >= _REST * size else size
            if stop > start:
                self._done[s] = stop
                due -= stop - start
                yield s, (start, stop, size)
