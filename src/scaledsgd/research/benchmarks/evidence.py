"""What the success grid does not show: how long it takes, what noise does, and distances."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from ... import DistanceCompleter, MatrixCompleter
from ...core.losses import sigmoid
from ...core.observations import Observations
from ...io.progress_bar import progress_bar
from ...training.history import Progress
from ...training.metrics import recovery_error
from .. import report
from ..demo import Result
from ..synthetic import cube_points
from . import als
from .grid import mapped
from .solvers import EPOCHS, RIDGES, Problem, Watch, fit, uniform_problem

# --- Time ---------------------------------------------------------------------------------------

_PRECISE = 1e-6
_DASHED = {"color": report.GREY, "linestyle": "--", "linewidth": 1.4}
_DOTTED = {"color": report.GREY, "linestyle": "-.", "linewidth": 1.4}
_FAST_RIDGE = 0.02  # solves less than the others, and sooner
_AUTO = {"auto": "float64", "auto, float32": "float32"}
_NAMED = "ALS, ridge {:g}"


def timing(quick: bool, n_jobs: int) -> Result:
    """Seconds to an error of 1e-6, in runs that take turns with those of ALS."""
    d, r, repeats = (1000, 5, 1) if quick else (20_000, 10, 3)
    rows, facts, curves = [], {}, {}
    for shape in ("symmetric", "square"):
        problem = uniform_problem(shape, d, r, 1e6, 8, seed=0)
        _warm(problem, r, n_jobs)
        watches: dict[str, list[Watch]] = {}
        with progress_bar(f"time, {shape}", repeats) as advance:
            for seed in range(repeats):
                for name, watch in _race(problem, r, seed, n_jobs):
                    watches.setdefault(name, []).append(watch)
                advance(1)
        seconds = {name: _median_seconds(runs) for name, runs in watches.items()}
        rival = min(map(_NAMED.format, RIDGES), key=seconds.__getitem__)
        for name, runs in watches.items():
            passes = "/".join(str(run.reached) for run in runs)
            ratio = seconds[name] / seconds["auto"]
            rows.append([f"{shape}, {name}", passes, f"{seconds[name]:.2f}", f"{ratio:.1f}"])
            curves[shape, name] = runs[0].curve
        # JSON has no infinity.
        finite = {name: value if np.isfinite(value) else None for name, value in seconds.items()}
        ratios = {name: seconds[rival] / seconds[name] for name in _AUTO}
        facts[shape] = {"seconds": finite, "rival": rival, "ratios": ratios}
    return Result(
        "Time to 1e-6",
        f"d = {d:,}, r = {r}, kappa = 1e6, c = 8, {n_jobs} thread(s) each, medians of {repeats} "
        "run(s) that took turns. The error over all entries is taken after each pass, and that is "
        "not counted.",
        ["method", "passes", "seconds", "times auto's"],
        rows,
        _draw_times(curves),
        "Relative error over all entries against seconds, of the first run.",
        facts,
    )


def _race(problem: Problem, r: int, seed: int, n_jobs: int):
    """One run of each method, one after the other."""
    seen, entries = problem.observations(), problem.entries()
    for name, dtype in _AUTO.items():
        watch = Watch(problem, _PRECISE, stop=True, every=True)
        _completer(problem, r, EPOCHS, dtype, n_jobs, seed, callbacks=[watch]).fit(seen)
        yield name, watch
    for ridge in (*RIDGES, _FAST_RIDGE):
        watch = Watch(problem, _PRECISE, stop=True, every=True)
        als.complete(entries, r, ridge=ridge, seed=seed, n_jobs=n_jobs, done=watch.sees)
        yield _NAMED.format(ridge), watch


def _warm(problem: Problem, r: int, n_jobs: int) -> None:
    """Compile before the clock starts."""
    for dtype in _AUTO.values():
        _completer(problem, r, 2, dtype, n_jobs).fit(problem.observations())
    small = uniform_problem("square", 50, 5, 1.0, 4, seed=0)
    als.complete(small.entries(), 5, ridge=RIDGES[0], seed=0, n_jobs=n_jobs)


def _completer(problem: Problem, r: int, epochs: int, dtype: str, n_jobs: int, seed=0, **how):
    return MatrixCompleter(
        r, symmetric=problem.symmetric, epochs=epochs, tol=0, random_state=seed, n_jobs=n_jobs,
        dtype=dtype, **how,
    )  # fmt: skip


def _median_seconds(runs: list[Watch]) -> float:
    """A run that did not get there took for ever."""
    return float(np.median([run.curve[-1][0] if run.reached else np.inf for run in runs]))


def _draw_times(curves: dict) -> Figure:
    with report.sheet(10, 4.2) as picture:
        panels = picture.subplots(1, 2, sharey=True)
        for axes, shape in zip(panels, ("symmetric", "square"), strict=True):
            lines = [(name, curve) for (of, name), curve in curves.items() if of == shape]
            for style, (name, curve) in zip((*report.LINES, _DASHED, _DOTTED), lines, strict=True):
                axes.loglog(*np.transpose(curve), label=name, **style)
            axes.set(title=shape.capitalize(), xlabel="seconds")
            axes.xaxis.set_minor_formatter("")  # of less than a decade all would be written
        panels[0].set_ylabel("relative error")
        picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        return picture


# --- Noise --------------------------------------------------------------------------------------

# Of the search: steps in units of d / r, damping, and ridges.
_STEPS, _DAMPINGS = (0.02, 0.05, 0.1, 0.3, 1.0), (0.3, 1.0, 3.0)
_SEARCHED_RIDGES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.03)
# In larger units the paper's Gaussian start is a small one: 1e-3 of the natural scale.
_UNITS = 1e6


def noise(quick: bool, n_jobs: int) -> Result:
    """The final error of the defaults against the best moment of the best fixed setting."""
    shapes, kappas = ("symmetric", "square"), (1.0, 1e4)
    if quick:
        shapes, kappas = shapes[:1], kappas[1:]
    jobs = [
        (300 if quick else 1000, shape, kappa, snr, rank)
        for shape, kappa, snr, rank in product(shapes, kappas, (15.0, 40.0), (5, 10))
    ]
    rows, facts = [], []
    for job, (ours, steps, ridges) in zip(
        jobs, mapped(noisy_case, jobs, n_jobs, "noise"), strict=True
    ):
        d, shape, kappa, snr, rank = job
        best = min(steps, ridges)
        rows.append([
            f"{shape}, kappa {kappa:g}, {snr:g} dB, {'r' if rank == 5 else '2r'}",
            *(f"{error:.3e}" for error in (ours, steps, ridges)), f"{ours / best:.3f}",
        ])  # fmt: skip
        facts.append(
            {"d": d, "shape": shape, "kappa": kappa, "snr": snr, "rank": rank, "auto": ours,
             "best_step": steps, "best_ridge": ridges}
        )  # fmt: skip
    return Result(
        "Noise",
        f"d = {jobs[0][0]}, r = 5, c = 8, and noise on every entry that is seen. What the defaults "
        f"end in against the best moment of {len(_STEPS) * len(_DAMPINGS)} fixed settings (step, "
        f"damping) and of ALS with {len(_SEARCHED_RIDGES)} ridges, found by looking at the truth.",
        ["problem", "auto", "best steps", "best ridge", "auto / best"],
        rows,
        _draw_ratios(rows, "best found", 1.05, 0.9),
        "Final error of the defaults as a multiple of the best that the search found.",
        {"cases": facts},
    )


def noisy_case(job: tuple) -> tuple[float, float, float]:
    """Errors of the defaults, of the best fixed step and damping, and of ALS's best ridge."""
    d, shape, kappa, snr, rank = job
    clean = uniform_problem(shape, d, 5, kappa, 8, seed=0)
    rng = np.random.default_rng(1)
    spread = clean.size * 10 ** (-snr / 20)
    problem = clean._replace(targets=clean.targets + spread * rng.standard_normal(len(clean.index)))
    model = fit(problem, rank, 0, [])
    ours = problem.error(model.row_factors_, model.column_factors_)
    steps = min(_best_moment(problem, rank, *pair) for pair in product(_STEPS, _DAMPINGS))
    entries, ridges = problem.entries(), []
    for ridge in _SEARCHED_RIDGES:
        watch = Watch(problem, 0.0, stop=False)
        als.complete(entries, rank, ridge=ridge, seed=0, done=watch.sees)
        ridges.append(watch.best)
    return ours, steps, min(ridges)


