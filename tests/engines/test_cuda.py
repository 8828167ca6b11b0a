"""What only a GPU has: many samples in flight, atomics, streams, and little memory."""

import numpy as np
import pytest

from scaledsgd.core import reference
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk, Observations
from scaledsgd.engines.base import describe, open_engine
from scaledsgd.engines.cuda import kernels as cuda_kernels
from scaledsgd.engines.cuda.samples import Streamed
from scaledsgd.training.auto_policy import AutoPolicy
from scaledsgd.training.metrics import auc, mean_loss
from scaledsgd.training.policy import Policy
from scaledsgd.training.trainer import Trainer

WHY = cuda_kernels.unavailable()
gpu = pytest.mark.skipif(bool(WHY), reason=WHY)
LOSS = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def cuda(in_flight=None, memory=None):
    from scaledsgd.engines.cuda.engine import CudaEngine

    return CudaEngine(in_flight, memory)


def entries(d, rank, samples, seed=0, shape=None, hub=0.0):
    """Entries of a random matrix; `hub` is the share of them in the first row."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((d, rank))
    i, j = rng.integers(0, d, (2, samples))
    i[rng.random(samples) < hub] = 0
    y = np.einsum("sr,sr->s", Z[i], Z[j])
    return Observations.pairs(i, j, y, shape=(d, d), symmetric=shape is None)


def trained(engine, seen, rank, epochs=10, theta=0.3, dtype="float64", policy=None, order=2):
    """The mean loss after every epoch."""
    policy = policy or Policy(learning_rate=theta * max(seen.shape) / rank, damping=1.0)
    scale = policy.starting_scale(seen.size, seen.shape, rank, seen.loss.name)
    factors = Factors.start(
        seen.shape, rank, seed=1, scale=scale, dtype=dtype, symmetric=seen.symmetric
    )
    trainer = Trainer(factors, seen.loss, policy, engine, np.random.default_rng(order))
    trainer.run(seen, epochs=epochs)
    assert isinstance(trainer.factors.X, np.ndarray)
    return trainer.history["loss"]


@gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@LOSS
def test_the_slope_is_the_tables(loss, dtype):
    cupy = cuda_kernels.cupy
    z = np.concatenate([np.linspace(-100, 100, 10_001), [-1e4, 1e4]]).astype(dtype)
    y = np.resize(np.array([0, 1, 0.3], dtype), len(z))
    out = cupy.zeros(len(z), dtype)
    kernel = cuda_kernels.step("slopes", loss.name, 3, dtype, np.int32)
    args = cupy.asarray(z), cupy.asarray(y), np.int64(len(z)), out
    kernel((len(z) // 256 + 1,), (256,), args)
    assert out.get() == pytest.approx(
        loss.slope(z, y), rel=8 * float(np.finfo(dtype).eps), abs=1e-7
    )


@gpu
@pytest.mark.parametrize("rank", [33, 64, 129, 255, 256])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@LOSS
def test_high_ranks_follow_the_reference(loss, dtype, rank):
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((40, rank)) / np.sqrt(rank)
    index = rng.integers(0, 40, (300, loss.arity)).astype(np.int64)  # repeated rows and all
    targets = rng.random(300)
    P, alpha = np.linspace(0.2, 1.5, rank), 0.05 / loss.gain
    expected = X.copy()
    reference.sgd(expected, index, targets, loss, alpha, np.diag(P))
    engine = cuda(in_flight=1)
    factors = Factors(engine.put(X.astype(dtype)))
    engine.run(factors, P, np.full(loss.arity, alpha), loss, Chunk(index, targets))
    assert np.abs(engine.get(factors.X) - expected).max() < (1e-4 if dtype == np.float32 else 1e-10)


@gpu
@pytest.mark.parametrize("in_flight", [1, 5, 32, 100, 10_000, 10**6])
def test_the_sum_of_squares_counts_every_sample_once(in_flight):
    n, d = 100_003, 1000
    index = np.random.default_rng(0).integers(0, d, (n, 2)).astype(np.int32)
    engine = cuda(in_flight)
    for rank in (1, 3, 7, 33, 130):
        factors = Factors(engine.put(np.ones((d, rank), np.float32)))
        frozen = np.ones(rank), np.zeros(2), LOSSES["squared"]
        assert engine.run(factors, *frozen, Chunk(index, np.zeros(n))) == n * rank**2


@gpu
@pytest.mark.parametrize("theta", [0.3, 0.6])
@pytest.mark.parametrize("hub", [0.0, 0.02])
@pytest.mark.parametrize("rank", [4, 16])  # with a single direction such steps diverge anyway
def test_concurrency_does_not_cost_convergence(rank, hub, theta):
    seen = entries(1500, rank, 60_000 * max(1, rank // 4), hub=hub)
    # The median of three orders: with few directions a run depends on its order by itself.
    serial, parallel = (
        np.median([trained(cuda(flight), seen[:], rank, 6, theta, order=n)[-1] for n in (2, 3, 4)])
        for flight in (1, None)
    )
    assert np.log(parallel) < 0.85 * np.log(serial)  # as good as after as many epochs, or nearly


@gpu
def test_a_busy_row_keeps_the_others_waiting():
    engine, loss = cuda(), LOSSES["squared"]
    factors = Factors(np.zeros((1500, 4)), spectrum=np.ones(4))
    frozen = np.ones(4), np.full(2, 0.3 * 1500 / 4), loss
    rng = np.random.default_rng(0)
    engine.samples(entries(1500, 4, 50_000), [0, 0], np.float32, rng)
    even = engine.flight(factors, *frozen)
    engine.samples(entries(1500, 4, 50_000, hub=0.1), [0, 0], np.float32, rng)
    assert engine.flight(factors, *frozen) < 10 < 100 < even < 1500


@gpu
def test_the_automatic_policy_runs_on_the_gpu():
    seen = entries(1500, 4, 60_000)
    assert trained(cuda(), seen, 6, 15, policy=AutoPolicy())[-1] < 1e-8


@gpu
@pytest.mark.parametrize("seed", range(3))
def test_a_small_start_grows_as_it_does_one_by_one(seed):
    """While X grows from almost nothing, its Gram says little about the steps to come."""
    seen = entries(2000, 4, 160_000, seed)
    assert trained(cuda(), seen, 4, 6, policy=AutoPolicy())[-1] < 1e-12


@gpu
@pytest.mark.parametrize("shape", [None, "two-sided"])
def test_samples_that_do_not_fit_are_streamed(shape):
    seen = entries(20_000, 3, 1_200_001, shape=shape)
    # Slabs of more than a hand, and some samples left over.
    small, large = cuda(memory=20_000_000), cuda()
    shift = [0, 0 if shape is None else 20_000]
    data = small.samples(seen, shift, np.float32, np.random.default_rng(0))
    assert isinstance(data, Streamed)
    for _ in range(2):
        chunks = [(c.index.get(), c.targets.get()) for c in data.epoch(np.random.default_rng(1))]
        assert len(chunks) > 2
        index, targets = (np.concatenate(part) for part in zip(*chunks, strict=True))
        order, given = np.lexsort(index.T), np.lexsort((seen.index + shift).T)
        assert np.array_equal(index[order], (seen.index + shift)[given])
        assert np.array_equal(np.sort(targets), np.sort(seen.targets.astype(np.float32)))
    streamed, resident = (trained(engine, seen[:], 3)[-1] for engine in (small, large))
    assert np.log(streamed) < 0.85 * np.log(resident)


@gpu
@pytest.mark.parametrize("name", ["squared", "logistic", "bpr", "distance"])
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_follows_the_serial_run(name, scaled, dtype):
    """The whole loop, evaluations and all, against the same with one sample in flight."""
    loss, rng, d = LOSSES[name], np.random.default_rng(0), 600
    symmetric = name == "distance"
    Z = rng.standard_normal((d, 3))
    index = rng.integers(0, d, (40_000, loss.arity)).astype(np.int32)
    index = index[index[:, 0] != index[:, 1]]
    a, b = np.array(loss.a), np.array(loss.b)
    z = np.einsum("sr,sr->s", np.tensordot(a, Z[index], (0, 1)), np.tensordot(b, Z[index], (0, 1)))
    seen = Observations(index, loss.inverse_link(z), (d, d), name, symmetric)
    rate = 0.3 * d / 3 / loss.gain if scaled else 0.02 / loss.gain
    curves = []
    for in_flight in (1, None):
        policy = Policy(learning_rate=rate, damping=1.0, scaled=scaled)
        curves.append(trained(cuda(in_flight), seen, 3, 8, dtype=dtype, policy=policy))
    assert curves[1][-1] < curves[1][0]
    # No worse than twice the loss wherever it is above rounding.
    assert (curves[1] <= 2 * curves[0] + 1e-9).all()


@gpu
def test_metrics_stay_on_the_gpu():
    rng, engine, loss = np.random.default_rng(0), cuda(), LOSSES["bpr"]
    factors = Factors(rng.standard_normal((50, 3)).astype(np.float32))
    j, k, i = (rng.permutation(50)[:, None].repeat(40, 1).ravel() for _ in range(3))
    k = np.where(j == k, (k + 1) % 50, k)
    seen = Observations.triplets(i, j, k, rng.integers(0, 2, len(i)).astype(float))
    data = engine.samples(seen, [0, 0, 0], np.float32, rng)
    there = Factors(engine.put(factors.X))
    assert isinstance(engine.scores(there, data.index, loss), cuda_kernels.cupy.ndarray)
    for metric in (mean_loss, auc):
        here = metric(engine, factors, seen, loss)
        assert metric(engine, there, data, loss) == pytest.approx(here)


@gpu
def test_an_estimator_runs_on_the_gpu():
    for module in ("sklearn", "narwhals", "safetensors"):
        pytest.importorskip(module)
    from scaledsgd import MatrixCompleter

    rng = np.random.default_rng(0)
    M = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50))
    model = MatrixCompleter(2, device="cuda", epochs=60, random_state=0).fit(M)
    assert model.predict(([1, 2], [3, 4])) == pytest.approx(M[[1, 2], [3, 4]], abs=1e-6)


@gpu
def test_what_does_not_go_is_said():
    with pytest.raises(ValueError, match="up to 256"):
        cuda().put(np.zeros((300, 257)))
    with pytest.raises(MemoryError, match="use device='cpu'"):
        cuda(memory=1000).put(np.zeros((300, 2)))
    with pytest.raises(ValueError, match="refresh='sample' runs on device='cpu'"):
        cuda().inverse(Factors(np.eye(3)), 0.0)
    assert describe("auto").startswith("cuda: ")


def test_small_work_stays_on_the_cpu():
    assert describe("auto", samples=1000) == "cpu: 1e+03 samples run sooner than a GPU starts"


@pytest.mark.skipif(not WHY, reason="there is a GPU")
def test_without_a_gpu():
    assert describe("auto") == f"cpu: {WHY}"
    assert type(open_engine("auto")).__name__ == "CpuEngine"
    with pytest.raises(ValueError, match="device='cuda': CuPy"):
        open_engine("cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="is not 'cpu', 'cuda' or 'auto'"):
        open_engine("tpu")
