"""How fast samples run: by loss, rank and threads, against others, against what the machine can do,
and as problems grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from matplotlib.figure import Figure

from ...core.linalg import aligned
from ...core.observations import Observations
from ...engines.base import describe
from ...engines.cpu.engine import NEAR
from .. import report
from ..demo import Result
from .growth import growth
from .race import ITEMS, PEERS, USERS, comparisons, missing, ours, race, skewed, steps

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
    with report.look():
        picture = Figure(figsize=(10, 4.4), layout="constrained")
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
    """Choices as comparisons with any item."""
    user, item, _ = ratings
    other = np.random.default_rng(0).integers(0, ITEMS, len(item))
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
        touch = _touching(rank, X.nbytes > NEAR)

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


def _touching(rank: int, far: bool):
    from ...engines.cpu.intrinsics import WIDTHS, load, store
    from ...engines.cpu.prefetch import ahead, fetch

    width = next((width for width in WIDTHS if rank <= width), WIDTHS[-1])

    @numba.njit(nogil=True)
    def touch(X, index, factor):
        r, last, lead = X.shape[1], len(index) - 1, ahead(X, 2)
        for t in range(len(index)):
            if far:
                fetch(X, index, min(t + lead, last), 0, False)
            i, j = index[t, 0], index[t, 1]
            for q in range(0, r, width):
                store(X, i, q, r - q, factor * load(X, i, q, r - q, width))
                store(X, j, q, r - q, factor * load(X, j, q, r - q, width))

    return touch


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


# --- All of it -----------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Size, int, str], Result]] = {
    "rates": rates,
    "limits": limits,
    "shares": shares,
    "growth": lambda size, n_jobs, device: growth(size is QUICK),
    "peers": peers,
}
