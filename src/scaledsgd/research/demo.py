"""Three small problems, solved and drawn: an ill-conditioned matrix, a map from distances, and
colours ranked by comparisons. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.colors import CSS4_COLORS, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import DistanceCompleter, ItemRanker, MatrixCompleter
from ..io.atomic import replace_file
from . import report
from .synthetic import psd_matrix

_SEED = 0


@dataclass(frozen=True)
class Result:
    """What one of the three has to say: in words, as a table, as a picture and as numbers."""

    title: str
    words: str
    header: list[str]
    rows: list[list[str]]
    picture: Figure
    caption: str
    facts: dict
    in_words: bool = False  # whether the table holds words, not numbers
    folds: dict[str, tuple[list, list]] = field(default_factory=dict)  # tables that open at a click

    def numbers(self) -> dict:
        """The facts, and the table by the names of its rows and columns."""
        columns = self.header[1:]
        table = {row[0]: dict(zip(columns, row[1:], strict=False)) for row in self.rows}
        return self.facts | {"table": table}

    def html(self) -> str:
        return report.section(
            self.title,
            report.text(self.words),
            report.table(self.header, self.rows, self.in_words),
            report.figure(self.picture, self.caption),
            *(report.folded(title, report.table(*both)) for title, both in self.folds.items()),
        )


# --- 1. ScaledSGD against SGD -------------------------------------------------------------------

_SPECTRA = {"well-conditioned": (2.0, 2.0, 2.0), "ill-conditioned": (10.0, 0.1, 0.001)}
_METHODS = {"ScaledSGD": True, "SGD": False}
_EPOCHS, _ALPHA = 120, 0.3  # alpha is the paper's, for both
_AT = (10, 20, 50, _EPOCHS)


def convergence() -> Result:
    """The paper's first experiment: the same matrix, once with equal singular values."""
    curves = {}
    for name, spectrum in _SPECTRA.items():
        M, _ = psd_matrix(30, spectrum, seed=_SEED)
        for method, scaled in _METHODS.items():
            model = MatrixCompleter(
                rank=3, symmetric=True, scaled=scaled, learning_rate=_ALPHA, damping=0.0,
                epochs=_EPOCHS, random_state=_SEED,
            )  # fmt: skip
            curves[name, method] = model.fit(M).history_["loss"]
    rows = [
        [f"{name}, {method}", *(f"{losses[min(at, len(losses)) - 1]:.1e}" for at in _AT)]
        for (name, method), losses in curves.items()
    ]
    return Result(
        "ScaledSGD against SGD",
        "A 30 x 30 matrix of rank 3 is learned from its entries, one at a time, with the same step "
        f"({_ALPHA}) and the same start for both methods. Where the singular values are equal, "
        "both are fast. Where they lie between 10 and 0.001, SGD slows down and ScaledSGD keeps "
        "its pace. A run ends when the mean loss falls to 1e-16 of that of a zero matrix.",
        ["mean loss after", *(f"{at} epochs" for at in _AT)],
        rows,
        _draw_convergence(curves),
        "Mean loss over all entries after each pass.",
        {f"{name} {method}": losses.tolist() for (name, method), losses in curves.items()},
    )


def _draw_convergence(curves: dict) -> Figure:
    with report.sheet(10, 4.2) as picture:
        panels = picture.subplots(1, 2, sharey=True, sharex=True)
        for axes, (name, spectrum) in zip(panels, _SPECTRA.items(), strict=True):
            for line, method in zip(report.LINES, _METHODS, strict=False):
                losses = curves[name, method]
                axes.semilogy(np.arange(1, len(losses) + 1), losses, label=method, **line)
            values = ", ".join(f"{value:g}" for value in spectrum)
            axes.set(title=f"{name.capitalize()}: S = ({values})", xlabel="epochs")
        panels[0].set_ylabel("mean loss")
        panels[0].legend()
        return picture


# --- 2. A map from distances --------------------------------------------------------------------

_KNOWN = 0.25
_PASSES = (3, 5, 40)
_TOP = 84  # the point on top of the left tower


def bridge() -> np.ndarray:
    """Points on a suspension bridge, four times as long as it is high.

    >>> bridge().shape
    (120, 2)
    """
    x, mid, off = np.linspace(-12, 12, 49), np.linspace(-5.5, 5.5, 23), np.linspace(0.5, 5.5, 11)
    up = np.linspace(-1.5, 4.5, 13)
    parts = [(x, 0 * x), (mid, 0.5 + 4 * (mid / 6) ** 2)]
    for side in (-1, 1):
        parts += [(0 * up + 6 * side, up), (side * (6 + off), 4.5 * (1 - off / 6) ** 1.5)]
    return np.concatenate([np.stack(part, axis=1) for part in parts])


def distances() -> Result:
    """A quarter of the distances between the points, turned back into the points."""
    points = bridge()
    D = ((points[:, None] - points) ** 2).sum(axis=2)
    i, j = np.triu_indices(len(points), 1)
    D[i, j] = np.where(np.random.default_rng(_SEED).random(len(i)) < _KNOWN, D[i, j], np.nan)
    D[np.tril_indices(len(points))] = np.nan
    anchors = [0, 48, _TOP]  # the ends of the deck and the top of a tower
    model, maps = DistanceCompleter(rank=2, random_state=_SEED), {}
    for passes in range(1, max(_PASSES) + 1):
        model.partial_fit(D)
        if passes in _PASSES:
            maps[passes] = model.align(anchors, points[anchors])
    errors = {passes: np.linalg.norm(found - points, axis=1) for passes, found in maps.items()}
    known = int(np.isfinite(D).sum())
    return Result(
        "A map from a quarter of the distances",
        f"Of the {len(i):,} distances between {len(points)} points, {known:,} are known. The "
        "points come back from those, up to a rotation, which the known positions of "
        f"{len(anchors)} points settle (align).",
        ["error of the positions", *(f"{passes} passes" for passes in _PASSES)],
        [
            ["mean", *(f"{error.mean():.2g}" for error in errors.values())],
            ["largest", *(f"{error.max():.2g}" for error in errors.values())],
        ],
        _draw_map(points, D, maps),
        "The bridge is 24 long. Rings are the true points, dots the recovered ones.",
        {"known": known, "largest_error": float(errors[max(_PASSES)].max())},
    )


