import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd.core.losses import LOSSES


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(z=st.floats(-30, 30), share=st.floats(0, 1))
def test_the_slope_is_the_derivative_of_the_value(loss, z, share):
    low, high = (max(bound, -5) if bound < 0 else min(bound, 5) for bound in loss.bounds)
    y = low + share * (high - low)
    h = 1e-5
    difference = (loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h)
    assert loss.slope(z, y) == pytest.approx(difference, rel=1e-6, abs=1e-7)
    bend = (loss.slope(z + h, y) - loss.slope(z - h, y)) / (2 * h)
    assert bend <= loss.curvature * (1 + 1e-6)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_stay_finite_far_out(loss):
    z = np.array([-1e4, 1e4], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(loss.slope(z, np.float32(1))).all()
        assert np.isfinite(loss.value(z, np.float32(1))).all()
