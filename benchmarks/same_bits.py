"""Fits every estimator with fixed seeds and prints a checksum of each result.

    python benchmarks/same_bits.py before.json              # on the old code
    python benchmarks/same_bits.py after.json before.json   # on the new: names what differs

Sums of floating-point numbers depend on the width of the processor's registers, so that checksums
are only compared on one machine. `tests/test_same_results.py` compares rounded values anywhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from scaledsgd import (
    DistanceCompleter,
    ItemRanker,
    MatrixCompleter,
    RayEngine,
    Recommender,
    learn_many,
    load,
)
from scaledsgd.cli.main import main
from scaledsgd.recommend.tuning import Found
from scaledsgd.training.choice_trainer import ChoicePolicy

Case = Callable[[], object]
SEED = {"random_state": 0}

# Of a recommender: what it would search for.
FOUND = {
    "squared": {"alpha0": 0.1, "ridge": 1.0},
    "softmax": {"tau": 0.5, "c": 1.0, "cosine": True},
    "bpr": {"dot_ridge": 0.03},
}


class Told(Recommender):
    """Searches for nothing, so that its steps alone are compared."""

    def _searched_for(self, *given) -> Found:
        return Found(ChoicePolicy(loss=self.loss, **FOUND[self.loss]), int(self.epochs), {})


def entries(d: int, n: int, rank: int, share: float, kappa: float = 100.0) -> dict:
    """Some entries of a matrix with singular values from 1 to 1 / kappa, as a table."""
    rng = np.random.default_rng(d)
    left = rng.standard_normal((d, rank)) * np.geomspace(1, 1 / kappa, rank)
    right = rng.standard_normal((n, rank))
    rows, columns = np.nonzero(rng.random((d, n)) < share)
    values = (left[rows] * right[columns]).sum(axis=1)
    return {"row": rows, "column": columns, "value": values}


NAMES = {"row": "row", "column": "column", "value": "value"}


def choices(users: int, items: int, each: int) -> dict:
    """Users who choose among the items of their own kind."""
    rng = np.random.default_rng(users)
    user = np.repeat(np.arange(users), each)
    item = (rng.integers(0, items // 4, len(user)) * 4 + user % 4) % items
    return {"user": user, "item": item, "value": 1.0 + rng.integers(0, 5, len(user))}


def triplets(d: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(d)
    place = rng.random((d, 2))
    i, j, k = rng.integers(d, size=(3, count))
    i, j, k = (column[(j != k)] for column in (i, j, k))
    near, far = (np.linalg.norm(place[i] - place[n], axis=1) for n in (j, k))
    return np.stack([i, j, k], axis=1), (near < far).astype(float)


def distances(d: int) -> np.ndarray:
    rng = np.random.default_rng(d)
    points = rng.random((d, 2))
    D = ((points[:, None] - points) ** 2).sum(axis=2)
    D[np.triu(rng.random(D.shape) > 0.4) | np.tri(d, dtype=bool)] = np.nan
    return D


def streamed(folder: str) -> object:
    """The model that a stream of JSON lines leaves, stopped once on the way."""
    path, model = Path(folder, "events.jsonl"), Path(folder, "stream.model")
    table = entries(200, 150, 2, 0.2)
    lines = [
        json.dumps({"row": int(i), "column": int(j), "value": float(y)})
        for i, j, y in zip(*table.values(), strict=True)
    ]
    names = [part for key in NAMES for part in (f"--{key}", key)]
    for part in (lines[: len(lines) // 2], lines):
        path.write_text("\n".join(part) + "\n")
        arguments = ["stream", str(model), "--from", str(path), "--batch", "512", "--seed", "0"]
        if main([*arguments, *names, "--rank", "2", "--new", "matrix"]):
            raise SystemExit("the stream failed")
    return load(model)


def cases(folder: str) -> Iterator[tuple[str, Case]]:
    big, small = entries(3000, 2500, 4, 0.02), entries(300, 200, 3, 0.3)
    bits = small | {"value": (small["value"] > 0).astype(float)}
    whole = np.random.default_rng(1).standard_normal((60, 3))
    square = whole @ whole.T
    index, nearer = triplets(400, 40_000)
    many, order = triplets(2000, 400_000)
    chosen = {name: choices(2000, 400, 20)[name] for name in ("user", "item")}
    for jobs in (1, 2):
        how = {"n_jobs": jobs, **SEED}
        yield (
            f"squared {jobs}",
            lambda how=how: MatrixCompleter(4, epochs=12, **how).fit(big, **NAMES),
        )
        yield (
            f"distance {jobs}",
            lambda how=how: DistanceCompleter(2, epochs=40, **how).fit(distances(150)),
        )
        yield f"bpr {jobs}", lambda how=how: ItemRanker(3, epochs=3, **how).fit(many, order)
        for loss in FOUND:
            told = Told(4, loss=loss, epochs=4, **how)
            yield (
                f"choices, {loss} {jobs}",
                lambda told=told: told.fit(chosen, user="user", item="item"),
            )
    wrong = small | {"value": small["value"] + 30 * (np.arange(len(small["value"])) % 40 == 0)}
    yield "huber", lambda: MatrixCompleter(3, loss="huber", epochs=20, **SEED).fit(wrong, **NAMES)
    small32 = {"dtype": "float32", **SEED}
    yield (
        "logistic",
        lambda: MatrixCompleter(3, loss="logistic", epochs=20, **SEED).fit(bits, **NAMES),
    )
    yield "float32", lambda: MatrixCompleter("auto", epochs=30, **small32).fit(small, **NAMES)
    yield "symmetric", lambda: MatrixCompleter(3, symmetric=True, epochs=30, **SEED).fit(square)
    paper = {"learning_rate": 0.3, "epochs": 5, **SEED}
    yield "paper", lambda: MatrixCompleter(3, symmetric=True, **paper).fit(square)
    yield (
        "per sample",
        lambda: MatrixCompleter(3, symmetric=True, refresh="sample", **paper).fit(square),
    )
    yield "plain", lambda: MatrixCompleter(3, scaled=False, epochs=20, **SEED).fit(small, **NAMES)
    yield "triplets", lambda: ItemRanker(3, epochs=5, **SEED).fit(index, nearer)
    yield (
        "item-item",
        lambda: ItemRanker(4, epochs=2, **SEED).fit(
            choices(300, 80, 20), user="user", item="item", value="value"
        ),
    )
    table = entries(120, 90, 2, 0.4)
    halves = [{name: column[k::2] for name, column in table.items()} for k in (0, 1)]
    yield (
        "partial_fit",
        lambda: (
            MatrixCompleter(2, epochs=10, **SEED)
            .fit(halves[0], **NAMES)
            .partial_fit(halves[1], **NAMES)
        ),
    )
    yield "learn_many", lambda: learn_many(MatrixCompleter(2, **SEED), halves, **NAMES)
    yield "stream", lambda: streamed(folder)


def clusters() -> Iterator[tuple[str, Case]]:
    big = entries(3000, 2500, 4, 0.02)
    yield (
        "cluster",
        lambda: MatrixCompleter(4, epochs=6, engine=RayEngine("local", workers=2), **SEED).fit(
            big, **NAMES
        ),
    )


def checksum(model) -> str:
    X = np.ascontiguousarray(model.factors.compact())
    told = [record["loss"] for record in model.history_.records]
    return hashlib.sha256(X.tobytes() + json.dumps(told).encode()).hexdigest()[:16]


def run(cluster: bool = True) -> dict[str, str]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in [*cases(folder), *(clusters() if cluster else ())]:
            found[name] = checksum(case())
            print(f"{name:12} {found[name]}", file=sys.stderr)
    return found


if __name__ == "__main__":
    found = run()
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
    if len(sys.argv) > 2:
        before = json.loads(Path(sys.argv[2]).read_text())
        changed = [name for name in found if found[name] != before.get(name)]
        print("changed:", ", ".join(changed) if changed else "nothing")
        sys.exit(bool(changed))
