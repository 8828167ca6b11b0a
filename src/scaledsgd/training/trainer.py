"""The loop: epochs of rounds, evaluation on the way, and a safe stop when the factors blow up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from ..core.factors import CALM, Factors
from ..core.losses import Loss
from ..core.observations import Chunk, Observations
from ..engines.base import Engine, Portion, Samples
from ..io.progress_bar import epoch_bar
from . import lagging_rows
from .history import Callback, DivergenceError, History, Progress, warn
from .metrics import mean_loss, rms_slope, zero_loss
from .policy import Policy
from .state import Snapshot, digest

# The mean loss is taken over at most this many samples. They are stored in random order, so the
# first are a fair draw: the estimate is good to a third of a percent of the loss's spread.
_EVALUATED = 100_000

# In a stream there are no epochs: the policy looks back after this many times d samples.
_REVIEWED = 8


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
    left: int = 0  # samples until the round ends
    began: int = 0  # rows that X had when the round began
    P: Any = None  # diagonal, or a matrix a side where it follows every sample
    snapshot: Snapshot | None = None  # the state to come back to
    checkpoint: Any = None  # where the state goes after every epoch, if anywhere
    data: Any = field(
        default=None, repr=False
    )  # the samples of the last run, as its engine has them

    def grow(self, shape) -> None:
        """Make room for a matrix of that shape, should it be larger."""
        if any(new > old for new, old in zip(shape, self.factors.shape, strict=True)):
            X = self.engine.local(self.factors.X)
            if X is not self.factors.X:  # it was elsewhere, and so is the snapshot
                self.factors.X, self.snapshot = X, None
            self.factors = self.factors.grow(shape)
            # A tenth more rows leaves P about as right as it was; in a stream some come with every
            # batch, and a new round for each of them would cost O(d). A P that follows every
            # sample must know every row.
            if self.per_sample or self.factors.d > (1 + CALM) * self.began:
                self.left = 0

    def run(
        self,
        observations: Observations,
        *,
        epochs: int,
        begin: int = 0,
        streaming: bool = False,
        split: tuple[Observations, Chunk | None] | None = None,
        tol: float = 0.0,
        evaluations: int = 1,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:
        """Pass over the observations `epochs` times, but for those before `begin`, scoring
        `evaluations` times in each. What is `streaming` comes by once: nothing is held out, and the
        truth may move. `split` is what to train on and what is held out, where that is decided."""
        held = None
        if not streaming:
            observations, held = split or self.policy.hold_out(observations, self.rng)
        self.factors = self.engine.packed(self.factors)
        shift = [side * self.factors.begin for side in self.loss.sides]
        given_back, held = held, held and Chunk(held.index + np.array(shift), held.targets)
        data = self.engine.samples(observations, shift, self.factors.X.dtype, self.rng)
        parts, self.data = [data], data if split else None
        self.policy.until = 0 if streaming else self.samples + (epochs - begin) * len(data)
        seen = data.fair(_EVALUATED)
        marks = [len(data) * k // evaluations for k in range(1, evaluations + 1)]
        marks = [mark for mark in marks if mark] or [len(data)]
        self.factors.X = self.engine.put(self.factors.X)
        try:
            self._expect(seen)
            nothing = zero_loss(seen.targets, self.loss) if evaluations else 0.0
            if self.snapshot is None:
                self._take_snapshot()
            with epoch_bar(verbose, epochs) as advance:
                first = begin
                if self.checkpoint:
                    known_by = [digest(seen.index, seen.targets), self.policy.until]
                    first = self.checkpoint.resume(self, known_by)
                    if self.history.stopped:  # it was over already
                        return self.history
                for epoch in range(first, epochs):
                    if given_back and self.policy.polishing:
                        parts = [self._given_back(given_back, observations), data]
                        given_back = held = None
                    for done in self._epoch(parts, epoch + 1, marks):
                        if evaluations == 0:
                            continue
                        told = self._evaluate(epoch + done / len(data), seen)
                        advance(told)
                        # A list, not a generator: every callback hears of every evaluation.
                        answers = [callback(told) for callback in callbacks]
                        if any(answer is True for answer in answers):
                            return self._stop("callback", streaming)
                        deep = (
                            self.factors.depth(self.policy.useful) if self.policy.automatic else 1.0
                        )
                        if told.loss <= tol * deep**2 * nothing:
                            return self._stop("tol", streaming)
                    verdict = self._review(epoch + 1, data, held, streaming)
                    if verdict:
                        return self._stop(verdict, streaming)
                    if self.checkpoint:
                        self.checkpoint.save(self, epoch + 1)
            return self._stop("epochs", streaming)
        except DivergenceError as why:
            if not self.policy.automatic:
                raise
            warn(f"{why}; the best state found is kept", RuntimeWarning)
            return self._stop("diverged", streaming)
        finally:
            self.factors.X = self.engine.get(self.factors.X)
            if not streaming:  # what comes next is judged by itself
                self.snapshot = None

    def _epoch(self, parts: list[Samples], epoch: int, marks: list[int]) -> Iterator[int]:
        """One pass over all parts, in pieces that end where a round does or a mark is set. Yields
        the marks, which are places in the last part, as they are reached."""
        data, done = parts[-1], -sum(map(len, parts[:-1]))
        for portion in chain.from_iterable(part.epoch(self.rng) for part in parts):
            at = 0
            while at < len(portion):
                if self.left == 0:
                    self._refresh_and_begin(epoch)
                due = next(mark for mark in marks if mark > done) - done
                stop = min(len(portion), at + self.left, at + due)
                self._step(portion[at:stop], epoch)
                done, at = done + stop - at, stop
                if done in marks:
                    if not self.engine.finite(self.factors.X, data.index):
                        self._diverged(epoch)
                    yield done

    def _evaluate(self, epoch: float, seen: Chunk) -> Progress:
        loss = mean_loss(self.engine, self.factors, seen, self.loss)
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

    def _review(self, epoch: int, data: Samples, held: Chunk | None, streaming: bool) -> str:
        """Let the policy look back on the epoch. Returns why the run should end, if it should."""
        policy, d = self.policy, self.factors.d
        if not policy.automatic or (streaming and policy.samples < _REVIEWED * d):
            return ""
        if not policy.samples:  # the epoch ended in a roll-back: there is nothing to judge
            return ""
        moved, columns = self._refresh(epoch), policy.columns
        due = policy.catches_up and not (streaming or self.per_sample)
        if due and lagging_rows.catch_up(self.engine, self.factors, self.loss, data):
            moved = self._refresh(epoch)
        verdict = policy.review(self.factors, self.engine, self.loss, held, streaming)
        if verdict == "bad":  # and if no step is small enough: there is nothing better to find
            return "" if self._step_back() else "settled"
        if verdict == "polish":
            if policy.regrets:
                self._come_back()
            policy.polish(self.factors, self.engine)
            moved = np.inf
        if verdict in ("best", "polish"):
            self._take_snapshot()
        self._begin_round(moved if policy.columns == columns else np.inf)
        return "" if verdict in ("best", "polish") else verdict

    def _given_back(self, held: Chunk, observations: Observations) -> Samples:
        """Samples that no longer judge, to be trained on. In an order that a run which goes on from
        a checkpoint finds again."""
        shift = [side * self.factors.begin for side in self.loss.sides]
        rng = np.random.default_rng([self.factors.seed, 4])
        some = observations.of(Chunk(held.index.copy(), held.targets.copy()))
        return self.engine.samples(some, shift, self.factors.X.dtype, rng)

    def _refresh_and_begin(self, epoch: int) -> None:
        """Begin a round in the basis of the present."""
        moved = self._refresh(epoch, glance=True)
        if not self.policy.automatic:
            self._take_snapshot()
        if not self.per_sample:
            shrink = self.policy.shrink(self.factors, self.loss)
            if shrink is not None:
                self.engine.scale(self.factors.X, shrink)
        self._begin_round(moved)

    def _refresh(self, epoch: int, *, glance: bool = False) -> float:
        """To the basis in which P is diagonal. Returns how far the last P was off."""
        rotate = self.policy.scaled and not self.per_sample
        frozen = self.P if rotate else None
        try:
            moved = self.factors.refresh(
                self.engine, rotate=rotate, frozen=frozen, glance=glance and rotate
            )
        except FloatingPointError:
            self._diverged(epoch)
            moved = self.factors.refresh(self.engine, rotate=rotate)
        if self.policy.scaled:
            self.history.refreshes += 1
            self.history.repairs += self.factors.singular
        return moved

    def _begin_round(self, moved: float = np.inf) -> None:
        """Freeze a new P."""
        factors, policy, old = self.factors, self.policy, self.P
        self.began = factors.d
        if self.per_sample:
            self.P = self.engine.inverse(factors, policy.eta(factors, self.loss))
        else:
            self.P = policy.preconditioner(factors, self.loss)
        if self.per_sample or not policy.scaled:
            # P follows every sample, or is not used at all: a round only looks after the factors.
            self.left = self.engine.longest * factors.d
            return
        if old is not None:
            moved = max(moved, float(np.max(self.P[old > 0] / old[old > 0], initial=1.0)) - 1)
        policy.refreshed(moved, self.engine.longest)
        self.left = policy.round_length(factors)

    def _step(self, samples: Portion, epoch: int) -> None:
        clock = time.perf_counter()
        factors, policy, n = self.factors, self.policy, len(samples)
        rates = policy.rates(factors, self.loss)
        if self.per_sample and policy.scaled:
            repairs, eta = self.engine.repairs, policy.eta(factors, self.loss)
            squares = self.engine.run_sampled(factors, self.P, eta, rates, self.loss, samples)
            self.history.repairs += self.engine.repairs - repairs
        else:
            cap = policy.cap / self.loss.curvature
            squares = self.engine.run(factors, self.P, rates, self.loss, samples, cap)
        self.samples += n
        self.left -= n
        self.seconds += time.perf_counter() - clock
        if not policy.saw(squares, n):
            self._diverged(epoch)

    def _expect(self, seen: Chunk) -> None:
        """The residual before the first step, which damps the first round."""
        if not self.policy.rms:
            self.policy.expects(rms_slope(self.engine, self.factors, seen, self.loss))

    def _take_snapshot(self) -> None:
        """Remember this state as one to come back to."""
        sides = [side.copy() for side in self.factors.sides]
        self.snapshot = Snapshot(sides, self.factors.spectrum.copy(), self.policy.columns)

    def _come_back(self) -> None:
        """To the last snapshot."""
        assert self.snapshot is not None
        both = zip(self.factors.sides, self.snapshot.sides, strict=True)
        for side, (new, old) in enumerate(both):
            new[: len(old)] = self.engine.put(old)
            if len(new) > len(old):
                new[len(old) :] = self.engine.put(self.factors.fresh(side, len(old), len(new)))
        self.factors.spectrum = self.snapshot.spectrum.copy()
        self.policy.columns = self.snapshot.columns
        self.left, self.P = 0, None

    def _step_back(self) -> bool:
        """To the last snapshot. Whether there is a smaller step to go on with."""
        self._come_back()
        self.history.rollbacks += 1
        return self.policy.retreat()

    def _diverged(self, epoch: int) -> None:
        """Back to the last snapshot, and on with a smaller step if it is ours to choose."""
        rate = float(self.policy.rates(self.factors, self.loss).max())
        if not self._step_back():
            self.history.stopped = "diverged"
            raise DivergenceError(epoch, self.samples, rate, self.factors.condition_number)

    def _stop(self, why: str, streaming: bool) -> History:
        # What a stream has learned it does not give back for having been better once.
        if self.policy.regrets and not streaming:
            self._come_back()
        self.history.stopped = why
        if self.checkpoint:
            self.checkpoint.save(self, -1)
        return self.history
