"""Figures of docs/gpu.md: python benchmarks/gpu.py start | rates | flight | stream | fig3 |
complete | small, one or more of them. Needs NumPy, SciPy, CuPy and a GPU; `fig3 --cpu` runs the
CPU engine instead and keeps its curve, which `fig3` then compares with.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk
from scaledsgd.engines.base import describe, open_engine
from scaledsgd.engines.cuda import engine as cuda
from scaledsgd.engines.cuda import kernels as cuda_kernels
from scaledsgd.training.auto_policy import AutoPolicy
from scaledsgd.training.history import DivergenceError
from scaledsgd.training.metrics import auc, recovery_error
from scaledsgd.training.policy import Policy
from scaledsgd.training.trainer import Trainer

cupy = cuda_kernels.cupy
D = 62_000  # movies of MovieLens-25M
CURVE = Path("build/fig3-cpu.npz")


def given(index, targets):
    """Samples as they are, without the checks of Observations, which are not what is timed."""

    def take(dtype):
        return index.copy(), targets.astype(dtype)

    rows = int(index.max()) + 1
    shape = (rows, rows)
    return SimpleNamespace(index=index, targets=targets, take=take, shape=shape, negatives=None)


def random_samples(loss, d: int, samples: int, seed: int = 0):
    cupy.random.seed(seed)
    index = cupy.random.randint(0, d, (samples, loss.arity), dtype=np.int32)
    return given(index, (cupy.random.random(samples, dtype=np.float32) < 0.5).astype(np.float32))


def trainer(loss, d: int, rank: int, policy: Policy, engine, start=1.0, dtype="float32") -> Trainer:
    """From entries of that size, or such as the policy wants for these targets."""
    scale = (start, start)
    if not isinstance(start, float):
        scale = policy.starting_scale(start[:1_000_000].get(), (d, d), rank, loss.name)
    factors = Factors.start((d, d), rank, seed=1, scale=scale, dtype=dtype, symmetric=True)
    return Trainer(factors, loss, policy, engine, np.random.default_rng(2))


def timed(run: Trainer, samples, epochs: int) -> list[float]:
    """The time at the end of every epoch."""
    marks: list[float] = []
    run.run(samples, epochs=epochs, callbacks=[lambda told: marks.append(time.perf_counter())])
    return marks


def rate(loss, d: int, rank: int, samples: int, engine, epochs: int = 5, policy=None):
    """Samples a second, epoch by epoch with everything in it, and inside the kernels alone."""
    # A step so small that the spectrum rests and rounds are as long as they get.
    run = trainer(loss, d, rank, policy or Policy(learning_rate=1e-6 * d), engine)
    marks = timed(run, random_samples(loss, d, samples), epochs)
    steps = np.diff([record["seconds"] for record in run.history.records])
    return samples / np.median(np.diff(marks)), samples / np.median(steps)


def start() -> None:
    """What the first use of the GPU costs in a fresh process."""
    clock = time.perf_counter()
    engine = open_engine("cuda")
    rate(LOSSES["squared"], 1000, 8, 10_000, engine, epochs=2)
    print(f"start: {time.perf_counter() - clock:.2f} s from open_engine to the first epochs")


def rates() -> None:
    cases = [("bpr", 3, 100), ("squared", 3, 100), ("squared", 10, 100), ("squared", 32, 100)]
    cases += [("bpr", 32, 60), ("squared", 64, 60), ("bpr", 64, 60), ("squared", 128, 64)]
    cases += [("squared", 256, 40)]
    print("rates, G samples/s: loss, rank, d, longest round / d, whole epochs, steps alone")
    for name, rank, millions in cases:
        for d, longest in ((D, 32), (D, 256), (1_000_000, 32)):
            policy, engine = Policy(learning_rate=1e-6 * d), open_engine("cuda")
            engine.longest = longest
            whole, steps = rate(LOSSES[name], d, rank, millions * 10**6, engine, policy=policy)
            cells = f"{name:8} {rank:4} {d:8} {longest:4} {whole / 1e9:6.2f} {steps / 1e9:6.2f}"
            print("  " + cells, flush=True)
    policy = Policy(learning_rate=1e-6 * D, damping=1.0)
    policy.cap = 1.7
    whole, steps = rate(LOSSES["squared"], D, 10, 10**8, open_engine("cuda"), policy=policy)
    print(f"  squared, capped 10 {D} {whole / 1e9:6.2f} {steps / 1e9:6.2f}")
    loss = LOSSES["squared"]
    run = trainer(loss, D, 16, Policy(learning_rate=0.06), open_engine("cuda"), dtype="float64")
    run.run(random_samples(loss, D, 20_000_000), epochs=3)
    print(f"  squared 16 {D} float64: {run.samples / run.seconds / 1e9:.2f} in the steps")


def entries(d: int, rank: int, samples: int, hub: float = 0.0, seed: int = 0):
    """Entries of a random matrix with row 0 in a share `hub` of them, and its factor."""
    cupy.random.seed(seed)
    Z = cupy.random.standard_normal((d, rank))
    index = cupy.random.randint(0, d, (samples, 2), dtype=np.int32)
    index[cupy.random.random(samples) < hub, 0] = 0
    return given(index, (Z[index[:, 0]] * Z[index[:, 1]]).sum(axis=1)), Z.get()


class Judged(AutoPolicy):
    """Holds out the last samples, which are as random as any."""

    def hold_out(self, observations, rng):
        index, targets = observations.index, observations.targets
        judge = Chunk(index[-20_000:].get(), targets[-20_000:].get())
        return given(index[:-20_000], targets[:-20_000]), judge


def reached(loss, d: int, rank: int, theta, seen, crowd: float) -> str:
    losses, most = [], 0
    for seed in (0, 1):
        engine = open_engine("cuda")
        engine.in_flight, cuda._CROWD = None if crowd else 8, crowd
        auto = theta == "auto"
        policy = Judged() if auto else Policy(learning_rate=theta * d / rank, damping=1.0)
        run = trainer(loss, d, rank, policy, engine, seen.targets if auto else 1.0, "float64")
        run.rng = np.random.default_rng(seed)
        with contextlib.suppress(DivergenceError):
            run.run(seen, epochs=6)
            P, rates = policy.preconditioner(run.factors, loss), policy.rates(run.factors, loss)
            most = engine.flight(run.factors, P, rates, loss)
        diverged = run.history.stopped == "diverged"
        losses.append(np.inf if diverged else np.log10(run.history["loss"][-1]))
    return "/".join(f"{loss:.1f}" for loss in losses) + f" ({most})"


def flight() -> None:
    """The mean loss by how crowded a row may be, and what the number in flight costs."""
    print("flight: log10 of the mean loss after 6 epochs, two orders of samples each;")
    print("  8 samples in flight, then by _CROWD 0.01, 0.02, 0.05, 0.1, 0.2 (samples in flight)")
    loss, d = LOSSES["squared"], 2000
    for rank, hub, theta in [
        (1, 0.0, 0.1), (1, 0.0, 0.3), (4, 0.0, 0.3), (4, 0.0, 0.6), (16, 0.0, 0.3), (16, 0.0, 0.6),
        (4, 0.01, 0.3), (16, 0.01, 0.3), (4, 0.0, "auto"), (16, 0.0, "auto"), (16, 0.01, "auto"),
    ]:  # fmt: skip
        seen, _ = entries(d, rank, 40 * d * max(1, rank // 2), hub)
        cells = [reached(loss, d, rank, theta, seen, c) for c in (0, 0.01, 0.02, 0.05, 0.1, 0.2)]
        print(f"  r={rank:2} hub={hub} theta={theta}: " + "  ".join(cells), flush=True)
    print("  G samples/s by samples in flight, d = 62,000 and 1,000,000:")
    for name, rank in [("bpr", 3), ("squared", 32), ("squared", 64), ("squared", 128)]:
        for d in (D, 1_000_000):
            cells = []
            for in_flight in (1000, 4000, 8000, 16_000, 32_000, 10**6):
                engine = open_engine("cuda")
                engine.in_flight = in_flight
                steps = rate(LOSSES[name], d, rank, 20_000_000, engine, epochs=3)[1]
                cells.append(f"{in_flight}: {steps / 1e9:.2f}")
            print(f"  {name} {rank} {d} " + "  ".join(cells), flush=True)


def stream() -> None:
    """Samples that do not fit: sent in slabs while the last slab runs."""
    from scaledsgd.engines.cuda.engine import CudaEngine

    seen, loss = random_samples(LOSSES["bpr"], D, 100_000_000), LOSSES["bpr"]
    host = given(seen.index.get(), seen.targets.get())
    for d in (D, 1_000_000):
        for what, memory in (("resident", None), ("2 GB", 2 * 10**9)):
            run = trainer(loss, d, 3, Policy(learning_rate=1e-6 * d), CudaEngine(memory=memory))
            marks = timed(run, host, epochs=4)
            whole = len(host.targets) / np.median(np.diff(marks)) / 1e9
            error = run.history["loss"][-1]
            print(f"stream: d={d} {what}: {whole:.2f} G samples/s, loss {error:.6f}", flush=True)


def comparisons(samples: int, arrays):
    """Triplets over items of three tastes and a popularity, some answers being wrong."""
    rng = np.random.default_rng(7)
    Z = rng.standard_normal((D, 4)).astype(np.float32)
    Z[:, 3] = 1.0 + rng.pareto(3.0, D)  # what is popular is similar to everything
    index = rng.integers(0, D, (samples, 3), dtype=np.int32)
    index[:, 1] = np.where(index[:, 0] == index[:, 1], (index[:, 1] + 1) % D, index[:, 1])
    noise = rng.standard_normal(samples, dtype=np.float32)
    index, Z, noise = arrays.asarray(index), arrays.asarray(Z), arrays.asarray(noise)
    targets = arrays.empty(samples, np.float32)
    for at in range(0, samples, 1 << 22):
        part = slice(at, at + (1 << 22))
        j, k, i = (Z[index[part, c]] for c in range(3))
        targets[part] = (i * (j - k)).sum(axis=1) + noise[part] > 0
    return index, targets


def fig3(cpu: bool = False, in_flight: int | None = None, seed: int = 2) -> None:
    """The paper's huge-scale run: 100M triplets, two epochs, 200 evaluations on 10M others."""
    clock = time.perf_counter()
    index, targets = comparisons(110_000_000, np if cpu else cupy)
    print(f"fig3: data in {time.perf_counter() - clock:.1f} s", flush=True)
    train, test = given(index[:100_000_000], targets[:100_000_000]), slice(100_000_000, None)
    loss, curves = LOSSES["bpr"], {}
    total = 0.0
    for method, alpha in (("scaled", 1000.0), ("sgd", 0.01)):
        engine = open_engine("cpu" if cpu else "cuda")
        policy = Policy(learning_rate=alpha, scaled=method == "scaled")
        run = trainer(loss, D, 3, policy, engine)
        run.rng, engine.in_flight = np.random.default_rng(seed), in_flight
        curve: list[float] = []

        def score(told, engine=engine, curve=curve):
            curve.append(auc(engine, told.factors, index[test], targets[test], loss))

        clock = time.perf_counter()
        run.run(train, epochs=2, evaluations=100, callbacks=[score])
        seconds = time.perf_counter() - clock
        total += seconds
        curves[method] = np.array(curve)
        print(
            f"  {method}: {seconds:.3f} s in all, {run.seconds:.3f} s in the steps, "
            f"{run.history.refreshes} refreshes, "
            f"AUC {curve[9]:.4f} at 10%, {curve[-1]:.4f} in the end",
            flush=True,
        )
    print(f"  both: {total:.3f} s")
    if cpu:
        CURVE.parent.mkdir(exist_ok=True)
        np.savez(CURVE, **curves)
    elif CURVE.exists():
        with np.load(CURVE) as kept:
            for method, curve in curves.items():
                away = np.abs(curve - kept[method])
                print(f"  {method}: |AUC - CPU's| {away[10:].max():.5f} past 10%, "
                      f"{away[50:].max():.5f} past 50%, {away.max():.5f} anywhere")  # fmt: skip


