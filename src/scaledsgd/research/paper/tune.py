"""The best step, and its best decay, of one method on one problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...core.observations import Observations
from ...engines.base import Engine
from .runs import Judge, Problem, Step, run
from .settings import Options

_SHARE = 0.1  # of the observations, to judge steps by
_LOOKS = 10  # evaluations an epoch: enough for the mean of a curve
_MOST = 1_000_000  # of them: the AUC is then good to 0.0004
_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the paper's
_WIDER = 6  # times that the search may leave this range, while that helps
_HALVINGS = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of the whole run

Judging = Callable[[Observations], Callable[[Engine], Judge]]


def tuned_step(
    problem: Problem, judging: Judging, scaled: bool, paper: Step, options: Options, falling: bool
) -> Step:
    """The step whose curve lies lowest (of errors: on a logarithmic scale) or highest (of AUC), on
    the mean over the whole run: early and good at the end both count.

    The curve is that of a validation part, on which these runs are not trained.
    """
    search = _split(problem, judging, options.seed)
    calm = replace(options, verbose=False)
    scores: dict[Step, float] = {}

    def score(step: Step) -> float:
        if step not in scores:
            curve = run(search, scaled, step, options.seed, calm).value
            scores[step] = _score(curve, falling)
        return scores[step]

    best = max((Step(paper.alpha * factor) for factor in _STEPS), key=score)
    for _ in range(_WIDER):
        tried = [step.alpha for step in scores]
        if best.alpha not in (min(tried), max(tried)):
            break
        further = best.alpha * (2.0 if best.alpha == max(tried) else 0.5)
        best = max(best, Step(further), key=score)
    decays = [
        Step(best.alpha * factor, share * problem.epochs)
        for share in _HALVINGS
        for factor in (1.0, 2.0, 4.0)  # a step that decays may begin larger
    ]
    quick = replace(problem, evaluations=search.evaluations)
    for step in decays:
        score(step)
    for step in sorted(scores, key=score, reverse=True):
        # On the edge of what is stable, the other tenth of the data may push it over.
        losses = run(quick, scaled, step, options.seed, calm).loss
        if (losses[1:] < losses[0]).all():
            return step
    return paper


def _score(curve: np.ndarray, falling: bool) -> float:
    if not np.isfinite(curve).all():
        return -np.inf
    return -float(np.log10(np.maximum(curve, 1e-16)).mean()) if falling else float(curve.mean())


def _split(problem: Problem, judging: Judging, seed: int) -> Problem:
    seen = problem.observations
    count = min(_MOST, int(_SHARE * len(seen)))
    if seen.loss.arity == 3:  # drawn in random order, and perhaps too many to copy
        held, kept = seen[:count], seen[count:]
    else:  # of a symmetric matrix, (i, j) and (j, i) are the same entry
        key = seen.index.min(axis=1) * seen.shape[0] + seen.index.max(axis=1)
        entries = np.unique(key)
        rng = np.random.default_rng([seed, 3])
        chosen = np.isin(key, rng.choice(entries, int(_SHARE * len(entries)), replace=False))
        held, kept = seen[chosen], seen[~chosen]
    looks = min(problem.evaluations, _LOOKS)
    return replace(problem, observations=kept, judged=judging(held), evaluations=looks)
