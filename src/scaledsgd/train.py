"""The loop: epochs of rounds, evaluation on the way, and a safe stop when the factors blow up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .engines import Chunk, Engine, Samples
from .factors import Factors
from .losses import Loss
from .metrics import mean_loss, rms_slope
from .observations import Observations
from .policy import Policy

# The mean loss is taken over at most this many samples. They are stored in random order, so the
# first million are a fair draw: the estimate is good to a thousandth of the loss's spread.
_EVALUATED = 1_000_000

# Where P follows every sample, or is not used at all, a round only looks after the factors: it
# takes as long as the longest of the others.
_WATCH = 32


class DivergenceError(ArithmeticError):
    """The factors are no longer finite; the trainer is back at the last state that was."""

    def __init__(self, epoch: int, sample: int, learning_rate: float, condition_number: float):
        self.epoch, self.sample = epoch, sample
        self.learning_rate, self.condition_number = learning_rate, condition_number
        super().__init__(
            f"diverged in epoch {epoch} at sample {sample}, learning rate {learning_rate:.4g}, "
            f"condition number {condition_number:.3g}: try a smaller learning_rate or damping=1"
        )


@dataclass
class History:
    """What happened: a record an evaluation, and what P cost.

    >>> history = History([{"epoch": 1.0, "loss": 0.5}])
    >>> history["loss"]
    array([0.5])
    """

    records: list[dict[str, float]] = field(default_factory=list)
    refreshes: int = 0
    repairs: int = 0  # times that a broken or singular P was rebuilt from X
    rollbacks: int = 0  # times that the factors blew up and were taken back
    stopped: str = ""

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array([record[name] for record in self.records])

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Progress:
    """What a callback is told. Returning True from a callback ends the run."""

    epoch: float
    samples: int
    loss: float
    factors: Factors


Callback = Callable[[Progress], object]


@dataclass
class Trainer:
    """Everything that training remembers from one call to the next."""

    factors: Factors
    loss: Loss
    policy: Policy
    engine: Engine
    rng: np.random.Generator
    per_sample: bool = False  # the paper's P, brought up to date by every sample
    history: History = field(default_factory=History)
    samples: int = 0
    seconds: float = 0.0
    _left: int = 0  # samples until the round ends
    _P: Any = None  # diagonal, or a matrix a side where it follows every sample
    _begun: Any = None  # X as the round began
    _safe: Any = None  # X as the round before it began

    def grow(self, shape) -> None:
        """Make room for a matrix of that shape, should it be larger."""
        if any(new > old for new, old in zip(shape, self.factors.shape, strict=True)):
            self.factors = self.factors.grow(shape)
            self._left, self._begun, self._safe = 0, None, None

    def run(
        self,
        observations: Observations,
        *,
        epochs: int,
        tol: float = 0.0,
        evaluations: int = 1,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:
        """Pass over the observations `epochs` times, scoring `evaluations` times in each."""
        shift = [side * (self.factors.rows or 0) for side in self.loss.sides]
        data = self.engine.samples(observations, shift, self.factors.X.dtype, self.rng)
        seen = (data.index[:_EVALUATED], data.targets[:_EVALUATED])
        marks = [len(data) * k // evaluations for k in range(1, evaluations + 1)]
        marks = [mark for mark in marks if mark] or [len(data)]
        self.factors.X = self.engine.put(self.factors.X)
        try:
            self._expect(*seen)
            with _bar(verbose, epochs) as advance:
                for epoch in range(epochs):
                    for done in self._epoch(data, epoch + 1, marks):
                        if evaluations == 0:
                            continue
                        told = self._evaluate(epoch + done / len(data), *seen)
                        advance(told)
                        # A list, not a generator: every callback hears of every evaluation.
                        answers = [callback(told) for callback in callbacks]
                        if any(answer is True for answer in answers):
                            return self._stop("callback")
                        if told.loss <= tol:
                            return self._stop("tol")
            return self._stop("epochs")
        finally:
            self.factors.X = self.engine.get(self.factors.X)

    def _epoch(self, data: Samples, epoch: int, marks: list[int]) -> Iterator[int]:
        """One pass over the data, in pieces that end where a round does or a mark is set. Yields
        the marks as they are reached."""
        done = 0
        for chunk in data.epoch(self.rng):
            at = 0
            while at < len(chunk.targets):
                if self._left == 0:
                    self._begin_round(epoch)
                due = next(mark for mark in marks if mark > done) - done
                stop = min(len(chunk.targets), at + self._left, at + due)
                self._step(Chunk(chunk.index[at:stop], chunk.targets[at:stop]), epoch)
                done, at = done + stop - at, stop
                if done in marks:
                    if not self._finite(data.index):
                        self._diverged(epoch)
                    yield done

    def _evaluate(self, epoch: float, index, targets) -> Progress:
        loss = mean_loss(self.engine, self.factors, index, targets, self.loss)
        self.history.records.append(
            {
                "epoch": epoch,
                "samples": self.samples,
                "loss": loss,
                "condition_number": self.factors.condition_number,
                "seconds": self.seconds,
            }
        )
        return Progress(epoch, self.samples, loss, self.factors)

    def _begin_round(self, epoch: int) -> None:
        factors, policy = self.factors, self.policy
        turning = policy.scaled and not self.per_sample
        try:
            moved = factors.refresh(self.engine, turn=turning)
        except FloatingPointError:
            self._diverged(epoch)
            moved = factors.refresh(self.engine, turn=turning)
        if policy.scaled:
            self.history.refreshes += 1
            self.history.repairs += factors.singular
        # The round that has ended went well, so the state it began with is known to be sound.
        self._safe, self._begun = self._begun, factors.X.copy()
        if self.per_sample:
            self._P = self.engine.inverse(factors, policy.eta(factors))
        else:
            self._P = policy.preconditioner(factors)
        if turning:
            policy.refreshed(moved)
            self._left = policy.round_length(factors)
        else:
            self._left = _WATCH * len(factors.X)

    def _step(self, chunk: Chunk, epoch: int) -> None:
        clock = time.perf_counter()
        factors, policy, n = self.factors, self.policy, len(chunk.targets)
        rates = policy.rates(factors, self.loss)
        if self.per_sample and policy.scaled:
            repairs, eta = self.engine.repairs, policy.eta(factors)
            squares = self.engine.run_sampled(factors, self._P, eta, rates, self.loss, chunk)
            self.history.repairs += self.engine.repairs - repairs
        else:
            cap = policy.cap / self.loss.curvature
            squares = self.engine.run(factors, self._P, rates, self.loss, chunk, cap)
        self.samples += n
        self._left -= n
        self.seconds += time.perf_counter() - clock
        if not policy.saw(squares, n):
            self._diverged(epoch)

    def _expect(self, index, targets) -> None:
        """The residual before the first step, which damps the first round."""
        if not self.policy.first:
            self.policy.expects(rms_slope(self.engine, self.factors, index, targets, self.loss))

    def _finite(self, index: np.ndarray) -> bool:
        X = self.factors.X
        touched = X[index] if index.size < len(X) else X
        return bool(np.isfinite(touched).all())

    def _diverged(self, epoch: int) -> None:
        """Back to the last sound state, and on with a smaller step if it is ours to choose."""
        factors = self.factors
        rate = float(self.policy.rates(factors, self.loss).max())
        self._begun = self._begun if self._safe is None else self._safe
        factors.X[...] = self._begun
        self._left = 0
        self.history.rollbacks += 1
        if not self.policy.retreat():
            self.history.stopped = "diverged"
            raise DivergenceError(epoch, self.samples, rate, factors.condition_number)

    def _stop(self, why: str) -> History:
        self.history.stopped = why
        return self.history


@contextmanager
def _bar(wanted: bool, epochs: int) -> Iterator[Callable[[Progress], None]]:
    """A progress bar, on a terminal only."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda told: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("epoch {task.completed:.1f} of {task.total}"),
        progress.BarColumn(),
        progress.TextColumn("mean loss {task.fields[loss]:.3g}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=epochs, loss=float("nan"))
        yield lambda told: bar.update(task, completed=told.epoch, loss=told.loss)
