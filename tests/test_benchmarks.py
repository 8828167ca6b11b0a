"""Every benchmark runs, in its smallest form: none is found broken on the day it is needed. What it
measures is not judged here."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scaledsgd.engines.cuda.kernels import unavailable

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(FOLDER))
pytestmark = pytest.mark.slow
ON_A_GPU = ("flight", "stream")

# By the functions of a file, what they are told. `figures`, `mutants`, `same_bits` and
# `fit_sigmoid` have tests of their own.
SMALLEST = {
    "core": {"steps": {"samples": 2000}, "refreshes": {}, "search": {}},
    "stream": {"memory": {"count": 2000}},
    "scale": {
        "costs": {"calls": 10, "rows": 1000},
        "model": {"step": 30.0, "copy": 1.0, "call": 0.35, "network": 1.25, "threads": 16},
        "many": {"workers": (2,), "rows": 200, "count": 2000},
        "startup": {"d": 500, "count": 20_000, "workers": 2},
        "speed": {"d": 500, "rank": 2, "count": 20_000, "turns": 1},
        "memory": {"d": 2000, "rank": 4, "count": 1_000_000},
    },
    "serve": {
        "fuzz_test": {"requests": 20, "seed": 0},
        "hostile_test": {"idle": 5, "slow": 2, "seconds": 0.5},
    },
}


@pytest.mark.parametrize(
    ("file", "part"), [(file, part) for file, parts in SMALLEST.items() for part in parts]
)
def test_the_smallest_form_runs(file, part, monkeypatch):
    if file == "scale" and part != "model" and find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'scaledsgd[ray]'")
    module = pytest.importorskip(file)
    sizes = {"COUNT": 2000, "EPOCHS": 3, "REPEATS": 1, "USERS": 200, "D": 500, "SAMPLES": 5000}
    for name, small in sizes.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, small)
    getattr(module, part)(**SMALLEST[file][part])


def test_the_smallest_forms_of_the_gpu_run_on_a_cpu(tmp_path):
    """All but the kernels: data, trainers, what is told in the end."""
    gpu = pytest.importorskip("gpu")
    parts = [part for part in gpu.PARTS if part not in (*ON_A_GPU, "rates")]
    command = [sys.executable, FOLDER / "gpu.py", *parts, "--cpu", "--smallest", "--kept", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "heldout, cpu: 1 of 1" in done.stdout and "theta auto: relative error" in done.stdout
    assert {file.name for file in tmp_path.iterdir()} == {"fig3-cpu.npz", "heldout-cpu.json"}


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("part", ["start", "stream", "fig3", "complete", "heldout", "choices"])
def test_the_smallest_forms_run_on_a_gpu_cuda(part, tmp_path):
    command = [sys.executable, FOLDER / "gpu.py", part, "--smallest", "--kept", tmp_path]
    subprocess.run(command, capture_output=True, text=True, check=True)
