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
from itertools import chain

import numpy as np

from ..core.choices import Choices
from ..core.factors import Factors
from ..core.linalg import unit
from ..core.losses import LOSSES
from ..core.observations import Chunk
from ..engines.base import Engine, SoftmaxRound, SquaredRound
from ..io.progress_bar import epoch_bar
from .history import Callback, History, Progress

WARM_EPOCHS = 8  # of the squared loss: more gain less than a percent
_FIRST_ROUNDS = 4  # refreshes in its first epoch, while the spectrum still grows; then one an epoch
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
    scaled: bool = True  # False: plain SGD, without P
    rate: float = 1.0  # times the step that the softmax takes by itself
    unit: float = 1.0  # the mean weight of a choice, which counts as 1
    rms: float = 0.0  # of the last residuals

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
    P = snapshot = checkpoint = None  # what other trainers keep
    left = began = 0

    def run(
        self, choices: Choices, *, epochs: int, callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:  # fmt: skip
        """Learn from nothing: epochs of the squared loss, and so many of the policy's loss if that
        is another."""
        epochs, callbacks = epochs * (self.policy.loss != "squared"), tuple(callbacks)
        passes = WARM_EPOCHS + epochs
        self.factors.X = self.engine.put(self.factors.X)
        with epoch_bar(verbose, passes) as advance:
            losses = chain(self._warming(choices), self._descending(choices, epochs))
            for epoch, loss in enumerate(losses, 1):
                told = Progress(float(epoch), self.samples, loss, self.factors)
                self._remember(told)
                advance(told)
                answers = [callback(told) for callback in callbacks]  # all of them hear of it
                if any(answer is True for answer in answers):
                    self.history.stopped = "callback"
                    break
        self.factors.X = self.engine.get(self.factors.X)
        self.history.stopped = self.history.stopped or "epochs"
        return self.history

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
        for _ in self._warming(choices, epochs):
            pass

    def _warming(self, choices: Choices, epochs: int = WARM_EPOCHS) -> Iterator[float]:
        """The same, with a look at the mean loss after each."""
        self.seen = choices.row_weights()
        self._clear_unseen()
        total, done, loss = epochs * len(choices), 0, 0.0
        for epoch in range(epochs):
            order = self.rng.permutation(len(choices))
            for part in np.array_split(order, _FIRST_ROUNDS if epoch == 0 else 1):
                if len(part):
                    theta = _THETA[0] * (_THETA[1] / _THETA[0]) ** (done / total)
                    loss = self.squared_round(choices, part, theta) / len(part) / 2
                    done += len(part)
            yield loss

    def descend(self, choices: Choices, epochs: int) -> None:
        """Epochs of the softmax or of BPR, with a step that falls to nothing."""
        for _ in self._descending(choices, epochs):
            pass

    def _clear_unseen(self) -> None:
        """Rows that nobody names are zero: at random they would be taken for structure."""
        X = self.engine.local(self.engine.get(self.factors.X))
        X[: self.factors.rows][self.seen[0] == 0] = 0
        X[self.factors.begin :][self.seen[1] == 0] = 0
        self.factors.X = self.engine.put(X)

    def _descending(self, choices: Choices, epochs: int) -> Iterator[float]:
        """The same, with a look at the mean loss after each."""
        if epochs and self.policy.by_angle:
            self._even_lengths()
        epoch = self.bpr_epoch if self.policy.loss == "bpr" else self.softmax_epoch
        for k in range(epochs):
            yield epoch(choices, k / epochs, (k + 1) / epochs)

    def squared_round(self, choices: Choices, order: np.ndarray, theta: float) -> float:
        """Steps on these choices in the basis of now. Returns the sum of squared residuals."""
        clock = time.perf_counter()
        policy, factors, engine = self.policy, self.factors, self.engine
        ridges = self._ridges()
        factors.refresh(engine)
        self.history.refreshes += 1
        sides = list(zip(factors.sides, self.seen, ridges, strict=True))
        tables = [engine.squares(side, np.stack(pair)) for side, *pair in sides]
        (means_u, held_u), (means_i, held_i) = tables
        # Both Grams are the same diagonal. Among all such bases, that in which the ridge is least:
        floor = 1e-12 * max(held_u.max(), held_i.max(), 1e-300)
        scale = ((held_i + floor) / (held_u + floor)) ** 0.25
        engine.scale(factors.left, scale)
        engine.scale(factors.right, 1 / scale)
        spectrum = factors.spectrum
        grams = policy.alpha0 * np.stack([spectrum * scale**2, spectrum / scale**2])
        means = np.stack([means_u * scale**2, means_i / scale**2])
        means /= np.array([[max(w.sum(), 1e-12)] for w in self.seen])
        round = SquaredRound(theta, [np.maximum(w, 1e-6) for w in self.seen], ridges, grams, means)
        squares = engine.run_squared(factors, choices, order, round)
        self.samples += len(order)
        self.policy.rms = float(np.sqrt(squares / max(1, len(order))))
        self.seconds += time.perf_counter() - clock
        return squares

    def _ridges(self) -> list[np.ndarray]:
        """Of each row in proportion to the weight of all its entries, which keeps rows of many
        choices as modest as those of few; their mean is the policy's."""
        ridges = []
        for weights, others in zip(self.seen, self.factors.shape[::-1], strict=True):
            whole = weights + self.policy.alpha0 * others
            ridges.append(self.policy.ridge * whole / whole.mean())
        return ridges

    def _even_lengths(self) -> None:
        """Bring rows to a length at which the softmax with cosines learns: to the squared loss it
        meant something else. Rows that nobody chose are drawn at random."""
        for side in self.factors.sides:
            self.engine.set_lengths(side, _LENGTH, self.rng)

    @property
    def pool(self) -> np.ndarray:
        """Items that somebody has chosen: negatives are drawn from them."""
        return np.flatnonzero(self.seen[1] > 0).astype(np.int32)

    def _draw(self, blocks: int, count: int) -> np.ndarray:
        """Negatives for each block, all items where they are no more."""
        pool = self.pool
        if count >= len(pool):
            return np.tile(pool, (blocks, 1))
        return pool[self.rng.integers(0, len(pool), (blocks, count))]

    def softmax_epoch(self, choices: Choices, begin: float, end: float) -> float:
        """One pass, with a step that falls from 1 - begin to 1 - end of its length. Returns the
        mean loss."""
        clock, policy, total = time.perf_counter(), self.policy, 0.0
        rate = policy.rate * (_COSINE_STEP if policy.cosine else _DOT_STEP * policy.tau**2)
        rate /= self.factors.rank
        few = min(len(choices) // _BLOCKS, self.factors.shape[1] // _ITEMS)
        size = int(np.clip(few, _SMALLEST, _LARGEST * self.engine.block_of_choices))
        order = self.rng.permutation(len(choices))
        rounds = np.array_split(np.arange(0, len(order), size), _ROUNDS)
        for k, starts in enumerate(part for part in rounds if len(part)):
            part = order[starts[0] : starts[-1] + size]
            ends = [rate * (1 - begin - (end - begin) * at / _ROUNDS) for at in (k, k + 1)]
            round = SoftmaxRound(
                self._preconditioners(), (ends[0], ends[1]), size, policy.tau, policy.c,
                policy.cosine, policy.dot_ridge,
            )  # fmt: skip
            negatives = self._draw(len(starts), policy.negatives)
            total += self.engine.run_softmax(self.factors, choices, part, negatives, round)
        self.samples += len(choices)
        self.seconds += time.perf_counter() - clock
        return total / len(choices)

    def bpr_epoch(self, choices: Choices, begin: float, end: float) -> float:
        """The same for BPR: each choice is compared with one item. Choices come as often as their
        weights say. Returns the mean squared slope of the loss."""
        clock, factors, engine = time.perf_counter(), self.factors, self.engine
        rate, squares = self.policy.rate * _BPR_STEP / factors.rank, 0.0
        pool, order = self.pool, self.rng.permutation(len(choices))
        if np.ptp(choices.weights):
            often = choices.weights.astype(np.float64)
            order = self.rng.choice(len(order), len(order), p=often / often.sum())
        for k, part in enumerate(np.array_split(order, _ROUNDS)):
            alpha = rate * (1 - begin - (end - begin) * (k + 0.5) / _ROUNDS)
            factors.refresh(engine)
            self.history.refreshes += 1
            S = factors.spectrum
            P = (
                1 / (S + _ETA * S.mean() + 1e-12)
                if self.policy.scaled
                else np.full(len(S), 1 / S[0])
            )
            # A row learns from rows of the other side, of which there are so many.
            items, users = alpha * factors.shape[0], alpha * factors.shape[1]
            drawn = pool[self.rng.integers(0, len(pool), len(part))]
            columns = (
                choices.items[part] + factors.begin,
                drawn + factors.begin,
                choices.users[part],
            )
            seen = Chunk(np.stack(columns, axis=1), np.ones(len(part), factors.X.dtype))
            rates = np.array([items, items, users])
            squares += engine.run(factors, P, rates, LOSSES["bpr"], seen)
            for side, step, named in zip(factors.sides, (users, items), (1, 2), strict=True):
                often = named * len(part) / len(side)  # a row takes part so often, in the mean
                engine.scale(side, np.exp(-self.policy.dot_ridge * step * often * P))
        self.samples += len(choices)
        self.seconds += time.perf_counter() - clock
        return squares / len(choices)

    def _preconditioners(self) -> np.ndarray:
        """P of both sides (2, r, r): the inverse of the mean of x x^T over rows, damped by its
        trace."""
        r, inverses = self.factors.rank, []
        for side in self.factors.sides:
            G = self.engine.gram(side) / len(side)
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
        for side, weights in enumerate(choices.row_weights()):
            self.seen[side][: len(weights)] += weights
        self.factors.X = self.engine.put(self.factors.X)
        if self.policy.loss == "squared":
            self.squared_round(choices, self.rng.permutation(len(choices)), _STREAM_THETA)
        else:
            self.descend(replayed or choices, _STREAM_EPOCHS)
        self.factors.X = self.engine.local(self.engine.get(self.factors.X))

    def copy(self, **changes) -> ChoiceTrainer:
        """One that goes on from the same state with other settings, and a generator of its own."""
        factors = replace(self.factors, X=self.factors.X.copy(), room=None)
        rng = np.random.default_rng(self.rng.integers(2**63))
        policy = replace(self.policy, **changes)
        return ChoiceTrainer(factors, policy, self.engine, rng, list(self.seen))

    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of users and items whose products are the scores."""
        X = self.engine.local(self.engine.get(self.factors.X))
        users, items = X[: self.factors.rows], X[self.factors.begin :]
        return (unit(users), unit(items)) if self.policy.by_angle else (users, items)
