"""Where Numba cannot compile the vector instructions, plain bodies take the same steps.

As a script, it saves what the bodies that SCALEDSGD_PLAIN chooses make of some samples.
"""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from test_conformance import problem

from scaledsgd import MatrixCompleter
from scaledsgd.core import reference
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.engines import cpu
from scaledsgd.engines.base import Chunk, open_engine
from scaledsgd.engines.cpu import intrinsics, plain

pytestmark = pytest.mark.slow

ALPHA = 0.01
# Loss, rank, type and cap. Rank 1 is the width of a plain kernel; vectors have columns to spare at
# 5 and 17.
CASES = [
    *((name, 5, "float64", np.inf) for name in LOSSES),
    *((name, 17, "float32", 0.05) for name in LOSSES),  # h is about 0.3
    ("squared", 1, "float64", np.inf),
]


def stepped(name: str, rank: int, dtype: str, cap: float) -> np.ndarray:
    """X after a thousand samples, one number after the other, and then in float64 their z."""
    loss, engine = LOSSES[name], open_engine()
    X, (index, targets) = problem(loss, rank, 1000, seed=rank)
    factors, chunk = Factors(engine.put(X.astype(dtype))), Chunk(index, targets.astype(dtype))
    engine.run(factors, weights(rank), np.full(loss.arity, ALPHA), loss, chunk, cap)
    z = engine.scores(factors, index, loss) if dtype == "float64" else []
    return np.r_[factors.X.ravel(), z]


def weights(rank: int) -> np.ndarray:
    return np.linspace(0.2, 1.5, rank)


def fitted() -> np.ndarray:
    """Entries of a model of a matrix large enough to be shuffled and dealt."""
    rng = np.random.default_rng(0)
    M = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 250))
    model = MatrixCompleter(2, learning_rate=0.1, epochs=2, random_state=0).fit(M)
    return model.row_factors_ @ model.column_factors_.T


def results() -> dict[str, np.ndarray]:
    return {str(case): stepped(*case) for case in CASES} | {"fit": fitted()}


@pytest.fixture(scope="module")
def plainly(tmp_path_factory):
    """The results of plain bodies, compiled in a process and a cache of their own."""
    folder = tmp_path_factory.mktemp("plain")
    env = {**os.environ, "SCALEDSGD_PLAIN": "1", "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, __file__, str(folder / "found.npz")]
    told = subprocess.run(command, check=True, env=env, capture_output=True, text=True).stderr
    assert told.count("in plain Numba") == 1, told
    with np.load(folder / "found.npz") as found:
        return dict(found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plain_steps_are_those_of_vectors(plainly, case):
    digits = 1e-11 if case[2] == "float64" else 1e-5
    assert plainly[str(case)] == pytest.approx(stepped(*case), rel=digits, abs=digits)


@pytest.mark.parametrize("case", [case for case in CASES if case[3] == np.inf], ids=str)
def test_plain_steps_follow_the_reference(plainly, case):
    name, rank, *_ = case
    X, chunk = problem(LOSSES[name], rank, 1000, seed=rank)
    reference.sgd(X, *chunk, LOSSES[name], ALPHA, np.diag(weights(rank)))
    assert plainly[str(case)][: X.size] == pytest.approx(X.ravel(), rel=1e-9, abs=1e-9)


def test_a_plain_fit_is_that_of_vectors(plainly):
    assert plainly["fit"] == pytest.approx(fitted(), rel=1e-8, abs=1e-8)


def test_a_numba_that_lacks_a_name_is_survived(monkeypatch):
    from numba.core.extending import _Intrinsic

    monkeypatch.delattr(_Intrinsic, "_set_uuid")
    monkeypatch.delattr(cpu, "llvm")
    monkeypatch.delitem(sys.modules, "scaledsgd.engines.cpu.llvm")
    with pytest.warns(RuntimeWarning, match="in plain Numba .*_set_uuid"):
        assert intrinsics._chosen() is plain


def test_instructions_with_wrong_results_are_not_used(monkeypatch):
    monkeypatch.setattr("scaledsgd.engines.cpu.llvm._all", lambda X, out, counter: 0.0)
    with pytest.warns(RuntimeWarning, match="wrong results"):
        assert intrinsics._chosen() is plain


def test_here_vectors_are_used():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert intrinsics._chosen().WIDTHS[:4] == (4, 8, 16, 32)


if __name__ == "__main__":
    np.savez(sys.argv[1], **results())
