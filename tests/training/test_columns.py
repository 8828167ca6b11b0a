"""The columns of a table, each of a kind of its own."""

import numpy as np
import pytest

from scaledsgd.training.columns import Columns


def test_every_column_has_a_noise_of_its_own():
    rng = np.random.default_rng(0)
    taste, noise = rng.standard_normal((2, 500, 1))
    found = Columns.fit(np.hstack([taste, -2 * taste, noise]), 1, rng)
    assert found.noises[2] == pytest.approx(1.0, rel=0.2)
    assert (found.noises[:2] < [0.05, 0.2]).all()
