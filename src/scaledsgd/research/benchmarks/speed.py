"""How fast samples run: by loss, rank and threads, against others, against what the machine can do,
and as problems grow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...core.linalg import aligned
from ...core.observations import Observations
from ...engines.base import describe
from ...engines.cpu.engine import NEAR
from ...io.progress_bar import progress_bar
from .. import report
from ..demo import Result
from .race import ITEMS, PEERS, USERS, comparisons, missing, ours, race, skewed, steps
from .threads import by_threads, touching

RANKS = (3, 8, 16, 32, 64, 128)


class Size(NamedTuple):
    """How much is measured."""

    samples: int = 5_000_000
    ranks: tuple[int, ...] = RANKS
    repeats: int = 3


QUICK = Size(200_000, (3, 32), 1)


def _million(rate: float) -> str:
    return f"{rate / 1e6:.1f}" if rate < 1e8 else f"{rate / 1e6:.0f}"


def _pairs(samples: int) -> Observations:
    user, item, stars = skewed(samples)
    return Observations.pairs(user, item, stars, shape=(USERS, ITEMS))


# --- Rates ---------------------------------------------------------------------------------------


def rates(size: Size, n_jobs: int, device: str) -> Result:
    """Samples a second by loss and rank, and what P and threads make of it."""
    samples = size.samples * (8 if device == "cuda" else 1)  # or the GPU is done at once
    rows, facts = [], []
    for seen in (_pairs(samples), comparisons(samples)):
        for rank in size.ranks:
            runs = {
                "scaled": ours(seen, rank, device=device),
                "plain": ours(seen, rank, device=device, scaled=False, learning_rate=1e-6),
            }
            if device == "cpu":
                runs["threads"] = ours(seen, rank, n_jobs)
            loss = seen.loss.name
            paces = race(runs, size.repeats, f"{loss}, rank {rank}")
            speed = {name: pace.rate(samples) for name, pace in paces.items()}
            ratio = paces["scaled"].steps / paces["plain"].steps
            gain = speed.get("threads", np.nan) / speed["scaled"]
            row = [f"{loss}, rank {rank}", _million(speed["scaled"]), f"{ratio:.2f}"]
            rows.append(row + ([_million(speed["threads"]), f"{gain:.2f}"] if gain > 0 else []))
            facts.append({"loss": loss, "rank": rank, "rates": speed, "scaled / plain": ratio})
    header = ["million samples a second", "1 thread" if device == "cpu" else device, "step / SGD's"]
    if device == "cpu":
        header += [f"{n_jobs} threads", "gain"]
    bars = {name: [fact["rates"][name] for fact in facts] for name in facts[0]["rates"]}
    return Result(
        "Samples a second",
        f"{samples:,} samples in float32, whole epochs with all that belongs to them: pairs of "
        f"{USERS:,} users and {ITEMS:,} items of which few are in most samples, triplets of "
        f"{ITEMS:,} items. {describe(device)}.",
        header, rows,
        _bars([f"{f['loss']} {f['rank']}" for f in facts],
              {_NAMES[name]: values for name, values in bars.items()}),
        "Million samples a second by loss and rank.",
        {"device": describe(device), "samples": samples, "rows": facts},
    )  # fmt: skip


_NAMES = {"scaled": "ScaledSGD", "plain": "plain SGD", "threads": "ScaledSGD, threads"}


def _bars(labels: list[str], values: dict[str, list[float]]) -> Figure:
    with report.sheet(10, 4.4) as picture:
        axes, width = picture.subplots(), 0.8 / len(values)
        colours = (report.BLUE, report.ORANGE, report.GREY, "#9bc4e2")
        for n, ((name, rate), colour) in enumerate(zip(values.items(), colours, strict=False)):
            at = np.arange(len(labels)) + (n - (len(values) - 1) / 2) * width
            bars = axes.bar(at, np.array(rate) / 1e6, width, label=name, color=colour)
            axes.bar_label(bars, fmt=lambda v: f"{v:.0f}" if v >= 10 else f"{v:.1f}", fontsize=7)
        axes.set_xticks(np.arange(len(labels)), labels, rotation=30, ha="right")
        axes.set_ylabel("million samples a second")
        axes.set_axisbelow(True)
        axes.grid(axis="x", visible=False)
        axes.legend()
        return picture


# --- Others --------------------------------------------------------------------------------------


def peers(size: Size, n_jobs: int, device: str) -> Result:
    """The same data, rank and threads for all."""
    absent = missing()
    if absent:
        raise ValueError(f"not installed: {', '.join(absent)} (pip install 'scaledsgd[bench]')")
    ratings = skewed(size.samples)
    data = {"squared": _pairs(size.samples), "bpr": _events(ratings)}
    rows, facts = [], []
    for loss, others in PEERS.items():
        for rank in size.ranks:
            runs = {"ours": ours(data[loss], rank, n_jobs, **_MODES[loss])}
            runs |= {name: make(ratings, rank, n_jobs) for name, make in others.items()}
            paces = race(runs, size.repeats, f"{loss}, rank {rank}")
            speed = {name: pace.rate(size.samples) for name, pace in paces.items()}
            for name in others:
                ratio = speed["ours"] / speed[name]
                rows.append([f"{loss}, rank {rank}, {name}", _million(speed["ours"]),
                             _million(speed[name]), f"{ratio:.1f}"])  # fmt: skip
            facts.append({"loss": loss, "rank": rank, "rates": speed})
    names = ["ours", *(name for others in PEERS.values() for name in others)]
    bars = {name: [fact["rates"].get(name, np.nan) for fact in facts] for name in names}
    return Result(
        "Against others",
        f"{size.samples:,} ratings of {ITEMS:,} items by {USERS:,} users, {n_jobs} thread(s) each, "
        f"medians of {size.repeats} runs in turns: million samples a second in steady state, and "
        "how many times theirs ours is. BPR of others draws an item for each sample; ours has "
        "them drawn before.",
        ["", "ours", "theirs", "ratio"], rows,
        _bars([f"{f['loss']} {f['rank']}" for f in facts], bars),
        "Million samples a second.",
        {"threads": n_jobs, "samples": size.samples, "rows": facts},
    )  # fmt: skip


_MODES = {"squared": {}, "bpr": {"mode": "user-item"}}


def _events(ratings) -> Observations:
    """Choices as comparisons with any other item.

    >>> bool((_events((np.zeros(ITEMS, int), np.arange(ITEMS), None)).targets == 1).all())
    True
    """
    user, item, _ = ratings
    other = (item + np.random.default_rng(0).integers(1, ITEMS, len(item))) % ITEMS
    return Observations.triplets(user, item, other, shape=(USERS, ITEMS), symmetric=False)


# --- Limits --------------------------------------------------------------------------------------


def limits(size: Size, n_jobs: int, device: str) -> Result:
    """Steps against a loop that does nothing but read, change and write two random rows."""
    rows, facts = [], []
    for rank, d in ((3, ITEMS), (16, ITEMS), (32, 1_000_000), (64, 1_000_000)):
        if size is QUICK:
            d = min(d, 100_000)
        rng = np.random.default_rng(0)
        index = rng.integers(0, d, (size.samples, 2), dtype=np.int32)
        seen = Observations(index, np.ones(len(index), np.float32), (d, d), "squared", True)
        X = aligned(d, rank, np.float32)
        X[...] = 1.0
        touch = touching(rank, X.nbytes > NEAR)

        def least(epochs: int, X=X, index=index, touch=touch):
            for _ in range(epochs):
                touch(X, index, np.float32(1.0))

        runs = {"ours": ours(seen, rank), "least": least}
        paces = race(runs, size.repeats, f"limit, rank {rank}, d = {d:,}")
        step, least_ = paces["ours"].steps, paces["least"].epoch
        each = [1e9 * seconds / len(index) for seconds in (step, least_)]
        rows.append([f"rank {rank}, d = {d:,}", *(f"{ns:.1f}" for ns in each),
                     f"{least_ / step:.0%}"])  # fmt: skip
        facts.append({"rank": rank, "d": d, "step_ns": each[0], "least_ns": each[1]})
    labels = [f"r = {f['rank']}, d = {f['d']:,}" for f in facts]
    bars = {
        "a step": [1e9 / f["step_ns"] for f in facts],
        "reading and writing its rows": [1e9 / f["least_ns"] for f in facts],
    }
    return Result(
        "Against the machine",
        "Squared loss, one thread: nanoseconds of a step, and of a loop that reads, changes and "
        "writes the two rows that the step names, fetched ahead as the step does.",
        ["", "step, ns", "rows alone, ns", "of the limit"], rows, _bars(labels, bars),
        "Million samples a second.", {"rows": facts},
    )  # fmt: skip


# --- What is not steps ---------------------------------------------------------------------------


def shares(size: Size, n_jobs: int, device: str) -> Result:
    """How much of an epoch goes into the order of samples and into P."""
    few = size is QUICK
    rows, facts = [], []
    for rank, samples in ((3, 100_000_000), (64, 10_000_000)):
        seen = comparisons(samples // (100 if few else 1))
        for threads in sorted({1, n_jobs}):
            runs = {"epoch": ours(seen, rank, threads), "steps": steps(seen, rank, threads)}
            paces = race(runs, size.repeats, f"epochs, rank {rank}, {threads} thread(s)")
            epoch, alone = paces["epoch"].epoch, paces["steps"].epoch
            name = f"{threads} thread{'s' if threads > 1 else ''}"
            rows.append([f"{len(seen):,} triplets, rank {rank}, {name}", f"{epoch:.2f}",
                         f"{alone:.2f}", f"{1 - alone / epoch:.0%}"])  # fmt: skip
            facts.append({"rank": rank, "samples": len(seen), "threads": name,
                          "epoch": epoch, "steps": alone})  # fmt: skip
    labels = [f"rank {f['rank']}, {f['threads']}" for f in facts]
    bars = {
        "whole epoch": [f["samples"] / f["epoch"] for f in facts],
        "steps alone": [f["samples"] / f["steps"] for f in facts],
    }
    return Result(
        "What is not steps",
        f"Triplets of {ITEMS:,} items: seconds of an epoch in steady state, of its steps if the "
        "samples are run as they lie in memory and P stays, and the share of the rest: the order "
        "of the samples, renewing P.",
        ["", "epoch, s", "steps, s", "the rest"], rows, _bars(labels, bars),
        "Million samples a second.", {"rows": facts},
    )  # fmt: skip


# --- Growth ---------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """One of d, n and r grows while the others rest."""

    name: str
    values: tuple[int, ...]
    case: Callable[[int], tuple[int, int, int]]  # d, n, r
    fitted: float = 0.0  # from this value on the exponent is taken


AXES = (
    Axis("rows d", (10**3, 10**4, 10**5, 10**6, 10**7), lambda d: (d, 5_000_000, 16), 1e4),
    Axis("samples n", (10**5, 10**6, 10**7, 10**8), lambda n: (ITEMS, n, 3)),
    Axis("rank r", (1, 4, 16, 64, 256), lambda r: (ITEMS, 2_000_000, r)),
)


def measured(d: int, n: int, r: int) -> dict[str, float]:
    """Seconds of an epoch, and the memory that training takes beyond its input, in a process of
    its own."""
    code = f"import sys; from {__name__} import _measure; _measure(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(d), str(n), str(r)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"d = {d}, n = {n}, r = {r}: {done.stderr.splitlines()[-1:]}")
    return json.loads(done.stdout)


def _measure(*case: str) -> None:
    import resource

    d, n, r = map(int, case)
    rng = np.random.default_rng(0)
    index = rng.integers(0, d, (n, 2), dtype=np.int32)
    seen = Observations(index, np.ones(n, np.float32), (d, d), "squared", True)
    ours(Observations(index[:9], np.ones(9, np.float32), (d, d), "squared", True), r)(1)
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize()
    (pace,) = race({"ours": ours(seen, r)}, 3).values()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": pace.epoch, "bytes": max(0, peak - before)}))


def growth(size: Size, n_jobs: int, device: str) -> Result:
    """Time and memory against d, n and r, and the exponents of their growth."""
    rows, facts = [], {}
    for axis in AXES:
        values = axis.values[:2] if size is QUICK else axis.values
        found = []
        with progress_bar(f"growth with {axis.name}", len(values)) as advance:
            for value in values:
                found.append(measured(*axis.case(value)))
                advance(1)
        kept = [n for n, value in enumerate(values) if value >= axis.fitted]
        times, sizes = ([one[key] for one in found] for key in ("seconds", "bytes"))
        power = _power([values[n] for n in kept], [times[n] for n in kept])
        facts[axis.name] = {"values": values, "seconds": times, "bytes": sizes, "exponent": power}
        rows += [
            [f"{axis.name} = {value:,}", f"{1e9 * t / axis.case(value)[1]:.1f}", f"{b / 1e6:,.0f}"]
            for value, t, b in zip(values, times, sizes, strict=True)
        ]
        rows.append([f"exponent of time in {axis.name}", f"{power:.2f}", ""])
    return Result(
        "Growth",
        "Squared loss, symmetric, one thread: nanoseconds a sample in whole epochs, and megabytes "
        "that training takes beyond its input.",
        ["", "ns a sample", "MB"], rows, _draw_growth(facts),
        "Seconds of an epoch; dashed, the fitted power.", facts,
    )  # fmt: skip


def _power(x, y) -> float:
    """The exponent of y = c x^p, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 else np.nan


def _draw_growth(facts: dict) -> Figure:
    with report.sheet(10, 3.8) as picture:
        for axes, (name, fact) in zip(picture.subplots(1, len(facts)), facts.items(), strict=True):
            x, y = np.array(fact["values"], float), np.array(fact["seconds"])
            axes.loglog(x, y, "o-", color=report.BLUE)
            axes.loglog(x, y[-1] * (x / x[-1]) ** fact["exponent"], "--", color=report.GREY)
            axes.set(xlabel=name, title=f"exponent {fact['exponent']:.2f}")
        picture.axes[0].set_ylabel("seconds an epoch")
        return picture


# --- All of it -----------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Size, int, str], Result]] = {
    "rates": rates,
    "limits": limits,
    "shares": shares,
    "growth": growth,
    "peers": peers,
    "threads": lambda size, n_jobs, device: by_threads(
        2 * size.samples, tuple(r for r in size.ranks if r in _THREADED), size.repeats, n_jobs
    ),
}
_THREADED = (3, 16, 64)
