"""Loads every module, and checks one small fit of each loss: `make versions` runs it with the
oldest and the newest libraries that pyproject.toml allows. No extras have to be installed.
"""

from __future__ import annotations

import pkgutil
import tempfile
import time
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np

import scaledsgd
from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, load
from scaledsgd.cli.doctor import to_install
from scaledsgd.core.losses import sigmoid

SEED = {"random_state": 0}


def half_of(M: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A matrix of which half the entries are unknown."""
    return np.where(rng.random(M.shape) < 0.5, M, np.nan)


def squared(rng: np.random.Generator) -> float:
    """The largest error of an entry, of a model that was saved and loaded."""
    M = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "saved.model")
        MatrixCompleter(2, epochs=60, **SEED).fit(half_of(M, rng)).save(path)
        model = load(path)
    return np.abs(model.row_factors_ @ model.column_factors_.T - M).max()


def logistic(rng: np.random.Generator) -> float:
    """The largest error of a probability."""
    M = sigmoid(rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50)))
    model = MatrixCompleter(2, loss="logistic", epochs=60, **SEED).fit(half_of(M, rng))
    return np.abs(sigmoid(model.row_factors_ @ model.column_factors_.T) - M).max()


def distance(rng: np.random.Generator) -> float:
    """The largest error of a squared distance."""

    def between(points):
        return ((points[:, None] - points) ** 2).sum(axis=2)

    D = between(rng.random((60, 2)))
    once = np.where(np.tri(len(D), dtype=bool), np.nan, half_of(D, rng))  # not (i, j) and (j, i)
    model = DistanceCompleter(2, epochs=200, **SEED).fit(once)
    return np.abs(between(model.points_) - D).max()


def bpr(rng: np.random.Generator) -> float:
    """The share of comparisons that are told wrongly, in float32."""
    Z = rng.standard_normal((100, 3))
    i, j, k = rng.integers(100, size=(3, 30_000))
    index = np.stack([i, j, k], axis=1)[j != k]
    i, j, k = index.T
    nearer = (Z[i] * (Z[j] - Z[k])).sum(axis=1) > 0
    model = ItemRanker(3, epochs=20, dtype="float32", **SEED).fit(index, nearer)
    return 1 - model.score(index, nearer)


LIMITS = {squared: 1e-6, logistic: 1e-2, distance: 1e-6, bpr: 0.05}

if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)  # such as that of plain bodies in the kernels
    print(*(f"{part} {version(part)}" for part in ("numba", "llvmlite", "numpy", "scikit-learn")))
    for module in pkgutil.walk_packages(scaledsgd.__path__, "scaledsgd."):
        if not module.name.endswith("__main__"):
            try:
                import_module(module.name)
            except ModuleNotFoundError as why:
                if not to_install(why.name):  # that of an extra may lack
                    raise
    for loss, limit in LIMITS.items():
        start = time.perf_counter()
        error = loss(np.random.default_rng(0))
        print(f"{loss.__name__:9} error {error:.1e} in {time.perf_counter() - start:.1f} s")
        if not error < limit:
            raise SystemExit(f"{loss.__name__}: {error} is not below {limit}")
