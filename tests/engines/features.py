"""What every engine learns: one row for each loss and feature, from which the conformance suite and
the table of docs/architecture.md are made.

A row is a function that learns something with the settings it is given and looks at the result;
`no` says for which engines it does not hold, and why. What is not named there has to pass.

python tests/engines/features.py    # the table, for docs/architecture.md
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, Observations, Recommender
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.training.lagging_rows import catch_up
from scaledsgd.training.metrics import recovery_error

CPU, CUDA, RAY, RAY_GPU = ENGINES = "CPU", "CUDA", "Ray, CPU workers", "Ray, GPU workers"


class Row(NamedTuple):
    name: str
    check: Callable[[dict], None]
    no: dict[str, str]  # engines that do without, and why


ROWS: list[Row] = []


def row(name: str, **no: str):
    """Adds a check to the table. Args: no, reasons by the name of an engine's constant."""

    def added(check: Callable[[dict], None]) -> Callable[[dict], None]:
        ROWS.append(Row(name, check, {globals()[engine]: why for engine, why in no.items()}))
        return check

    return added


def table() -> str:
    """In Markdown."""
    lines = [["loss or feature", *ENGINES], ["---"] * (1 + len(ENGINES))]
    for name, _, no in ROWS:
        cells = [f"no: {no[engine]}" if engine in no else "yes" for engine in ENGINES]
        lines.append([name, *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


# --- Problems -------------------------------------------------------------------------------------


def truth(shape=(90, 60), spectrum=(1.0, 0.1, 0.01), seed=0):
    """The sides of a matrix that only a good P solves."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((d, len(spectrum))) * np.sqrt(spectrum) for d in shape]


def drawn(left, right, count, seed=1):
    """Entries, none of them twice."""
    at = np.random.default_rng(seed).choice(len(left) * len(right), count, replace=False)
    i, j = np.divmod(at, len(right))
    return i, j, np.einsum("tr,tr->t", left[i], right[j])


def pairs(left, right, count, seed=1, **how) -> Observations:
    return Observations.pairs(
        *drawn(left, right, count, seed), shape=(len(left), len(right)), **how
    )


def error(model, left, right) -> float:
    return recovery_error(model.row_factors_, model.column_factors_, left, right)


# --- Losses ---------------------------------------------------------------------------------------


@row("squared loss, two sides (`MatrixCompleter`)")
def squared(how):
    left, right = truth()
    model = MatrixCompleter(3, random_state=0, **how).fit(pairs(left, right, 2400))
    assert error(model, left, right) < 1e-6


@row("squared loss, symmetric")
def symmetric(how):
    (left,) = truth((90,))
    i, j = np.triu_indices(90)
    kept = np.random.default_rng(0).random(len(i)) < 0.4
    y = np.einsum("tr,tr->t", left[i[kept]], left[j[kept]])
    seen = Observations.pairs(i[kept], j[kept], y, shape=(90, 90), symmetric=True)
    model = MatrixCompleter(3, symmetric=True, random_state=0, **how).fit(seen)
    assert error(model, left, left) < 1e-6


@row("Huber's loss, for entries of which some are grossly wrong")
def huber(how):
    left, right = truth(spectrum=(1.0, 0.5, 0.3))
    seen = pairs(left, right, 2700, loss="huber")
    wrong = np.random.default_rng(2).choice(len(seen), 130, replace=False)
    seen.targets[wrong] += 30.0
    told = []
    model = MatrixCompleter(
        3, loss="huber", random_state=0, callbacks=[lambda now: told.append(now.loss)], **how
    )
    assert error(model.fit(seen), left, right) < 1e-6
    assert len(told) == len(model.history_) and told[-1] < 0.2 * told[0]
    assert model.history_.stopped == "solved" and error(model, left, right) < 1e-9


@row("logistic loss: bits and probabilities")
def logistic(how):
    left, right = truth(spectrum=(1.0, 0.5))
    i, j, z = drawn(left, right, 4000)
    seen = Observations.pairs(i, j, 1 / (1 + np.exp(-2 * z)), shape=(90, 60), loss="logistic")
    model = MatrixCompleter(2, loss="logistic", random_state=0, epochs=60, **how).fit(seen)
    assert np.abs(model.predict_proba((i, j)) - seen.targets).max() < 0.02


@row("squared distances (`DistanceCompleter`)")
def distances(how):
    points = np.random.default_rng(0).standard_normal((60, 2))
    i, j = np.triu_indices(60, 1)
    squares = ((points[i] - points[j]) ** 2).sum(axis=1)
    kept = np.random.default_rng(1).random(len(i)) < 0.5
    seen = Observations.pairs(i[kept], j[kept], squares[kept], shape=(60, 60), loss="distance")
    model = DistanceCompleter(2, random_state=0, **how).fit(seen)
    assert np.abs(model.predict((i, j)) - squares).max() < 1e-4


@row("comparisons, BPR (`ItemRanker`)")
def comparisons(how):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((64, 2))
    i, j, k = rng.integers(0, 64, (3, 30_000))
    i, j, k = (side[j != k] for side in (i, j, k))
    y = ((Z[i] * (Z[j] - Z[k])).sum(axis=1) > 0).astype(float)
    model = ItemRanker(2, random_state=0, epochs=5, **how).fit(np.stack([i, j, k], 1), y)
    X = model.factors.X
    assert np.mean(((X[i] * (X[j] - X[k])).sum(axis=1) > 0) == (y > 0.5)) > 0.95


def _recommends(how, **loss) -> None:
    """Two tastes: who has chosen of one is recommended the rest of it."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(120), 12)
    items = np.concatenate([rng.permutation(20)[:12] + 20 * (user % 2) for user in range(120)])
    given = {"user": users, "item": items}
    model = Recommender(8, random_state=0, **loss, **how).fit(given, user="user", item="item")
    model.partial_fit({"user": np.full(6, 500), "item": np.arange(6)}, user="user", item="item")
    found = np.array([np.mean(np.array(model.recommend(u, k=5)[0]) // 20 == u % 2) for u in (0, 1)])
    assert found.min() > 0.9
    assert np.mean(np.array(model.recommend(500, k=5)[0]) < 20) > 0.7


@row("choices, sampled softmax (`Recommender`)")
def softmax(how):
    _recommends(how, temperature=0.2, contrast=1.0, epochs=20)


@row("choices, whole-data squared loss")
def choices_squared(how):
    _recommends(how, loss="squared", epochs=10)


@row("choices, BPR with drawn negatives")
def choices_bpr(how):
    _recommends(how, loss="bpr", epochs=20)


# --- Features -------------------------------------------------------------------------------------


@row("plain SGD (`scaled=False`), and a learning rate of one's own")
def plain(how):
    left, right = truth(spectrum=(1.0, 0.8))
    seen = pairs(left, right, 3000)
    rates = {"learning_rate": 0.03, "epochs": 60, "tol": 0}
    model = MatrixCompleter(2, scaled=False, random_state=0, **rates, **how).fit(seen)
    assert error(model, left, right) < 0.05


_SERIAL = "P follows every sample: a serial algorithm"


@row('the paper to the letter (`refresh="sample"`)', CUDA=_SERIAL, RAY=_SERIAL, RAY_GPU=_SERIAL)
def per_sample(how):
    left, right = truth(spectrum=(1.0, 0.1))
    settings = {"refresh": "sample", "learning_rate": 10.0, "epochs": 40, "tol": 0}
    model = MatrixCompleter(2, random_state=0, **settings, **how).fit(pairs(left, right, 3000))
    assert error(model, left, right) < 1e-3


@row("float32 as well as float64")
def single(how):
    left, right = truth(spectrum=(1.0, 0.3))
    model = MatrixCompleter(2, dtype="float32", random_state=0, **how).fit(pairs(left, right, 2400))
    assert model.factors.X.dtype == np.float32
    assert error(model, left, right) < 1e-3


@row("new rows and columns (`partial_fit`)")
def streams(how):
    left, right = truth((60, 40), spectrum=(1.0, 0.5))
    model = MatrixCompleter(2, random_state=0, **how).fit(pairs(left[:40], right, 1000))
    for seed in range(12):
        model.partial_fit(pairs(left, right, 1200, seed))
    assert error(model, left, right) < 1e-2


@row("Huber's loss in a stream")
def robust_stream(how):
    left, right = truth((60, 40), spectrum=(1.0, 0.5))
    model = MatrixCompleter(2, loss="huber", random_state=0, **how)
    model.fit(pairs(left, right, 1500, loss="huber"))
    later = pairs(left, right, 600, 2, loss="huber")
    later.targets[::20] += 30.0
    model.partial_fit(later)
    assert error(model, left, right) < 0.05


@row("held-out entries, given back for the end of a run")
def given_back(how):
    left, right = truth(spectrum=(1.0, 0.5))
    seen = pairs(left, right, 3000)
    seen.targets += 0.05 * np.random.default_rng(3).standard_normal(len(seen))
    trained = MatrixCompleter(2, random_state=0, center=False, regularization=0, **how)
    trained.fit(seen)
    policy, passed = trained.trainer.policy, np.diff(trained.history_["samples"], prepend=0)
    assert policy.polishing and np.isfinite(policy.held)
    assert passed[0] < len(seen) == passed[-1]


@row('directions that do not help are cut off (`rank="auto"`)')
def pruned(how):
    left, right = truth(spectrum=(1.0, 0.5))
    model = MatrixCompleter("auto", random_state=0, **how).fit(pairs(left, right, 2400))
    assert model.effective_rank_ == 2 and error(model, left, right) < 1e-6


@row("rows that lag behind, solved for by least squares")
def lagging(how):
    model = MatrixCompleter(2, symmetric=True, random_state=0, epochs=1, **how)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    i, j = rng.integers(0, 200, (2, 3000))
    seen = Observations.pairs(i, j, (X[i] * X[j]).sum(axis=1), shape=(200, 200), symmetric=True)
    engine = model.fit(seen[:500]).trainer.engine
    data = engine.samples(seen, [0, 0], np.dtype("float64"), rng)
    wrong = X + 1e-9 * rng.standard_normal(X.shape)
    wrong[[3, 150]] = [[9.0, 9.0], [-9.0, 9.0]]
    factors = Factors(engine.put(wrong), spectrum=np.full(2, 200.0))
    assert catch_up(engine, factors, LOSSES["squared"], data) == 2
    assert np.abs(engine.local(engine.get(factors.X)) - X).max() < 1e-6


@row("mean, biases and a ridge, where noise is most")
def ridge(how):
    rng = np.random.default_rng(0)
    left, right = truth((150, 120), spectrum=(0.1,) * 6)
    i, j, z = drawn(left, right, 6000)
    y = 3.5 + 0.4 * rng.standard_normal(150)[i] + 0.5 * rng.standard_normal(120)[j]
    y += z + 0.8 * rng.standard_normal(len(i))
    model = MatrixCompleter("auto", random_state=0, **how)
    model.fit(Observations.pairs(i, j, y, shape=(150, 120)))
    assert model.history_.stopped == "ridge" and abs(model.intercept_ - 3.5) < 0.3
    assert model.trainer.held_error < 0.95
    _, spread = model.predict((i[:9], j[:9]), return_std=True)
    assert (spread > 0.7).all()


@row("rows and columns whose sizes differ by orders of magnitude")
def unequal(how):
    left, right = truth(spectrum=(1.0, 0.5))
    left *= np.arange(1, 91)[:, None] ** -3.0
    model = MatrixCompleter(2, random_state=0, **how).fit(pairs(left, right, 3000))
    found, true = model.row_factors_ @ model.column_factors_.T, left @ right.T
    assert (np.linalg.norm(found - true, axis=1) < 1e-4 * np.linalg.norm(true, axis=1)).all()


@row("hardly more entries than numbers: a finish by Gauss-Newton")
def few(how):
    left, right = truth((120, 120), spectrum=(1.0, 1.0, 1.0), seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single rows may have two entries
        model = MatrixCompleter(3, random_state=0, **how).fit(pairs(left, right, 1600))
    found, true = model.row_factors_ @ model.column_factors_.T, left @ right.T
    assert np.median(np.abs(found - true)) < 1e-8


@row('tables whose columns are of different kinds (`center="columns"`)')
def columns(how):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 1)) * [1.0, 20.0, 3000.0] + [5.0, 0.0, 1e5]
    gaps = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    model = MatrixCompleter("auto", center="columns", random_state=0, **how).fit(gaps)
    filled = model.transform(gaps)
    assert np.median(np.abs(filled - X) / X.std(axis=0)) < 0.1


@row("weights of samples")
def weights(how):
    left, right = truth(spectrum=(1.0, 0.5))
    seen = pairs(left, right, 3000)
    wrong = np.random.default_rng(2).random(len(seen)) < 0.1
    seen.targets[wrong] += 5.0
    model = MatrixCompleter(2, random_state=0, **how)
    model.fit(seen, sample_weight=np.where(wrong, 1e-9, 1.0))
    assert error(model, left, right) < 1e-4


@row("callbacks that stop a run")
def stopped(how):
    left, right = truth()
    model = MatrixCompleter(3, random_state=0, callbacks=[lambda now: now.epoch >= 2], **how)
    assert model.fit(pairs(left, right, 2400)).history_.stopped == "callback"
    assert len(model.history_) == 2 and isinstance(model.factors.X, np.ndarray)


_READ = "one process, which reads a file at a time"


@row("many Parquet files, which stay where they are", CPU=_READ, CUDA=_READ)
def files(how):
    left, right = truth(spectrum=(1.0, 0.5))
    with TemporaryDirectory() as folder:
        if "engine" in how:
            import pyarrow as pa
            import pyarrow.parquet as pq

            for part, seed in enumerate((1, 2)):
                given = zip("rcv", drawn(left, right, 1500, seed), strict=True)
                pq.write_table(pa.table(dict(given)), f"{folder}/{part}.parquet")
        names = {"row": "r", "column": "c", "value": "v"}
        model = MatrixCompleter(2, random_state=0, **how).fit(f"{folder}/*.parquet", **names)
    assert error(model, left, right) < 1e-6


_ATOMIC = "atomic adds come in any order"


@row("the same bits from the same seed", CUDA=_ATOMIC, RAY_GPU=_ATOMIC)
def repeated(how):
    left, right = truth()
    fits = [MatrixCompleter(3, random_state=0, **how).fit(pairs(left, right, 2400)) for _ in "ab"]
    assert np.array_equal(*(model.factors.X for model in fits))


if __name__ == "__main__":
    print(table())
