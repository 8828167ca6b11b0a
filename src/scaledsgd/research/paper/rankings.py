"""Fig. 3, 7, 8 and 9: movies ranked by which of two is more like a third."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from ...core.losses import LOSSES
from ...core.observations import Observations
from ...core.randomness import seeded
from ...engines.base import Engine, open_engine
from ...recommend.comparisons import Triplets, triplets
from ...training import metrics
from .. import movielens
from ..baselines import crossing, np_maximum
from ..synthetic import TWINS, Twin, ratings
from . import pictures
from .runs import (  # fmt: skip
    FOUND,
    Band,
    Judge,
    Outcome,
    Problem,
    Step,
    claim,
    listed,
    no_worse,
    repeated,
    run,
)
from .settings import AUTO, METHODS, Options, RankingFigure
from .tune import tuned_step

_RANK = 3
_EVALUATIONS = 100  # an epoch: at every percent
# An AUC this far below the final one counts as converged: the paper's own 0.9 in Fig. 3.
_NEAR = 0.002
_CAUTION = (
    " The ratings are a synthetic twin, made to resemble MovieLens: it shows that the program "
    "works at this size, and is no evidence of its own for how the methods compare."
)
_FEWEST = 60  # items, however small the scale
_LEAST = 1_000  # test comparisons, so that an AUC means something however small the scale


@dataclass(frozen=True)
class Ranked:
    """Curves of both methods: training loss and test AUC."""

    bands: dict[str, tuple[Band, Band]]
    steps: dict[str, Step]
    np_maximum: float
    epochs: int
    items: int
    counts: tuple[int, int]
    seconds: dict[str, float]  # of each part

    @property
    def passes(self) -> dict[str, float]:
        """Percent of an epoch after which each passes NP-Maximum."""
        return {method: self.percent_to(method, self.np_maximum) for method in self.bands}

    def percent_to(self, method: str, level: float) -> float:
        band = self.bands[method][1]
        return 100 * crossing(band.x, np.nan_to_num(band.middle, nan=-np.inf), level)

    def final(self, method: str) -> float:
        return float(self.bands[method][1].middle[-1])


def outcome(figure: RankingFigure, options: Options) -> Outcome:
    """Run one of the figures."""
    table, source, real = _table(figure, options)
    seen = triplets(
        table, round(figure.train * options.scale),
        max(_LEAST, round(figure.test * options.scale)), options.seed,
        cache=options.cache, progress=options.verbose, n_jobs=options.jobs, device=options.device,
    )  # fmt: skip
    ranked = _run(figure, seen, options)
    curves = {"epochs": listed(ranked.bands["SGD"][0].x), "NP-Maximum": [ranked.np_maximum]}
    for method, (loss, auc) in ranked.bands.items():
        curves |= loss.listed(f"{method}, training loss") | auc.listed(f"{method}, test AUC")
    authors = _authors(figure, options)
    whole = real and options.scale == 1
    title = f"{figure.title}, {ranked.counts[0]:,} comparisons"
    return Outcome(
        title, _words(ranked), _settings(figure, ranked, options), curves,
        _claims(figure, ranked, whole),
        pictures.ranking_figure(ranked, f"{title}: {source}", authors),
        "Red: the first epoch; blue: the second; dots: where a method passes NP-Maximum, the best "
        "that one ranking for all movies can reach on the test set."
        + (" Dotted: the authors' own curves, on MovieLens." if authors else "")
        + ("" if real else _CAUTION),
        source,
    )  # fmt: skip


# --- Data ----------------------------------------------------------------------------------------


def _table(figure: RankingFigure, options: Options) -> tuple[sp.csr_array, str, bool]:
    """Ratings, where they are from, and whether they are MovieLens's. A scale below 1 takes that
    share of the items, so that there remain as many comparisons of each of them."""
    folder, scale = copy_of(figure.data, options.data), options.scale
    if folder is None:
        table = _twin(TWINS[figure.data], options.seed, options.jobs)
        source = f"synthetic twin of {movielens.NAMES[figure.data]}"
    else:
        table, source = movielens.load(folder).table, f"MovieLens, {folder.resolve().name}"
    if scale < 1:
        d = int(table.indices.max()) + 1  # the last item has a rating, as all have
        rng = np.random.default_rng(seeded(options.seed, "items"))
        kept = np.sort(rng.choice(d, max(_FEWEST, round(scale * d)), replace=False))
        table, source = table[:, kept], f"{source}, {scale:.3g} of the items"
    return table, source, folder is not None


@lru_cache(maxsize=1)  # Fig. 8 and 9 share theirs, and it takes half a minute to make
def _twin(twin: Twin, seed: int, jobs: int) -> sp.csr_array:
    return ratings(twin, seed, jobs)


def copy_of(name: str, given: Path | None) -> Path | None:
    """The copy of a data set: in the folder given, or that folder itself, unless it is another
    figure's data."""
    if given is None:
        return None
    if not given.is_dir():
        raise ValueError(f"{given}: no such folder")
    inside = given / movielens.NAMES[name]
    if inside.is_dir():
        return inside
    others = {movielens.NAMES[other] for other in TWINS if other != name}
    return None if given.resolve().name in others else given


def judged(test: Observations) -> Callable[[Engine], Judge]:
    """The AUC on a test set, which is put where the engine computes once."""

    def on(engine: Engine) -> Judge:
        held = engine.samples(test, [0, 0, 0], "float32", np.random.default_rng(0))

        def judge(factors) -> float:
            return metrics.auc(engine, factors, held, LOSSES["bpr"])

        return judge

    return on