def _draw_map(points: np.ndarray, D: np.ndarray, maps: dict[int, np.ndarray]) -> Figure:
    with report.sheet(10, 5.6) as picture:
        panels = picture.subplots(2, 2, sharex=True, sharey=True).ravel()
        for other in np.flatnonzero(np.isfinite(D[_TOP]) | np.isfinite(D[:, _TOP])):
            panels[0].plot(*points[[_TOP, other]].T, color=report.BLUE, linewidth=0.7)
        panels[0].set_title("What is known of one point")
        for axes, (passes, found) in zip(panels[1:], maps.items(), strict=True):
            axes.plot(*found.T, ".", color=report.ORANGE, markersize=5)
            axes.set_title(f"After {passes} passes")
        for axes in panels:
            axes.plot(*points.T, "o", mfc="none", mec="#333333", mew=0.8, markersize=6.5)
            axes.set(aspect="equal", xlim=(-13.5, 13.5), ylim=(-4, 6.5))
        return picture


# --- 3. Colours ranked by comparisons -----------------------------------------------------------

_COMPARISONS, _HELD_OUT = 60_000, 10_000
_ASKED = ("orange", "navy", "pink", "olive", "teal")


def colours() -> Result:
    """Named colours, placed by nothing but answers to "is i more like j or like k?"."""
    names = np.array(sorted({code: name for name, code in CSS4_COLORS.items()}.values()))
    seen = lightness_and_hue(np.array([to_rgb(name) for name in names]))
    triplets = np.stack(list(_comparisons(len(names))))
    i, j, k = triplets.T
    to_j, to_k = (np.linalg.norm(seen[i] - seen[other], axis=1) for other in (j, k))
    nearer = (to_j < to_k).astype(float)
    train, test = slice(_HELD_OUT, None), slice(_HELD_OUT)
    model = ItemRanker(rank=6, epochs=10, random_state=_SEED)
    columns = {"i": names[i[train]], "j": names[j[train]], "k": names[k[train]]}
    model.fit(columns | {"nearer": nearer[train]}, i="i", j="j", k="k", target="nearer")
    auc = model.score(names[triplets[test]], nearer[test])
    similar = {name: model.similar(name, k=6)[0].tolist() for name in _ASKED}
    return Result(
        "Colours ranked by comparisons",
        f'{_COMPARISONS:,} comparisons of the kind "orange is more like gold than like navy" place '
        f"{len(names)} named colours of the web. The model never sees a colour. It orders "
        f"{auc:.1%} of {_HELD_OUT:,} other comparisons as the colours' distances in CIE L*a*b* do, "
        "which are made to follow the eye (that share is the AUC; guessing gives 50%).",
        ["colour", "most similar, best first"],
        [[name, ", ".join(found[:4])] for name, found in similar.items()],
        _draw_colours(similar),
        "A colour (left) and the six that the model finds most similar to it.",
        {"auc": auc, "similar": similar},
        in_words=True,
    )


def _comparisons(d: int) -> Iterator[np.ndarray]:
    """Triplets of different items, none of them twice."""
    rng, drawn = np.random.default_rng(_SEED), set()
    while len(drawn) < _COMPARISONS + _HELD_OUT:
        triplet = rng.integers(d, size=3)
        key = tuple(triplet.tolist())
        if len(set(key)) == 3 and key not in drawn:
            drawn.add(key)
            yield triplet


def lightness_and_hue(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of sRGB colours, where distances are about as large as they look.

    >>> lightness_and_hue(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])).round(1) + 0.0
    array([[100.,   0.,   0.],
           [  0.,   0.,   0.]])
    """
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = linear @ np.transpose(to_xyz) / [0.9505, 1.0, 1.0890]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def _draw_colours(similar: dict[str, list[str]]) -> Figure:
    with report.sheet(10, 4.2) as picture:
        axes = picture.subplots()
        for down, (name, found) in enumerate(similar.items()):
            for across, colour in enumerate([name, *found]):
                left = across * 1.05 + (across > 0) * 0.4
                axes.add_patch(Rectangle((left, -down), 1, 0.62, color=colour))
                axes.text(left + 0.5, -down - 0.06, colour, ha="center", va="top", fontsize=10.5)
        axes.set(xlim=(-0.05, 7.8), ylim=(-len(similar) + 0.65, 0.7))
        axes.axis("off")
        return picture


# --- The page -----------------------------------------------------------------------------------


def write(results: list[Result], folder: Path) -> Path:
    """The page, and its first picture as a file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    html = report.page("ScaledSGD: three examples", *(result.html() for result in results))
    replace_file(folder / "index.html", html.encode())
    replace_file(folder / "convergence.png", report.drawn(results[0].picture, "png"))
    return folder / "index.html"


def run() -> Iterator[Result]:
    """The three of them, one after the other."""
    yield convergence()
    yield distances()
    yield colours()
