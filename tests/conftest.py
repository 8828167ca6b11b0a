import os

import numpy as np
import pytest
from hypothesis import settings
from shared_data import SHARED

# Compiled kernels make the first example of a property slow, which says nothing about the property.
settings.register_profile("default", deadline=None, max_examples=50)
settings.load_profile("default")


@pytest.fixture(scope="session")
def authors() -> dict[str, np.ndarray]:
    """The authors' own matrices."""
    path = SHARED / "authors" / "matrices.npz"
    if not path.exists():
        pytest.skip(f"the authors' matrices are not at {os.path.relpath(path)}")
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Compiling kernels must not show in what a test expects on stderr."""
    monkeypatch.setattr("scaledsgd.io.progress_bar.EVERY", 600.0)


@pytest.fixture
def served(tmp_path):
    """Serves models on this machine: see `serving_models`."""
    from serving_models import serving

    with serving(tmp_path) as serve:
        yield serve
