"""Rounds of choices as the trainer cuts them: what BPR draws, steps on and holds back."""

from __future__ import annotations

import numpy as np
import pytest

from scaledsgd.core.choices import Choices
from scaledsgd.core.factors import Factors
from scaledsgd.engines.cpu.engine import CpuEngine
from scaledsgd.training.choice_trainer import ChoicePolicy, ChoiceTrainer

SHAPE = (60, 40)


class Watching(CpuEngine):
    """Remembers the samples that it runs."""

    def __init__(self):
        super().__init__()
        self.ran: list[np.ndarray] = []

    def run(self, factors, P, rates, loss, samples, cap=np.inf):
        self.ran.append(samples.index.copy())
        return super().run(factors, P, rates, loss, samples, cap)


def trainer(weights=None, **policy) -> tuple[ChoiceTrainer, Choices]:
    """Users who choose items of their kind, and never item 0."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 60, 4000), rng.integers(1, 40, 4000)
    kind = users % 2 == items % 2
    choices = Choices.of(users[kind], items[kind], weights and weights(users[kind]), shape=SHAPE)
    factors = Factors.start(SHAPE, 4, seed=0, scale=(0.3, 0.3), dtype="float32")
    engine = Watching()
    factors.X = engine.put(factors.X)
    how = ChoicePolicy("bpr", cosine=False, tau=1.0, c=1.0, **policy)
    made = ChoiceTrainer(factors, how, engine, np.random.default_rng(1), choices.row_weights())
    return made, choices


def wrong(made: ChoiceTrainer) -> float:
    """Share of pairs of items of which a user prefers that which she would not choose."""
    S = made.factors.left @ made.factors.right.T
    own = [S[u, 1:][np.arange(1, 40) % 2 == u % 2] for u in range(60)]
    others = [S[u, 1:][np.arange(1, 40) % 2 != u % 2] for u in range(60)]
    return np.mean([np.mean(a[:, None] <= b) for a, b in zip(own, others, strict=True)])


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_leaves_rows_as_long_as_they_are(stream):
    made, choices = trainer()
    made.policy.loss, made.policy.cosine = "softmax", True
    made.factors.X *= np.float32(7)
    before, few = made.factors.left.copy(), choices[choices.users < 20]
    made.follow(few, few) if stream else made.descend(few, 4)
    assert np.array_equal(made.factors.left[20:], before[20:]) == stream
    assert not np.array_equal(made.factors.left[:20], before[:20])


def test_bpr_learns_whom_to_prefer_from_every_choice_once():
    made, choices = trainer()
    before = wrong(made)
    made.descend(choices, 12)
    assert wrong(made) < 0.05 < before
    j, k, i = np.concatenate(made.engine.ran[:4]).T
    told = np.sort(i.astype(int) * 100 + j - made.factors.begin)
    assert np.array_equal(told, np.sort(choices.users.astype(int) * 100 + choices.items))
    drawn = np.bincount(k - made.factors.begin, minlength=40)
    assert drawn[0] == 0 and drawn[1:].min() > 0.5 * drawn[1:].mean()  # uniform over what is seen


def test_bpr_sees_choices_as_often_as_their_weights_say():
    made, choices = trainer(weights=lambda users: 1.0 + 3.0 * (users < 30))
    made.descend(choices, 5)
    users = np.concatenate(made.engine.ran)[:, 2]
    heavy = np.bincount(choices.users < 30, choices.weights)
    assert np.mean(users < 30) == pytest.approx(heavy[1] / heavy.sum(), abs=0.02)


def test_the_ridge_of_bpr_is_that_of_its_steps():
    """Each step is x - alpha P (g + ridge x), and a row has as many as samples name it."""
    norms = []
    for ridge in (0.0, 0.05):
        made, choices = trainer(dot_ridge=ridge, rate=1e-3)
        made.factors.refresh(made.engine)
        P = 1 / (made.factors.spectrum + made.factors.spectrum.mean())
        made.bpr_epoch(choices, 0.0, 0.0)
        norms.append(np.prod([np.linalg.norm(side, axis=0) for side in made.factors.sides], axis=0))
    users, items = len(choices) / SHAPE[0] * SHAPE[1], 2 * len(choices) / SHAPE[1] * SHAPE[0]
    wanted = 0.05 * 1e-3 * 0.15 / 4 * P * (users + items)
    assert np.log(norms[0] / norms[1]) == pytest.approx(wanted, rel=0.02)


def test_rows_that_nobody_names_are_zero_until_the_softmax_draws_them():
    made, choices = trainer()
    made.warm_up(choices, 2)
    assert not made.factors.right[0].any() and made.factors.right[1:].any(axis=1).all()
    made.policy.loss, made.policy.cosine = "softmax", True
    made._even_lengths()
    assert np.linalg.norm(made.factors.right, axis=1) == pytest.approx(0.8)


def test_rows_that_are_new_are_as_long_as_the_others():
    made, choices = trainer()
    made.warm_up(choices, 2)
    lengths = [np.sqrt(np.mean(np.sum(side**2, axis=1))) for side in made.factors.sides]
    made.grow((70, 50))
    for side, had, length in zip(made.factors.sides, SHAPE, lengths, strict=True):
        assert np.linalg.norm(side[had:], axis=1) == pytest.approx(length, rel=1e-4)
        assert len(side) == had + 10