def _run(figure: RankingFigure, seen: Triplets, options: Options) -> Ranked:
    d = seen.items
    if options.device != "cpu":  # what is timed shall not wait for the disk
        seen = Triplets(*map(np.array, seen))
    train = Observations(seen.train, seen.train_targets, (d, d), "bpr", True)
    test = Observations(seen.test, seen.test_targets, (d, d), "bpr", True)
    problem = Problem(
        train, options.rank or _RANK, figure.epochs, judged(test), _EVALUATIONS, "float32"
    )
    clock = time.perf_counter()
    # One thread: two would fight for the few cache lines that one number an item takes.
    best = np_maximum(test, open_engine(options.device))
    bands, steps, seconds = {}, {}, {"NP-Maximum": time.perf_counter() - clock}
    _warm(problem, train, test, options)
    for (method, scaled), alpha in zip(METHODS.items(), figure.alphas, strict=True):
        # P is as small as 1 / d, so the same step for fewer items is a smaller alpha.
        step = Step(alpha * (options.scale if scaled else 1.0))
        if options.tuned:
            step = tuned_step(problem, judged, scaled, step, options, falling=False)
        steps[method] = step
        clock = time.perf_counter()
        bands[method] = repeated(problem, scaled, step, options)
        seconds[method] = time.perf_counter() - clock
    if options.auto:
        steps[AUTO], bands[AUTO] = FOUND, repeated(problem, True, FOUND, options)
    return Ranked(bands, steps, best, figure.epochs, d, (len(train), len(test)), seconds)


def _warm(problem: Problem, train: Observations, test: Observations, options: Options) -> None:
    """Load or compile the kernels, which is not to be timed."""
    few = slice(1000)
    tiny = replace(problem, observations=train[few], judged=judged(test[few]), epochs=1)
    for scaled in METHODS.values():
        run(tiny, scaled, Step(1e-6), options.seed, replace(options, verbose=False))


def _authors(figure: RankingFigure, options: Options) -> dict:
    if not (options.authors and figure.authors):
        return {}
    with np.load(options.authors) as file:
        return {
            what: {
                method: file[f"{figure.authors}/{prefix}{short}/{suffix}"]
                for method, short in (("ScaledSGD", "scsgd"), ("SGD", "sgd"))
            }
            for what, prefix, suffix in (("loss", "f", "itertrain"), ("auc", "auc", "itertest"))
        }


# --- What the paper says of them -----------------------------------------------------------------


def _settings(figure: RankingFigure, ranked: Ranked, options: Options) -> dict:
    train, test = ranked.counts
    found = {
        "loss": "bpr", "items": f"{ranked.items:,}", "rank": options.rank or _RANK,
        "training comparisons": f"{train:,}", "test comparisons": f"{test:,}",
        "epochs": figure.epochs, "start": "standard Gaussian",
    }  # fmt: skip
    found |= {method: str(step) for method, step in ranked.steps.items()}
    return found | {f"seconds for {what}": f"{took:.2f}" for what, took in ranked.seconds.items()}


def _percent(value: float) -> str:
    return "never" if np.isinf(value) else f"after {value:.0f}%"


def _words(ranked: Ranked) -> str:
    fast, slow = (ranked.passes[method] for method in METHODS)
    ratio = f", {slow / fast:.1f} times as many" if slow < np.inf else ""
    return (
        f"ScaledSGD passes NP-Maximum ({ranked.np_maximum:.3f}) {_percent(fast)} of an epoch and "
        f"SGD {_percent(slow)}{ratio}. The final AUC is "
        f"{ranked.final('ScaledSGD'):.3f} and {ranked.final('SGD'):.3f}."
    )


def _claims(figure: RankingFigure, ranked: Ranked, whole: bool) -> list[dict]:
    """Numbers are only held against the paper's on the paper's data."""
    fast, slow = (ranked.passes[method] for method in METHODS)
    finals = [ranked.final(method) for method in METHODS]
    printed, plain = figure.passes
    said = f" ({printed:.0f}% and {plain:.0f}% of an epoch)" if printed else ""
    claims = [
        claim(
            f"ScaledSGD passes NP-Maximum with half the samples of SGD or fewer{said}",
            f"{_percent(fast)}, SGD {_percent(slow)}",
            fast < np.inf and 2 * fast <= slow,
        ),
        claim("ScaledSGD passes NP-Maximum in the first epoch", _percent(fast), fast <= 100),
    ]
    if figure.sgd_needs_more_than_an_epoch:
        claims.append(claim("SGD needs more than one epoch for that", _percent(slow), slow > 100))
    level = min(finals) - _NEAR
    near = [ranked.percent_to(method, level) for method in METHODS]
    claims.append(
        claim(
            "Close to the final AUC, too, ScaledSGD is earlier",
            f"AUC {level:.3f} {_percent(near[0])}, SGD {_percent(near[1])}",
            near[0] < near[1],
        )
    )
    for what, paper, found in (
        ("NP-Maximum", figure.np_maximum, ranked.np_maximum),
        ("The final test AUC of ScaledSGD", figure.final, finals[0]),
    ):
        if paper is not None:
            holds = abs(found - paper) <= 0.005 if whole else None
            claims.append(claim(f"{what} is {paper:.3f}", f"{found:.4f}", holds))
    if AUTO in ranked.bands:
        passes = ranked.passes[AUTO]
        claims += [
            no_worse("final AUC", ranked.final(AUTO), finals[0], falling=False),
            no_worse("percent of an epoch to NP-Maximum", passes, fast, falling=True),
        ]
    return claims
