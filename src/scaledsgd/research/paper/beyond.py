"""What the paper says and does not plot: kappa does not matter, coherence stays low, and a stream
over a ground truth that turns slowly is followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...core.factors import Factors
from ...core.losses import LOSSES
from ...core.observations import Observations
from ...engines.base import Engine, open_engine
from ...training.history import DivergenceError
from ...training.metrics import recovery_error
from ...training.policy import Policy
from ...training.trainer import Trainer
from ..baselines import crossing
from ..synthetic import orthonormal
from . import pictures
from .runs import Band, Judge, Outcome, Problem, Step, claim, listed, repeated
from .settings import METHODS, Options

_RANK = 3


def _told(epochs: float) -> str:
    return "never" if np.isinf(epochs) else f"{epochs:.0f}"


def _range(epochs: np.ndarray) -> str:
    return " to ".join(dict.fromkeys((_told(epochs.min()), _told(epochs.max()))))


# --- The condition number -------------------------------------------------------------------------

_D = 30
_KAPPAS = 10.0 ** np.arange(9)
_LARGEST = 2.0  # eigenvalue, as in the well-conditioned case of Fig. 1
_ALPHA = 0.3  # for both, as in Fig. 1
_LIMIT = 1000  # epochs
# f(X) <= 1e-8 lambda_r^2 says that even the smallest direction is known to four digits; an error in
# units of the largest would stop to see it when kappa passes 1e4.
_LEVEL = 1e-8
_RHO = 0.25  # how far from the truth a near start is, in units of lambda_r


def kappa(options: Options) -> Outcome:
    """Epochs to the same relative accuracy for kappa from 1 to 1e8."""
    rank = options.rank or _RANK
    starts = {"Gaussian start": False, "start near the truth": True}
    bands: dict[tuple[str, str], Band] = {}
    for start, near in starts.items():
        for method, scaled in METHODS.items():
            counts = [_epochs(k, rank, scaled, near, options) for k in _KAPPAS]
            bands[start, method] = Band(_KAPPAS, np.array(counts).T)
    curves = {"kappa": listed(_KAPPAS)}
    for (start, method), band in bands.items():
        curves |= band.listed(f"{method}, {start}, epochs")
    claims, words = _kappa_claims({key: band.middle for key, band in bands.items()})
    settings = {
        "loss": "squared", "d": _D, "rank": rank,
        "eigenvalues": f"{_LARGEST:g} to {_LARGEST:g} / kappa",
        "step of both": _ALPHA, "at most": f"{_LIMIT} epochs",
        "until": f"|XX' - M|^2 <= {_LEVEL:g} lambda_r^2",
        "near start": f"|XX' - M| = {_RHO:g} lambda_r",
    }  # fmt: skip
    return Outcome(
        "Epochs against the condition number", words, settings, curves, claims,
        pictures.kappa(bands, _LIMIT),
        "Epochs until the smallest direction is known to four digits. Triangles at the top: not "
        f"within {_LIMIT} epochs.",
        "random matrices",
    )  # fmt: skip


def _epochs(condition: float, rank: int, scaled: bool, near: bool, options: Options) -> np.ndarray:
    """How many it takes, for every seed."""
    smallest = _LARGEST / condition
    rng = np.random.default_rng([options.seed, 5])
    Z = orthonormal(_D, rank, rng) * np.sqrt(np.geomspace(_LARGEST, smallest, rank))
    M = Z @ Z.T
    seen = Observations.matrix(M, symmetric=True)
    problem = Problem(
        seen, rank, _LIMIT, _square(M, smallest), tol=_LEVEL,
        start=(lambda seed: _near(Z, smallest, seed)) if near else None,
    )  # fmt: skip
    _, band = repeated(problem, scaled, Step(_ALPHA), replace(options, verbose=False))
    return np.array([crossing(band.x, np.nan_to_num(r, nan=np.inf), _LEVEL) for r in band.runs])


def _square(M: np.ndarray, unit: float) -> Callable[[Engine], Judge]:
    """f(X) in units of that eigenvalue."""

    def on(engine: Engine) -> Judge:
        def judge(factors: Factors) -> float:
            X = engine.get(factors.X)
            with np.errstate(over="ignore", invalid="ignore"):
                return float(((X @ X.T - M) ** 2).sum() / unit**2)

        return judge

    return on


def _near(Z: np.ndarray, smallest: float, seed: int) -> np.ndarray:
    """Z with noise that changes M by as much in every direction, _RHO lambda_r in all."""
    noise = np.random.default_rng([seed, 6]).standard_normal(Z.shape)
    noise *= smallest / np.linalg.norm(Z, axis=0)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        X = Z + middle * noise
        far = np.linalg.norm(X @ X.T - Z @ Z.T) > _RHO * smallest
        low, high = (low, middle) if far else (middle, high)
    return Z + low * noise


def _kappa_claims(epochs: dict[tuple[str, str], np.ndarray]) -> tuple[list[dict], str]:
    near, plain = (epochs["start near the truth", method] for method in METHODS)
    far = epochs["Gaussian start", "ScaledSGD"]
    lost = np.flatnonzero(np.isinf(plain))
    grows = plain[1] / plain[0], plain[2] / plain[0]
    limit = f"not within {_LIMIT} from kappa = {_KAPPAS[lost[0]]:g} on" if len(lost) else "always"
    claims = [
        claim(
            "Near the truth, ScaledSGD converges as if kappa were 1",
            f"{_range(near)} epochs for kappa from 1 to 1e8",
            near.max() <= 1.5 * near.min(),
        ),
        claim(
            "From a Gaussian start it converges globally, at the same rate",
            f"{_told(far[0])} epochs at kappa = 1, {_told(far[-1])} at 1e8",
            far.max() <= 4 * far[0],
        ),
        claim(
            "The epochs of SGD grow at least as kappa",
            f"{', '.join(map(_told, plain[:3]))} at kappa = 1, 10, 100; {limit}",
            grows[0] >= 5 and grows[1] >= 20,
        ),
    ]
    return claims, (
        f"From a start near the truth ScaledSGD needs {_range(near)} epochs, whatever kappa is. "
        "From a Gaussian start its smallest direction has further to go the smaller it is, which "
        "adds a few epochs a decade. SGD slows down in proportion to kappa."
    )


# --- Coherence ------------------------------------------------------------------------------------

_WIDE, _SPREAD = 500, 1e4  # d and kappa
_ROUNDS = 100  # of d samples
_BOUND_RHO = 0.1  # the radius for which the theorem's bound is taken
_ROW = 7  # any
_BOLD = 15.0  # alpha: 0.09 d / r. SGD takes the same along the largest direction, where P is 1


def coherence(options: Options) -> Outcome:
    """The largest leverage along a run that starts at half of the theorem's bound."""
    d, rank = _WIDE, options.rank or _RANK
    Z = _waves(d, rank) * np.sqrt(np.geomspace(1.0, 1.0 / _SPREAD, rank))
    own = leverages(Z).max()
    bound = 16 / (1 - 2 * _BOUND_RHO) ** 2 * own  # own is mu r / d
    M = Z @ Z.T
    i, j = np.random.default_rng([options.seed, 7]).integers(d, size=(2, _ROUNDS * d))
    seen = Observations.pairs(i, j, M[i, j], shape=(d, d), symmetric=True)
    X = _spiked(Z, bound / 2)
    bands = {}
    for what, judged in (("coherence", _most_coherent), ("error", _square(M, 1 / _SPREAD))):
        problem = Problem(seen, rank, 1, judged, _ROUNDS, start=lambda seed: X)
        for method, scaled in METHODS.items():
            quiet = replace(options, verbose=False)
            bands[what, method] = repeated(problem, scaled, Step(_BOLD), quiet)[1]
    x = bands["error", "SGD"].x * _ROUNDS
    curves = {"samples / d": listed(x), "bound": [bound], "coherence of Z": [own]}
    for (what, method), band in bands.items():
        curves |= band.listed(f"{method}, {what}")
    final = [float(bands["coherence", method].middle[-1]) for method in METHODS]
    scaled = bands["coherence", "ScaledSGD"].middle
    most, halved = float(scaled.max()), crossing(x, scaled, bound / 4)
    claims = [
        claim("ScaledSGD keeps max g_i(X) below the bound of the main theorem",
              f"at most {most:.3f}, bound {bound:.3f}", most <= bound),
        claim("ScaledSGD brings it down towards that of Z, whatever kappa is",
              f"from {bound / 2:.3f} to {final[0]:.4f}; Z: {own:.4f}", final[0] <= 2 * own),
        claim("SGD does so a factor of kappa slower",
              f"{final[1]:.3f} after the same samples", final[1] >= 5 * final[0]),
    ]  # fmt: skip
    f = float(((X @ X.T - M) ** 2).sum() * _SPREAD**2)
    settings = {
        "loss": "squared", "d": d, "rank": rank, "kappa": f"{_SPREAD:g}", "step of both": _BOLD,
        "samples": f"{len(seen):,}", "rho of the bound": _BOUND_RHO,
        "start": f"Z with one row's leverage raised to half of the bound; f = {f:.2g} lambda_r^2",
    }  # fmt: skip
    return Outcome(
        "Coherence along a run",
        "One row starts with a leverage far above all others, in the smallest direction. ScaledSGD "
        f"halves it within {_told(halved)} d samples and ends at {final[0]:.3f}; SGD hardly moves "
        f"it ({final[1]:.3f}), because that direction is kappa = {_SPREAD:g} times flatter to it.",
        settings, curves, claims, pictures.coherence(bands, x, bound, own),
        "Left: the largest leverage g_i(X) = x_i (X'X)^-1 x_i. Right: the error on the way.",
        "a matrix of cosines, entries drawn with replacement",
    )  # fmt: skip


