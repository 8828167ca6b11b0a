"""The recovery benchmark: what is solved, how fast, and what noise, skew and coherence do to it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import csr_array

from ... import MatrixCompleter, UndeterminedWarning
from ...io.atomic import replace_file
from .. import report
from ..demo import Result
from ..synthetic import completion_problem
from .evidence import bits, distances, noise, timing
from .grid import QUICK, Cell, Grid, Record, claims, draw, mapped, run, select
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

_KINDS = ("coherent", "skewed", "spikes-1%", "spikes-5%")
_LARGE_ROWS, _LARGE = 5, 10.0  # a few rows ten times larger
_POWER = 0.75  # of the power law: the last row has a sixth of the mean
_SPIKE = 10.0  # noise of so many times the targets' size, on 1% or 5% of the entries


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
        128
        """
        ranks = (self.r, 2 * self.r)
        axes = (self.names, self.kappas, self.oversampling, ranks, range(self.seeds))
        return [Cell(*values) for values in product(*axes)]

    def problem(self, cell: Cell) -> Problem:
        kind, shape = cell.shape.split()
        plain = uniform_problem(shape, self.d, self.r, cell.kappa, cell.c, cell.seed)
        rng = np.random.default_rng([cell.seed, 1])
        return natural(_MAKERS[kind](plain, rng))


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


def spiked(problem: Problem, rng: np.random.Generator, share: float = 0.01) -> Problem:
    """A share of the entries are wrong by ten times the size of the targets."""
    targets = problem.targets.copy()
    hit = rng.choice(len(targets), round(share * len(targets)), replace=False)
    targets[hit] += _SPIKE * problem.size * rng.standard_normal(len(hit))
    return problem._replace(targets=targets)


_MAKERS: dict[str, Callable[[Problem, np.random.Generator], Problem]] = {
    "coherent": coherent,
    "skewed": skewed,
    "spikes-1%": spiked,
    "spikes-5%": partial(spiked, share=0.05),
}


def _measured(problem: Problem) -> Problem:
    """With the targets that the factors say."""
    i, j = problem.index.T
    targets = np.einsum("sr,sr->s", problem.left[i], problem.right[j])
    return problem._replace(targets=targets)


def hard(quick: bool, n_jobs: int) -> Result:
    """Coherent factors, skewed sampling, and spikes."""
    which = Hard(d=300, kappas=(1.0,), oversampling=(8,), seeds=1) if quick else Hard()
    cells, methods = which.cells(), ("auto", "ALS")
    wrong = [cell for cell in cells if cell.shape.startswith("spikes")]
    records = run(which.problem, [cell for cell in cells if cell not in wrong], methods, n_jobs)
    records += run(which.problem, wrong, ("auto", "huber", "ALS"), n_jobs)
    return Result(
        "The hard grid",
        f"{_LARGE_ROWS} rows {_LARGE:g} times larger (coherent); rows drawn by a power law with "
        f"exponent {_POWER} (skewed); noise of {_SPIKE:g} times the targets' size on 1% or 5% of "
        f"the entries (spikes; huber: loss='huber'). d = {which.d}, r = {which.r}. In the table: "
        f"solved of {2 * len(which.kappas) * which.seeds}, and the median error.",
        ["", *(f"c = {c}" for c in which.oversampling)],
        _hard_table(records, which),
        draw(records, which.r, which.names, f"Problems solved, of {which.seeds}"),
        "Number of problems solved, of as many as there are seeds: the darker, the more.",
        {"records": [record.facts() for record in records]},
    )


def _hard_table(records: Sequence[Record], which: Hard) -> list:
    def entry(name: str, method: str, c: int) -> str:
        some = select(records, method, shape=name, c=c)
        return f"{sum(r.solved for r in some)}, {np.median([r.error for r in some]):.0e}"

    return [
        [f"{name}, {method}", *(entry(name, method, c) for c in which.oversampling)]
        for name in which.names
        for method in METHODS
        if select(records, method, shape=name)
    ]


# --- Few samples --------------------------------------------------------------------------------


