"""The pictures of the experiments, in the look of the report."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection

from .. import report
from .runs import Band
from .settings import AUTO, METHODS, MatrixFigure

if TYPE_CHECKING:
    from .matrices import Panel
    from .rankings import Ranked

LINE: dict[str, dict[str, Any]] = dict(zip((*METHODS, AUTO), report.LINES, strict=False))
_PINK = "#f7b6c8"
_FIRST, _SECOND = "#fbe3e1", "#e1ebf7"  # the paper fills the first epoch red, the second blue
_THIN = {"linewidth": 1.0, "alpha": 0.75, "linestyle": (0, (1, 1))}


def draw_band(axes, band: Band, method: str, label: str | None = None, x=None) -> None:
    """The median, and all seeds between a pale band's edges."""
    x = band.x if x is None else x
    axes.plot(x, band.middle, label=label or method, **LINE[method])
    if len(band.runs) > 1:
        axes.fill_between(x, band.low, band.high, color=LINE[method]["color"], alpha=0.18, lw=0)


def _draw_theirs(axes, curves: Mapping[str, np.ndarray], per_unit: float = 1.0) -> None:
    for method, values in curves.items():
        x = np.arange(len(values)) * per_unit
        axes.plot(x, values, color=LINE[method]["color"], label=f"{method}, authors", **_THIN)


# --- Small matrices and points -------------------------------------------------------------------


def matrix_figure(figure: MatrixFigure, panels: list[Panel]) -> Figure:
    """Errors over epochs, a panel a case; above them the points, where there are points."""
    with report.look():
        rows = 2 if figure.loss == "distance" else 1
        picture = Figure(figsize=(10.5, 4.6 * rows), layout="constrained")
        lower = _axes_of_curves(picture, rows)
        for at, (axes, panel) in enumerate(zip(lower, panels, strict=True)):
            if panel.points is not None:
                _draw_points(picture.add_subplot(2, 2, 1 + at, projection="3d"), panel)
            _draw_errors(axes, panel)
        lower[0].set_ylabel("mean squared error")
        _share_limits(lower)
        return picture


def _axes_of_curves(picture: Figure, rows: int) -> list:
    return [picture.add_subplot(rows, 2, 2 * rows - 1 + at) for at in range(2)]


def _share_limits(panels: list) -> None:
    low = min(axes.get_ylim()[0] for axes in panels)
    high = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)


def _draw_errors(axes, panel: Panel) -> None:
    axes.set_yscale("log")
    for method, band in panel.bands.items():
        draw_band(axes, band, method, f"{method}, {panel.steps[method]}")
    _draw_theirs(axes, panel.authors)
    if panel.floor is not None:
        axes.axhline(panel.floor, color=report.GREY, linestyle=":", label="noise floor")
    name = panel.case.name
    values = ", ".join(f"{value:g}" for value in panel.case.spectrum)
    axes.set_title(f"{name.capitalize()}: S = ({values})" if values else name.capitalize())
    axes.set_xlabel("epochs")
    axes.set_xlim(0, panel.bands["SGD"].x[-1])
    axes.legend(fontsize=9.5, loc="upper right")