def complete() -> None:
    """d = 1,000,000, r = 10, kappa = 1e4, 80M entries, from a small start."""
    d, rank, loss = 1_000_000, 10, LOSSES["squared"]
    cupy.random.seed(3)
    Z = cupy.linalg.qr(cupy.random.standard_normal((d, rank)))[0]
    Z = Z * cupy.sqrt(cupy.asarray(d * np.geomspace(1.0, 1e-4, rank)))
    index = cupy.random.randint(0, d, (80_000_000, 2), dtype=np.int32)
    targets = cupy.empty(len(index), np.float32)
    for at in range(0, len(index), 1 << 23):
        i, j = index[at : at + (1 << 23)].T
        targets[at : at + (1 << 23)] = (Z[i] * Z[j]).sum(axis=1)
    truth = Z.get()
    for theta in (0.5, "auto"):
        auto = theta == "auto"
        policy = Judged() if auto else Policy(learning_rate=theta * d / rank, damping=1.0)
        small = 1e-3 * float(cupy.sqrt(cupy.linalg.norm(targets) / np.sqrt(len(targets))))
        run = trainer(loss, d, rank, policy, open_engine("cuda"), targets if auto else small)
        marks: list[tuple[float, float]] = []

        def note(told, marks=marks):
            # The error over all entries costs more than an epoch: once the loss says it is time.
            marks.append((time.perf_counter(), told.loss))
            return told.loss < 2e-14 or (len(marks) > 8 and told.loss > 0.98 * marks[-3][1])

        clock = time.perf_counter()
        run.run(given(index, targets), epochs=30, callbacks=[note])
        X = run.factors.X.astype(np.float64)
        error = recovery_error(X, X, truth, truth)
        print(
            f"complete: theta {theta}: relative error {error:.2e} after "
            f"{len(marks)} epochs, {marks[-1][0] - clock:.2f} s ({run.seconds:.2f} s in the steps, "
            f"{run.history.refreshes} refreshes); "
            "losses " + " ".join(f"{loss:.0e}" for _, loss in marks),
            flush=True,
        )


def small() -> None:
    """Every loss, some ranks, both types, and a stream: for compute-sanitizer."""
    from scaledsgd.engines.cuda.engine import CudaEngine

    cases = [(loss, rank, "float32", None) for loss in LOSSES.values() for rank in (1, 3, 70)]
    cases += [(loss, 10, "float64", None) for loss in LOSSES.values()]
    cases += [(LOSSES["bpr"], 3, "float32", 1_000_000)]
    for loss, rank, dtype, memory in cases:
        run = trainer(loss, 301, rank, Policy(1.0, 1.0), CudaEngine(memory=memory), 0.1, dtype)
        seen = random_samples(loss, 301, 30_001 if memory is None else 70_001)
        run.run(given(seen.index.get(), seen.targets.get()), epochs=2)
        print(f"small: {loss.name} {rank} {dtype}: loss {run.history['loss'][-1]:.4f}")


if __name__ == "__main__":
    if "--cpu" in sys.argv:
        fig3(cpu=True, seed=int(sys.argv[-1]) if sys.argv[-1].isdigit() else 2)
        sys.exit()
    print(describe("cuda"))
    for part in sys.argv[1:] or ["start", "rates", "flight", "stream", "fig3", "complete", "small"]:
        globals()[part]()
