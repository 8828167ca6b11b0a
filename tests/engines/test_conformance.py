"""One suite for every loss and every engine: each must do what the paper's algorithm does."""

import os
import subprocess
import sys

import numpy as np
import pytest

from scaledsgd.core import reference
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.engines.base import Chunk, open_engine
from scaledsgd.engines.cpu import engine as cpu
from scaledsgd.engines.cuda.kernels import unavailable

RANKS = [1, 2, 3, 5, 8, 17]
TWO_SIDED = ["squared", "logistic", "bpr"]  # distances are symmetric by nature


def problem(loss, rank, samples, seed, rows=None):
    """Random factors and samples in which rows are often named twice."""
    rng = np.random.default_rng(seed)
    d = max(25, 2 * rank)
    X = rng.standard_normal((d if rows is None else d + rows, rank))
    spans = [(0, d)] * loss.arity if rows is None else []
    if rows is not None:
        spans = [(0, rows) if side == 0 else (rows, d + rows) for side in loss.sides]
    index = np.stack([rng.integers(*span, samples) for span in spans], axis=1)
    if loss.arity == 3:  # i = j and i = k may be, j = k may not
        index = index[index[:, 0] != index[:, 1]]
    elif rows is None:
        index[::7, 1] = index[::7, 0]
    truth = [reference.form(rng.standard_normal(X.shape), rows, loss) for rows in index]
    targets = loss.inverse_link(np.array([u @ v for u, v in truth]))
    return X, Chunk(index.astype(np.int32), targets)


ENGINES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(bool(unavailable()), reason=unavailable())),
]


@pytest.fixture(params=ENGINES)
def engine(request):
    engine = open_engine(request.param)
    engine.in_flight = 1  # one sample after the other, as in the reference
    return engine


@pytest.fixture
def sampler():
    """Per-sample P is a serial algorithm, which no GPU runs."""
    return open_engine("cpu")


def stepped(engine, X, *frozen_and_chunk):
    """X after a run, which begins with a copy of it."""
    factors = Factors(engine.put(X.copy()))
    engine.run(factors, *frozen_and_chunk)
    return engine.get(factors.X)


@pytest.mark.parametrize("rank", [*RANKS, 40, 70])  # every width of rows, and wider ones
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_frozen_p_follows_the_reference(engine, loss, rank):
    X, chunk = problem(loss, rank, 1000, seed=rank)
    expected, P = X.copy(), np.linspace(0.2, 1.5, rank)
    alpha = 0.05 / (loss.gain * rank)  # small enough that rounding is not amplified
    reference.sgd(expected, *chunk, loss, alpha, np.diag(P))
    X = stepped(engine, X, P, np.full(loss.arity, alpha), loss, chunk)
    assert np.abs(X - expected).max() < 1e-9


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_weights_are_those_of_the_reference(sampler, loss, dtype):
    X, chunk = problem(loss, 5, 300, seed=5)
    w = np.random.default_rng(0).exponential(size=len(chunk))
    y, P, alpha = chunk.targets + 1j * w, np.linspace(0.2, 1.5, 5), 0.01 / loss.gain
    expected, rates, factors = X.copy(), np.full(loss.arity, alpha), Factors(X.astype(dtype))
    reference.sgd(expected, chunk.index, y, loss, alpha, np.diag(P))
    narrow = y.astype(np.result_type(dtype, np.complex64))
    sampler.run(factors, P, rates, loss, Chunk(chunk.index, narrow))
    assert np.abs(factors.X - expected).max() < (1e-9 if dtype == "float64" else 1e-4)
    if dtype == "float64":
        expected = X.copy()
        P = np.stack(reference.preconditioners(X))
        reference.scaled_sgd(expected, [P[0].copy()], chunk.index, y, loss, alpha)
        sampler.run_sampled(Factors(X), P, 0.0, rates, loss, Chunk(chunk.index, y))
        assert np.abs(X - expected).max() < 1e-9


def test_a_cap_counts_the_weight(sampler):
    """A sample of weight 1e6 undoes no more than a capped step does."""
    loss, one = LOSSES["squared"], np.array([[0, 1]], np.int32)
    moved = []
    for y in (np.array([2.0 + 1e6j]), np.array([2.0])):
        factors = Factors(np.array([[1.0], [1.0]]))
        sampler.run(
            factors, np.ones(1), np.full(2, 1e-3 if y.imag else 1e3), loss, Chunk(one, y), 0.1
        )
        moved.append(factors.X.ravel())
    assert moved[0] == pytest.approx(moved[1]) and 1 < moved[0][0] < 1.1


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("loss", "rows"),
    [pytest.param(loss, None, id=loss.name) for loss in LOSSES.values()]
    + [pytest.param(LOSSES[name], 30, id=f"{name} two-sided") for name in TWO_SIDED],
)
def test_per_sample_p_follows_the_reference(sampler, loss, rows, rank):
    X, chunk = problem(loss, rank, 1000, seed=rank, rows=rows)
    expected, alpha = X.copy(), 0.1
    inverses = reference.preconditioners(X, rows)
    P = np.stack(inverses)
    inverses = reference.scaled_sgd(expected, inverses, *chunk, loss, alpha)
    sampler.run_sampled(Factors(X, rows), P, 0.0, np.full(loss.arity, alpha), loss, chunk)
    assert sampler.repairs == 0
    assert np.abs(X - expected).max() < 1e-9
    for side, inverse in zip(Factors(X, rows).sides, P, strict=True):
        assert np.abs(inverse @ side.T @ side - np.eye(rank)).max() < 1e-6