def _draw_points(axes, panel: Panel) -> None:
    points = panel.points
    assert points is not None
    far = np.abs(points).max(axis=1) > 1.0
    corners = np.array(list(product((-1.0, 1.0), repeat=3)))
    faces = [
        corners[corners[:, axis] == side][[0, 1, 3, 2]] for axis in range(3) for side in (-1, 1)
    ]
    axes.add_collection3d(Poly3DCollection(faces, facecolors=_PINK, alpha=0.22, edgecolors="none"))
    edges = [pair for pair in product(corners, corners) if np.abs(pair[0] - pair[1]).sum() == 2.0]
    axes.add_collection3d(Line3DCollection(edges, colors="#c9607c", linewidths=0.8))
    for chosen, colour, marker, label in (
        (~far, report.BLUE, "o", "in the cube"),
        (far, report.ORANGE, "^", "outliers"),
    ):
        if chosen.any():
            axes.scatter(*points[chosen].T, color=colour, s=26, marker=marker, label=label,
                         depthshade=False)  # fmt: skip
    axes.set(xlabel="x", ylabel="y", zlabel="z", ylim=(-1.2, 1.2), zlim=(-1.2, 1.2))
    axes.set(yticks=(-1, 0, 1), zticks=(-1, 0, 1))
    if not far.any():
        axes.set_xticks((-1, 0, 1))
    axes.set_xlim((-1.2, max(1.2, points[:, 0].max() + 0.5)))
    axes.set_box_aspect((2.2 if far.any() else 1.0, 1, 1), zoom=1.0 if far.any() else 0.95)
    axes.view_init(elev=20, azim=-62)
    axes.set_title(f"{len(points)} points, {panel.case.name}", y=1.0)
    axes.legend(fontsize=9.5, loc="lower left", bbox_to_anchor=(-0.05, -0.02))


# --- Rankings ------------------------------------------------------------------------------------


def ranking_figure(ranked: Ranked, title: str, authors: Mapping[str, Any]) -> Figure:
    """Training loss left and test AUC right, over percent of an epoch."""
    with report.sheet(11.5, 5.0) as picture:
        left, right = picture.subplots(1, 2)
        for method, (loss, auc) in ranked.bands.items():
            label = f"{method}, {ranked.steps[method]}"
            draw_band(left, loss, method, label, 100 * loss.x)
            draw_band(right, auc, method, label, 100 * auc.x)
        _draw_theirs(left, authors.get("loss", {}))
        _draw_theirs(right, authors.get("auc", {}))
        right.axhline(ranked.np_maximum, color="#333333", linestyle=(0, (6, 3)), linewidth=1.3)
        end = 100 * ranked.epochs
        right.text(0.985 * end, ranked.np_maximum - 0.006, f"NP-Maximum {ranked.np_maximum:.3f}",
                   ha="right", va="top", fontsize=10.5)  # fmt: skip
        _mark_crossings(right, ranked)
        for axes in (left, right):
            axes.axvspan(0, min(100, end), color=_FIRST, lw=0, zorder=0)
            axes.axvspan(100, min(200, end), color=_SECOND, lw=0, zorder=0)
            axes.set(xlim=(0, end), xlabel="training samples, percent of an epoch")
            axes.grid(color="#ffffff" if end <= 200 else "#dddddd")
        left.set(title="Training BPR loss", ylabel="mean loss", ylim=(0, None))
        right.set(title="Test AUC", ylabel="share of comparisons ordered as observed")
        left.legend(fontsize=10, loc="upper right")
        picture.suptitle(title, fontsize=12)
        return picture


def _mark_crossings(axes, ranked: Ranked) -> None:
    reached = {method: p for method, p in ranked.passes.items() if np.isfinite(p)}
    low, high = axes.get_ylim()
    height = 0.07 * (high - low)  # of a number; one above the other, they never touch
    low -= len(reached) * height
    for row, (method, percent) in enumerate(reached.items()):
        colour = LINE[method]["color"]
        axes.plot(percent, ranked.np_maximum, "o", color=colour, mec="white", ms=9, zorder=5)
        axes.plot([percent] * 2, [low, ranked.np_maximum], color=colour, lw=0.9, ls=":")
        axes.text(percent, low + (row + 0.3) * height, f" {percent:.0f}%", color=colour,
                  fontweight="bold", ha="left")  # fmt: skip
    axes.set_ylim(low, high)


# --- Kappa, coherence and drift -------------------------------------------------------------------


def kappa(bands: Mapping[tuple[str, str], Band], limit: int) -> Figure:
    """Epochs over kappa, a panel a start."""
    with report.sheet(10.5, 4.6) as picture:
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
    with report.sheet(10.5, 4.6) as picture:
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
    with report.sheet(10.5, 7.6) as picture:
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
