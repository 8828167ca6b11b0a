"""What tests of engines share."""

import tempfile
from pathlib import Path

import pytest

from scaledsgd import RayEngine


@pytest.fixture(scope="module")
def engine():
    """Two workers on a cluster of our own, who clear up behind them. (Files whose engines are
    others have a fixture of this name themselves.)"""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)  # for the workers: not so long a name that sockets refuse it
        engine = RayEngine("local", workers=2)
        engine.pool  # noqa: B018  (starts it)
        yield engine
        engine.close()
        assert not list(Path(folder).glob("scaledsgd-*")), "samples left on the disk"
