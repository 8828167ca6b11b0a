"""The pictures of kappa, coherence and drift."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from .. import report
from .pictures import LINE, draw_band
from .runs import Band
from .settings import METHODS


def kappa(bands: Mapping[tuple[str, str], Band], limit: int) -> Figure:
    """Epochs over kappa, a panel a start."""
    with report.look():
        picture = Figure(figsize=(10.5, 4.6), layout="constrained")
        starts = list(dict.fromkeys(start for start, _ in bands))
        panels = picture.subplots(1, 2, sharey=True)
        for axes, start in zip(panels, starts, strict=True):
            for method in METHODS:
                band = bands[start, method]
                shown = np.where(np.isfinite(band.middle), band.middle, np.nan)
                axes.loglog(band.x, shown, marker="o", label=method, **LINE[method])
                if len(band.runs) > 1:
                    edges = [np.clip(edge, 1, limit) for edge in (band.low, band.high)]
                    axes.fill_between(band.x, *edges, color=LINE[method]["color"], alpha=0.18, lw=0)
                lost = band.x[np.isinf(band.middle)]
                axes.plot(lost, np.full(len(lost), limit), "^", color=LINE[method]["color"], ms=9)
            axes.set(title=start.capitalize(), xlabel="condition number of the truth")
            axes.legend(loc="center right")
        panels[0].set_ylabel("epochs")
        panels[0].set_ylim(top=2 * limit)
        return picture


def coherence(bands: Mapping[tuple[str, str], Band], x, bound: float, own: float) -> Figure:
    """Leverage and error over samples."""
    with report.look():
        picture = Figure(figsize=(10.5, 4.6), layout="constrained")
        left, right = picture.subplots(1, 2)
        for method in METHODS:
            draw_band(left, bands["coherence", method], method, x=x)
            draw_band(right, bands["error", method], method, x=x)
        for level, words, below in (
            (bound, "bound of the main theorem", False), (own, "the truth's own", True),
        ):  # fmt: skip
            left.axhline(level, color="#333333", linestyle=(0, (6, 3)), linewidth=1.2)
            shift, va = (0.92, "top") if below else (1.07, "bottom")
            left.text(x[-1], level * shift, words, ha="right", va=va, fontsize=10.5)
        left.set(yscale="log", title="Largest leverage of a row", ylabel="max g(X)")
        left.set_ylim(own / 2, bound * 2)
        right.set(yscale="log", title="Error", ylabel="f(X) / smallest eigenvalue squared")
        for axes in (left, right):
            axes.set(xlabel="samples / d", xlim=(0, x[-1]))
        right.legend(loc="lower left")
        return picture


def drift(bands: Mapping[tuple[str, str, str], Band], cases: list[str], still: int) -> Figure:
    """Error and angle over samples, a column a case."""
    with report.look():
        picture = Figure(figsize=(10.5, 7.6), layout="constrained")
        grid = picture.subplots(2, 2, sharex=True, sharey="row")
        for row, (what, label) in enumerate(
            (("error", "relative error"), ("angle", "largest angle, degrees"))
        ):
            for axes, case in zip(grid[row], cases, strict=True):
                for method in METHODS:
                    draw_band(axes, bands[case, method, what], method)
                axes.axvline(still, color="#333333", linestyle=":", linewidth=1.2)
                axes.set_yscale("log")
                axes.set_xlim(0, None)
            grid[row][0].set_ylabel(label)
        for axes, case in zip(grid[0], cases, strict=True):
            axes.set_title(case)
        for axes in grid[1]:
            axes.set_xlabel("samples / d")
        # Where the truth is still, ScaledSGD falls to rounding, which is not what this is about.
        grid[0][0].set_ylim(1e-5, 3)
        grid[1][0].set_ylim(1e-3, 120)
        grid[0][0].legend(loc="upper right")
        return picture