class Few(NamedTuple):
    """Hardly more samples than numbers: c = samples / (r (m + n - r)), or, of a symmetric matrix,
    samples / (r (d - (r - 1) / 2)). The grid above has c = samples / (r (m + n)), or / (r d), which
    is less by a share of r / (m + n). Entries are drawn anew until every row and column has r of
    them, unless `any_rows`: the others nobody can tell."""

    d: int = 150
    r: int = 5
    shapes: tuple[str, ...] = ("symmetric", "square")
    kappas: tuple[float, ...] = (1.0, 1e2, 1e5)
    oversampling: tuple[float, ...] = (1.3, 1.5, 2.0, 2.5)
    seeds: int = 3
    any_rows: bool = False

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
        for again in count():
            seed = cell.seed + 1000 * again
            drawn = completion_problem(
                (d, d), r, cell.kappa, round(cell.c * numbers), seed, symmetric
            )
            problem = natural(Problem(*drawn, symmetric))
            fewest = min(int(np.diff(A.indptr).min()) for A in _both_ways(problem))
            if self.any_rows or fewest >= r:
                return problem
        raise AssertionError


def _both_ways(problem: Problem) -> list[csr_array]:
    """The entries by rows, and by columns."""
    entries = problem.entries()
    return [entries, csr_array(entries.T)]


_FEW_METHODS = ("auto", "GNMR", "ALS")


def few(quick: bool, n_jobs: int) -> Result:
    """Few samples, against Gauss-Newton and ALS."""
    which = Few(shapes=("square",), kappas=(1.0,), oversampling=(2.0,), seeds=1) if quick else Few()
    records = run(which.problem, which.cells(), _FEW_METHODS, n_jobs=n_jobs)
    ours = {record.cell: record for record in select(records, "auto")}
    again = Few(kappas=(1.0,), oversampling=(1.5, 2.0), seeds=2 if quick else 40, any_rows=True)
    often = run(again.problem, again.cells(), ("auto",), n_jobs=n_jobs)
    theirs = {r.cell._replace(rank=0) for r in records if r.method != "auto" and r.solved}
    missed = sorted(r.cell for r in ours.values()
                    if not r.solved and r.cell._replace(rank=0) in theirs)  # fmt: skip
    silent = [r for r in (*ours.values(), *often) if not r.solved and r.setting != "undetermined"]
    found = ", ".join(
        f"{sum(r.solved for r in some)} of {len(some)} at c = {c:g}"
        for c in again.oversampling
        if (some := select(often, c=c))
    )
    return Result(
        "Few samples",
        f"d = {which.d}, r = {which.r}, c = samples / (r (m + n - r)), or / (r (d - (r - 1) / 2)) "
        "if symmetric, every row and column with r entries or more, searched with rank r, 2r and, "
        f"ours alone, auto. Of {len(theirs)} problems that GNMR or ALS solve, ours does not solve "
        f"{len({cell._replace(rank=0) for cell in missed})} with every rank. With {again.seeds} "
        f"seeds at kappa = 1, whatever rows have, ours solves {found}. Of all {len(ours)} + "
        f"{len(often)} fits, {len(silent)} are wrong without saying so.",
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
         "records": [record.facts() for record in (*records, *often)]},
    )  # fmt: skip


# --- Mixed --------------------------------------------------------------------------------------

_CLEAN, _TIMES_NOISE = 1e-4, 2.0  # errors above which there has to be a warning


