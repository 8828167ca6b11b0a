"""The success grid: which problems each method solves, by conditioning and oversampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from ...io.progress_bar import progress_bar
from .. import report
from .solvers import GOAL, METHODS, SHAPES, Problem, uniform_problem

CLASSIC = ("auto", "ALS", "ScaledSGD", "SGD")

# From white to a dark blue: in grey, darker is still more.
_SHADES = LinearSegmentedColormap.from_list("solved", ["#ffffff", report.BLUE])

# What has to be solved, as shares by shape and oversampling; no entry, no promise.
_LEVELS: dict[str, dict[float, float]] = {
    "symmetric": {3: 0.75, 4: 0.9, 5: 0.97, 8: 1.0, 12: 1.0, 20: 1.0},
    "square": {3: 0.75, 4: 0.9, 5: 0.97, 8: 1.0, 12: 1.0, 20: 1.0},
    "6:1": {5: 0.9, 8: 1.0, 12: 1.0, 20: 1.0},
}


class Cell(NamedTuple):
    """One problem, and the rank to search it with."""

    shape: str
    kappa: float
    c: float
    rank: int  # 0 where it is to be found
    seed: int


class Grid(NamedTuple):
    """Which problems: all combinations."""

    d: int = 1000
    r: int = 5
    shapes: tuple[str, ...] = SHAPES
    kappas: tuple[float, ...] = (1.0, 1e2, 1e4, 1e6)
    oversampling: tuple[int, ...] = (3, 4, 5, 8, 12, 20)
    seeds: int = 3

    def cells(self) -> list[Cell]:
        """
        >>> len(Grid().cells())
        432
        """
        ranks = (self.r, 2 * self.r)
        axes = (self.shapes, self.kappas, self.oversampling, ranks, range(self.seeds))
        return [Cell(*values) for values in product(*axes)]

    def problem(self, cell: Cell) -> Problem:
        return uniform_problem(cell.shape, self.d, self.r, cell.kappa, cell.c, cell.seed)


QUICK = Grid(d=300, kappas=(1.0, 1e6), oversampling=(5,), seeds=1)


class Record(NamedTuple):
    """What became of a cell."""

    cell: Cell
    method: str
    error: float
    passes: int | None
    setting: str

    @property
    def solved(self) -> bool:
        return self.error <= GOAL

    def facts(self) -> dict:
        # JSON has no infinity.
        error = self.error if np.isfinite(self.error) else None
        return self.cell._asdict() | self._asdict() | {"cell": None, "error": error}


def solve(job: tuple) -> Record:
    """Run one method on one cell: (problem maker, cell, method)."""
    make, cell, method = job
    outcome = METHODS[method](make(cell), cell.rank, cell.seed)
    return Record(cell, method, *outcome)


def run(
    make: Callable[[Cell], Problem],
    cells: Sequence[Cell],
    methods: Sequence[str] = CLASSIC,
    n_jobs: int = 2,
) -> list[Record]:
    """Every method on every cell, in several processes."""
    # The problems with the most samples first, so that no process is left with one at the end.
    order = sorted(cells, key=lambda cell: -cell.c)
    jobs = [
        (make, cell, method)
        for cell in order
        for method in methods
        if cell.rank or method == "auto"
    ]
    return list(mapped(solve, jobs, n_jobs, "problems"))


def mapped(work: Callable, jobs: Sequence, n_jobs: int, text: str = "") -> Iterator:
    """Results in the order of the jobs, from several processes, and a progress bar.

    >>> list(mapped(abs, [-1, 2], n_jobs=1))
    [1, 2]
    """
    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar(text, len(jobs)))
        each = map
        if n_jobs > 1:
            # One thread of BLAS each: the matrices are small, and the cores are taken.
            pool = ProcessPoolExecutor(
                n_jobs, get_context("spawn"), initializer=threadpool_limits, initargs=(1,)
            )
            each = stack.enter_context(pool).map
        for result in each(work, jobs):
            advance(1)
            yield result


def share(records: Sequence[Record], **where) -> float:
    """Share solved of the records whose cell or method is as given; NaN of none.

    >>> cell = Cell("square", 1.0, 5, 5, 0)
    >>> found = [Record(cell, "auto", 1e-6, 9, ""), Record(cell, "ALS", 1e-3, None, "")]
    >>> share(found, c=5), share(found, method="auto"), share(found, c=3)
    (0.5, 1.0, nan)
    """
    chosen = select(records, **where)
    return sum(record.solved for record in chosen) / len(chosen) if chosen else np.nan


def select(records: Sequence[Record], method: str | None = None, **where) -> list[Record]:
    """The records whose cell has these values."""
    return [
        record
        for record in records
        if method in (None, record.method)
        and all(getattr(record.cell, name) == value for name, value in where.items())
    ]


def claims(records: Sequence[Record]) -> list[tuple[str, float, float, bool]]:
    """What is asked for, how much of it, what was measured, and whether that is enough."""
    found = []
    methods = {record.method for record in records}
    for shape, c in sorted({(record.cell.shape, record.cell.c) for record in records}):
        ours = share(records, shape=shape, c=c, method="auto")
        level = _LEVELS[shape].get(c, 0.0)
        if level:
            found.append((f"{shape}, c = {c}: share solved", level, ours, ours >= level))
        if "ALS" in methods:
            theirs = share(records, shape=shape, c=c, method="ALS")
            found.append((f"{shape}, c = {c}: as many as ALS", theirs, ours, ours >= theirs))
    return found + [pace(records, shape) for shape in dict.fromkeys(r.cell.shape for r in records)]


def pace(records: Sequence[Record], shape: str) -> tuple[str, float, float, bool]:
    """How much longer the worst-conditioned problems take than the best, by the epoch in which
    the error first was below the goal. A problem that was not solved took for ever."""
    ours = select(records, shape=shape, method="auto")
    ends = sorted({record.cell.kappa for record in ours})
    first, last = (
        float(np.median([r.passes or np.inf for r in ours if r.cell.kappa == kappa]))
        for kappa in (ends[0], ends[-1])
    )
    what = f"{shape}: median epochs at kappa = {ends[-1]:g} against {ends[0]:g}"
    return what, 1.5, last / first, bool(last <= 1.5 * first)


def draw(records: Sequence[Record], r: int, shapes: Sequence[str], title: str) -> Figure:
    """A panel for every shape and method; a row for every conditioning and rank."""
    cells = [record.cell for record in records]
    methods = [method for method in METHODS if any(r.method == method for r in records)]
    columns = sorted({cell.c for cell in cells})
    rows = sorted({(cell.kappa, cell.rank) for cell in cells})
    width, height = max(1.7, 0.46 * len(columns)), 0.34 * len(rows) + 0.25
    with report.sheet(2.6 + width * len(methods), 1.2 + height * len(shapes)) as picture:
        picture.suptitle(title, fontsize=13)
        panels = picture.subplots(
            len(shapes), len(methods), sharex=True, sharey=True, squeeze=False
        )
        for line, shape in zip(panels, shapes, strict=True):
            for axes, method in zip(line, methods, strict=True):
                _panel(axes, select(records, shape=shape, method=method), rows, columns)
            line[0].set_yticks(range(len(rows)), [_name(*row, r) for row in rows])
            line[0].set_ylabel(shape, fontsize=13, fontweight="bold")
        for axes, method in zip(panels[0], methods, strict=True):
            axes.set_title(method)
        for axes in panels[-1]:
            axes.set_xlabel("oversampling c")
            axes.set_xticks(range(len(columns)), columns)
        return picture


def _name(kappa: float, rank: int, r: int) -> str:
    power = round(np.log10(kappa))
    conditioning = "1" if power == 0 else f"10$^{power}$"
    named = "auto" if rank == 0 else "r" if rank == r else f"{rank // r}r"
    return f"$\\kappa$ = {conditioning}, rank {named}"


def _panel(axes, records: list[Record], rows: list, columns: list) -> None:
    """Numbers solved, on a ground the darker the more."""
    for y, (kappa, rank) in enumerate(rows):
        for x, c in enumerate(columns):
            here = select(records, kappa=kappa, rank=rank, c=c)
            if not here:
                continue
            solved = sum(record.solved for record in here)
            part = solved / len(here)
            axes.fill(
                [x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5],
                facecolor=_SHADES(part), edgecolor="#999999", linewidth=0.6,
            )  # fmt: skip
            colour = "white" if part > 0.5 else "black"
            axes.text(x, y, solved, ha="center", va="center", color=colour, fontsize=11)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(False)
    axes.tick_params(length=0)
