"""What a step, a refresh, a start and a fit cost: prints a table, writes results.json beside this.

Contestants alternate and medians are kept, since machines are noisy. Run with `make bench`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numba
import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from scaledsgd import MatrixCompleter
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Observations
from scaledsgd.engines.base import Chunk, open_engine

D = 62_000  # items of MovieLens-25M
SAMPLES = 5_000_000
RESULTS = Path(__file__).with_name("results.json")


def alternate(contestants: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Median seconds of each, taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()  # compile and warm up
    for _ in range(repeats):
        for name, run in contestants.items():
            clock = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - clock)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


@numba.njit(nogil=True, fastmath=True)
def bare_sgd(X, alpha, index, targets):
    """Plain SGD for the squared loss as one would write it by hand: the yardstick of our step."""
    for t in range(index.shape[0]):
        i, j = index[t, 0], index[t, 1]
        z = X.dtype.type(0)
        for q in range(X.shape[1]):
            z += X[i, q] * X[j, q]
        g = alpha * (z - targets[t])
        for q in range(X.shape[1]):
            x, y = X[i, q], X[j, q]
            X[i, q], X[j, q] = x - g * y, y - g * x


def problem(loss: str, rank: int, samples: int) -> tuple[Factors, Chunk]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((D, rank), dtype=np.float32)
    index = rng.integers(0, D, (samples, LOSSES[loss].arity), dtype=np.int32)
    return Factors(X / np.float32(rank)), Chunk(index, rng.random(samples, dtype=np.float32))


def steps(samples: int = 1_000_000) -> list[dict]:
    """Nanoseconds a sample: ScaledSGD against plain SGD, ours and bare."""
    rows, engine = [], open_engine()
    for loss in ("squared", "bpr"):
        for rank in (3, 16, 64):
            factors, chunk = problem(loss, rank, samples)
            rates = np.full(LOSSES[loss].arity, 1e-3)
            step = partial(engine.run, factors, rates=rates, loss=LOSSES[loss], samples=chunk)
            runs: dict[str, Callable] = {
                "scaled": partial(step, P=np.linspace(0.5, 1.5, rank)),
                "plain": partial(step, P=np.ones(rank)),
                "capped": partial(step, P=np.linspace(0.5, 1.5, rank), cap=1.7),
            }
            if loss == "squared":
                runs["bare"] = partial(bare_sgd, factors.X, np.float32(1e-3), *chunk)
            taken = {name: 1e9 * s / samples for name, s in alternate(runs).items()}
            limit = {("squared", 3): 20.0, ("bpr", 3): 40.0}.get((loss, rank))
            if limit:
                rows.append(line(f"{loss} step, r = {rank}", taken["scaled"], "ns", limit))
            ratio = taken["scaled"] / taken["plain"]
            rows.append(line(f"{loss}: ScaledSGD / SGD step, r = {rank}", ratio, "x", 1.15))
            ratio = taken["capped"] / taken["scaled"]
            rows.append(line(f"{loss}: with the leverage cap / without, r = {rank}", ratio, "x"))
            if "bare" in taken:
                ratio = taken["scaled"] / taken["bare"]
                rows.append(line(f"{loss}: ScaledSGD / bare SGD loop, r = {rank}", ratio, "x"))
    return rows


def refreshes() -> list[dict]:
    """Share of the first epoch that goes into refreshing, in a fit with the defaults."""
    rows = []
    rng = np.random.default_rng(1)
    for rank, limit in ((3, 10.0), (16, 10.0), (64, 25.0)):
        Z = rng.standard_normal((D, rank), dtype=np.float32) / np.sqrt(rank)
        index = rng.integers(0, D, (SAMPLES, 2), dtype=np.int32)
        y = np.einsum("tr,tr->t", Z[index[:, 0]], Z[index[:, 1]])
        seen = Observations.pairs(*index.T, y, shape=(D, D), symmetric=True)
        shares = []
        for seed in range(3):
            spent = {"refresh": 0.0}
            model = MatrixCompleter(
                rank, symmetric=True, dtype="float32", epochs=1, random_state=seed, evaluations=0
            )
            with timed(Factors, "refresh", spent):
                model.fit(seen)
            shares.append(100 * spent["refresh"] / (model._trainer.seconds + spent["refresh"]))
        count = model.history_.refreshes
        name = f"refreshes in an epoch of 5M samples, r = {rank} ({count} of them)"
        rows.append(line(name, float(np.median(shares)), "%", limit))
    return rows


class timed:
    """Adds up the seconds spent in a method."""

    def __init__(self, owner, name: str, spent: dict[str, float]):
        self.owner, self.name, self.spent = owner, name, spent
        self.method = getattr(owner, name)

    def __enter__(self):
        def watched(*args, **kwargs):
            clock = time.perf_counter()
            try:
                return self.method(*args, **kwargs)
            finally:
                self.spent[self.name] += time.perf_counter() - clock

        setattr(self.owner, self.name, watched)

    def __exit__(self, *_):
        setattr(self.owner, self.name, self.method)


def starts() -> list[dict]:
    """Seconds until Python has imported the package, and until a first fit takes its first step."""
    bare = "pass"
    imported = "import scaledsgd"
    first_step = (
        "import numpy as np\nfrom scaledsgd import MatrixCompleter\n"
        "M = np.outer(np.arange(1.0, 9), np.arange(1.0, 9))\n"
        "import time; clock = time.perf_counter()\n"
        "MatrixCompleter(rank=1, epochs=1).fit(M)\n"
        "print(time.perf_counter() - clock)"
    )

    def seconds(code: str) -> float:
        clock = time.perf_counter()
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True
        )
        return float(out.stdout) if out.stdout else time.perf_counter() - clock

    seconds(first_step)  # fills the disk cache
    taken = {
        code: float(np.median([seconds(code) for _ in range(5)]))
        for code in (bare, imported, first_step)
    }
    return [
        line("import scaledsgd", taken[imported] - taken[bare], "s", 0.5),
        line("first step of a second fit, from the call", taken[first_step], "s", 1.0),
    ]


def memory() -> list[dict]:
    """Peak memory of fit beyond its input, against the bytes of that input."""
    code = (
        "import resource, sys, numpy as np\n"
        "from scaledsgd import MatrixCompleter, Observations\n"
        "MatrixCompleter(rank=1, epochs=1).fit(np.eye(3))\n"
        "rng = np.random.default_rng(0)\n"
        "i, j = rng.integers(0, 62000, (2, 10_000_000), dtype=np.int32)\n"
        "seen = Observations.pairs(i, j, np.ones(len(i)), shape=(62000, 62000))\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "del i, j\n"
        "now = int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "model = MatrixCompleter(rank=3, epochs=1, random_state=0).fit(seen)\n"
        "print((peak() - now - 3 * model.factors.X.nbytes) / seen.nbytes)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return [line("memory of fit on 10M pairs / their bytes", float(out.stdout), "x", 1.6)]


def search() -> list[dict]:
    """The 20 best of 62,000 items for 10,000 of them, at r = 64, on all cores."""
    from scaledsgd.recommend.search import top_k

    table = np.random.default_rng(0).standard_normal((62_000, 64), dtype=np.float32)
    rows = np.arange(0, 60_000, 6)
    with threadpool_limits(os.cpu_count()):
        times = [took(lambda: top_k(table[rows], table, 20)) for _ in range(4)]
    return [line("top 20 of 62,000 for 10,000 items", float(np.median(times[1:])), "s", 2.0)]


def took(work) -> float:
    clock = time.perf_counter()
    work()
    return time.perf_counter() - clock


def line(name: str, value: float, unit: str, limit: float | None = None) -> dict:
    return {"name": name, "value": value, "unit": unit, "limit": limit}


def main() -> None:
    console = Console()
    rows = []
    with threadpool_limits(1):  # one thread, BLAS included
        for part in (starts, memory, steps, refreshes, search):
            with console.status(f"measuring {part.__name__}"):
                rows += part()
    table = Table(
        "what", "measured", "at most", title="scaledsgd, one thread", title_justify="left"
    )
    for row in rows:
        limit = "" if row["limit"] is None else f"{row['limit']:g} {row['unit']}"
        over = row["limit"] is not None and row["value"] > row["limit"]
        style = "bold red" if over else ""
        table.add_row(row["name"], f"{row['value']:.3g} {row['unit']}", limit, style=style)
    console.print(table)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    content = json.dumps({"machine": machine, "results": rows}, indent=1) + "\n"
    handle, temporary = tempfile.mkstemp(dir=RESULTS.parent)
    with os.fdopen(handle, "w") as file:
        file.write(content)
    os.replace(temporary, RESULTS)
    console.print(f"written to {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
