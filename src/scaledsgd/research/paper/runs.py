"""One run of one method, measured on the way, and several of them as a median and a band."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...core.factors import Factors
from ...core.losses import Loss
from ...core.observations import Chunk, Observations
from ...engines.base import Engine, open_engine
from ...training.auto_policy import AutoPolicy
from ...training.history import DivergenceError, Progress
from ...training.metrics import mean_loss
from ...training.policy import Policy
from ...training.trainer import Trainer
from .settings import Options

SOLVED = 1e-16  # the mean loss at which the authors' program ends a run

Judge = Callable[[Factors], float]


class Step(NamedTuple):
    """alpha, and after how many epochs it is half of that; 0 for whatever the policy finds."""

    alpha: float
    halved: float = np.inf

    def __str__(self) -> str:
        if self.alpha == 0.0:
            return "no number set"
        decay = "" if np.isinf(self.halved) else f", halved every {self.halved:.3g} epochs"
        return f"step {self.alpha:.4g}{decay}"


FOUND = Step(0.0)


@dataclass
class Decaying(Policy):
    """The paper's policy, with a step that decays exponentially.

    >>> from scaledsgd.core.losses import LOSSES
    >>> policy = Decaying(learning_rate=0.4, halved=100.0)
    >>> _ = policy.saw(squares=1.0, samples=200)
    >>> policy.rates(Factors(np.eye(4, 2)), LOSSES["squared"])
    array([0.1, 0.1])
    """

    halved: float = np.inf  # after so many samples
    total: int = 0

    def rates(self, factors: Factors, loss: Loss) -> np.ndarray:
        return super().rates(factors, loss) * 0.5 ** (self.total / self.halved)

    def saw(self, squares: float, samples: int) -> bool:
        self.total += samples
        return super().saw(squares, samples)


@dataclass(frozen=True)
class Problem:
    """What is learned from, and how a state is judged on the way."""

    observations: Observations
    rank: int
    epochs: int
    judged: Callable[[Engine], Judge]  # put the test where the engine computes, and score with it
    evaluations: int = 1
    dtype: str = "float64"
    tol: float = -np.inf  # a judgement at or below which the run ends
    start: Callable[[int], np.ndarray] | None = None  # X_0 for a seed (else standard Gaussian)


class Curve(NamedTuple):
    """At every evaluation, the start included. Past the end of a run that was solved, its last
    value; past a divergence, nothing finite."""

    epochs: np.ndarray
    loss: np.ndarray  # mean over (at most a million of) the training samples
    value: np.ndarray  # what the judge says


def run(problem: Problem, scaled: bool, step: Step, seed: int, options: Options) -> Curve:
    """Train from an X_0 that is the same for both methods at a seed."""
    seen = problem.observations
    engine = open_engine(options.device, options.jobs)
    policy = Decaying(step.alpha, 0.0, scaled, halved=step.halved * len(seen))
    if step == FOUND:
        policy = AutoPolicy()
    factors = Factors.start(
        seen.shape, problem.rank, seed=seed, dtype=problem.dtype, symmetric=seen.symmetric,
        scale=policy.starting_scale(seen.size, seen.shape, problem.rank, seen.loss.name),
        offset=policy.starting_column,
    )  # fmt: skip
    if problem.start is not None:
        factors.X[...] = problem.start(seed)
    rng = np.random.default_rng([seed, 2])
    trainer = Trainer(factors, seen.loss, policy, engine, rng, options.per_sample(scaled))
    judge = problem.judged(engine)
    first = replace(factors, X=engine.put(factors.X))
    part = slice(1_000_000)
    losses = [mean_loss(engine, first, Chunk(seen.index[part], seen.targets[part]), seen.loss)]
    values = [judge(first)]

    def note(progress: Progress) -> bool:
        losses.append(progress.loss)
        values.append(judge(progress.factors))
        return values[-1] <= problem.tol

    diverged = False
    try:
        trainer.run(seen, epochs=problem.epochs, tol=-np.inf, evaluations=problem.evaluations,
                    callbacks=[note], verbose=options.verbose)  # fmt: skip
    except DivergenceError:
        diverged = True
    if policy.automatic:  # what counts is the state that it leaves
        values[-1] = judge(replace(trainer.factors, X=engine.put(trainer.factors.X)))
    points = problem.epochs * problem.evaluations + 1
    filled = [
        np.array(column + [np.nan if diverged else column[-1]] * (points - len(column)))
        for column in (losses, values)
    ]
    return Curve(np.linspace(0, problem.epochs, points), *filled)


@dataclass(frozen=True)
class Band:
    """The same curve for several seeds.

    >>> band = Band(np.arange(2), np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]))
    >>> band.middle, band.low
    (array([2., 5.]), array([1., 4.]))
    """

    x: np.ndarray
    runs: np.ndarray  # a row a seed

    @property
    def middle(self) -> np.ndarray:
        """The median, where a diverged run is the worst of all. Of an even number the upper one:
        the mean of something and nothing is nothing."""
        return np.sort(self.runs, axis=0)[len(self.runs) // 2]  # NaN is last

    @property
    def low(self) -> np.ndarray:
        return np.fmin.reduce(self.runs)

    @property
    def high(self) -> np.ndarray:
        return np.fmax.reduce(self.runs)

    def listed(self, name: str) -> dict[str, list]:
        """For the results file."""
        if len(self.runs) == 1:
            return {name: listed(self.middle)}
        parts = {"": self.middle, ", lowest": self.low, ", highest": self.high}
        return {f"{name}{part}": listed(values) for part, values in parts.items()}


def listed(values) -> list:
    """Numbers as JSON takes them: what is not finite is null.

    >>> listed([1.0, np.inf])
    [1.0, None]
    """
    return [float(v) if np.isfinite(v) else None for v in np.asarray(values, float)]


def repeated(problem: Problem, scaled: bool, step: Step, options: Options) -> tuple[Band, Band]:
    """Loss and judgement for all seeds."""
    curves = [
        run(problem, scaled, step, seed, options)
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    x = curves[0].epochs
    return Band(x, np.array([c.loss for c in curves])), Band(x, np.array([c.value for c in curves]))


# By how much errors (as a share) and AUCs differ from one start to another.
_SAME, _SAME_AUC = 0.01, 0.002


def no_worse(what: str, ours: float, theirs: float, *, falling: bool) -> dict:
    """Whether the automatic settings end as well as the paper's step. Solved is solved.

    >>> no_worse("errors", 1e-20, 5e-17, falling=True)["holds"]
    True
    """
    same = ours <= max((1 + _SAME) * theirs, SOLVED) if falling else ours >= theirs - _SAME_AUC
    told = f"{ours:.3g}, the paper's step {theirs:.3g}"
    return claim(f"(not the paper's) Automatic settings do no worse: {what}", told, same)


def claim(paper: str, measured: str, holds: bool | None) -> dict:
    """A row of the table; `holds` is None where the data are not the paper's and nothing follows.

    >>> claim("it is 1", "1.0", True)["holds"]
    True
    """
    return {"paper": paper, "measured": measured, "holds": None if holds is None else bool(holds)}


@dataclass(frozen=True)
class Outcome:
    """What came out of an experiment."""

    title: str
    words: str  # what it shows, in a sentence or two
    settings: dict
    curves: dict[str, list]
    claims: list[dict]
    picture: Figure
    caption: str
    data: str  # where they are from