def leverages(X: np.ndarray) -> np.ndarray:
    """g_i(X) = e_i^T X (X^T X)^-1 X^T e_i for every row.

    >>> leverages(np.eye(3, 2))
    array([1., 1., 0.])
    """
    Q = np.linalg.qr(np.asarray(X, np.float64)).Q
    return (Q**2).sum(axis=1)


def _most_coherent(engine: Engine) -> Judge:
    return lambda factors: float(leverages(engine.get(factors.X)).max())


def _waves(d: int, rank: int) -> np.ndarray:
    """Orthonormal cosines: no row has more than twice the mean leverage."""
    angles = np.outer(np.arange(d) + 0.5, np.arange(1, rank + 1)) * np.pi / d
    return np.sqrt(2 / d) * np.cos(angles)


def _spiked(Z: np.ndarray, wanted: float) -> np.ndarray:
    """Z with one entry of its last column so large that its row has the leverage wanted."""
    X, low, high = Z.copy(), 0.0, np.linalg.norm(Z[:, -1])
    for _ in range(60):
        X[_ROW, -1] = (low + high) / 2
        less = leverages(X)[_ROW] < wanted
        low, high = (X[_ROW, -1], high) if less else (low, X[_ROW, -1])
    return X


# --- Drift ----------------------------------------------------------------------------------------

