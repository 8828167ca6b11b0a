"""Samples on the GPU: dealt anew every epoch, and sent there in slabs if they do not fit.

The orders are those of cpu/permutations.py, computed where they are needed (deal.cu) from the keys
that the trainer's generator draws: an epoch has the same order on the CPU and on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...core.observations import Chunk
from ..base import Samples as AnySamples
from ..cpu.permutations import BLOCK, GROUP, riffles
from . import kernels as cuda_kernels
from .kernels import cupy

_GROUP_SAMPLES = BLOCK * GROUP
# Samples in a chunk. Every chunk ends in a look at the result, 20 us against the 1 ms of running
# it; a multiple of a group.
CHUNK = 256 * _GROUP_SAMPLES
_COUNTED = 1 << 22  # samples in which the busiest row is looked for


def shuffled(given: Chunk, key: int | np.uint64, out: Chunk) -> Chunk:
    """All samples, in the order that the key names."""
    m = len(given.targets)
    into = Chunk(out.index[:m], out.targets[:m])
    scalars = np.int64(m), np.uint64(key)
    _kernel("shuffle", given)((-(-m // 256),), (256,), (*given, *into, *scalars))
    return into


def dealt(given: Chunk, first: int, count: int, key: int, out: Chunk) -> Chunk:
    """Samples first .. first + count of the order that the key names, block by block."""
    m = len(given.targets)
    if m <= _GROUP_SAMPLES:  # not a single group is full
        return shuffled(given, key, out)
    into = Chunk(out.index[:count], out.targets[:count])
    scalars = np.int64(m), np.int64(first), np.int64(count), np.uint64(key)
    _kernel("deal", given)((-(-count // 1024),), (1024,), (*given, *into, *scalars))
    return into


def _kernel(name: str, given: Chunk) -> Any:
    index, targets = given
    return cuda_kernels.deal(name, index.shape[1], GROUP, targets.dtype, index.dtype)


def empty(samples: int, like: Chunk) -> Chunk:
    return Chunk(
        cupy.empty((samples, like.index.shape[1]), like.index.dtype),
        cupy.empty(samples, like.targets.dtype),
    )


def busiest(data: Chunk, rows: int) -> float:
    """How many times a sample names the row that is named most, on average."""
    seen = Chunk(*(cupy.asarray(part[:_COUNTED]) for part in data))
    counts = cupy.zeros(rows, np.int32)
    names = seen.index.size
    _kernel("count", seen)((-(-names // 256),), (256,), (seen.index, np.int64(names), counts))
    return int(counts.max()) / len(seen.targets)


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


class Samples(AnySamples):
    """A training copy that lies on the GPU as a whole."""

    def __init__(self, index, targets, rng: np.random.Generator):
        self.index, self.targets = given = Chunk(index, targets)
        half = len(targets) // 2
        for turn, key in riffles(rng, len(targets)):
            scalars = np.int64(len(targets)), np.uint32(turn), np.uint32(key)
            _kernel("riffle", given)((-(-half // 256),), (256,), (*given, *scalars))

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """Every sample once, in chunks; a chunk is only valid until the next one."""
        m, key, whole = len(self), _key(rng), Chunk(self.index, self.targets)
        out = empty(min(CHUNK, m), whole)
        for first in range(0, m, CHUNK):
            yield dealt(whole, first, min(CHUNK, m - first), key, out)


class Streamed(AnySamples):
    """A training copy in host memory, of which one slab is on the GPU and the next on its way.

    Slabs are drawn in random order, and each is dealt out like the whole of a smaller set; since
    the copy was shuffled once, which samples share a slab is of no consequence.
    """

    def __init__(self, given: Chunk, shift: list[int], rng: np.random.Generator, slab: int):
        from cupyx import empty_pinned  # pyright: ignore[reportMissingImports]

        # Page-locked, so that copies run beside the kernels.
        self.index: np.ndarray = empty_pinned(given.index.shape, given.index.dtype)
        self.targets: np.ndarray = empty_pinned(given.targets.shape, given.targets.dtype)
        order = rng.permutation(len(given.targets))
        for start in range(0, len(order), CHUNK):
            part = slice(start, start + CHUNK)
            self.index[part] = given.index[order[part]]
            self.index[part] += np.array(shift, given.index.dtype)
            self.targets[part] = given.targets[order[part]]
        self._slab = min(slab, len(order))

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """Every sample once, a slab at a time; a chunk is only valid until the next one."""
        slab = empty(self._slab, Chunk(self.index, self.targets))
        out = empty(self._slab, slab)
        here, copies = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
        starts = [int(s) * self._slab for s in rng.permutation(-(-len(self) // self._slab))]
        try:
            part = self._send(starts[0], slab, here)
            for start in [*starts[1:], None]:
                chunk = dealt(part, 0, len(part.targets), _key(rng), out)
                if start is not None:
                    # Once it has been dealt out the slab is filled again, while the caller runs
                    # this chunk.
                    copies.wait_event(here.record())
                    part = self._send(start, slab, copies)
                yield chunk
                here.wait_event(copies.record())
        finally:
            copies.synchronize()  # a caller that stops early frees the slab

    def _send(self, start: int, slab: Chunk, stream: Any) -> Chunk:
        count = min(self._slab, len(self) - start)
        part: Any = Chunk(slab.index[:count], slab.targets[:count])
        part.index.set(self.index[start : start + count], stream)
        part.targets.set(self.targets[start : start + count], stream)
        return part
