"""Figures of docs/gpu.md: python benchmarks/gpu.py start | rates | flight | stream | fig3 |
complete | heldout | choices | small, one or more of them. Needs NumPy, SciPy, Numba, CuPy and a
GPU.

--cpu: `fig3` and `heldout` run on the CPU instead and keep what came out in --kept, with which they
are compared when they run on the GPU. --smallest: all sizes a few thousandths of what they are;
with --cpu also what needs a GPU otherwise, but for `flight` and `stream`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from scaledsgd import MatrixCompleter
from scaledsgd.core.choices import Choices
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk, Observations
from scaledsgd.engines.base import SoftmaxRound, describe, open_engine
from scaledsgd.engines.cuda import engine as cuda
from scaledsgd.engines.cuda import kernels as cuda_kernels
from scaledsgd.research.synthetic import completion_problem
from scaledsgd.training.auto_policy import AutoPolicy
from scaledsgd.training.history import DivergenceError
from scaledsgd.training.metrics import auc, recovery_error
from scaledsgd.training.policy import Policy
from scaledsgd.training.trainer import Trainer

arrays: Any = cuda_kernels.cupy  # NumPy, with --cpu
device = "cuda"
smaller = 1  # by what sizes are divided
kept = Path("build")
D = 62_000  # movies of MovieLens-25M


class Given(Observations):
    """Samples as they are, without the checks of Observations, which are not what is timed."""

    def _check(self) -> None:
        pass


def given(index, targets, loss: str = "squared") -> Given:
    rows = int(index.max()) + 1
    return Given(index, targets, (rows, rows), loss, symmetric=True)


def here(array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


def some(count: int, least: int = 1000) -> int:
    """So many samples or rows, or what is left of them in the smallest form."""
    return max(least, count // smaller) if smaller > 1 else count


def random_samples(loss, d: int, samples: int, seed: int = 0):
    arrays.random.seed(seed)
    index = arrays.random.randint(0, d, (samples, loss.arity), dtype=np.int32)
    if loss.arity == 3:  # an item is not compared with itself
        index[:, 1] = arrays.where(index[:, 0] == index[:, 1], (index[:, 1] + 1) % d, index[:, 1])
    targets = (arrays.random.random_sample(samples) < 0.5).astype(np.float32)
    return given(index, targets, loss.name)


def trainer(loss, d: int, rank: int, policy: Policy, engine, start=1.0, dtype="float32") -> Trainer:
    """From entries of that size, or such as the policy wants for these targets."""
    scale = (start, start)
    if not isinstance(start, float):
        size = float(arrays.sqrt(arrays.square(start[:1_000_000]).mean()))
        scale = policy.starting_scale(size, (d, d), rank, loss.name)
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
    engine = open_engine(device)
    rate(LOSSES["squared"], 1000, 8, 10_000, engine, epochs=2)
    print(f"start: {time.perf_counter() - clock:.2f} s from open_engine to the first epochs")


def rates() -> None:
    cases = [("bpr", 3, 100), ("squared", 3, 100), ("squared", 10, 100), ("squared", 32, 100)]
    cases += [("bpr", 32, 60), ("squared", 64, 60), ("bpr", 64, 60), ("squared", 128, 64)]
    cases += [("squared", 256, 40)]
    print("rates, G samples/s: loss, rank, d, longest round / d, whole epochs, steps alone")
    for name, rank, millions in cases:
        for d, longest in ((some(D), 32), (some(D), 256), (some(1_000_000), 32)):
            policy, engine = Policy(learning_rate=1e-6 * d), open_engine(device)
            engine.longest = longest
            count = some(millions * 10**6)
            whole, steps = rate(LOSSES[name], d, rank, count, engine, policy=policy)
            cells = f"{name:8} {rank:4} {d:8} {longest:4} {whole / 1e9:6.2f} {steps / 1e9:6.2f}"
            print("  " + cells, flush=True)
    d = some(D)
    policy = Policy(learning_rate=1e-6 * d, damping=1.0)
    policy.cap = 1.7
    whole, steps = rate(LOSSES["squared"], d, 10, some(10**8), open_engine(device), policy=policy)
    print(f"  squared, capped 10 {d} {whole / 1e9:6.2f} {steps / 1e9:6.2f}")
    loss = LOSSES["squared"]
    run = trainer(loss, d, 16, Policy(learning_rate=0.06), open_engine(device), dtype="float64")
    run.run(random_samples(loss, d, some(20_000_000)), epochs=3)
    print(f"  squared 16 {d} float64: {run.samples / run.seconds / 1e9:.2f} in the steps")


def entries(d: int, rank: int, samples: int, hub: float = 0.0, seed: int = 0):
    """Entries of a random matrix with row 0 in a share `hub` of them, and its factor."""
    arrays.random.seed(seed)
    Z = arrays.random.standard_normal((d, rank))
    index = arrays.random.randint(0, d, (samples, 2), dtype=np.int32)
    index[arrays.random.random_sample(samples) < hub, 0] = 0
    return given(index, (Z[index[:, 0]] * Z[index[:, 1]]).sum(axis=1)), here(Z)


class Judged(AutoPolicy):
    """Holds out the last samples, which are as random as any."""

    def hold_out(self, observations, rng):
        index, targets, last = observations.index, observations.targets, some(20_000, 200)
        judge = Chunk(here(index[-last:]), here(targets[-last:]))
        return given(index[:-last], targets[:-last]), judge


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

    seen, loss = random_samples(LOSSES["bpr"], some(D), some(100_000_000)), LOSSES["bpr"]
    host = given(here(seen.index), here(seen.targets), "bpr")
    for d in (some(D), some(1_000_000)):
        for what, memory in (("resident", None), ("2 GB", 2 * 10**9 // smaller)):
            run = trainer(loss, d, 3, Policy(learning_rate=1e-6 * d), CudaEngine(memory=memory))
            marks = timed(run, host, epochs=4)
            whole = len(host.targets) / np.median(np.diff(marks)) / 1e9
            error = run.history["loss"][-1]
            print(f"stream: d={d} {what}: {whole:.2f} G samples/s, loss {error:.6f}", flush=True)


def comparisons(samples: int):
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


def fig3(in_flight: int | None = None, seed: int = 2) -> None:
    """The paper's huge-scale run: 100M triplets, two epochs, 200 evaluations on 10M others."""
    clock, cut = time.perf_counter(), some(100_000_000)
    index, targets = comparisons(cut + some(10_000_000))
    print(f"fig3: data in {time.perf_counter() - clock:.1f} s", flush=True)
    train, test = given(index[:cut], targets[:cut], "bpr"), slice(cut, None)
    loss, curves = LOSSES["bpr"], {}
    total = 0.0
    for method, alpha in (("scaled", 1000.0), ("sgd", 0.01)):
        engine = open_engine(device)
        policy = Policy(learning_rate=alpha, scaled=method == "scaled")
        run = trainer(loss, D, 3, policy, engine)
        run.rng, engine.in_flight = np.random.default_rng(seed), in_flight
        curve: list[float] = []

        def score(told, engine=engine, curve=curve):
            curve.append(auc(engine, told.factors, Chunk(index[test], targets[test]), loss))

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
    file = kept / "fig3-cpu.npz"
    if device == "cpu":
        kept.mkdir(exist_ok=True)
        np.savez(file, **curves)
    elif file.exists():
        with np.load(file) as before:
            for method, curve in curves.items():
                away = np.abs(curve - before[method])
                print(f"  {method}: |AUC - CPU's| {away[10:].max():.5f} past 10%, "
                      f"{away[50:].max():.5f} past 50%, {away.max():.5f} anywhere")  # fmt: skip


