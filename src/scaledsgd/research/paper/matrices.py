"""Fig. 1, 2, 4, 5 and 6: small ground truths, all entries or distances observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.losses import LOSSES, sigmoid
from ...core.observations import Observations
from ...engines.base import Engine
from ..baselines import crossing, noise_floor
from ..synthetic import cube_points, noisy, psd_matrix
from . import pictures
from .runs import (  # fmt: skip
    FOUND,
    SOLVED,
    Band,
    Judge,
    Outcome,
    Problem,
    Step,
    claim,
    listed,
    no_worse,
    repeated,
)
from .settings import AUTO, METHODS, Case, MatrixFigure, Options
from .tune import tuned_step

_D = 30
_SMALL = 1e-10  # an error at which a run is well on its way down to rounding


@dataclass(frozen=True)
class Panel:
    """The curves of one case, by method."""

    case: Case
    bands: dict[str, Band]
    steps: dict[str, Step]
    floor: float | None
    points: np.ndarray | None
    authors: dict[str, np.ndarray]

    def epochs_to(self, method: str, level: float) -> float:
        band = self.bands[method]
        return crossing(band.x, np.nan_to_num(band.middle, nan=np.inf), level)

    def last(self, method: str) -> float:
        return float(self.bands[method].middle[-1])


def outcome(figure: MatrixFigure, options: Options) -> Outcome:
    """Run one of the figures."""
    panels = [_panel(figure, case, options) for case in figure.cases]
    curves = {"epochs": listed(panels[0].bands["SGD"].x)}
    for panel in panels:
        for method, band in panel.bands.items():
            curves |= band.listed(f"{method}, {panel.case.name}")
        if panel.floor is not None:
            curves[f"noise floor, {panel.case.name}"] = [panel.floor]
    claims, words = _CLAIMS[_kind(figure)](panels)
    if options.auto:
        claims += [
            no_worse(f"last error, {p.case.name}", p.last(AUTO), p.last("ScaledSGD"), falling=True)
            for p in panels
        ]
    theirs = _theirs(options) and figure.cases[0].matrix
    return Outcome(
        figure.title, words, _settings(figure, panels, options), curves, claims,
        pictures.matrix_figure(figure, panels),
        f"{_ERRORS[figure.loss]} after each pass over all of the observations."
        + (" Thin lines: the authors' own curves." if any(p.authors for p in panels) else ""),
        "the authors' matrices" if theirs else "drawn anew, as the paper says",
    )  # fmt: skip


_ERRORS = {
    "squared": "Mean of (x_i.x_j - M_ij)^2 / 2",
    "logistic": "Mean of (x_i.x_j - M_ij)^2 / 2",
    "distance": "Mean of (|x_i - x_j|^2 - D_ij)^2 / 4",
}


def _settings(figure: MatrixFigure, panels: list[Panel], options: Options) -> dict:
    found = {
        "loss": figure.loss, "d": _D, "rank": options.rank or figure.rank,
        "epochs": figure.epochs, "start": "standard Gaussian",
    }  # fmt: skip
    if figure.noise is not None:
        found["signal to noise"] = f"{figure.noise:g} dB"
    for panel in panels:
        for method, step in panel.steps.items():
            found[f"{method}, {panel.case.name}"] = str(step)
    return found


def _theirs(options: Options) -> Path | None:
    """The authors' matrices, where they lie beside their curves."""
    path = options.authors and options.authors.with_name("matrices.npz")
    return path if path and path.exists() else None


def _truth(figure: MatrixFigure, case: Case, options: Options) -> np.ndarray:
    """The matrix of a case, or its points."""
    path = _theirs(options)
    if path:
        with np.load(path) as file:
            if case.matrix in file:
                return file[case.matrix]
    if figure.loss == "distance":
        return cube_points(_D, options.seed, case.outliers)
    M, _ = psd_matrix(_D, case.spectrum, options.seed)
    return M if figure.noise is None else noisy(M, figure.noise, options.seed)


def observed(figure: MatrixFigure, truth: np.ndarray) -> Observations:
    """All that there is to see of a ground truth."""
    if figure.loss == "distance":
        D = ((truth[:, None] - truth) ** 2).sum(axis=2)
        np.fill_diagonal(D, np.nan)  # a point's distance to itself says nothing
        return Observations.matrix(D, loss="distance")
    target = sigmoid(truth) if figure.loss == "logistic" else truth
    return Observations.matrix(target, loss=figure.loss, symmetric=True)


def judged(seen: Observations) -> Callable[[Engine], Judge]:
    """The paper's error on these observations. A one-bit target is turned back into the entry."""
    index, y, loss = seen.index, seen.targets.astype(np.float64), seen.loss
    shown = loss
    if loss.name == "logistic":
        y, shown = np.log(y / (1 - y)), LOSSES["squared"]

    def on(engine: Engine) -> Judge:
        def judge(factors) -> float:
            with np.errstate(over="ignore", invalid="ignore"):
                z = np.asarray(engine.scores(factors, index, loss), np.float64)
                return float(shown.value(z, y).mean())

        return judge

    return on