def _best_moment(problem: Problem, rank: int, step: float, damping: float) -> float:
    root = np.sqrt(_UNITS)
    large = problem._replace(
        targets=problem.targets * _UNITS, left=problem.left * root, right=problem.right * root
    )
    watch = Watch(large, 0.0, stop=False, every=True)
    rate = step * np.sqrt(np.prod(problem.shape)) / rank
    fit(large, rank, 0, [watch], learning_rate=rate, damping=damping)
    return watch.best


def _draw_ratios(rows: list[list[str]], what: str, limit: float, least: float) -> Figure:
    """The last column: errors as multiples of the best, and how large they should be at most."""
    with report.sheet(10, 1.4 + 0.3 * len(rows)) as picture:
        axes, ratios = picture.subplots(), [float(row[-1]) for row in rows]
        axes.barh(range(len(rows)), ratios, color=report.BLUE, height=0.6)
        axes.axvline(limit, color=report.ORANGE, linestyle="--", linewidth=2.2)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set(xlabel=f"error of auto / {what} (dashed: {limit})", ylim=(len(rows) - 0.5, -0.5))
        axes.set_xlim(least, max(1.1, 1.02 * max(ratios)))
        axes.grid(axis="y", visible=False)
        return picture


# --- Bits ---------------------------------------------------------------------------------------

