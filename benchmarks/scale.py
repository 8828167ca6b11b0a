"""A Ray cluster on one machine: convergence, speed, memory, and whether deaths are survived.

python benchmarks/scale.py convergence [--data ../shared/data/ml-latest-small]
python benchmarks/scale.py speed
python benchmarks/scale.py costs
python benchmarks/scale.py model
python benchmarks/scale.py memory
python benchmarks/scale.py startup
python benchmarks/scale.py many
python benchmarks/scale.py kill [--kills 10] [--events]
python benchmarks/scale.py choices [--data ../shared/data/gowalla] [--turns 3] [--workers 1 2]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scaledsgd import ItemRanker, MatrixCompleter, Observations, RayEngine, Recommender
from scaledsgd.core.choices import Choices
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk
from scaledsgd.engines.base import SoftmaxRound, open_engine
from scaledsgd.engines.cluster import engine as cluster
from scaledsgd.engines.schedule import WIDEST
from scaledsgd.io import model_file as store
from scaledsgd.recommend.comparisons import triplets
from scaledsgd.recommend.search import top_k
from scaledsgd.research import movielens, synthetic
from scaledsgd.research.benchmarks import recommend_data
from scaledsgd.training import metrics
from scaledsgd.training.choice_trainer import WARM_EPOCHS, ChoicePolicy, ChoiceTrainer
from scaledsgd.training.holdout import hold_out

WORKERS = (2, 4, 8)
SEEDS = 5
EPOCHS = 14  # of which the first two are not timed
RANK = 64  # of choices

# Measured by `speed` and `costs`: ns a step of one thread at r = 16, GB/s of a block that is taken
# in and given back, ms of a call when many are made, what two workers keep of twice one's speed.
STEP, COPY, CALL, EFFICIENCY = 30.0, 1.0, 0.35, 0.78
SOFTMAX = 4.1  # us a choice on one thread, r = 64, N = 1024
COMMAND = [sys.executable, "-m", "scaledsgd"]


def truth(d: int, rank: int, kappa: float, seed: int = 0) -> np.ndarray:
    """X of a symmetric matrix whose singular values are spread over kappa."""
    rng = np.random.default_rng(seed)
    Q = synthetic.orthonormal(d, rank, rng)
    return Q * np.sqrt(d * np.geomspace(1, 1 / kappa, rank))


def entries(X: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, 1])
    i, j = rng.integers(0, len(X), (2, count), dtype=np.int32)
    y = np.empty(count, X.dtype)
    for at in range(0, count, 1 << 20):
        part = slice(at, at + (1 << 20))
        y[part] = np.einsum("tr,tr->t", X[i[part]], X[j[part]])
    return i, j, y


def reached(errors: list[float], level: float, every: float) -> float:
    """Epochs until a curve, taken every so many of them, crosses a level."""
    log, goal = np.log(errors), np.log(level)
    below = np.flatnonzero(log <= goal)
    if not len(below) or below[0] == 0:
        return np.inf if not len(below) else every
    at = below[0]
    return every * (at + (log[at - 1] - goal) / (log[at - 1] - log[at]))


def recovered(seed: int, engine: RayEngine | None) -> float:
    """Epochs to 1e-5 of a matrix of d = 1000, r = 5, kappa = 1e4 from c = 8."""
    X, errors = truth(1000, 5, 1e4, seed), []

    def told(progress) -> bool:
        left = np.asarray(progress.factors.X)
        errors.append(metrics.recovery_error(left, left, X, X))
        return errors[-1] < 1e-6

    model = MatrixCompleter(
        5, symmetric=True, random_state=seed, epochs=50, tol=0, evaluations=2, callbacks=[told],
        engine=engine,
    )  # fmt: skip
    model.fit(Observations.pairs(*entries(X, 40_000, seed), shape=(1000, 1000), symmetric=True))
    return reached(errors, 1e-5, 0.5)


def ranked(seen, seed: int, engine: RayEngine | None) -> list[float]:
    """Test AUC after each of three epochs on the comparisons of Fig. 7."""
    aucs, cpu = [], open_engine()

    def told(progress) -> None:
        factors = type(progress.factors)(np.asarray(progress.factors.X))
        aucs.append(metrics.auc(cpu, factors, Chunk(seen.test, seen.test_targets), LOSSES["bpr"]))

    model = ItemRanker(3, random_state=seed, epochs=3, evaluations=2, callbacks=[told])
    model.set_params(engine=engine)
    shape = (seen.items, seen.items)
    model.fit(Observations(seen.train, seen.train_targets, shape, "bpr", symmetric=True))
    return aucs


def convergence(data: Path | None) -> bool:
    table = movielens.load(data).table if data else synthetic.ratings(synthetic.TWINS["small"], 0)
    seen = triplets(table, 1_000_000, 100_000, 0)
    serial = [recovered(seed, None) for seed in range(SEEDS)]
    curves = np.mean([ranked(seen, seed, None) for seed in range(SEEDS)], axis=0)
    print(
        f"serial: {np.mean(serial):.2f} epochs to 1e-5; test AUC {np.round(curves, 4)}", flush=True
    )
    sound = True
    for workers in WORKERS:
        engine = RayEngine("local", workers=workers)
        epochs = [recovered(seed, engine) for seed in range(SEEDS)]
        aucs = np.mean([ranked(seen, seed, engine) for seed in range(SEEDS)], axis=0)
        again = recovered(0, engine)
        engine.close()
        ratio, loss = np.mean(epochs) / np.mean(serial), (1 - aucs[-1]) / (1 - curves[-1])
        print(
            f"W = {workers}: {ratio:.3f} times the epochs to 1e-5, test AUC {np.round(aucs, 4)}, "
            f"{loss:.3f} times the serial share of wrong comparisons; "
            f"run again: {'the same' if again == epochs[0] else 'DIFFERENT'}",
            flush=True,
        )
        sound &= ratio <= 1.05 and loss <= 1.05 and again == epochs[0]
    return sound


def speed(d: int = 500_000, rank: int = 16, count: int = 50_000_000, turns: int = 3) -> bool:
    X = truth(d, rank, 1e2).astype(np.float32)
    seen = Observations.pairs(*entries(X, count), shape=(d, d), symmetric=True)
    rates: dict[str, list[float]] = {"plain": [], "W = 1": [], "W = 2": []}
    for _ in range(turns):
        for name in rates:
            engine = None if name == "plain" else RayEngine("local", workers=int(name[-1]))
            clock: list[float] = []

            def told(_, clock=clock):
                if not clock:
                    os.sync()  # the samples, which the system is still writing: that is the start
                clock.append(time.perf_counter())

            model = MatrixCompleter(
                rank, symmetric=True, random_state=0, epochs=EPOCHS, tol=0, dtype="float32",
                callbacks=[told], engine=engine,
            )  # fmt: skip
            model.fit(seen)
            # Not the first two epochs: there the object store meets its memory for the first time.
            rates[name].append(count * (len(clock) - 2) / (clock[-1] - clock[1]) / 1e6)
            if engine is not None:
                engine.close()
        print({name: [round(rate, 1) for rate in held] for name, held in rates.items()}, flush=True)
    plain, one, two = (float(np.median(held)) for held in rates.values())
    print(f"d = {d:,}, r = {rank}, {count:,} pairs, epochs 3 to {EPOCHS}, M samples/s:")
    print(f"plain engine, one thread {plain:.1f}; W = 1 {one:.1f} ({plain / one - 1:+.1%} time);")
    print(f"W = 2 {two:.1f}")
    print(f"W = 2 / W = 1: {two / one:.2f}")
    return two / one >= 1.5 and plain / one <= 1.15


def choices(data: Path | None, turns: int, epochs: int, negatives: int, workers: list[int]) -> bool:
    """Recall and choices a second of the softmax at settings that are given, so that no search is
    part of it: those of one machine, then of W workers of one thread."""
    if data is None:
        seen = recommend_data.made_up(0, (20_000, 20_000, 1_000_000))
    else:
        seen = recommend_data.load(str(data), Path(), 0, None, None)
    print(seen.described(), flush=True)
    names = ["plain", *(f"W = {count}" for count in workers)]
    found: dict[str, list[dict]] = {name: [] for name in names}
    for _ in range(turns):
        for name in names:
            engine = None if name == "plain" else RayEngine("local", workers=int(name[4:]))
            found[name].append(learned(seen, engine, epochs, negatives))
            if engine is not None:
                engine.close()
            print(name, found[name][-1], flush=True)
    sound, recall = True, {n: np.mean([one["recall@20"] for one in found[n]]) for n in names}
    rates = {n: np.median([one["choices_a_second"] for one in found[n]]) for n in names}
    for name in names[1:]:
        off = recall[name] - recall["plain"]
        print(f"{name}: recall@20 {recall[name]:.4f}, {off:+.4f} of one machine's", end="; ")
        print(f"{rates[name]:,.0f} choices a second, {rates[name] / rates['plain']:.2f} times")
        sound &= abs(off) <= 0.003
    if {"W = 1", "W = 2"} <= {*names}:
        print(f"W = 2 / W = 1: {rates['W = 2'] / rates['W = 1']:.2f}")
        sound &= rates["W = 2"] / rates["W = 1"] >= 1.5
    return bool(sound)


def learned(
    seen: recommend_data.Data, engine: RayEngine | None, epochs: int, negatives: int
) -> dict[str, float]:
    """Six epochs of the squared loss and so many of the softmax."""
    policy = ChoicePolicy(alpha0=0.1, ridge=4.0, tau=0.1, c=1.2, negatives=negatives)
    runner = engine or open_engine("cpu")
    events = runner.held(seen.choices())
    factors = runner.start_choices(
        events.shape, RANK, seed=0, scale=(RANK**-0.5, RANK**-0.5), dtype="float32"
    )
    trainer, clock = ChoiceTrainer(factors, policy, runner, np.random.default_rng(0)), []
    trainer.run(events, epochs=epochs, callbacks=[lambda _: clock.append(time.perf_counter())])
    users, items = trainer.vectors()
    top, _ = top_k(users[seen.users], items, recommend_data.K, seen.seen(seen.users))
    softmax = clock[WARM_EPOCHS:]
    rate = len(events) * (len(softmax) - 1) / (softmax[-1] - softmax[0])
    return {name: round(value, 5) for name, value in seen.measures(top).items()} | {
        "choices_a_second": round(rate)
    }


def costs(calls: int = 2000, rows: int = 1_000_000, rank: int = 16) -> bool:
    """What a cluster adds to a step: calls, and blocks that are taken in and given back."""
    engine = RayEngine("local", workers=2)
    pool, clock = engine.pool, time.perf_counter
    import ray

    begun = clock()
    for _ in range(calls):
        pool.get([pool[0].ready.remote()])
    there_and_back = (clock() - begun) / calls
    begun = clock()
    pool.get([pool[number].ready.remote() for number in range(calls)])
    in_a_row = (clock() - begun) / calls
    block = ray.put(np.zeros((rows, rank), np.float32))
    taken = []
    for _ in range(9):
        begun = clock()
        ray.wait([pool[0].turned.remote(block, None)], fetch_local=False)
        taken.append(clock() - begun - there_and_back)
    engine.close()
    steps = {count: softmax_step(count) for count in (256, 1024)}
    size = 4 * rows * rank
    print(f"a call {1e3 * there_and_back:.2f} ms there and back, {1e3 * in_a_row:.2f} ms in a row;")
    print(f"a block of {size / 2**20:.0f} MB in and out {size / np.median(taken) / 1e9:.2f} GB/s")
    told = ", ".join(f"{time:.2f} us at N = {count}" for count, time in steps.items())
    print(f"a choice of the softmax on one thread at r = {RANK}: {told}")
    return True


def softmax_step(negatives: int, rows: int = 100_000, count: int = 200_000) -> float:
    """Microseconds of one thread for a choice, the processor's and not the clock's."""
    rng, runner = np.random.default_rng(0), open_engine("cpu")
    users, items = rng.integers(0, rows, (2, count))
    seen = Choices.of(users, items, shape=(rows, rows))
    factors = runner.start_choices(seen.shape, RANK, seed=0, scale=(0.1, 0.1), dtype="float32")
    taken = []
    for _ in range(5):
        drawn = rng.integers(0, rows, (-(-count // 512), negatives))
        round = SoftmaxRound(np.stack([np.eye(RANK)] * 2), (1e-3, 1e-3), 512, 0.1, 1.2, True, 0.0)
        clock = time.process_time()
        runner.run_softmax(factors, seen, rng.permutation(count), drawn, round)
        taken.append((time.process_time() - clock) / count)
    return 1e6 * min(taken)


def model(step: float, copy: float, call: float, network: float, threads: int) -> bool:
    """Seconds of an epoch by the cost model of docs/scale.md: 10^9 rows, 10^11 pairs, r = 16."""
    d, n, rank, longest = 1e9, 1e11, 16, RayEngine.longest
    size = 4 * rank * d / 1e9  # of X, in GB
    print("nodes  steps  moves  calls  an epoch   X a node  samples a node   (s, GB)")
    for workers in (8, 64, 512):
        times = max(2 * workers - 1, n / (longest * d))  # that blocks change hands
        steps = n * step * 1e-9 / (workers * threads * EFFICIENCY)
        moves = times * size / workers * (1 / copy + 1 / network)
        calls = times * workers * call * 1e-3
        print(
            f"{workers:5} {steps:6.1f} {moves:6.0f} {calls:6.1f} {steps + moves + calls:9.0f} "
            f"{size / workers:10.2f} {12 * n / 1e9 / workers:12.1f}"
        )
    return choice_model(copy, call, network, threads)


def choice_model(copy: float, call: float, network: float, threads: int) -> bool:
    """The same for an epoch of the softmax: 10^9 users, 10^7 items, 10^11 events."""
    users, items, n = 1e9, 1e7, 1e11
    U, V = (4 * RANK * rows / 1e9 for rows in (users, items))
    print(f"softmax, {users:.0e} users, {items:.0e} items, {n:.0e} events, r = {RANK}, N = 1024")
    print("nodes  steps  moves  calls  an epoch   X a node  events a node   (s, GB)")
    for workers in (8, 64, 512):
        times = max(32, workers)  # that groups of items change hands, and users are taken in
        steps = n * SOFTMAX * 1e-6 / (workers * threads * EFFICIENCY)
        moves = times / workers * ((U + V) / copy + V / network)
        calls = times * workers * call * 1e-3
        print(
            f"{workers:5} {steps:6.0f} {moves:6.0f} {calls:6.1f} {steps + moves + calls:9.0f} "
            f"{(U + V) / workers:10.2f} {20 * n / 1e9 / workers:12.1f}"
        )
    return True


def startup(d: int = 500_000, count: int = 50_000_000, workers: int = 2) -> bool:
    """From files of two sides to the first step: reading, and sorting by blocks."""
    with tempfile.TemporaryDirectory() as folder:
        code = [sys.executable, __file__, "written", folder, str(d), str(count)]
        subprocess.run(code, check=True)
        engine = RayEngine("local", workers=workers)
        pids = [pid for _, pid in engine.pool.get([w.where.remote() for w in engine.pool.workers])]
        rng, loss, told = np.random.default_rng(0), LOSSES["squared"], []

        def clock() -> np.ndarray:
            """Seconds by the wall, and of the workers' processors."""
            stats = [
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids
            ]
            spent = sum(int(stat[k]) for stat in stats for k in (11, 12))
            return np.array([time.perf_counter(), spent / os.sysconf("SC_CLK_TCK")])

        begun = clock()
        seen = engine.open_files(f"{folder}/*.parquet", ("row", "column"), "value", loss, False)
        told.append(("ids", clock() - begun))
        rest, _ = hold_out(seen, rng)
        told.append(("hold-out", clock() - begun))
        engine.samples(rest, [0, seen.shape[0]], "float32", rng)
        told.append(("sorted", clock() - begun))
        engine.close()
    print(f"{count:,} pairs in Parquet, d = {d:,} + {d:,}, W = {workers}, seconds since the start")
    for what, (wall, spent) in told:
        print(f"  {what:9} {wall:6.1f}, of the workers' processors {spent:.1f}")
    sorting = told[-1][1] - told[-2][1]
    print(f"  sorting {sorting[0]:.1f}, {1e9 * sorting[1] / count:.0f} ns of a processor a pair")
    return bool(sorting[0] <= 8)


