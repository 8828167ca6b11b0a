"""Time and memory as matrices get more rows, more samples and more directions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...core.observations import Observations
from ...io.progress_bar import progress_bar
from .. import report
from ..demo import Result
from .race import ITEMS, ours, race


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


def growth(quick: bool) -> Result:
    """Time and memory against d, n and r, and the exponents of their growth."""
    rows, facts = [], {}
    for axis in AXES:
        values = axis.values[:2] if quick else axis.values
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
    with report.look():
        picture = Figure(figsize=(10, 3.8), layout="constrained")
        for axes, (name, fact) in zip(picture.subplots(1, len(facts)), facts.items(), strict=True):
            x, y = np.array(fact["values"], float), np.array(fact["seconds"])
            axes.loglog(x, y, "o-", color=report.BLUE)
            axes.loglog(x, y[-1] * (x / x[-1]) ** fact["exponent"], "--", color=report.GREY)
            axes.set(xlabel=name, title=f"exponent {fact['exponent']:.2f}")
        picture.axes[0].set_ylabel("seconds an epoch")
        return picture
