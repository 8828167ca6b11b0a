"""Gaps of new rows filled in: the error on tables of scikit-learn, against its own imputers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn import datasets
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ... import MatrixCompleter
from ...io.progress_bar import progress_bar
from .. import report
from ..demo import Result

TABLES = ("diabetes", "wine", "breast_cancer", "digits")
_GONE, _NEW = 0.25, 0.3  # of the entries are removed; of the rows are new

OURS = "ours, columns"
IMPUTERS: dict[str, Callable[[], Any]] = {
    OURS: lambda: MatrixCompleter("auto", center="columns", random_state=0),
    "ours, defaults": lambda: MatrixCompleter(random_state=0),
    "the mean": lambda: SimpleImputer(keep_empty_features=True),
    "KNNImputer": lambda: KNNImputer(keep_empty_features=True),
    "KNNImputer, standardised": lambda: make_pipeline(
        StandardScaler(), KNNImputer(keep_empty_features=True)
    ),
    "IterativeImputer": lambda: IterativeImputer(random_state=0, keep_empty_features=True),
}


def compared(name: str, seeds: int, quick: bool) -> Result:
    """Everybody on one table: fitted to rows with gaps, asked for those of other rows."""
    if name not in TABLES:
        raise ValueError(f"{name!r} is not one of {', '.join(TABLES)}")
    X = np.asarray(getattr(datasets, f"load_{name}")().data, dtype=np.float64)
    X = X[:, X.std(axis=0) > 0]
    X = X[: 100 if quick else None]
    errors: dict[str, list] = {who: [] for who in IMPUTERS}
    seconds: dict[str, list] = {who: [] for who in IMPUTERS}
    MatrixCompleter(random_state=0).fit(X[:50])  # kernels are compiled, or loaded, before the clock
    # One thread each: those of BLAS that wait would count as work.
    with threadpool_limits(1), progress_bar(f"{name}, seeds", seeds) as advance:
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(X))
            new, old = np.split(X[order], [int(_NEW * len(X))])
            gaps = [np.where(rng.random(part.shape) < _GONE, np.nan, part) for part in (old, new)]
            for who, make in IMPUTERS.items():
                clock = time.process_time()
                filled = _filled(make(), *gaps)
                seconds[who].append(time.process_time() - clock)
                gone = np.isnan(gaps[1])
                off = ((filled - new) / X.std(axis=0))[gone]
                errors[who].append(float(np.sqrt(np.mean(off**2))))
            advance(1)
    return _told(name, X.shape, errors, seconds)


def _filled(model: Any, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rounds that were not enough: those are the defaults
        filled = model.fit(old).transform(new)
    scaler = model[0] if hasattr(model, "steps") else None
    return scaler.inverse_transform(filled) if scaler else filled


def _told(name: str, shape, errors: dict[str, list], seconds: dict[str, list]) -> Result:
    mean = {who: float(np.mean(found)) for who, found in errors.items()}
    spread = {who: float(np.std(found)) for who, found in errors.items()}
    took = {who: float(np.median(found)) for who, found in seconds.items()}
    best = min((who for who in mean if not who.startswith("ours")), key=mean.__getitem__)
    rows = [
        [who, f"{mean[who]:.3f} ± {spread[who]:.3f}", f"{took[who]:.2f}"]
        for who in sorted(mean, key=mean.__getitem__)
    ]
    return Result(
        f"Gaps: {name}",
        f"{shape[0]:,} rows of {shape[1]}, {_GONE:.0%} of the entries removed at random; fitted to "
        f"{1 - _NEW:.0%} of the rows, judged on the gaps of the others, {len(errors[OURS])} seeds. "
        f"center='columns' has {mean[OURS] / mean[best]:.2f} times the error of the best of the "
        f"others ({best}). Errors are in standard deviations of each column.",
        ["imputer", "error", "CPU seconds"],
        rows,
        _draw(mean, spread, name),
        "Root mean square error, the mean over the seeds, and its standard deviation.",
        {"error": mean, "spread": spread, "seconds": took, "best_rival": best},
        in_words=True,
    )


def _draw(mean: dict[str, float], spread: dict[str, float], name: str) -> Figure:
    order = sorted(mean, key=mean.__getitem__)
    with report.sheet(9, 0.9 + 0.5 * len(mean)) as picture:
        axes = picture.subplots()
        colours = [report.BLUE if who.startswith("ours") else report.ORANGE for who in order]
        axes.barh(range(len(order)), [mean[who] for who in order], color=colours, height=0.6,
                  xerr=[spread[who] for who in order])  # fmt: skip
        axes.set_yticks(range(len(order)), order)
        axes.set(title=name, xlabel="error, in standard deviations of each column",
                 ylim=(len(order) - 0.5, -0.5))  # fmt: skip
        axes.grid(axis="y", visible=False)
        return picture
