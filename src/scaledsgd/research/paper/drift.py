"""Streaming over a ground truth that turns slowly, which the paper names and does not plot."""

from __future__ import annotations

import numpy as np

from ...core.factors import Factors
from ...core.losses import LOSSES
from ...core.observations import Observations
from ...engines.base import open_engine
from ...training.history import DivergenceError
from ...training.metrics import recovery_error
from ...training.policy import Policy
from ...training.trainer import Trainer
from ..synthetic import orthonormal
from . import beyond_pictures as pictures
from .runs import Band, Outcome, Step, claim, listed
from .settings import METHODS, Options

_RANK = 3
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