@pytest.mark.parametrize("rank", [5, 40])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_capped_step_undoes_no_more_than_its_share(engine, loss, rank):
    """Two steps on one sample, so small that first order is all there is: the cap halves one."""
    X, chunk = problem(loss, rank, 50, seed=1)
    one = Chunk(chunk.index[1:2], chunk.targets[1:2])
    frozen = np.ones(rank), np.full(loss.arity, 1e-6), loss
    moves = []
    for cap in (np.inf, 1e9, None):
        u, v = reference.form(X, one.index[0], loss)
        h = sum(1e-6 * np.sum((a * v + b * u) ** 2) for a, b in zip(loss.a, loss.b, strict=True))
        moves.append(stepped(engine, X, *frozen, one, h / 2 if cap is None else cap) - X)
    assert moves[1] == pytest.approx(moves[0], rel=1e-6, abs=1e-15)
    assert moves[2] == pytest.approx(moves[0] / 2, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_scores_are_the_bilinear_form(engine, loss):
    X, chunk = problem(loss, 5, 300, seed=3)
    forms = [reference.form(X, rows, loss) for rows in chunk.index]
    z = engine.scores(Factors(engine.put(X)), chunk.index, loss)
    assert z == pytest.approx([u @ v for u, v in forms])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_float32_rows_take_the_same_step(engine, loss):
    X, chunk = problem(loss, 16, 200, seed=4)
    frozen = np.ones(16), np.full(loss.arity, 0.01), loss
    halved = Chunk(chunk.index, chunk.targets.astype(np.float32))
    single = stepped(engine, X.astype(np.float32), *frozen, halved)
    assert single.dtype == np.float32
    assert np.abs(single - stepped(engine, X, *frozen, chunk)).max() < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 3, 17, 40, 100, 256])
def test_a_refresh_is_exact_to_the_digits_of_x(engine, rank, dtype):
    """Rows in the middle of X, as a side of a two-sided matrix is; G in float64 from float32."""
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((1004, rank)).astype(dtype)
    T = np.linalg.qr(rng.standard_normal((rank, rank))).Q
    held = engine.put(X.copy())
    side = held[7:]
    exact = X[7:].astype(np.float64)
    assert np.abs(engine.gram(side) - exact.T @ exact).max() < 1e-10
    columns = np.geomspace(1, 1e-6, rank)  # of a column however short the digits are as good
    graded = engine.put((X * columns).astype(dtype))
    near = engine.gram(graded, exact=False) / np.outer(columns, columns)
    assert np.abs(near - X.T.astype(np.float64) @ X).max() < (2e-3 if dtype == "float32" else 1e-9)
    engine.transform(side, T)
    after = engine.get(held).copy()
    assert np.array_equal(after[:7], X[:7])
    assert np.abs(after[7:] - exact @ T).max() < (1e-4 if dtype == "float32" else 1e-12)
    shrink = rng.uniform(0.5, 1.0, rank).astype(dtype)
    engine.scale(held, shrink)
    assert np.array_equal(engine.get(held), after * shrink)


@pytest.mark.parametrize("per_sample", [False, True], ids=["round", "sample"])
def test_threads_lose_next_to_nothing(per_sample, monkeypatch):
    """Two threads on one X reach the loss that one reaches, and their P is that of X."""
    monkeypatch.setattr(cpu, "NEAR", 0)  # an X as small as this is left to one thread
    rng = np.random.default_rng(0)
    d, rank, loss = 2000, 4, LOSSES["squared"]
    Z = rng.standard_normal((d, rank))
    index = rng.integers(0, d, (400_000, 2)).astype(np.int32)
    chunk = Chunk(index, np.einsum("tr,tr->t", Z[index[:, 0]], Z[index[:, 1]]))
    start = Z + 0.3 * rng.standard_normal((d, rank))
    errors = []
    for n_jobs in (1, 2):
        engine, X = open_engine(n_jobs=n_jobs), start.copy()
        P = np.stack(reference.preconditioners(X))
        alpha = 0.3 * d / rank
        if per_sample:
            engine.run_sampled(Factors(X), P, 0.0, np.full(2, alpha), loss, chunk)
            assert np.abs(P[0] @ X.T @ X - np.eye(rank)).max() < 1e-2
        else:
            Factors(X).refresh(engine)
            engine.run(Factors(X), 1 / (X**2).sum(0), np.full(2, alpha), loss, chunk)
        errors.append(np.linalg.norm(X @ X.T - Z @ Z.T) / np.linalg.norm(Z @ Z.T))
    assert errors[0] < 1e-6
    # In digits: a tenth of the way may be lost to threads that overwrite each other.
    assert np.log(errors[1]) < 0.7 * np.log(errors[0])


def test_a_broken_p_is_rebuilt_from_x(sampler):
    """A step takes the only row of a direction to zero: the Gram turns singular, X stays finite."""
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    chunk = Chunk(np.array([[0, 0], [1, 1], [0, 1]], dtype=np.int32), np.array([0.0, 0.5, 0.1]))
    P = np.stack(reference.preconditioners(X))
    sampler.run_sampled(Factors(X), P, 0.0, np.ones(2), LOSSES["squared"], chunk)
    assert sampler.repairs > 0
    assert np.isfinite(X).all()
    assert np.isfinite(P).all()


@pytest.mark.slow
def test_what_is_compiled_is_found_by_the_next_process(tmp_path):
    code = (
        "import numpy as np, scaledsgd as s;"
        "s.MatrixCompleter(2, epochs=2).fit(np.arange(30.0).reshape(5, 6))"
    )
    kept = []
    for _ in range(2):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=env)
        kept.append(sorted(tmp_path.rglob("*.nbc")))
    assert any("turns" in file.name for file in kept[0])
    assert kept[0] == kept[1]
