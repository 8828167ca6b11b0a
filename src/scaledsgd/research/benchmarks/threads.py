"""What more threads bring: by loss and rank, against LIBMF, and against rows alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ...core.choices import Choices
from ...core.compiled import njit
from ...core.linalg import aligned
from ...core.memory import cores
from ...core.observations import Observations
from ...engines.cpu.crew import one_thread_each
from .. import report
from ..demo import Result
from .race import ITEMS, PEERS, USERS, choosing, comparisons, ours, race, skewed

# Of 40,000 items and as many users, at the rank of a recommender: an epoch of the softmax takes
# some microseconds a choice, so there are fewer.
_CHOSEN, _FEWER, _CHOICE_RANK = 40_000, 50, 64
_BLOCK, _NEGATIVES, _PRODUCTS = 512, 1024, 200  # of the softmax; and blocks that are timed
_TOUCHED = 1_000_000  # samples whose rows a thread touches
_FLAGS = ["-std=c++11", "-O3", "-march=native", "-DUSEAVX", "-fopenmp", "-DUSEOMP"]


def touching(rank: int, far: bool):
    """A loop that does nothing but read, change and write the two rows of each sample."""
    from ...engines.cpu.intrinsics import PIECE, WIDTHS, load, store
    from ...engines.cpu.prefetch import ahead, fetch

    width = next((width for width in WIDTHS if rank <= width), PIECE)

    @njit(nogil=True)
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


def rows_touched(rank: int, d: int, counts: list[int]) -> list[float]:
    """Rows of one table that so many threads read and write a second, at random."""
    X, touch, found = aligned(d, rank, np.float32), touching(rank, True), []
    for threads in counts:
        rngs = np.random.default_rng(0).spawn(threads)
        parts = [rng.integers(0, d, (_TOUCHED, 2), dtype=np.int32) for rng in rngs]
        with ThreadPoolExecutor(threads) as pool:
            seconds = []
            for _ in range(4):  # the first compiles
                clock = time.perf_counter()
                list(pool.map(lambda part: touch(X, part, np.float32(1)), parts))
                seconds.append(time.perf_counter() - clock)
        found.append(2 * _TOUCHED * threads / float(np.median(seconds[1:])))
    return found


@njit(nogil=True)
def _multiply(A, W, S, gu, gn, times):
    """The three products of a block of the softmax, and nothing else."""
    for _ in range(times):
        np.dot(A, W.T, S)
        np.dot(S, W, gu)
        np.dot(S.T, A, gn)


def choices_multiplied(rank: int, counts: list[int]) -> list[float]:
    """Choices a second whose products so many threads compute, each of blocks of its own, so that
    nobody waits or reads what another has written."""
    found = []
    for threads in counts:
        rngs, b, n = np.random.default_rng(0).spawn(threads), _BLOCK, _NEGATIVES
        shapes = (b, rank), (n, rank), (b, n), (b, rank), (n, rank)
        rooms = [[1e-3 * rng.random(shape, np.float32) for shape in shapes] for rng in rngs]
        with one_thread_each(), ThreadPoolExecutor(threads) as pool:
            seconds = []
            for _ in range(4):  # the first compiles
                clock = time.perf_counter()
                list(pool.map(lambda room: _multiply(*room, _PRODUCTS), rooms))
                seconds.append(time.perf_counter() - clock)
        found.append(b * _PRODUCTS * threads / float(np.median(seconds[1:])))
    return found


@cache
def libmf() -> str:
    """Make LIBMF with AVX the one that is imported. Returns why that cannot be, if so.

    From its source in the package index, unless LIBMF_OBJ names a library that was built."""
    try:
        if "LIBMF_OBJ" not in os.environ:
            compiler = shutil.which("c++")
            if compiler is None:
                return "no C++ compiler"
            folder = Path(tempfile.mkdtemp(prefix="libmf-"))
            how = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
            _run([sys.executable, "-m", "pip", *how, "libmf"])
            with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
                archive.extractall(folder, filter="data")
            home = next(folder.glob("libmf-*/src_cpp")).parent
            built = str(folder / "libmf_avx.so")
            sources = [str(home / "src_cpp" / f"{name}.cpp") for name in ("libmf_interface", "mf")]
            _run([compiler, *_FLAGS, "-shared", "-fPIC", "-o", built, *sources])
            os.environ["LIBMF_OBJ"] = built
            sys.path.append(str(home))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            PEERS["squared"]["libmf"]((np.zeros(1), np.zeros(1), np.zeros(1)), 3, 1)
    except (OSError, ImportError, StopIteration, subprocess.SubprocessError) as why:
        return f"LIBMF could not be built: {(str(why).splitlines() or [type(why).__name__])[0]}"
    return ""


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def by_threads(samples: int, ranks: tuple[int, ...], repeats: int, most: int) -> Result:
    """Million samples a second by threads, for pairs and triplets."""
    counts = [1 << k for k in range(most.bit_length()) if 1 << k <= most]
    user, item, stars = skewed(samples)
    shape = USERS, ITEMS
    sets = {
        "squared": Observations.pairs(user, item, stars, shape=shape),
        "logistic": Observations.pairs(user, item, stars > 3, shape=shape, loss="logistic"),
        "bpr": comparisons(samples),
    }
    absent, facts = libmf(), _by_choice(samples // _FEWER, repeats, counts)
    for rank in ranks:
        for loss, seen in sets.items():
            how = {"loss": loss} if seen.loss.arity == 2 else {}
            runs = {str(count): ours(seen, rank, count, **how) for count in counts}
            paces = race(runs, repeats, f"{loss}, rank {rank}")
            rates = [paces[str(count)].rate(samples) for count in counts]
            alone = [samples / paces[str(count)].steps for count in counts]
            arity, d = seen.loss.arity, ITEMS if seen.symmetric else USERS + ITEMS
            limit = [rate / arity for rate in rows_touched(rank, d, counts)]
            facts.append({"who": loss, "rank": rank, "threads": counts, "rates": rates,
                          "steps": alone, "limit": limit})  # fmt: skip
        if not absent:
            runs = {
                str(count): PEERS["squared"]["libmf"]((user, item, stars), rank, count)
                for count in counts
            }
            paces = race(runs, repeats, f"LIBMF, rank {rank}")
            rates = [paces[str(count)].rate(samples) for count in counts]
            facts.append({"who": "LIBMF", "rank": rank, "threads": counts, "rates": rates})
    facts.sort(key=lambda fact: fact["rank"])
    rows = []
    for fact in facts:
        row = [f"{fact['who']}, rank {fact['rank']}", *(f"{r / 1e6:.3g}" for r in fact["rates"])]
        row.append(f"{fact['rates'][-1] / fact['rates'][0]:.1f}")
        known, limited = "steps" in fact, "limit" in fact
        row.append(f"{fact['steps'][-1] / fact['steps'][0]:.1f}" if known else "")
        row.append(f"{fact['steps'][-1] / fact['limit'][-1]:.0%}" if limited else "")
        rows.append(row)
    return Result(
        "Threads",
        f"{samples:,} samples in float32, whole epochs, million samples a second by threads, on "
        f"{cores()} cores: pairs of {USERS:,} users and {ITEMS:,} items of which few are in most "
        f"samples, triplets of {ITEMS:,} items, and a {_FEWER}th as many choices of {_CHOSEN:,} "
        "items by as many users, by the softmax with 1,024 negatives and by the squared loss. How "
        "many times one thread's that is, of epochs "
        "and of their steps alone; and steps against a loop that only reads and writes as many "
        "random rows of one table, or, of the softmax, against its matrix products alone, of which "
        f"each thread computes its own. {absent or 'LIBMF: the squared loss, built with AVX'}.",
        ["", *map(str, counts), "gain", "of steps", "of the limit"], rows,
        _picture(facts, ranks), "Million samples a second by threads.", {"rows": facts},
    )  # fmt: skip


def _by_choice(count: int, repeats: int, counts: list[int]) -> list[dict]:
    """The same for who chose what."""
    user, item, _ = skewed(count, _CHOSEN, _CHOSEN)
    seen, facts = Choices.of(user, item, shape=(_CHOSEN, _CHOSEN)), []
    for loss in ("softmax", "squared"):
        runs = {str(jobs): choosing(seen, _CHOICE_RANK, jobs, loss) for jobs in counts}
        paces = race(runs, repeats, f"choices, {loss}")
        facts.append({"who": f"choices, {loss}", "rank": _CHOICE_RANK, "threads": counts,
                      "rates": [paces[str(jobs)].rate(count) for jobs in counts],
                      "steps": [count / paces[str(jobs)].steps for jobs in counts]})  # fmt: skip
    facts[0]["limit"] = choices_multiplied(_CHOICE_RANK, counts)
    return facts


def _picture(facts: list[dict], ranks: tuple[int, ...]) -> Figure:
    look = {
        "squared": (report.BLUE, "-"), "logistic": ("#2a9d8f", "-"), "bpr": ("#7b4ea3", "-"),
        "LIBMF": (report.ORANGE, "-"), "choices, softmax": ("#7b4ea3", ":"),
        "choices, squared": (report.BLUE, ":"),
    }  # fmt: skip
    with report.sheet(4 * len(ranks), 4) as picture:
        for axes, rank in zip(np.ravel(picture.subplots(1, len(ranks))), ranks, strict=True):
            for fact in (fact for fact in facts if fact["rank"] == rank):
                colour, line = look[fact["who"]]
                rates = np.array(fact["rates"]) / 1e6
                axes.plot(fact["threads"], rates, line, marker="o", color=colour, label=fact["who"])
                if fact["who"] == "squared":
                    limit = np.array(fact["limit"]) / 1e6
                    axes.plot(fact["threads"], limit, "--", color=report.GREY, label="rows alone")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_ylim(top=5 * axes.get_ylim()[1])  # room for the names
            axes.set_xticks(facts[0]["threads"], map(str, facts[0]["threads"]))
            axes.set(title=f"rank {rank}", xlabel="threads", ylabel="million samples a second")
            axes.legend(fontsize=8, ncols=2, loc="upper left")
        return picture