class Mix(NamedTuple):
    """A problem drawn at random: its shape, rank, conditioning, noise and number of samples."""

    seed: int
    largest: int = 400

    def problem(self) -> tuple[Problem, float, str]:
        """Entries, the error that their noise lets expect (0 of none), and what they are of."""
        rng = np.random.default_rng([self.seed, 8])
        symmetric = bool(rng.random() < 0.35)
        m, n = rng.integers(60, self.largest, 2)
        n = m if symmetric else n
        r = int(rng.integers(1, 9))
        kappa, c = 10 ** rng.uniform(0, 4), rng.uniform(1.3, 8)
        numbers = r * (m - (r - 1) / 2) if symmetric else r * (m + n - r)
        samples = min(round(c * numbers), (m * (m + 1) // 2 if symmetric else m * n) * 9 // 10)
        drawn = Problem(
            *completion_problem((m, n), r, kappa, samples, self.seed, symmetric), symmetric
        )
        noise = 0.0 if rng.random() < 0.5 else 10 ** rng.uniform(-2, -0.5)
        y = drawn.targets + noise * drawn.size * rng.standard_normal(samples)
        index, twins = drawn.index, symmetric and rng.random() < 0.7
        if twins:  # the natural input: both (i, j) and (j, i)
            index, y = np.concatenate([index, index[:, ::-1]]), np.append(y, y)
        shape = f"{m} x {n}{' symmetric' * symmetric}{', twins' * bool(twins)}"
        told = f"{shape}, rank {r}, kappa {kappa:.0f}, c {samples / numbers:.2f}, noise {noise:.2g}"
        bound = noise * np.sqrt(numbers / samples)
        return drawn._replace(index=index, targets=y), float(bound), told


def mix_case(job: tuple[Mix, str]) -> dict:
    """One fit with the defaults. Args: job, the problem, and the rank: "r", "2r" or "auto"."""
    mix, rank = job
    problem, bound, told = mix.problem()
    r = problem.left.shape[1]
    asked = {"r": r, "2r": min(2 * r, *problem.shape), "auto": "auto"}[rank]
    model = MatrixCompleter(asked, symmetric=problem.symmetric, random_state=mix.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(problem.observations())
    warned = any(issubclass(one.category, UndeterminedWarning) for one in caught)
    error = problem.error(model.row_factors_, model.column_factors_)
    if model.history_.stopped == "ridge":  # a model of another kind, with a mean and biases
        i, j = np.indices(problem.shape).reshape(2, -1)
        truth = np.einsum("tr,tr->t", problem.left[i], problem.right[j])
        gap = model.predict((i, j)) - truth
        error = float(np.linalg.norm(gap) / np.linalg.norm(truth))
    limit = _TIMES_NOISE * bound if bound else _CLEAN
    return {"seed": mix.seed, "rank": rank, "problem": told, "error": error, "limit": limit,
            "warned": warned, "wrong": bool(error > limit),
            "stopped": model.history_.stopped}  # fmt: skip


def mixed(quick: bool, n_jobs: int) -> Result:
    """Problems of every kind: whether what is wrong is said."""
    count, largest = (6, 120) if quick else (200, 400)
    jobs = [(Mix(seed, largest), rank) for seed in range(count) for rank in ("r", "2r", "auto")]
    cases = list(mapped(mix_case, jobs, n_jobs, "mixed"))
    silent = [case for case in cases if case["wrong"] and not case["warned"]]
    with report.look():
        picture = Figure(figsize=(9, 4.2), layout="constrained")
        axes = picture.subplots()
        for warned, name, style in ((False, "no warning", "o"), (True, "warned", "x")):
            some = [case for case in cases if case["warned"] == warned]
            at = [(case["limit"], max(case["error"], 1e-16)) for case in some] or [(1, 1)]
            axes.loglog(*np.transpose(at), style, label=name, alpha=0.6)
        ends = np.array([5e-5, 1.0])
        axes.loglog(ends, ends, "--", color=report.GREY, label="the limit")
        axes.set(xlabel="limit: 1e-4, or twice what the noise lets expect", ylabel="error")
        axes.legend()
    groups = [(rank, noisy) for rank in ("r", "2r", "auto", "") for noisy in (False, True)]
    rows = []
    for rank, noisy in groups:
        some = [c for c in cases if rank in (c["rank"], "") and (c["limit"] != _CLEAN) == noisy]
        quiet = sum(case["wrong"] and not case["warned"] for case in some)
        told = [len(some), sum(not case["wrong"] for case in some),
                sum(case["wrong"] and case["warned"] for case in some),
                sum(case["warned"] and not case["wrong"] for case in some), quiet]  # fmt: skip
        name = f"rank {rank}" if rank else "any rank"
        rows.append([f"{name}, {'noise' if noisy else 'clean'}", *map(str, told)])
    return Result(
        "Mixed problems",
        f"{count} matrices of 60 to {largest} rows and columns, rank 1 to 8, conditioning 1 to 1e4,"
        " c = 1.3 to 8 samples a number, half of them with noise of 1% to 30%, a third symmetric. "
        f"Right: an error of at most {_CLEAN:g}, or, of noisy ones, twice the noise times the root "
        f"of numbers over samples. Wrong without a warning: {len(silent)} of {len(cases)}.",
        ["", "fits", "right", "wrong, warned", "right, warned", "wrong, silent"],
        rows,
        picture,
        "Errors against their limits: circles above the line would be wrong without a warning.",
        {"silent": silent, "cases": cases},
    )


# --- All of it ----------------------------------------------------------------------------------

PARTS: dict[str, Callable[[bool, int], Result]] = {
    "grid": grid,
    "time": timing,
    "noise": noise,
    "bits": bits,
    "distances": distances,
    "hard": hard,
    "few": few,
    "mixed": mixed,
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
