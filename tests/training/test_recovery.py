"""The recovery benchmark is sound, and a small version of it shows what the large one does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from commands import runner

from scaledsgd.research.benchmarks import als, evidence, grid, recovery, solvers

pytestmark = pytest.mark.slow

CELL = grid.Cell("square", 1e6, 5, 5, 0)


@pytest.fixture(scope="module")
def records() -> list[grid.Record]:
    """The quick grid: kappa 1 and 1e6, c = 5, rank r and 2r, three shapes."""
    return grid.run(grid.QUICK.problem, grid.QUICK.cells(), n_jobs=1)


def test_auto_solves_all_of_the_quick_grid(records):
    assert grid.share(records, method="auto") == 1.0


def test_every_claim_holds_on_the_quick_grid(records):
    assert [what for what, *_, holds in grid.claims(records) if not holds] == []


def test_the_paper_and_plain_sgd_do_not(records):
    assert grid.share(records, method="SGD", kappa=1e6) == 0.0
    assert grid.share(records, method="ScaledSGD", rank=10) < 0.5
    assert grid.share(records, method="SGD", kappa=1.0, rank=5) > 0.5  # it is not set up to fail


def test_als_is_a_rival(records):
    assert grid.share(records, method="ALS") >= 0.8


def test_als_solves_the_ridge_regressions():
    rng = np.random.default_rng(0)
    entries = sp.random_array((30, 20), density=0.3, rng=rng, format="csr")
    R, out = rng.standard_normal((20, 4)), np.empty((30, 4))
    squares = als._solve_rows(0, 30, entries.indptr, entries.indices, entries.data, R, 0.1, out)
    total = 0.0
    for i in range(30):
        at = slice(entries.indptr[i], entries.indptr[i + 1])
        A, y = R[entries.indices[at]], entries.data[at]
        x = np.linalg.solve(A.T @ A + 0.1 * np.eye(4), A.T @ y)
        assert np.allclose(out[i], x)
        total += ((A @ x - y) ** 2).sum()
    assert np.isclose(squares, total)


def test_als_does_not_depend_on_threads():
    problem = solvers.uniform_problem("6:1", 100, 3, 10.0, 6, seed=0)
    one, two = (
        als.complete(problem.entries(), 3, ridge=0.1, seed=0, n_jobs=jobs) for jobs in (1, 2)
    )
    assert one.sweeps == two.sweeps and np.allclose(one.left, two.left)
    assert problem.error(one.left, one.right) < 1e-9


def test_als_leaves_rows_without_entries_at_zero():
    entries = sp.csr_array(np.array([[1.0, 2.0], [0.0, 0.0], [2.0, 4.0]]))
    entries.eliminate_zeros()
    fit = als.complete(entries, 1, ridge=1e-9, seed=0)
    assert np.isfinite(fit.left).all() and np.allclose(fit.left[1], 0)


def test_success_is_measured_by_the_benchmark():
    """The error is that of the whole matrix, and the state that of the model."""
    problem = grid.QUICK.problem(CELL)
    outcome = solvers.auto(problem, 5, 0)
    model = solvers.fit(problem, 5, 0, [])
    M = problem.left @ problem.right.T
    full = np.linalg.norm(model.row_factors_ @ model.column_factors_.T - M) / np.linalg.norm(M)
    assert outcome.error == pytest.approx(full, rel=1e-3) and outcome.error <= solvers.GOAL
    assert outcome.passes is not None and outcome.passes < 30


@pytest.mark.parametrize("kind", ["coherent", "skewed", "spikes-1%", "spikes-5%"])
@pytest.mark.parametrize("shape", ["symmetric", "square"])
def test_hard_problems_are_what_they_say(kind, shape):
    which = recovery.Hard(d=300)
    problem = which.problem(grid.Cell(f"{kind} {shape}", 1.0, 5, 5, 0))
    i, j = problem.index.T
    assert len(np.unique(i.astype(np.int64) * 300 + j)) == len(i)
    off = np.abs(problem.targets - (problem.left @ problem.right.T)[i, j]) > 1e-9
    wrong = {"spikes-1%": 0.01, "spikes-5%": 0.05}.get(kind, 0.0)
    assert np.isclose(off.mean(), wrong, atol=1e-3)
    counts = np.bincount(np.concatenate([i, j]) if problem.symmetric else i, minlength=300)
    assert (counts.std() > 0.5 * counts.mean()) == (kind == "skewed")
    norms = np.sort(np.linalg.norm(problem.left, axis=1))
    assert (norms[-5:].min() > 2.5 * norms[-6]) == (kind == "coherent")


def test_distances_come_back_from_a_tenth():
    for moved in (0, 5):
        assert evidence.distance_case((400, 0.1, moved, 0))[-1] <= 1e-6


def test_noise_is_not_fitted():
    ours, steps, ridges = evidence.noisy_case((300, "symmetric", 1e4, 15.0, 10))
    assert ours <= 1.05 * min(steps, ridges)


def test_command(tmp_path, capsys):
    code, out, _ = runner(capsys)(
        "bench", "recovery", "--part", "distances", "--quick", "--jobs", "1", "--json",
        "--out", str(tmp_path / "page"),
    )  # fmt: skip
    assert code == 0
    facts = json.loads(out)
    assert all(case["error"] <= 1e-6 for case in facts["distances"]["cases"])
    names = sorted(path.name for path in (tmp_path / "page").iterdir())
    assert names == ["distances.json", "distances.png", "index.html"]
    assert facts["page"] == str(tmp_path / "page" / "index.html")


def test_unknown_part(capsys):
    code, _, err = runner(capsys)("bench", "recovery", "--part", "speed")
    assert code == 2 and "speed" in err