# Of comparisons, by `scaledsgd bench speed`: ns a step of one thread at r = 16.
COMPARISON = 45.0


def planned(groups: int, d: float, n: float, rank: int) -> tuple[float, float, float]:
    """Of an epoch of triplets: times that blocks change hands, calls, and GB that a worker takes in
    and gives back."""
    points = 4 * groups
    times = max((points - 1) * (points - 2) / 6, n / (RayEngine.longest * d))
    return times, times * groups, 2 * times * 4 * rank * d / groups / 1e9


def many(workers=(2, 4, 8, 16), rows: int = 2048, count: int = 400_000, rank: int = 4) -> bool:
    """Triplets on many workers: calls and bytes of a run against those of the model, and what the
    model says for more workers than one machine has."""
    rng, sound = np.random.default_rng(0), True
    Z = rng.standard_normal((rows, 2))
    i, j, k = rng.integers(0, rows, (3, count))
    k = np.where(j == k, (k + 1) % rows, k)
    y = ((Z[i] * (Z[j] - Z[k])).sum(axis=1) > 0).astype(float)
    seen = Observations.triplets(i, j, k, y, shape=(rows, rows))
    print(f"{rows:,} rows, {count:,} triplets, an epoch: counted, and by the model")
    for W in workers:
        engine, calls, jobs = RayEngine("local", workers=W), [], cluster.Job
        engine.longest = 1  # rounds of the same length from the first on

        def counted(box, bucket, *rest, calls=calls, jobs=jobs):
            calls.append(bucket)
            return jobs(box, bucket, *rest)

        cluster.Job = counted
        try:
            model = ItemRanker(rank, random_state=0, epochs=1, engine=engine).fit(seen)
        finally:
            cluster.Job = jobs
        engine.close()
        groups = min(W, WIDEST)
        times = max((4 * groups - 1) * (4 * groups - 2) / 6, count / rows)
        moved = 2 * len(calls) * 4 * (8 * rank * rows / (4 * groups)) / 1e6
        expected = 2 * times * 8 * rank * rows / 1e6
        print(f"  W = {W:2}: {len(calls):7,} calls, {times * groups:7,.0f}; "
              f"{moved:6.0f} MB moved, {expected:6.0f}; "
              f"loss {model.history_['loss'][-1]:.4f}", flush=True)  # fmt: skip
        sound &= 0.75 <= len(calls) / (times * groups) <= 1.3
    for d, n in ((62_000, 1e9), (62_000, 1e11), (1e9, 1e11)):
        print(f"{d:,.0f} rows, {n:.0e} triplets, r = 16, nodes of 16 threads, 10 Gbit/s:")
        print("  groups  sub-rounds     calls  GB a node   steps  moves   calls  an epoch (s)")
        for groups in (2, 4, 8, 16, 32, 64, 128, 256, 512):
            times, calls, moved = planned(groups, d, n, 16)
            steps = n * COMPARISON * 1e-9 / (groups * 16 * EFFICIENCY)
            moves, called = moved / 2 * (1 / COPY + 1 / 1.25), calls * CALL * 1e-3
            print(f"  {groups:6} {times:11,.0f} {calls:9.2g} {moved:10.3g} {steps:7.1f} "
                  f"{moves:6.3g} {called:7.3g} {steps + moves + called:9.3g}")  # fmt: skip
    return sound