def complete() -> None:
    """d = 1,000,000, r = 10, kappa = 1e4, 80M entries, from a small start."""
    d, rank, loss = some(1_000_000), 10, LOSSES["squared"]
    arrays.random.seed(3)
    Z = arrays.linalg.qr(arrays.random.standard_normal((d, rank)))[0]
    Z = Z * arrays.sqrt(arrays.asarray(d * np.geomspace(1.0, 1e-4, rank)))
    index = arrays.random.randint(0, d, (80 * d, 2), dtype=np.int32)
    targets = arrays.empty(len(index), np.float32)
    for at in range(0, len(index), 1 << 23):
        i, j = index[at : at + (1 << 23)].T
        targets[at : at + (1 << 23)] = (Z[i] * Z[j]).sum(axis=1)
    truth = here(Z)
    for theta in (0.5, "auto"):
        auto = theta == "auto"
        policy = Judged() if auto else Policy(learning_rate=theta * d / rank, damping=1.0)
        small = 1e-3 * float(arrays.sqrt(arrays.linalg.norm(targets) / np.sqrt(len(targets))))
        run = trainer(loss, d, rank, policy, open_engine(device), targets if auto else small)
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


def heldout() -> None:
    """Held-out completion of 1,200 x 700, r = 4, as `MatrixCompleter` does it: 32 problems."""
    shape, rank, file = (1200, 700), 4, kept / "heldout-cpu.json"
    few = [(3, 10.0, 4, 0)] if smaller > 1 else [
        (c, kappa, search, seed) for c in (3, 5, 7, 9) for kappa in (10.0, 1e5)
        for search in (rank, 2 * rank) for seed in (0, 1)
    ]  # fmt: skip
    told: dict[str, list] = {}
    clock = time.perf_counter()
    for c, kappa, search, seed in few:
        index, y, L, R = completion_problem(
            shape, rank, kappa, c * rank * (sum(shape) - rank), seed
        )
        seen = Observations.pairs(*index.T, y, shape=shape)
        model = MatrixCompleter(search, device=device, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(seen)
        error = recovery_error(model.row_factors_, model.column_factors_, L, R)
        told[f"c={c} kappa={kappa:g} rank={search} seed={seed}"] = [
            error < 1e-6, len(model.history_), float(f"{error:.1e}"),
        ]  # fmt: skip
    seconds = time.perf_counter() - clock
    print(f"heldout, {device}: {sum(t[0] for t in told.values())} of {len(told)}, {seconds:.1f} s")
    if device == "cpu":
        kept.mkdir(exist_ok=True)
        file.write_text(json.dumps(told))
    elif file.exists():
        cpu = json.loads(file.read_text())
        ratios = [told[name][1] / cpu[name][1] for name in told if told[name][0] and cpu[name][0]]
        whole = sum(t[1] for t in told.values()) / sum(t[1] for t in cpu.values())
        print(
            f"  the CPU {sum(t[0] for t in cpu.values())}; epochs over the CPU's: in all "
            f"{whole:.2f}, median {np.median(ratios):.2f}, worst {max(ratios):.2f}"
        )
        for name, (solved, epochs, error) in told.items():
            mark = "" if solved == cpu[name][0] and epochs <= 1.3 * cpu[name][1] else "  <--"
            print(f"  {name}: {epochs}/{cpu[name][1]} epochs, {error:.0e}/{cpu[name][2]:.0e}{mark}")


def choices(rank: int = 64, negatives: int = 1024) -> None:
    """Choices a second of the softmax's rounds, and what their three products alone reach."""
    users, items, count = some(400_000), some(100_000), some(4_000_000, 4096)
    rng, block = np.random.default_rng(0), 1024
    pairs = rng.integers(0, users, count), rng.integers(0, items, count)
    seen = Choices.of(*pairs, np.ones(count, np.float32), shape=(users, items))
    order = rng.permutation(count)
    drawn = rng.integers(0, items, (-(-count // block), negatives)).astype(np.int32)
    P = np.stack([np.eye(rank)] * 2)
    rates: dict[str, float] = {}
    for mode in ("float32", "TF32"):
        with precision(mode):
            for cosine in (True, False):
                engine = open_engine(device)
                start = Factors.start((users, items), rank, seed=0, dtype="float32")
                start.X = engine.put(start.X * np.float32(1 / np.sqrt(rank)))
                round = SoftmaxRound(P, (1e-3, 1e-3), block, 0.14, 1.1, cosine, 0.0)
                engine.run_softmax(start, seen, order[:block], drawn[:1], round)
                engine.run_softmax(start, seen, order, drawn, round)
                clock = time.perf_counter()
                loss = engine.run_softmax(start, seen, order, drawn, round)
                seconds = time.perf_counter() - clock
                name = f"{mode}, {'cosines' if cosine else 'products'}"
                rates[name] = count / seconds
                print(f"choices: {name}: {rates[name] / 1e6:.1f} M/s, loss {loss / count:.6f}")
            for how, reached in products(block, negatives, rank, len(drawn)).items():
                shares = [rates[f"{mode}, {kind}"] / reached for kind in ("cosines", "products")]
                print(
                    f"  {mode}, the three products {how}: {reached / 1e6:.1f} M/s, of which rounds "
                    f"are {shares[0]:.0%} and {shares[1]:.0%}",
                    flush=True,
                )


@contextlib.contextmanager
def precision(mode: str):
    """Of cuBLAS: as it is, or with numbers of ten bits."""
    if arrays is np:
        yield
        return
    handle = arrays.cuda.device.get_cublas_handle()
    before = arrays.cuda.cublas.getMathMode(handle)
    arrays.cuda.cublas.setMathMode(handle, 3 if mode == "TF32" else 0)  # CUBLAS_TF32_TENSOR_OP_MATH
    try:
        yield
    finally:
        arrays.cuda.cublas.setMathMode(handle, before)


def products(b: int, N: int, rank: int, blocks: int) -> dict[str, float]:
    """Choices a second of the three products of a block: launched one by one, as in the rounds, and
    64 blocks in one launch, which shows what the processor can do."""
    rng, together, reached = np.random.default_rng(0), 64 if smaller == 1 else 2, {}
    shapes = {"C": (b, rank), "W": (N, rank), "S": (b, N), "G": (b, rank), "H": (N, rank)}
    C, W, S, G, H = (
        arrays.asarray(rng.standard_normal((together, *shape)).astype(np.float32))
        for shape in shapes.values()
    )

    def three(count: int) -> list:
        return [
            product(C[:count], W[:count], S[:count], right=True),
            product(S[:count], W[:count], G[:count]),
            product(S[:count], C[:count], H[:count], left=True),
        ]

    for how, count in (("one by one", 1), (f"{together} blocks at a time", together)):
        calls, times = three(count), max(1, blocks // count)
        for _ in range(2):
            finished()
            clock = time.perf_counter()
            for _ in range(times):
                for launch, arguments in calls:
                    launch(*arguments)
            finished()
        reached[how] = b * count * times / (time.perf_counter() - clock)
    return reached


_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


def product(A, B, out, left: bool = False, right: bool = False) -> tuple:
    """The launch of out <- A B for a batch of them, either transposed: as engines/cuda/choices.py
    launches one."""
    if arrays is np:
        A, B = (A.swapaxes(1, 2) if left else A), (B.swapaxes(1, 2) if right else B)
        return (lambda: np.matmul(A, B, out=out)), ()
    (count, m, n), k = out.shape, A.shape[1 if left else 2]
    lines = (
        (array.data.ptr, array.shape[2], array.shape[1] * array.shape[2]) for array in (B, A, out)
    )
    first, second, third = lines
    handle = arrays.cuda.device.get_cublas_handle()
    how = handle, int(right), int(left), n, m, k, _ONE.ctypes.data
    rest = *first, *second, _ZERO.ctypes.data, *third
    if count > 1:
        return arrays.cuda.cublas.sgemmStridedBatched, (*how, *rest, count)
    single = *first[:2], *second[:2], _ZERO.ctypes.data, *third[:2]
    return arrays.cuda.cublas.sgemm, (*how, *single)


def finished() -> None:
    if arrays is not np:
        arrays.cuda.Device().synchronize()


def small() -> None:
    """Every loss, some ranks, both types, and a stream: for compute-sanitizer."""
    cases = [(loss, rank, "float32", None) for loss in LOSSES.values() for rank in (1, 3, 70)]
    cases += [(loss, 10, "float64", None) for loss in LOSSES.values()]
    cases += [(LOSSES["bpr"], 3, "float32", 1_000_000)] * (device == "cuda")
    for loss, rank, dtype, memory in cases:
        engine = cuda.CudaEngine(memory=memory) if device == "cuda" else open_engine(device)
        run = trainer(loss, 301, rank, Policy(1.0, 1.0), engine, 0.1, dtype)
        seen = random_samples(loss, 301, 30_001 if memory is None else 70_001)
        run.run(given(here(seen.index), here(seen.targets), loss.name), epochs=2)
        print(f"small: {loss.name} {rank} {dtype}: loss {run.history['loss'][-1]:.4f}")


PARTS = {
    part.__name__: part
    for part in (start, rates, flight, stream, fig3, complete, heldout, choices, small)
}


def main() -> None:
    global arrays, device, smaller, kept
    parser = argparse.ArgumentParser(description="Figures of docs/gpu.md.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="by default all of them")
    parser.add_argument("--cpu", action="store_true", help="on the CPU")
    parser.add_argument("--smallest", action="store_true", help="to see whether it runs")
    parser.add_argument("--kept", type=Path, default=kept, help="folder for what the CPU made")
    told = parser.parse_args()
    kept, smaller = told.kept, 1000 if told.smallest else 1
    arrays, device = (np, "cpu") if told.cpu else (arrays, device)
    print(describe(device))
    for part in told.parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