_KNOWN = 0.15  # of the entries, each a bit
_SHARES = tuple(np.geomspace(0.9, 0.15, 14))  # of the norm at which nothing is learned


def bits(quick: bool, n_jobs: int) -> Result:
    """Bits of a weak signal, against the best nuclear norm."""
    sizes = ((100, 2),) if quick else ((300, 3), (300, 5))
    jobs = [(d, r, seed) for d, r in sizes for seed in range(1 if quick else 3)]
    rows, facts = [], []
    for (d, r, seed), case in zip(jobs, mapped(bits_case, jobs, n_jobs, "bits"), strict=True):
        facts.append({"d": d, "r": r, "seed": seed} | case)
        ratio = case["auto"] / case["nuclear norm"]
        rows.append([f"d = {d}, r = {r}, seed {seed}", *(f"{error:.4f}" for error in case.values()),
                     f"{ratio:.3f}"])  # fmt: skip
    return Result(
        "Bits",
        f"{_KNOWN:.0%} of the entries of a matrix of rank r and standard deviation 1, each a bit "
        "that is 1 with the probability sigma(M). Root mean square error of the probabilities of "
        "all entries: of 1/2, of the defaults with rank='auto', rank r and 2r, and of the nuclear "
        f"norm with the best of {len(_SHARES)} weights, found by looking at the truth.",
        ["problem", "1/2", "nuclear norm", "auto", "rank r", "rank 2r", "auto / nuclear norm"],
        rows,
        _draw_ratios(rows, "best nuclear norm", 1.02, 0.8),
        "Error of the defaults as a multiple of that of the best nuclear norm.",
        {"cases": facts},
    )


def bits_case(job: tuple) -> dict[str, float]:
    """Errors of the probabilities."""
    d, r, seed = job
    rng = np.random.default_rng([d, r, seed])
    left, right = rng.standard_normal((2, d, r))
    truth = sigmoid(left @ right.T / np.sqrt(r))
    i, j = np.nonzero(rng.random((d, d)) < _KNOWN)
    y = (rng.random(len(i)) < truth[i, j]).astype(np.float64)
    seen = Observations.pairs(i, j, y, shape=(d, d), loss="logistic")

    def ours(rank: int | str) -> float:
        model = MatrixCompleter(rank, loss="logistic", random_state=seed).fit(seen)
        return rms(model.row_factors_ @ model.column_factors_.T)

    def rms(z: np.ndarray) -> float:
        return float(np.sqrt(np.mean((sigmoid(z) - truth) ** 2)))

    errors = {"1/2": rms(np.zeros((d, d))), "nuclear norm": min(map(rms, _nuclear(i, j, y, d)))}
    return errors | {"auto": ours("auto"), "rank r": ours(r), "rank 2r": ours(2 * r)}


