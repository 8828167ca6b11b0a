"""Which film does a user rate next? ItemRanker against implicit's BPR: prints a table, writes
recommend.json beside this.

MovieLens-Small, leave-last-out, ranked among all films (`pip install implicit`). Both are tuned on
the five films before the last, over the same ranks, epochs and choices (all ratings, or those at or
above the user's mean), implicit also over its learning rate and regularisation. The best of each,
and the quickest that is as good within 2%, then train on all but the last films with several seeds,
in turn. Popularity is the yardstick.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from itertools import product
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from scaledsgd import ItemRanker
from scaledsgd.io.atomic import replace_file
from scaledsgd.recommend.evaluation import evaluate, leave_last_out
from scaledsgd.recommend.events import observations

DATA = Path(__file__).parents[2] / "shared" / "data" / "ml-latest-small"
RESULTS = Path(__file__).with_name("recommend.json")
TUNED_ON = 5  # films of each user: one alone leaves the choice of settings to chance
AS_GOOD = 0.98  # of the best NDCG: less than another seed changes
SEEDS = range(5)

SHARED = {"rank": (16, 64), "epochs": (5, 10, 20, 50, 100), "choices": ("all", "liked")}
GRIDS = {
    "scaledsgd": SHARED,
    "implicit": SHARED | {"rate": (0.01, 0.03, 0.1), "regularization": (0.01, 0.03)},
}


def load(folder: Path) -> tuple[np.ndarray, ...]:
    """Users and films by number, ratings and times."""
    table = np.loadtxt(folder / "ratings.csv", delimiter=",", skiprows=1)
    users, items = (np.unique(column, return_inverse=True)[1] for column in table.T[:2])
    return users, items, table[:, 2], table[:, 3]


def ours(ratings: sp.csr_array, seed: int, threads: int, *, rank, epochs, choices):
    users = np.repeat(np.arange(ratings.shape[0]), np.diff(ratings.indptr))
    values = ratings.data if choices == "liked" else None
    chosen = observations(
        users, ratings.indices, ratings.shape, negatives="popularity", values=values, seed=seed
    )
    model = ItemRanker(
        rank, mode="user-item", epochs=epochs, random_state=seed, n_jobs=threads, evaluations=0
    ).fit(chosen)
    return model.factors.left, model.factors.right


def theirs(
    ratings: sp.csr_array, seed: int, threads: int, *, rank, epochs, choices, rate, regularization
):
    from implicit.bpr import BayesianPersonalizedRanking

    model = BayesianPersonalizedRanking(
        factors=rank - 1, learning_rate=rate, regularization=regularization, iterations=epochs,
        random_state=seed, num_threads=threads,
    )  # fmt: skip
    given = ones(ratings if choices == "all" else liked(ratings))
    model.fit(sp.csr_matrix(given), show_progress=False)  # it adds a column for the items' biases
    return model.user_factors, model.item_factors


CONTESTANTS = {"scaledsgd": ours, "implicit": theirs}


def ones(ratings: sp.csr_array) -> sp.csr_array:
    return sp.csr_array(
        (np.ones_like(ratings.data), ratings.indices, ratings.indptr), ratings.shape
    )


def liked(ratings: sp.csr_array) -> sp.csr_array:
    count = np.diff(ratings.indptr)
    mean = ratings.sum(axis=1) / np.maximum(count, 1)
    user = np.repeat(np.arange(len(count)), count)
    high = ratings.data >= mean[user] - 1e-6
    return sp.csr_array((ratings.data[high], (user[high], ratings.indices[high])), ratings.shape)


def quality(vectors, seen, test) -> dict[str, float]:
    left, right = vectors
    return evaluate(lambda users: left[users] @ right.T, seen, test)


def tuned(name: str, seen, test) -> tuple[dict[str, dict], float]:
    """The settings with the best NDCG@10, the quickest that are as good, and how long the search
    took."""
    tried, start = [], time.perf_counter()
    for values in product(*GRIDS[name].values()):
        settings = dict(zip(GRIDS[name], values, strict=True))
        clock = time.perf_counter()
        vectors = CONTESTANTS[name](seen, 0, 1, **settings)
        seconds = time.perf_counter() - clock
        tried.append((quality(vectors, seen, test)["ndcg@10"], seconds, settings))
    best = max(tried, key=lambda run: run[0])
    good = [run for run in tried if run[0] >= AS_GOOD * best[0]]
    quick = min(good, key=lambda run: run[1])
    return {"best": best[2], "quick": quick[2]}, time.perf_counter() - start


def measured(settings: dict[tuple, dict], seen, test, threads: int) -> dict[tuple, dict]:
    """Mean quality and median seconds of each contestant, taken in turn."""
    found = {name: [] for name in settings}
    for seed in SEEDS:
        for name, chosen in settings.items():
            train = CONTESTANTS[name[0]]
            if seed == SEEDS[0]:
                train(seen, seed, threads, **chosen)  # compile and warm up
            clock = time.perf_counter()
            vectors = train(seen, seed, threads, **chosen)
            seconds = time.perf_counter() - clock
            found[name].append(quality(vectors, seen, test) | {"seconds": seconds})
    return {
        name: {
            key: float((np.median if key == "seconds" else np.mean)([run[key] for run in runs]))
            for key in runs[0]
        }
        for name, runs in found.items()
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of ml-latest-small")
    users, items, values, times = load(options.parse_args().data)
    shape = users.max() + 1, items.max() + 1

    def matrix(part) -> sp.csr_array:
        return sp.csr_array((values[part].astype(np.float32), (users[part], items[part])), shape)

    train, test = leave_last_out(users, items, times)
    rest, tuning = train, []
    for _ in range(TUNED_ON):
        part = leave_last_out(users[rest], items[rest], times[rest])
        tuning.append(rest[part.test])
        rest = rest[part.train]
    console, cores, settings, rows = Console(), os.cpu_count() or 1, {}, []
    searched = {}
    with threadpool_limits(1):
        for name in CONTESTANTS:
            with console.status(f"tuning {name}"):
                parts = matrix(rest), matrix(np.concatenate(tuning))
                rules, searched[name] = tuned(name, *parts)
                settings |= {(name, rule): chosen for rule, chosen in rules.items()}
    seen, wanted = matrix(train), matrix(test)
    popular = ones(seen).sum(axis=0)
    plain = evaluate(lambda rows: np.tile(popular, (len(rows), 1)), seen, wanted)
    rows.append({"name": "popularity", "rule": "", "threads": 1, "seconds": 0.0} | plain)
    for threads in sorted({1, cores}):
        with threadpool_limits(threads), console.status(f"measuring, {threads} threads"):
            for (name, rule), means in measured(settings, seen, wanted, threads).items():
                rows.append({"name": name, "rule": rule, "threads": threads} | means)
    columns = ("ndcg@10", "recall@10", "mrr", "auc")
    title = f"the last film of {len(test)} users, among {shape[1]}"
    table = Table("", "threads", *columns, "seconds", title=title, title_justify="left")
    for row in rows:
        cells = [f"{row[name]:.4f}" for name in columns] + [f"{row['seconds']:.3f}"]
        table.add_row(f"{row['name']} {row['rule']}", str(row["threads"]), *cells)
    console.print(table)
    for (name, rule), chosen in settings.items():
        text = f"{name}, {rule}: {chosen}, found in {searched[name]:.0f} s"
        console.print(text, highlight=False)
    by = {(row["name"], row["rule"], row["threads"]): row for row in rows}
    for (name, rule, threads), mine in by.items():
        if name == "scaledsgd":
            other = by["implicit", rule, threads]
            better, longer = (mine[what] / other[what] for what in ("ndcg@10", "seconds"))
            text = f"{rule}, {threads} threads: {better:.2f} times the NDCG@10 of implicit in "
            console.print(f"{text}{longer:.2f} times its time", highlight=False)
    machine = {"processor": platform.processor() or platform.machine(), "cores": cores}
    content = {
        "machine": machine,
        "settings": {" ".join(name): chosen for name, chosen in settings.items()},
        "searched": searched,
        "results": rows,
    }
    replace_file(RESULTS, (json.dumps(content, indent=1) + "\n").encode())
    console.print(f"written to {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
