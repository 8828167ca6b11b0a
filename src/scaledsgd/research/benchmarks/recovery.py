"""The recovery benchmark: what is solved, how fast, and what noise, skew and coherence do to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...io.atomic import replace_file
from .. import report
from ..demo import Result
from ..synthetic import completion_problem
from .evidence import distances, noise, timing
from .grid import QUICK, Cell, Grid, Record, claims, draw, run, select, share
from .solvers import METHODS, Problem, natural, uniform_problem

# --- The grid -----------------------------------------------------------------------------------


def grid(quick: bool, n_jobs: int) -> Result:
    """Every method on every problem."""
    which = QUICK if quick else Grid()
    records = run(which.problem, which.cells(), n_jobs=n_jobs)
    return summary(records, which)


def summary(records: Sequence[Record], which: Grid) -> Result:
    """The grid in words, a table, a picture and numbers."""
    checked = claims(records)
    missed = [what for what, *_, holds in checked if not holds]
    per = len(select(records, "auto")) // (len(which.shapes) * len(which.oversampling))
    return Result(
        "The success grid",
        f"Random matrices of rank {which.r} and conditioning kappa from c r entries a row and "
        f"column, d = {which.d}, searched with rank r and 2r. Solved: the relative error over all "
        "entries is at most 1e-5 within 200 passes. SGD and ScaledSGD are taken at their best "
        "moment with the best of three steps, ALS with the better of two ridges, auto as it is "
        f"left by fit. Of {len(checked)} claims, {len(checked) - len(missed)} hold"
        + (f"; not: {'; '.join(missed)}." if missed else "."),
        [f"solved of {per}", *(f"c = {c}" for c in which.oversampling)],
        _table(records, which.shapes, which.oversampling),
        draw(records, which.r, which.shapes, f"Problems solved, of {which.seeds}"),
        "Number of problems solved, of as many as there are seeds: the darker, the more.",
        {
            "claims": [
                dict(zip(("claim", "asked", "measured", "holds"), claim, strict=True))
                for claim in checked
            ],
            "records": [record.facts() for record in records],
        },
    )


def _table(records: Sequence[Record], shapes: Sequence[str], columns: Sequence[int]) -> list:
    return [
        [
            f"{shape}, {method}",
            *(
                str(sum(r.solved for r in select(records, method, shape=shape, c=c)))
                for c in columns
            ),
        ]
        for shape in shapes
        for method in METHODS
        if select(records, method)
    ]


# --- The hard grid ------------------------------------------------------------------------------

_KINDS = ("coherent", "skewed", "spikes")
_LARGE_ROWS, _LARGE = 5, 10.0  # a few rows ten times larger
_POWER = 0.75  # of the power law: the last row has a sixth of the mean
_SPIKED, _SPIKE = 0.01, 10.0  # share of entries with noise of ten times the targets' size


class Hard(NamedTuple):
    """The problems that the theory does not promise."""

    d: int = 1000
    r: int = 5
    shapes: tuple[str, ...] = ("symmetric", "square")
    kappas: tuple[float, ...] = (1.0, 1e4)
    oversampling: tuple[int, ...] = (5, 8, 12, 20)
    seeds: int = 2

    @property
    def names(self) -> list[str]:
        """Kind and shape, in one word for the panels."""
        return [f"{kind} {shape}" for kind, shape in product(_KINDS, self.shapes)]

    def cells(self) -> list[Cell]:
        """
        >>> len(Hard(seeds=1).cells())
        96
        """
        ranks = (self.r, 2 * self.r)
        axes = (self.names, self.kappas, self.oversampling, ranks, range(self.seeds))
        return [Cell(*values) for values in product(*axes)]

    def problem(self, cell: Cell) -> Problem:
        kind, shape = cell.shape.split()
        plain = uniform_problem(shape, self.d, self.r, cell.kappa, cell.c, cell.seed)
        rng = np.random.default_rng([cell.seed, 1])
        return natural({"coherent": coherent, "skewed": skewed, "spikes": spiked}[kind](plain, rng))


def coherent(problem: Problem, rng: np.random.Generator) -> Problem:
    """A few rows are ten times larger.

    >>> plain = uniform_problem("square", 40, 2, 1.0, 4, seed=0)
    >>> large = coherent(plain, np.random.default_rng(0))
    >>> int((np.linalg.norm(large.left, axis=1) > np.linalg.norm(plain.left, axis=1)).sum())
    5
    """
    left = problem.left.copy()
    left[rng.choice(len(left), _LARGE_ROWS, replace=False)] *= _LARGE
    right = left if problem.symmetric else problem.right
    return _measured(problem._replace(left=left, right=right))


def skewed(problem: Problem, rng: np.random.Generator) -> Problem:
    """As many entries, rows drawn by a power law; of a symmetric matrix both indices."""
    m, n = problem.shape
    weights = rng.permutation((1.0 + np.arange(m)) ** -_POWER)
    likely = np.outer(weights, weights if problem.symmetric else np.ones(n))
    # The smallest of exponential waiting times are a weighted draw without replacement.
    waiting = rng.standard_exponential((m, n)) / likely
    if problem.symmetric:
        waiting[np.triu_indices(m, 1)] = np.inf
    chosen = np.argpartition(waiting.ravel(), len(problem.index))[: len(problem.index)]
    index = np.stack(np.divmod(chosen, n), axis=1).astype(np.int32)
    return _measured(problem._replace(index=index))


def spiked(problem: Problem, rng: np.random.Generator) -> Problem:
    """One percent of the entries are wrong by ten times the size of the targets."""
    targets = problem.targets.copy()
    hit = rng.choice(len(targets), round(_SPIKED * len(targets)), replace=False)
    targets[hit] += _SPIKE * problem.size * rng.standard_normal(len(hit))
    return problem._replace(targets=targets)


def _measured(problem: Problem) -> Problem:
    """With the targets that the factors say."""
    i, j = problem.index.T
    targets = np.einsum("sr,sr->s", problem.left[i], problem.right[j])
    return problem._replace(targets=targets)


def hard(quick: bool, n_jobs: int) -> Result:
    """Coherent factors, skewed sampling, and spikes."""
    which = Hard(d=300, kappas=(1.0,), oversampling=(8,), seeds=1) if quick else Hard()
    records = run(which.problem, which.cells(), n_jobs=n_jobs)
    return Result(
        "The hard grid",
        f"{_LARGE_ROWS} rows {_LARGE:g} times larger (coherent); rows drawn by a power law with "
        f"exponent {_POWER} (skewed); noise of {_SPIKE:g} times the targets' size on "
        f"{_SPIKED:.0%} of the entries (spikes). d = {which.d}, r = {which.r}. In the table: "
        "solved, and the median error.",
        ["", *(f"c = {c}" for c in which.oversampling)],
        _hard_table(records, which),
        draw(records, which.r, which.names, f"Problems solved, of {which.seeds}"),
        "Number of problems solved, of as many as there are seeds: the darker, the more.",
        {"records": [record.facts() for record in records]},
    )


def _hard_table(records: Sequence[Record], which: Hard) -> list:
    def entry(name: str, method: str, c: int) -> str:
        median = np.median([r.error for r in select(records, method, shape=name, c=c)])
        return f"{share(records, method=method, shape=name, c=c):.0%} {median:.0e}"

    return [
        [f"{name}, {method}", *(entry(name, method, c) for c in which.oversampling)]
        for name in which.names
        for method in METHODS
    ]


# --- Few samples --------------------------------------------------------------------------------


class Few(NamedTuple):
    """Hardly more samples than numbers: c = samples / (r (m + n - r)), or, of a symmetric matrix,
    samples / (r (d - (r - 1) / 2)). The grid above has c = samples / (r (m + n)), or / (r d), which
    is less by a share of r / (m + n)."""

    d: int = 300
    r: int = 5
    shapes: tuple[str, ...] = ("symmetric", "square")
    kappas: tuple[float, ...] = (1.0, 1e2, 1e5)
    oversampling: tuple[float, ...] = (1.3, 1.5, 2.0, 2.5)
    seeds: int = 3

    def cells(self) -> list[Cell]:
        """
        >>> len(Few(seeds=1).cells())
        72
        """
        ranks = (self.r, 2 * self.r, 0)
        axes = (self.shapes, self.kappas, self.oversampling, ranks, range(self.seeds))
        return [Cell(*values) for values in product(*axes)]

    def problem(self, cell: Cell) -> Problem:
        d, r, symmetric = self.d, self.r, cell.shape == "symmetric"
        numbers = r * (d - (r - 1) / 2) if symmetric else r * (2 * d - r)
        drawn = completion_problem(
            (d, d), r, cell.kappa, round(cell.c * numbers), cell.seed, symmetric
        )
        return natural(Problem(*drawn, symmetric))


_FEW_METHODS = ("auto", "GNMR", "ALS")


def few(quick: bool, n_jobs: int) -> Result:
    """Few samples, against Gauss-Newton and ALS."""
    which = Few(shapes=("square",), kappas=(1.0,), oversampling=(2.0,), seeds=1) if quick else Few()
    records = run(which.problem, which.cells(), _FEW_METHODS, n_jobs=n_jobs)
    ours = {record.cell: record for record in select(records, "auto")}
    theirs = [r.cell for r in records if r.method != "auto" and r.solved]
    missed = sorted({cell for cell in theirs if not ours[cell].solved})
    silent = [r for r in ours.values() if not r.solved and r.setting != "undetermined"]
    return Result(
        "Few samples",
        f"d = {which.d}, r = {which.r}, c = samples / (r (m + n - r)), or / (r (d - (r - 1) / 2)) "
        "if symmetric, searched with rank r, 2r and, ours alone, auto. Of "
        f"{len(set(theirs))} problems that GNMR or ALS solve, ours does not solve {len(missed)}, "
        f"and of {len(ours)} in all {len(silent)} without saying so.",
        ["solved", *(f"c = {c:g}" for c in which.oversampling)],
        [
            [f"{shape}, {method}, rank {'auto' if not rank else 'r' if rank == which.r else '2r'}",
             *(f"{sum(r.solved for r in some)} of {len(some)}" for c in which.oversampling
               if (some := select(records, method, shape=shape, rank=rank, c=c)))]
            for shape in which.shapes
            for method in _FEW_METHODS
            for rank in (which.r, 2 * which.r, 0)
            if rank or method == "auto"
        ],
        draw(records, which.r, which.shapes, f"Problems solved, of {which.seeds}"),
        "Number of problems solved, of as many as there are seeds: the darker, the more.",
        {"missed": [cell._asdict() for cell in missed], "silent": [r.facts() for r in silent],
         "records": [record.facts() for record in records]},
    )  # fmt: skip


# --- All of it ----------------------------------------------------------------------------------

PARTS: dict[str, Callable[[bool, int], Result]] = {
    "grid": grid,
    "time": timing,
    "noise": noise,
    "distances": distances,
    "hard": hard,
    "few": few,
}


def write(title: str, results: dict[str, Result], folder: Path) -> Path:
    """The page, and each part's numbers and picture as files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        replace_file(folder / f"{name}.json", json.dumps(result.facts, indent=1).encode())
        replace_file(folder / f"{name}.png", report.drawn(result.picture, "png"))
    html = report.page(title, *(result.html() for result in results.values()))
    replace_file(folder / "index.html", html.encode())
    return folder / "index.html"
