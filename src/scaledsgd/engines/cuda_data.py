"""Samples for the GPU: dealt anew every epoch, from its own memory or from the host's.

As on the CPU (shuffle.py), the training copy is shuffled once, uniformly, and an epoch draws blocks
of consecutive samples in random order and interleaves them. Both orders are computed where they
are needed (cuda_deal.cu) from a key that the trainer's generator draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..observations import Chunk
from . import cuda_kernels
from .cuda_kernels import cupy

HAND = 8192  # blocks of 32 samples that are interleaved
HAND_SAMPLES = 32 * HAND
# Samples in a chunk. Every chunk ends in a look at the result, 20 us against the 1 ms of running
# it; a multiple of a hand.
CHUNK = 64 * HAND_SAMPLES
_COUNTED = 1 << 22  # samples in which the busiest row is looked for
# Thread blocks that read over the bus: 32 keep 500 KB of reads under way, several times what the
# bus holds in its latency, and leave the GPU to the kernels that run beside them.
_READERS = 32


def shuffled(given: Chunk, key: int, out: Chunk) -> Chunk:
    """All samples, in the order that the key names."""
    m = len(given.targets)
    into = Chunk(out.index[:m], out.targets[:m])
    scalars = np.int64(m), np.uint64(key)
    _kernel("shuffle", given)((-(-m // 256),), (256,), (*given, *into, *scalars))
    return into


def dealt(given: Chunk, first: int, count: int, key: int, out: Chunk, readers: int = 0) -> Chunk:
    """Samples first .. first + count of the order that the key names, block by block."""
    m = len(given.targets)
    if m <= HAND_SAMPLES:  # not a single hand is full
        return shuffled(given, key, out)
    into = Chunk(out.index[:count], out.targets[:count])
    scalars = np.int64(m), np.int64(first), np.int64(count), np.uint64(key)
    grid = readers or -(-count // 1024)
    _kernel("deal", given)((grid,), (1024,), (*given, *into, *scalars))
    return into


def _kernel(name: str, given: Chunk) -> Any:
    index, targets = given
    return cuda_kernels.deal(name, index.shape[1], HAND, targets.dtype, index.dtype)


def empty(samples: int, like: Chunk) -> Chunk:
    return Chunk(
        cupy.empty((samples, like.index.shape[1]), like.index.dtype),
        cupy.empty(samples, like.targets.dtype),
    )


def busiest(index) -> float:
    """How many times a sample names the row that is named most, on average."""
    seen = cupy.asarray(index[:_COUNTED])
    return int(cupy.bincount(seen.ravel()).max()) / len(seen)


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


class Samples:
    """A training copy that lies on the GPU as a whole."""

    def __init__(self, index, targets, rng: np.random.Generator):
        given = Chunk(index, targets)
        self.index, self.targets = shuffled(given, _key(rng), empty(len(targets), given))

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """Every sample once, in chunks; a chunk is only valid until the next one."""
        m, key, whole = len(self), _key(rng), Chunk(self.index, self.targets)
        out = empty(min(CHUNK, m), whole)
        for first in range(0, m, CHUNK):
            yield dealt(whole, first, min(CHUNK, m - first), key, out)


class Streamed:
    """A training copy in host memory. The GPU reads it over the bus, dealing out a chunk on one
    stream while it runs the last one on another."""

    def __init__(self, given: Chunk, shift: list[int], rng: np.random.Generator, chunk: int):
        self.index, self._index = _pinned(given.index.shape, given.index.dtype)
        self.targets, self._targets = _pinned(given.targets.shape, given.targets.dtype)
        order = rng.permutation(len(given.targets))
        for start in range(0, len(order), CHUNK):
            part = slice(start, start + CHUNK)
            self.index[part] = given.index[order[part]]
            self.index[part] += np.array(shift, given.index.dtype)
            self.targets[part] = given.targets[order[part]]
        self._chunk = chunk

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """Every sample once, in chunks; a chunk is only valid until the next one."""
        m, size, key, whole = len(self), self._chunk, _key(rng), Chunk(self._index, self._targets)
        outs = [empty(min(size, m), whole) for _ in range(2)]
        here, ahead = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)

        def fetch(first: int) -> Chunk:
            ahead.wait_event(here.record())  # the kernels that run from this buffer are done
            with ahead:
                out = outs[first // size % 2]
                return dealt(whole, first, min(size, m - first), key, out, _READERS)

        try:
            coming = fetch(0)
            for first in range(size, m + size, size):
                here.wait_event(ahead.record())
                chunk, coming = coming, fetch(first) if first < m else coming
                yield chunk
        finally:
            ahead.synchronize()  # a caller that stops early frees the buffers


def _pinned(shape, dtype) -> tuple[np.ndarray, Any]:
    """An array in host memory that stays in place, and the GPU's view of it."""
    from cupyx import empty_pinned  # pyright: ignore[reportMissingImports]

    here: np.ndarray = empty_pinned(shape, dtype)
    memory = cupy.cuda.UnownedMemory(here.ctypes.data, here.nbytes, here, cupy.cuda.Device().id)
    return here, cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