_STREAM_D, _CHUNKS, _EVERY = 100, 3000, 25  # chunks of d samples, and how often it is looked
_STILL, _TURN = 500, 0.2  # chunks before the truth turns, and radians until the end
_SPECTRA = {"kappa = 1": (10.0, 10.0, 10.0), "kappa = 100": (10.0, 1.0, 0.1)}
_STEPS = (5.0, 0.3)  # SGD diverges at 0.5


def drift(options: Options) -> Outcome:
    """Streams of entries of a matrix that turns slowly."""
    bands: dict[tuple[str, str, str], Band] = {}
    x = np.arange(_EVERY, _CHUNKS + 1, _EVERY, dtype=float)
    for case, spectrum in _SPECTRA.items():
        for (method, scaled), alpha in zip(METHODS.items(), _STEPS, strict=True):
            seeds = range(options.seed, options.seed + options.seeds)
            runs = np.array([_stream(spectrum, scaled, alpha, s, options) for s in seeds])
            for at, what in enumerate(("error", "angle")):
                bands[case, method, what] = Band(x, runs[:, at])
    curves = {"samples / d": listed(x)}
    for (case, method, what), band in bands.items():
        curves |= band.listed(f"{method}, {case}, {what}")
    last = {key: float(np.median(band.middle[-20:])) for key, band in bands.items()}
    scaled = [last[case, "ScaledSGD", "error"] for case in _SPECTRA]
    angles = [last["kappa = 100", method, "angle"] for method in METHODS]
    errors = [last["kappa = 100", method, "error"] for method in METHODS]
    claims = [
        claim("SGD can handle streaming data over an evolving ground truth; ScaledSGD preserves "
              "that and is agnostic to kappa",
              f"tracking error of ScaledSGD {scaled[0]:.4f} at kappa = 1, {scaled[1]:.4f} at 100",
              scaled[1] <= 1.5 * scaled[0]),
        claim("SGD is slowed down by kappa, in a stream too",
              f"error {errors[1]:.4f} against {errors[0]:.4f}; its smallest direction is "
              f"{angles[1]:.0f} degrees off, that of ScaledSGD {angles[0]:.1f}",
              errors[1] >= 2 * errors[0] and angles[1] >= 10 * angles[0]),
    ]  # fmt: skip
    settings = {
        "loss": "squared", "d": _STREAM_D, "rank": _RANK, "samples": f"{_CHUNKS * _STREAM_D:,}",
        "the truth turns by": f"{_TURN} rad in {(_CHUNKS - _STILL) * _STREAM_D:,} samples",
        "start": "standard Gaussian",
        **{method: str(Step(alpha)) for method, alpha in zip(METHODS, _STEPS, strict=True)},
    }  # fmt: skip
    return Outcome(
        "Following a truth that moves",
        f"After {_STILL} d samples the truth begins to turn. ScaledSGD follows it as closely at "
        f"kappa = 100 ({scaled[1]:.4f}) as at 1 ({scaled[0]:.4f}); SGD has not even found the "
        "smallest direction.",
        settings, curves, claims, pictures.drift(bands, list(_SPECTRA), _STILL),
        "Above: |XX' - M| / |M| against the truth of the moment. Below: the largest angle between "
        "the learned and the true column space. Dotted: where the truth begins to turn.",
        "a random matrix, entries drawn with replacement",
    )  # fmt: skip