class Watch(threading.Thread):
    """The most memory that processes have had, in MB, and the object store, of which the system
    keeps what was ever used. What a process maps of it is no memory of its own."""

    def __init__(self, pids: list):
        super().__init__(daemon=True)
        self.most, self.store, self.over = dict.fromkeys(pids, 0), 0, False
        self.start()

    def run(self):
        while not self.over:
            for pid in self.most:
                told = Path(f"/proc/{pid}/status").read_text().split()
                own = sum(int(told[told.index(name) + 1]) for name in ("RssAnon:", "RssFile:"))
                self.most[pid] = max(self.most[pid], own // 1024)
            time.sleep(0.02)
        self.store = store_size()

    def end(self) -> list[int]:
        self.over = True
        self.join()
        return list(self.most.values())


def store_size() -> int:
    """MB of the object stores that this process has started."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            for file in (process / "fd").iterdir() if parent == os.getpid() else ():
                if "plasma" in os.readlink(file):
                    found[os.stat(file).st_ino] = 512 * os.stat(file).st_blocks
        except OSError:  # gone by now
            continue
    return sum(found.values()) // 2**20


def memory(d: int = 5_000_000, rank: int = 16, count: int = 25_000_000, workers: int = 2) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        code = [sys.executable, __file__, "written", folder, str(d), str(count)]
        subprocess.run(code, check=True)  # not here: this process is the driver that is measured
        engine = RayEngine("local", workers=workers)
        pids = [pid for _, pid in engine.pool.get([w.where.remote() for w in engine.pool.workers])]
        watch = Watch(["self", *pids])
        time.sleep(0.5)
        _, *empty = watch.most.values()
        model = MatrixCompleter(
            rank, symmetric=True, random_state=0, epochs=2, tol=0, dtype="float32", engine=engine
        )
        model.fit(f"{folder}/*.parquet")
        share, blocks = 12 * count / workers / 2**20, 4 * rank * d / workers / 2**20
        allowed = 1.5 * share + 3 * blocks
        driver, *held = watch.end()
        engine.close()
    print(f"d = {d:,}, r = {rank}, {count:,} pairs in Parquet, W = {workers}: driver {driver} MB;")
    print(
        f"workers {held} MB ({empty} before any work), {allowed:.0f} MB are allowed; object store"
    )
    print(f"{watch.store} MB in all, {watch.store / blocks / workers:.1f} times X")
    return driver < 500 and max(held) <= allowed and watch.store <= 3 * blocks * workers


def written(folder: str, d: int, count: int) -> None:
    """Pairs in files, of rows that have numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((d, 2)).astype(np.float32)
    for part in range(max(1, count // 1_000_000)):
        i, j = rng.integers(0, d, (2, min(count, 1_000_000)))
        table = pa.table({"row": i, "column": j, "value": (x[i] * x[j]).sum(axis=1)})
        pq.write_table(table, f"{folder}/{part}.parquet")


class Deaths:
    """A problem to train on while things go wrong. Blocks of 640 kB lie in the object store."""

    d, rank, count = 40_000, 8, 3_200_000
    names: ClassVar[dict[str, str]] = {}
    words = ("--symmetric", "--epochs", "8")

    def __init__(self, folder: Path, kills: int):
        self.folder, self.kills = folder, kills
        X = truth(self.d, self.rank, 1e4)
        i, j, y = entries(X, self.count)
        (folder / "data").mkdir()
        for part in range(4):
            own = slice(part * len(y) // 4, (part + 1) * len(y) // 4)
            table = pa.table({"i": i[own], "j": j[own], "y": y[own]})
            pq.write_table(table, folder / "data" / f"{part}.parquet")

    def model(self, engine: RayEngine, callbacks: list) -> Any:
        return MatrixCompleter(
            self.rank, symmetric=True, random_state=0, epochs=8, tol=0, engine=engine,
            callbacks=callbacks,
        )  # fmt: skip

    def fit(self, engine: RayEngine, during=None) -> tuple[np.ndarray, float]:
        """The factors, and how long it took from the end of the first epoch on, when something may
        happen."""
        begun, clock = threading.Event(), []

        def told(_) -> None:
            clock.append(time.monotonic())
            begun.set()

        model = self.model(engine, [told])
        accident = threading.Thread(target=lambda: (begun.wait(), during and during()))
        accident.start()
        model.fit(f"{self.folder}/data/*.parquet", **self.names)
        X, ended = model.factors.X, time.monotonic()
        accident.join()
        return X, ended - clock[0]

    def workers(self) -> bool:
        """kill -9 of a worker at random moments."""
        engine, rng, sound, taken = RayEngine("local", workers=2), random.Random(0), True, []
        whole, usual = self.fit(engine)
        for _ in range(self.kills):
            wait = rng.uniform(0, 0.6 * usual)

            def during(wait=wait):
                time.sleep(wait)
                worker = rng.choice(engine.pool.workers)
                os.kill(engine.pool.get([worker.where.remote()])[0][1], signal.SIGKILL)

            X, seconds = self.fit(engine, during)
            sound &= np.array_equal(X, whole)
            taken.append(seconds)
        engine.close()
        told = "the same factors" if sound else "DIFFERENT factors"
        print(
            f"{self.kills} runs with a worker killed: all end, {told}; {usual:.1f} s undisturbed, "
            f"{np.median(taken):.1f} s with a death",
            flush=True,
        )
        return sound

    def node(self) -> bool:
        """A machine is lost, with the blocks and the samples on it. Another one is spare."""
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        import ray
        from ray.cluster_utils import Cluster

        sound = True
        for checkpoint in (None, str(self.folder / "lost")):
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
            nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
            ray.init(address=cluster.address, log_to_driver=False, logging_level="FATAL")
            whole, usual = self.fit(RayEngine(cluster.address, workers=2))
            engine = RayEngine(cluster.address, workers=2, checkpoint=checkpoint)

            def during(engine=engine, cluster=cluster, nodes=nodes):
                where = engine.pool.get([engine.pool[1].where.remote()])[0][0]
                lost = next(node for node in nodes if node.node_id == where)
                cluster.remove_node(lost, allow_graceful=False)

            X, seconds = self.fit(engine, during)
            same = np.array_equal(X, whole)
            ray.shutdown()
            cluster.shutdown()
            sound &= same
            print(
                f"a node lost, {'with' if checkpoint else 'without'} a checkpoint: "
                f"{'the same factors' if same else 'DIFFERENT factors'} after {seconds:.1f} s, "
                f"{usual:.1f} s undisturbed",
                flush=True,
            )
        return sound

    def drivers(self) -> bool:
        """kill -9 of the driver at random moments; the same command goes on."""
        out, kept = self.folder / "model", self.folder / "kept"
        command = [
            *COMMAND, "fit", f"{self.folder}/data/*.parquet", *self.words, "--rank", str(self.rank),
            "--seed", "0", "--ray", "local", "--workers", "2", "--checkpoint", str(kept),
        ]  # fmt: skip
        clock = time.monotonic()
        subprocess.run([*command, "--out", f"{out}-whole"], check=True, capture_output=True)
        usual, rng, died, ended, same = time.monotonic() - clock, random.Random(0), 0, 0, True
        (whole, _) = store.read(f"{out}-whole")
        while died < self.kills or kept.exists():
            process = subprocess.Popen(
                [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            wait = rng.uniform(0.5 * usual, 0.9 * usual) if died < self.kills else None
            try:
                process.communicate(timeout=wait)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                died += 1
            if process.returncode == 0:
                ended += 1
                same &= np.array_equal(store.read(out)[0]["X"], whole["X"])
        told = "the same factors" if same else "DIFFERENT factors"
        print(f"{died} drivers killed, {ended} runs ended: {told}")
        return same


class EventDeaths(Deaths):
    """The same for a recommender: who chose what, a search for settings, and the softmax."""

    rank, shape = 32, (6_000, 2_000, 100_000)
    names: ClassVar[dict[str, str]] = {"user": "who", "item": "what"}
    words = ("--user", "who", "--item", "what", "--epochs", "6")

    def __init__(self, folder: Path, kills: int):
        self.folder, self.kills = folder, kills
        users, items = recommend_data.made_up(0, self.shape).events().values()
        order = np.random.default_rng(0).permutation(len(users))
        (folder / "data").mkdir()
        for part, own in enumerate(np.array_split(order, 4)):
            table = pa.table({"who": users[own], "what": items[own]})
            pq.write_table(table, folder / "data" / f"{part}.parquet")

    def model(self, engine: RayEngine, callbacks: list) -> Any:
        return Recommender(
            self.rank, random_state=0, epochs=6, engine=engine, callbacks=callbacks,
            temperature=0.14, contrast=1.05, product="cosine", alpha0=0.1, ridge=2.0,
        )  # fmt: skip


def kill(kills: int, events: bool) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        deaths = (EventDeaths if events else Deaths)(Path(folder), kills)
        return all([deaths.workers(), deaths.node(), deaths.drivers()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    converging = parts.add_parser("convergence", help="epochs against the serial run")
    converging.add_argument("--data", type=Path, help="MovieLens-Small, else its synthetic twin")
    parts.add_parser("speed", help="samples a second against one machine")
    parts.add_parser("costs", help="of calls, and of blocks that change hands")
    modelling = parts.add_parser("model", help="what the cost model predicts for 10^9 rows")
    modelling.add_argument("--step", type=float, default=STEP, help="ns, r = 16, one thread")
    modelling.add_argument("--copy", type=float, default=COPY, help="GB/s, a block in and out")
    modelling.add_argument("--call", type=float, default=CALL, help="ms, calls in a row")
    modelling.add_argument("--network", type=float, default=1.25, help="GB/s of a node")
    modelling.add_argument("--threads", type=int, default=16, help="of a node")
    parts.add_parser("memory", help="of the workers and the driver")
    parts.add_parser("startup", help="from files to the first step")
    parts.add_parser("many", help="triplets on many workers: as counted, and as modelled")
    killing = parts.add_parser("kill", help="kill -9 of workers, a node and the driver")
    killing.add_argument("--kills", type=int, default=10)
    killing.add_argument("--events", action="store_true", help="while choices are learned")
    choosing = parts.add_parser("choices", help="the recommender against one machine")
    choosing.add_argument("--data", type=Path, help="a folder with train and test files")
    choosing.add_argument("--turns", type=int, default=1)
    choosing.add_argument("--epochs", type=int, default=10, help="of the softmax")
    choosing.add_argument("--negatives", type=int, default=1024)
    choosing.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    writing = parts.add_parser("written")
    writing.add_argument("folder")
    writing.add_argument("d", type=int)
    writing.add_argument("count", type=int)
    given = parser.parse_args()
    if given.part == "written":
        written(given.folder, given.d, given.count)
        return 0
    if given.part == "convergence":
        return 0 if convergence(given.data) else 1
    if given.part == "choices":
        how = {name: value for name, value in vars(given).items() if name != "part"}
        return 0 if choices(**how) else 1
    if given.part == "kill":
        return 0 if kill(given.kills, given.events) else 1
    if given.part == "model":
        how = {name: value for name, value in vars(given).items() if name != "part"}
        return 0 if model(**how) else 1
    parts = {"speed": speed, "costs": costs, "memory": memory, "startup": startup, "many": many}
    return 0 if parts[given.part]() else 1


if __name__ == "__main__":
    sys.exit(main())