def _nuclear(i, j, y, d: int, steps: int = 60):
    """Matrices that minimise the logistic loss and a falling multiple of the nuclear norm: by
    accelerated proximal gradients, each from the last one."""
    known, Y, M = np.zeros((d, d), bool), np.zeros((d, d)), np.zeros((d, d))
    known[i, j], Y[i, j] = True, y
    most = np.linalg.norm(np.where(known, 0.5 - Y, 0), 2)
    for share in _SHARES:
        Z, t = M, 1.0
        for _ in range(steps):
            U, s, V = np.linalg.svd(Z - 4 * np.where(known, sigmoid(Z) - Y, 0), full_matrices=False)
            new, after = (
                (U * np.maximum(s - 4 * share * most, 0)) @ V,
                (1 + np.sqrt(1 + 4 * t * t)) / 2,
            )
            moved, Z = np.linalg.norm(new - M), new + (t - 1) / after * (new - M)
            M, t = new, after
            if moved <= 1e-3 * np.linalg.norm(M):
                break
        yield M


# --- Distances ----------------------------------------------------------------------------------


def distances(quick: bool, n_jobs: int) -> Result:
    """Points in the plane from few of their distances, and the same with five far away."""
    n, known, seeds = (400, 0.1, 1) if quick else (2000, 0.02, 3)
    jobs = [(n, known, far, seed) for far in (0, 5) for seed in range(seeds)]
    rows, curves, facts = [], {}, []
    for job, curve in zip(jobs, mapped(distance_case, jobs, n_jobs, "distances"), strict=True):
        *_, far, seed = job
        reached = next((at + 1 for at, error in enumerate(curve) if error <= _PRECISE), None)
        name = "five points moved by 10" if far else "points in a square"
        rows.append([f"{name}, seed {seed}", str(reached or "-"), f"{curve[-1]:.1e}"])
        facts.append({"moved": far, "seed": seed, "epochs": reached, "error": curve[-1]})
        curves[name, seed] = curve[:-1]
    return Result(
        "Distances",
        f"{n:,} points in the plane, {known:.0%} of the pairs known; the error is that of all "
        "squared distances, relative.",
        ["problem", "epochs to 1e-6", "final error"],
        rows,
        _draw_distances(curves),
        "Relative error of all squared distances after each epoch.",
        {"cases": facts},
    )


def distance_case(job: tuple) -> list[float]:
    """The error after each epoch, and at last that of the model."""
    n, known, far, seed = job
    points = cube_points(n, seed, outliers=far)[:, :2]
    i, j = np.triu_indices(n, 1)
    kept = np.random.default_rng(seed).choice(len(i), round(known * len(i)), replace=False)
    i, j = i[kept], j[kept]
    squared = ((points[i] - points[j]) ** 2).sum(axis=1)
    curve = []

    def watch(told: Progress) -> None:
        curve.append(distance_error(told.factors.X, points))

    model = DistanceCompleter(2, epochs=EPOCHS, tol=0, random_state=seed, callbacks=[watch])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        model.fit(Observations.pairs(i, j, squared, shape=(n, n), loss="distance"))
    return [*curve, distance_error(model.points_, points)]


def distance_error(X: np.ndarray, points: np.ndarray) -> float:
    """Of all squared distances, relative: they are a matrix of rank 4 in the plane.

    >>> square = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> distance_error(square[:, ::-1] + 7.0, square) < 1e-12
    True
    """
    sides = []
    for Z in (X - X.mean(axis=0), points - points.mean(axis=0)):
        norms, ones = (Z**2).sum(axis=1, keepdims=True), np.ones((len(Z), 1))
        sides += [np.hstack([norms, ones, -2 * Z]), np.hstack([ones, norms, Z])]
    return recovery_error(*sides)


def _draw_distances(curves: dict) -> Figure:
    with report.sheet(10, 4.2) as picture:
        axes = picture.subplots()
        styles = dict(zip(dict.fromkeys(name for name, _ in curves), report.LINES, strict=False))
        for (name, seed), curve in curves.items():
            label = name if seed == 0 else None
            axes.semilogy(range(1, len(curve) + 1), curve, label=label, **styles[name])
        axes.set(xlabel="epochs", ylabel="relative error")
        axes.legend()
        return picture