def _stream(spectrum, scaled: bool, alpha: float, seed: int, options: Options) -> np.ndarray:
    """Errors and angles on the way."""
    d, rng = _STREAM_D, np.random.default_rng([seed, 8])
    U, V = np.split(orthonormal(d, 2 * _RANK, rng), 2, axis=1)
    root = np.sqrt(np.array(spectrum))
    factors = Factors.start((d, d), _RANK, seed=seed, symmetric=True)
    engine = open_engine(options.device, options.jobs)
    trainer = Trainer(
        factors, LOSSES["squared"], Policy(alpha, 0.0, scaled), engine, rng,
        options.per_sample(scaled),
    )  # fmt: skip
    found = []
    for chunk in range(1, _CHUNKS + 1):
        angle = _TURN * max(0, chunk - _STILL) / (_CHUNKS - _STILL)
        basis = U * np.cos(angle) + V * np.sin(angle)
        Z = basis * root
        i, j = rng.integers(d, size=(2, d))
        y = np.einsum("sr,sr->s", Z[i], Z[j])
        seen = Observations.pairs(i, j, y, shape=(d, d), symmetric=True)
        try:
            trainer.run(seen, epochs=1, evaluations=0)
        except DivergenceError:
            break
        if chunk % _EVERY == 0:
            X = trainer.factors.X
            found.append((recovery_error(X, X, Z, Z), _largest_angle(X, basis)))
    found += [(np.nan, np.nan)] * (_CHUNKS // _EVERY - len(found))
    return np.array(found).T


def _largest_angle(X: np.ndarray, basis: np.ndarray) -> float:
    """In degrees, between two column spaces."""
    away = np.linalg.qr(X).Q
    away = away - basis @ (basis.T @ away)  # the sine, which is exact for small angles
    return float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(away, 2)))))
