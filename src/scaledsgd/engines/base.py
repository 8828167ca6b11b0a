"""Who runs the samples of a round: CPU threads here, a GPU or a cluster by the same calls."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Protocol

import numpy as np

from ..core.factors import Factors
from ..core.linalg import Algebra
from ..core.losses import Loss
from ..core.observations import Chunk, Observations


class Samples(Protocol):
    """A training copy of the observations, where the engine wants it."""

    index: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int: ...
    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]: ...

    def fair(self, count: int) -> Chunk:
        """So many samples from all over: the first of them, if they lie in random order."""
        return Chunk(self.index[:count], self.targets[:count])


class Engine(Algebra, Protocol):
    """One machine. Between `put` and `get` the factors are where it computes."""

    repairs: int  # how often P had to be inverted anew from X
    longest: int  # the samples of a round at most, in multiples of d

    def put(self, X: np.ndarray) -> Any: ...
    def get(self, X: Any) -> np.ndarray: ...
    def rows(self, X: Any, index: np.ndarray) -> np.ndarray: ...
    def samples(self, observations: Observations, shift: list[int], dtype, rng) -> Samples: ...
    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss, chunk: Chunk,
        cap: float = np.inf,
    ) -> float: ...  # fmt: skip
    def run_sampled(
        self, factors: Factors, P: np.ndarray, eta: float, rates: np.ndarray, loss: Loss,
        chunk: Chunk,
    ) -> float: ...  # fmt: skip
    def inverse(self, factors: Factors, eta: float) -> np.ndarray: ...
    def scores(self, factors: Factors, index: np.ndarray, loss: Loss) -> np.ndarray: ...
    def finite(self, X: Any, index: np.ndarray) -> bool: ...  # the rows that the index names

    def packed(self, factors: Factors) -> Factors:
        """The factors without a gap, where one would be in the way."""
        return factors

    def close(self) -> None:
        """Let go of what is held elsewhere."""

    def start(self, shape, rank: int, loss: Loss, **how) -> Factors:
        """Gaussian factors for a matrix of that shape, wherever they are best drawn."""
        return Factors.start(shape, rank, **how)

    def scale(self, X: Any, columns: np.ndarray) -> None:
        """Multiply every column by its number."""
        X *= self.put(columns.astype(X.dtype))

    def sow(self, factors: Factors, start: int, stop: int, scale: float, key: list[int]) -> None:
        """Fresh columns from `start` on, as small as told on the geometric mean of both sides, and
        zeros from `stop`."""
        factors.X[:, start:] = 0
        rng = np.random.default_rng(key)
        geo = np.sqrt(np.prod(np.sqrt(factors.shape)))
        for side in factors.sides:
            fresh = (
                scale * geo / np.sqrt(len(side)) * rng.standard_normal((len(side), stop - start))
            )
            side[:, start:stop] = self.put(fresh.astype(factors.X.dtype))


# A GPU has to be woken, and CuPy and the kernels loaded: about two seconds, in which one core runs
# so many samples (25 ns each).
_PAYS = 80_000_000


def open_engine(device: str = "cpu", n_jobs: int = 1, samples: float = inf) -> Engine:
    """The engine for a device. Compilers load here, not when the package is imported.

    `samples` is how many will be run, all epochs together: "auto" takes the GPU if there is one and
    if they are enough to pay for its start.
    """
    if device not in ("cpu", "cuda", "auto"):
        raise ValueError(f"device={device!r} is not 'cpu', 'cuda' or 'auto'")
    if chosen(device, samples)[0] == "cuda":
        from .cuda.engine import CudaEngine

        return CudaEngine()
    from .cpu.engine import CpuEngine

    return CpuEngine(n_jobs)


def describe(device: str = "auto", samples: float = inf) -> str:
    """Which device that is, and why, in one line.

    >>> describe("cpu")
    'cpu: as asked'
    """
    return ": ".join(chosen(device, samples))


def chosen(device: str, samples: float = inf) -> tuple[str, str]:
    """ "cpu" or "cuda", and why."""
    if device == "cpu":
        return "cpu", "as asked"
    if device == "auto" and samples < _PAYS:
        return "cpu", f"{samples:.3g} samples run sooner than a GPU starts"
    from .cuda import engine as cuda
    from .cuda import kernels as cuda_kernels

    none = device == "auto" and cuda_kernels.unavailable()
    return "cpu" if none else "cuda", cuda.describe()
