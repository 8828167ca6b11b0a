"""Training on choices: rounds of the whole-data squared loss, then rounds of the sampled softmax,
or of comparisons with items drawn at random (BPR).

The squared loss asks 1 of every choice and 0, with a small weight alpha_0, of every entry. Its sum
over all entries is a product of Grams, so that a step needs no negatives and is O(r). What it finds
for little is where the softmax begins, which ranks better and costs more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from ..core.choices import Choices
from ..core.factors import Factors
from ..core.linalg import unit
from ..engines.base import AnyChoices, Engine, SoftmaxRound, SquaredRound
from ..io.progress_bar import epoch_bar
from .history import Callback, DivergenceError, History, Progress
from .state import digest

WARM_EPOCHS = 6  # of the squared loss: more gain a percent at best, and lose one elsewhere
_WARM_ROUNDS = 4, 2  # refreshes in its first epochs, while the spectrum still grows; then one each
_THETA = 4.0, 0.2  # its step at the beginning and at the end, in units of a Newton step of a row
_STREAM_THETA = 1.0  # of the squared loss in a stream
_STREAM_EPOCHS = 4  # of the softmax, over all choices of users who have new ones
_ROUNDS = 4  # refreshes in an epoch of the softmax
_ETA = 1.0  # damping of its P: with less, directions that are still empty fill with noise
_COSINE_STEP, _DOT_STEP = 0.064, 0.5  # alpha r, and alpha r / tau^2
_BPR_STEP = 0.15  # alpha r
_LENGTH = 0.8  # of a row when the softmax with cosines begins
# Choices of a block: no more than leave so many blocks in an epoch, and so many items for each of
# them, or items are moved by many at once that do not see each other.
_SMALLEST, _LARGEST, _BLOCKS, _ITEMS = 32, 512, 192, 4
_ADVICE = "try another ridge, alpha0 or temperature, or weights that differ less"


@dataclass
class ChoicePolicy:
    """What training on choices is told: found by a search, or set by its user."""

    loss: str = "softmax"  # or "bpr", or "squared" alone
    alpha0: float = 0.1  # the weight of an entry that is no choice
    ridge: float = 2.0  # of the squared loss: the mean over rows
    tau: float = 0.14
    c: float = 1.1
    cosine: bool = True
    dot_ridge: float = 0.0  # of the softmax with dot products and of BPR, on a choice's rows
    negatives: int = 1024
    neighbours: int = 0  # items on which each is regressed, beside the vectors; 0: none are
    local_ridge: float = 10.0  # of those regressions
    blend: float = 1.0  # what they say, in units of the vectors' products
    scaled: bool = True  # False: plain SGD, without P
    rate: float = 1.0  # times the step that is taken by itself
    unit: float = 1.0  # the mean weight of a choice, which counts as 1
    rms: float = 0.0  # of the last residuals; the mean loss of the last pass of the softmax

    @property
    def by_angle(self) -> bool:
        """Whether scores are cosines."""
        return self.loss == "softmax" and self.cosine


@dataclass
class ChoiceTrainer:
    """Everything that training on choices remembers from one call to the next."""

    factors: Factors
    policy: ChoicePolicy
    engine: Engine
    rng: np.random.Generator
    seen: list[np.ndarray] = field(default_factory=list)  # the weights of each row, users first
    history: History = field(default_factory=History)
    samples: int = 0
    seconds: float = 0.0
    checkpoint: Any = None  # where the state goes after every epoch, if anywhere
    P = snapshot = None  # what other trainers keep
    left = began = 0

    def run(
        self, choices: AnyChoices, *, epochs: int, callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:  # fmt: skip
        """Learn from nothing: epochs of the squared loss, and so many of the policy's loss if that
        is another."""
        epochs, callbacks = epochs * (self.policy.loss != "squared"), tuple(callbacks)
        passes = WARM_EPOCHS + epochs
        self.factors.X = self.engine.put(self.factors.X)
        done = self._resumed(choices)
        if self.checkpoint and not done:
            self.checkpoint.save(self, 0)  # with what was found before
        with epoch_bar(verbose, passes) as advance:
            losses = chain(
                self.warming(choices, first=min(done, WARM_EPOCHS)),
                self._descending(choices, epochs, max(0, done - WARM_EPOCHS)),
            )
            for epoch, loss in enumerate(losses, done + 1):
                told = Progress(float(epoch), self.samples, loss, self.factors)
                self._remember(told)
                if self.checkpoint:
                    self.checkpoint.save(self, epoch)
                advance(told)
                answers = [callback(told) for callback in callbacks]  # all of them hear of it
                if any(answer is True for answer in answers):
                    self.history.stopped = "callback"
                    break
        self._check_end(choices)
        self.factors.X = self.engine.get(self.factors.X)
        self.history.stopped = self.history.stopped or "epochs"
        return self.history

    def _resumed(self, choices: AnyChoices) -> int:
        """How many epochs a checkpoint has behind it."""
        if self.checkpoint is None:
            return 0
        return self.checkpoint.resume(self, [*choices.shape, digest(*choices.row_weights())])

    def _remember(self, told: Progress) -> None:
        spectrum = self.factors.spectrum
        self.history.records.append(
            {
                "epoch": told.epoch,
                "samples": told.samples,
                "loss": told.loss,
                "condition_number": self.factors.condition_number if spectrum.any() else np.inf,
                "seconds": self.seconds,
            }
        )

    def warm_up(self, choices: Choices, epochs: int = WARM_EPOCHS) -> None:
        """Epochs of the squared loss, with a step that decays."""
        for _ in self.warming(choices, epochs):
            pass

    def warming(
        self, choices: AnyChoices, epochs: int = WARM_EPOCHS, first: int = 0
    ) -> Iterator[float]:
        """The same from the epoch `first` on, with a look at the mean loss after each."""
        self.seen = choices.row_weights()
        if not first:
            self.clear_unseen()
        total, done, loss = epochs * len(choices), first * len(choices), 0.0
        for rounds in islice(chain(_WARM_ROUNDS, repeat(1)), first, epochs):
            for part in choices.portions(self.rng, rounds):
                theta = self.policy.rate * _THETA[0] * (_THETA[1] / _THETA[0]) ** (done / total)
                loss = self.squared_round(choices, part, theta) / len(part) / 2
                done += len(part)
            yield loss

    def descend(self, choices: Choices, epochs: int) -> None:
        """Epochs of the softmax or of BPR, with a step that falls to nothing."""
        for _ in self._descending(choices, epochs):
            pass

    def clear_unseen(self) -> None:
        """Rows that nobody names are zero: at random they would be taken for structure."""
        for side, weights in zip(self.factors.sides, self.seen, strict=True):
            if (weights == 0).any():
                self.engine.clear(side, weights == 0)

    def _descending(
        self, choices: AnyChoices, epochs: int, first: int = 0, fresh: bool = True
    ) -> Iterator[float]:
        """The same from the epoch `first` on, with a look at the mean loss after each. Args: fresh,
        rows come from the squared loss. Of those that the softmax has trained the lengths stay:
        they have grown with what was learned, and a long row turns less in a step."""
        if epochs and not first and fresh and self.policy.by_angle:
            self._even_lengths()
        epoch = self.bpr_epoch if self.policy.loss == "bpr" else self.softmax_epoch
        for k in range(first, epochs):
            loss = epoch(choices, k / epochs, (k + 1) / epochs)
            self.policy.rms = float(np.sqrt(loss)) if self.policy.loss == "bpr" else loss
            yield loss

    def squared_round(self, choices: AnyChoices, part: Any, theta: float) -> float:
        """Steps on these choices in the basis of now. Returns the sum of squared residuals."""
        clock = time.perf_counter()
        policy, factors, engine = self.policy, self.factors, self.engine
        self._refresh(choices)
        spectrum, tables = factors.spectrum, []
        for side, weights in zip(factors.sides, self.seen, strict=True):
            tables.append(engine.squares(side, weights[None])[0])
        # Both Grams are the same diagonal. Among all such bases, that in which the ridge is least:
        held_u, held_i = (
            share * (table + rest * spectrum)
            for table, (share, rest) in zip(tables, self._shares(), strict=True)
        )
        floor = 1e-12 * max(held_u.max(), held_i.max(), 1e-300)
        scale = ((held_i + floor) / (held_u + floor)) ** 0.25
        engine.scale(factors.left, scale)
        engine.scale(factors.right, 1 / scale)
        grams = policy.alpha0 * np.stack([spectrum * scale**2, spectrum / scale**2])
        means = np.stack([tables[0] * scale**2, tables[1] / scale**2])
        means /= np.array([[max(w.sum(), 1e-12)] for w in self.seen])
        seen = [np.maximum(w, 1e-6) for w in self.seen]
        round = SquaredRound(theta, seen, self.ridges(), grams, means)
        squares = engine.run_squared(factors, choices, part, round)
        self.samples += len(part)
        self.policy.rms = float(np.sqrt(squares / max(1, len(part))))
        self.seconds += time.perf_counter() - clock
        return squares

    def ridges(self) -> list[np.ndarray]:
        """Of each row in proportion to the weight of all its entries, which keeps rows of many
        choices as modest as those of few; their mean is the policy's."""
        sides = zip(self.seen, self._shares(), strict=True)
        return [share * (weights + rest) for weights, (share, rest) in sides]

    def _shares(self) -> Iterator[tuple[float, float]]:
        """Of each side the ridge for a weight of 1, and the weight of what a row has not chosen."""
        for weights, others in zip(self.seen, self.factors.shape[::-1], strict=True):
            rest = self.policy.alpha0 * others
            yield self.policy.ridge / (weights.mean() + rest), rest

    def _even_lengths(self) -> None:
        """Bring rows to a length at which the softmax with cosines learns: to the squared loss it
        meant something else. Rows that nobody chose are drawn at random."""
        for side in self.factors.sides:
            self.engine.set_lengths(side, _LENGTH, self.rng)

    @property
    def pool(self) -> np.ndarray:
        """Items that somebody has chosen: negatives are drawn from them."""
        return np.flatnonzero(self.seen[1] > 0).astype(np.int32)

    def softmax_epoch(self, choices: AnyChoices, begin: float, end: float) -> float:
        """One pass, with a step that falls from 1 - begin to 1 - end of its length. Returns the
        mean loss."""
        clock, policy, total = time.perf_counter(), self.policy, 0.0
        rate = policy.rate * (_COSINE_STEP if policy.cosine else _DOT_STEP * policy.tau**2)
        rate /= self.factors.rank
        few = min(len(choices) // _BLOCKS, self.factors.shape[1] // _ITEMS)
        few //= self.engine.groups_of_items
        size = int(np.clip(few, _SMALLEST, _LARGEST * self.engine.block_of_choices))
        for k, part in enumerate(choices.portions(self.rng, _ROUNDS, size)):
            ends = [rate * (1 - begin - (end - begin) * at / _ROUNDS) for at in (k, k + 1)]
            round = SoftmaxRound(
                self._preconditioners(choices), (ends[0], ends[1]), size, policy.tau, policy.c,
                policy.cosine, policy.dot_ridge,
            )  # fmt: skip
            blocks = -(-len(part) // size)
            negatives = choices.negatives(self.pool, blocks, policy.negatives, self.rng)
            total += self.engine.run_softmax(self.factors, choices, part, negatives, round)
        self.samples += len(choices)
        self.seconds += time.perf_counter() - clock
        return total / len(choices)

    def bpr_epoch(self, choices: AnyChoices, begin: float, end: float) -> float:
        """The same for BPR: each choice is compared with one item. Choices come as often as their
        weights say. Returns the mean squared slope of the loss."""
        clock, factors, engine = time.perf_counter(), self.factors, self.engine
        rate, squares = self.policy.rate * _BPR_STEP / factors.rank, 0.0
        for k, part in enumerate(choices.portions(self.rng, _ROUNDS, weighted=True)):
            alpha = rate * (1 - begin - (end - begin) * (k + 0.5) / _ROUNDS)
            self._refresh(choices)
            S = factors.spectrum
            P = (
                1 / (S + _ETA * S.mean() + 1e-12)
                if self.policy.scaled
                else np.full(len(S), 1 / S[0])
            )
            # A row learns from rows of the other side, of which there are so many.
            items, users = alpha * factors.shape[0], alpha * factors.shape[1]
            drawn = choices.negatives(self.pool, len(part), 1, self.rng)
            rates = np.array([items, items, users])
            squares += engine.run_bpr(factors, choices, part, drawn, P, rates)
            for side, step, named in zip(factors.sides, (users, items), (1, 2), strict=True):
                often = named * len(part) / len(side)  # a row takes part so often, in the mean
                engine.scale(side, np.exp(-self.policy.dot_ridge * step * often * P))
        self.samples += len(choices)
        self.seconds += time.perf_counter() - clock
        return squares / len(choices)

    def _refresh(self, choices: AnyChoices) -> None:
        """To the basis in which the Grams are one diagonal."""
        try:
            self.factors.refresh(self.engine, exact=False)
        except FloatingPointError:
            raise self._divergence(choices) from None
        self.history.refreshes += 1

    def _check_end(self, choices: AnyChoices) -> None:
        """What a round begins with is looked at there; what the last one has left, here."""
        X = self.factors.X
        if not self.engine.finite(X, np.arange(len(X))):
            raise self._divergence(choices)

    def _divergence(self, choices: AnyChoices) -> DivergenceError:
        self.history.stopped = "diverged"
        epoch = 1 + self.samples // max(1, len(choices))
        return DivergenceError(epoch, self.samples, None, self.factors.condition_number, _ADVICE)

    def _preconditioners(self, choices: AnyChoices) -> np.ndarray:
        """P of both sides (2, r, r): the inverse of the mean of x x^T over rows, damped by its
        trace."""
        r, inverses = self.factors.rank, []
        for side in self.factors.sides:
            G = self.engine.gram(side) / len(side)
            if not np.isfinite(G).all():
                raise self._divergence(choices)
            damped = G + (_ETA * np.trace(G) / r + 1e-12) * np.eye(r)
            inverses.append(np.linalg.inv(damped) if self.policy.scaled else np.eye(r))
        self.history.refreshes += 1
        return np.stack(inverses)

    def grow(self, shape) -> None:
        """Make room for a matrix of that shape, should it be larger."""
        self.factors.X = self.engine.local(self.factors.X)
        held = self.factors.shape
        self.factors = self.factors.grow(shape)
        seen = self.seen or [np.zeros(0), np.zeros(0)]
        self.seen = [
            np.concatenate([weights, np.zeros(max(0, rows - len(weights)))])
            for weights, rows in zip(seen, self.factors.shape, strict=True)
        ]
        if self.policy.loss != "squared":  # rows that are new are as long as the others
            for side, had in zip(self.factors.sides, held, strict=True):
                if 0 < had < len(side):
                    length = float(np.sqrt(np.mean(np.sum(side[:had] ** 2, axis=1))))
                    self.engine.set_lengths(side[had:], length, self.rng)

    def follow(self, choices: Choices, replayed: Choices | None = None) -> None:
        """Learn from new choices, a stream's next: their weights are added to what was seen. The
        softmax learns from them with all that their users chose before, `replayed`."""
        X, before, spectrum = self.factors.X, self.factors.X.copy(), self.factors.spectrum
        for side, weights in enumerate(choices.row_weights()):
            self.seen[side][: len(weights)] += weights
        self.factors.X = self.engine.put(self.factors.X)
        try:
            if self.policy.loss == "squared":
                self.squared_round(choices, self.rng.permutation(len(choices)), _STREAM_THETA)
            else:
                passes = self._descending(replayed or choices, _STREAM_EPOCHS, fresh=False)
                self.policy.rms, *_ = [self.policy.rms for _ in passes]  # as it was to begin with
            self._check_end(choices)
        except DivergenceError:
            X[:] = before
            self.factors.X, self.factors.spectrum = X, spectrum
            raise
        self.factors.X = self.engine.local(self.engine.get(self.factors.X))

    def copy(self, **changes) -> ChoiceTrainer:
        """One that goes on from the same state with other settings, and a generator of its own."""
        factors = replace(self.factors, X=self.factors.X.copy(), room=None)
        rng = np.random.default_rng(self.rng.integers(2**63))
        policy = replace(self.policy, **changes)
        return ChoiceTrainer(factors, policy, self.engine, rng, list(self.seen))

    def vectors(self, *, last: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of users and items whose products are the scores. Args: last, nothing is trained
        after, so that they may take the place of the factors."""
        X = self.engine.local(self.engine.get(self.factors.X))
        users, items = X[: self.factors.rows], X[self.factors.begin :]
        if not self.policy.by_angle:
            return users, items
        return unit(users, users if last else None), unit(items, items if last else None)