def _panel(figure: MatrixFigure, case: Case, options: Options) -> Panel:
    truth = _truth(figure, case, options)
    seen = observed(figure, truth)
    rank = options.rank or figure.rank
    problem = Problem(seen, rank, figure.epochs, judged(seen), tol=SOLVED)
    bands, steps = {}, {}
    for (method, scaled), alpha in zip(METHODS.items(), case.alphas, strict=True):
        step = Step(alpha)
        if options.tuned:
            step = tuned_step(problem, judged, scaled, step, options, falling=True)
        steps[method] = step
        bands[method] = repeated(problem, scaled, step, options)[1]
    if options.auto:
        steps[AUTO], bands[AUTO] = FOUND, repeated(problem, True, FOUND, options)[1]
    floor = None if figure.noise is None else noise_floor(truth, rank)
    points = truth if figure.loss == "distance" else None
    return Panel(case, bands, steps, floor, points, _authors(figure, case, options))


def _authors(figure: MatrixFigure, case: Case, options: Options) -> dict[str, np.ndarray]:
    if not (options.authors and figure.authors):
        return {}
    with np.load(options.authors) as file:
        keys = {"ScaledSGD": "fscsgd", "SGD": "fsgd"}
        found = {m: f"{figure.authors}/{key}{case.authors}" for m, key in keys.items()}
        return {method: file[key] for method, key in found.items() if key in file}


# --- What the paper says of them ----------------------------------------------------------------


def _kind(figure: MatrixFigure) -> str:
    return "noisy" if figure.noise is not None else figure.loss


def _told(epochs: float) -> str:
    return "never" if np.isinf(epochs) else f"after {epochs:.0f} epochs"


def _exact(panels: list[Panel]) -> tuple[list[dict], str]:
    well, ill = panels
    fast, plain = (well.epochs_to(method, _SMALL) for method in METHODS)
    spread, last = ill.epochs_to("ScaledSGD", _SMALL), ill.last("SGD")
    claims = [
        claim(
            "Well-conditioned: both converge to machine error at roughly the same linear rate",
            f"error {_SMALL:g}: ScaledSGD {_told(fast)}, SGD {_told(plain)}; last "
            f"{well.last('ScaledSGD'):.0e} and {well.last('SGD'):.0e}",
            max(fast, plain) < np.inf and max(fast, plain) <= 3 * min(fast, plain),
        ),
        claim(
            "Ill-conditioned: ScaledSGD keeps almost exactly the rate of the well-conditioned case",
            f"error {_SMALL:g} {_told(spread)}, {_told(fast)} when well-conditioned",
            spread < np.inf and spread <= 2 * fast,
        ),
        claim(
            "Ill-conditioned: SGD slows down significantly",
            f"error {last:.1e} at the end, ScaledSGD {ill.last('ScaledSGD'):.0e}",
            not last <= 1e-9,
        ),
    ]
    return claims, (
        "The spread of the singular values stops SGD and does not matter to ScaledSGD: "
        f"its error is {_SMALL:g} {_told(fast)} where they are equal and {_told(spread)} where "
        "they spread over four orders of magnitude."
    )


def _points(panels: list[Panel]) -> tuple[list[dict], str]:
    near, far = panels
    fast, plain = (near.epochs_to(method, _SMALL) for method in METHODS)
    spread, slow = (far.epochs_to(method, _SMALL) for method in METHODS)
    claims = [
        claim(
            "Points in a cube: both recover the distances",
            f"error {_SMALL:g}: ScaledSGD {_told(fast)}, SGD {_told(plain)}",
            max(fast, plain) < np.inf,
        ),
        claim(
            "With outliers: SGD is only stable with a ten times smaller step and slows down, "
            "ScaledSGD does not",
            f"error {_SMALL:g}: ScaledSGD {_told(spread)}, SGD {_told(slow)}",
            spread < np.inf and spread <= 2 * fast and slow > 2 * spread,
        ),
    ]
    return claims, (
        "Five points far away make the points ill-conditioned. ScaledSGD then gets to an error of "
        f"{_SMALL:g} {_told(spread)} and SGD {_told(slow)}."
    )


def _noisy(panels: list[Panel]) -> tuple[list[dict], str]:
    claims, above = [], []
    for panel in panels:
        floor = panel.floor or np.nan
        scaled, plain = (panel.last(method) / floor for method in METHODS)
        above += [scaled, plain]
        claims += [
            claim(
                f"{panel.case.name.capitalize()}: ScaledSGD converges to the noise floor",
                f"{scaled:.3f} times the floor of {floor:.2e} at the end",
                scaled <= 1.1,
            ),
            claim(
                f"{panel.case.name.capitalize()}: SGD slows down",
                f"{plain:.2f} times the floor at the end",
                not plain <= 1.1,
            ),
        ]
    return claims, (
        "With noise there is a floor below which no matrix of the rank can go. ScaledSGD ends at "
        f"{above[0]:.2f} and {above[2]:.2f} times the floor, SGD at {above[1]:.2f} and "
        f"{above[3]:.2f} times."
    )


_CLAIMS = {"squared": _exact, "logistic": _exact, "distance": _points, "noisy": _noisy}
