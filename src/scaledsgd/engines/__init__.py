"""Who runs the samples of a round: CPU threads here, a GPU or a cluster by the same calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..factors import Algebra, Factors
from ..losses import Loss
from ..observations import Observations


class Chunk(NamedTuple):
    """Samples in the order in which they are to be run."""

    index: np.ndarray
    targets: np.ndarray


class Samples(Protocol):
    """A training copy of the observations, where the engine wants it."""

    index: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int: ...
    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]: ...


class Engine(Algebra, Protocol):
    """One machine. Between `put` and `get` the factors are where it computes."""

    repairs: int  # how often P had to be inverted anew from X

    def put(self, X: np.ndarray) -> Any: ...
    def get(self, X: Any) -> np.ndarray: ...
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


def open_engine(device: str = "cpu", n_jobs: int = 1) -> Engine:
    """The engine for a device. Compilers load here, not when the package is imported."""
    if device != "cpu":
        raise ValueError(f"device={device!r}: this build runs on 'cpu'")
    from .cpu import CpuEngine

    return CpuEngine(n_jobs)
