"""What the package finds on this machine, and how fast it is here."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np

_PARTS = ("numpy", "scipy", "numba", "scikit-learn", "safetensors", "pyarrow", "cupy", "ray")
_D = 62_000  # rows of X in the speed test: the paper's largest problem, 0.7 to 4 MB
_SAMPLES = 200_000
_SECONDS = 0.25  # for each of the four


def facts() -> dict[str, str]:
    """Versions, threads, BLAS, what device "auto" means and why, the folder of compiled kernels.

    >>> sorted(facts())[:4]
    ['BLAS', 'Python', 'automatic device', 'compiled kernels']
    """
    from ..engines.base import describe
    from ..engines.cpu.step_kernels import scale

    found = {"scaledsgd": version_of("scaledsgd"), "Python": platform.python_version()}
    found |= {part: version_of(part) for part in _PARTS}
    found["machine"] = f"{platform.system()} {platform.machine()}"
    found["threads"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
                           else os.cpu_count())  # fmt: skip
    found["BLAS"] = ", ".join(_blas()) or "unknown"
    found["automatic device"] = describe("auto")
    found["compiled kernels"] = getattr(getattr(scale, "stats", None), "cache_path", "unknown")
    return found


def version_of(part: str) -> str:
    try:
        return version(part)
    except PackageNotFoundError:
        return "not installed"


def _blas() -> Iterator[str]:
    from threadpoolctl import threadpool_info

    for pool in threadpool_info():
        if pool["user_api"] == "blas":
            yield f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"


def speeds() -> Iterator[tuple[str, int, float]]:
    """Loss, rank and samples a second on one thread; about a second in all."""
    from ..core.observations import Observations
    from ..estimators.completers import MatrixCompleter
    from ..estimators.ranker import ItemRanker

    rng = np.random.default_rng(0)
    i, j, k = rng.integers(_D, size=(3, _SAMPLES), dtype=np.int32)
    k = np.where(k == j, (k + 1) % _D, k)
    zeros = np.zeros(_SAMPLES, np.float32)
    pairs = Observations.pairs(i, j, zeros, shape=(_D, _D), symmetric=True)
    triplets = Observations.triplets(i, j, k, zeros, shape=(_D, _D))
    # Small steps, since these data lead nowhere: it is their number that counts.
    settings = {"learning_rate": 1e-6, "dtype": "float32", "random_state": 0}
    for rank in (3, 16):
        for model, seen in (
            (MatrixCompleter(rank, symmetric=True, **settings), pairs),
            (ItemRanker(rank, **settings), triplets),
        ):
            model.partial_fit(seen)  # compiles
            start = model.history_.records[-1]
            while (last := model.history_.records[-1])["seconds"] - start["seconds"] < _SECONDS:
                model.partial_fit(seen)
            taken = last["seconds"] - start["seconds"]
            yield seen.loss.name, rank, (last["samples"] - start["samples"]) / taken
