"""A file remembers all that training goes on with."""

import numpy as np

from scaledsgd import MatrixCompleter, Observations, load


def batch(seed: int) -> Observations:
    i, j = np.random.default_rng(seed).integers(0, 50, (2, 333))
    return Observations.pairs(i, j, np.sin(i) * np.cos(j), shape=(50, 50))


def test_counters_and_chance_go_on_from_a_file(tmp_path):
    model = MatrixCompleter(2, random_state=0).partial_fit(batch(0))
    model._trainer.seconds = 1000.0
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")._trainer
    trainer = model._trainer
    assert trainer.left > 0  # in the middle of a round
    for name in ("samples", "seconds", "left", "began"):
        assert getattr(again, name) == getattr(trainer, name)
    assert again.rng.random() == trainer.rng.random()
    load(tmp_path / "m").partial_fit(batch(1)).save(tmp_path / "n")
    assert 1000 < load(tmp_path / "n")._trainer.seconds < 1100
