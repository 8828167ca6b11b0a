"""Every cell of the table of losses and features by engine: a yes that fails is a failure here."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import stand_in
from features import CPU, CUDA, ENGINES, RAY, RAY_GPU, ROWS, table

from scaledsgd import RayEngine
from scaledsgd.engines.cuda import engine as cuda
from scaledsgd.engines.cuda.kernels import unavailable

_NO_RAY = "" if find_spec("ray") else "needs Ray: pip install 'scaledsgd[ray]'"
WHY_NOT = {CPU: "", CUDA: unavailable(), RAY: _NO_RAY, RAY_GPU: _NO_RAY or unavailable()}
IDS = {CPU: "cpu", CUDA: "cuda", RAY: "ray", RAY_GPU: "ray-cuda"}
DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def settings():
    """What an estimator is told, by engine; clusters start when they are first asked for."""
    started = {}

    def of(engine: str) -> dict:
        if engine in (CPU, CUDA):
            return {"device": "cuda" if engine == CUDA else "cpu"}
        if engine not in started:
            started[engine] = RayEngine("local", workers=2, gpus=0.5 * (engine == RAY_GPU))
        return {"engine": started[engine]}

    yield of
    for engine in started.values():
        engine.close()


def cells():
    for engine in ENGINES:
        marks = [pytest.mark.skipif(bool(WHY_NOT[engine]), reason=WHY_NOT[engine])]
        marks += [pytest.mark.slow] if engine in (RAY, RAY_GPU) else []
        for row in ROWS:
            name = f"{row.check.__name__}-{IDS[engine]}"
            yield pytest.param(row, engine, id=name, marks=marks)


@pytest.mark.parametrize(("row", "engine"), list(cells()))
def test_every_cell_is_as_the_table_says(row, engine, settings):
    if engine in row.no and row.no[engine].startswith("atomic"):
        pytest.skip("nothing that could be seen in one run")
    if engine in row.no:
        # One line that says where it can be had; an estimator may not even have the setting.
        with pytest.raises((ValueError, TypeError), match=r"cpu|engine"):
            row.check(settings(engine))
    else:
        row.check(settings(engine))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.check.__name__) for row in ROWS if CUDA not in row.no]
)
def test_nobody_takes_what_is_on_a_device_for_their_own(row, monkeypatch):
    """All of the GPU's engine but its kernels, where there is no GPU."""
    if row.check.__name__ in ("softmax", "choices_squared", "choices_bpr"):
        pytest.skip("its rounds are kernels")
    monkeypatch.setattr(cuda, "cupy", stand_in.cupy)
    row.check({"engine": stand_in.StandIn()})


def test_the_stand_in_refuses_what_a_gpu_refuses():
    here, there = np.ones(3), stand_in.DeviceArray(np.ones(3))
    for mixed in (
        lambda: here + there,
        lambda: there * here,
        lambda: np.concatenate([here, there]),
    ):
        with pytest.raises(TypeError):
            mixed()
    with pytest.raises(TypeError):
        np.asarray(there)
    assert float((there + 1).sum()) == 6.0


def test_the_docs_have_the_table():
    assert table() in DOCS.read_text(), "python tests/engines/features.py prints it"
