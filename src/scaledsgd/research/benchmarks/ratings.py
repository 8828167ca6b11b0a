"""Ratings: the root mean square error of the defaults on entries that were kept from them, against
biased factorisations with settings chosen on a validation part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from matplotlib.figure import Figure

from ... import MatrixCompleter
from ...core.compiled import njit
from ...core.observations import Observations
from ...engines.cpu.crew import one_thread_each
from ...io.progress_bar import progress_bar
from ...io.readers import InputError, open_file
from .. import report
from ..demo import Result
from ..synthetic import ratings as made_up_ratings

SETS = {
    "ml-latest-small": ("ml-latest-small/ratings.csv", "userId", "movieId", "rating"),
    "jester": ("jester/ratings.parquet", "user", "joke", "rating"),
}
_TEST = 0.1  # of the ratings, and of the others for validation
_NINETY = 1.645  # deviations to either side of a Gaussian's middle
_AS_GOOD, _AS_FAST = 1.002, 0.5  # what is promised: of the best rival's error, and of its time


class Ratings(NamedTuple):
    """Ratings y of items j by users i, and the shape of the matrix."""

    i: np.ndarray
    j: np.ndarray
    y: np.ndarray
    shape: tuple[int, int]

    def split(self, seed: int) -> tuple[Ratings, Ratings]:
        """All but a tenth, and that."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        cut = int(_TEST * len(order))
        return self._some(order[cut:]), self._some(order[:cut])

    def of_some_users(self, share: float) -> Ratings:
        """All ratings of a share of the users."""
        chosen = np.random.default_rng(2).random(self.shape[0]) < share
        return self._some(np.flatnonzero(chosen[self.i]))

    def _some(self, at: np.ndarray) -> Ratings:
        return Ratings(self.i[at], self.j[at], self.y[at], self.shape)


def load(name: str, folder: Path) -> Ratings:
    """A data set of the folder, or a file whose first three columns are users, items, ratings."""
    if name == "made-up":
        table = made_up_ratings((300, 200, 9000), seed=0).tocoo()
        columns = [*table.coords, table.data]
    else:
        path, *names = SETS.get(name, (name,))
        path = folder / path if name in SETS else Path(path)
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
        source = open_file(path)
        names = names or list(source.names)[:3]
        table = source.table(names[:2], names[2:])
        columns = [np.asarray(table[column]) for column in names]
    (users, i), (items, j) = (np.unique(column, return_inverse=True) for column in columns[:2])
    return Ratings(i, j, columns[2].astype(np.float64), (len(users), len(items)))


# --- Contestants --------------------------------------------------------------------------------

Predict = Callable[[Ratings], np.ndarray]


def _ours(train: Ratings, seed: int) -> tuple[Predict, float, Callable[[Ratings], float]]:
    """Also which share of ratings lies within intervals of 90%."""
    model = MatrixCompleter("auto", random_state=seed)
    seen = Observations.pairs(train.i, train.j, train.y, shape=train.shape)
    clock = time.process_time()
    model.fit(seen)
    seconds = time.process_time() - clock

    def covered(test: Ratings) -> float:
        z, std = model.predict((test.i, test.j), return_std=True)
        return float(np.mean(np.abs(z - test.y) < _NINETY * std))

    return lambda test: model.predict((test.i, test.j)), seconds, covered


def _cornac(train: Ratings, seed: int, rank: int, rate: float, ridge: float, epochs: int):
    import cornac  # pyright: ignore[reportMissingImports]

    data = cornac.data.Dataset.build(
        list(zip(train.i.tolist(), train.j.tolist(), train.y.tolist(), strict=True))
    )
    model = cornac.models.MF(
        k=rank, learning_rate=rate, lambda_reg=ridge, max_iter=epochs, use_bias=True, seed=seed,
        verbose=False, num_threads=1,
    )  # fmt: skip
    clock = time.process_time()
    model.fit(data)
    seconds = time.process_time() - clock

    def placed(rows: int, known: dict, factors: Any, biases: Any):
        """With a row of zeros for whoever was not there."""
        out, own = np.zeros((rows, factors.shape[1])), np.zeros(rows)
        out[list(known)], own[list(known)] = (
            part[list(known.values())] for part in (factors, biases)
        )
        return out, own

    m, n = train.shape
    L, b = placed(m, data.uid_map, model.u_factors, model.u_biases)
    R, c = placed(n, data.iid_map, model.i_factors, model.i_biases)
    return _predictor(model.global_mean, b, c, L, R), seconds


def _surprise(train: Ratings, seed: int, rank: int, rate: float, ridge: float, epochs: int):
    import pandas as pd
    from surprise import SVD, Dataset, Reader  # pyright: ignore[reportMissingImports]

    frame = pd.DataFrame({"i": train.i, "j": train.j, "y": train.y})
    reader = Reader(rating_scale=(train.y.min(), train.y.max()))
    data = Dataset.load_from_df(frame, reader).build_full_trainset()
    model = SVD(n_factors=rank, n_epochs=epochs, lr_all=rate, reg_all=ridge, random_state=seed)
    clock = time.process_time()
    model.fit(data)
    seconds = time.process_time() - clock
    m, n = train.shape
    L, R, b, c = np.zeros((m, rank)), np.zeros((n, rank)), np.zeros(m), np.zeros(n)
    users = [data.to_raw_uid(u) for u in range(data.n_users)]
    items = [data.to_raw_iid(v) for v in range(data.n_items)]
    L[users], b[users], R[items], c[items] = model.pu, model.bu, model.qi, model.bi
    return _predictor(data.global_mean, b, c, L, R), seconds


def _als(train: Ratings, seed: int, rank: int, weighted: bool, ridge: float, sweeps: int):
    mean = train.y.mean()
    A = sp.csr_array((train.y - mean, (train.i, train.j)), shape=train.shape)
    B = sp.csr_array(A.T)
    rng = np.random.default_rng(seed)
    L, R = np.zeros((train.shape[0], rank + 1)), rng.normal(0, 0.1, (train.shape[1], rank + 1))
    R[:, -1] = 0
    clock = time.process_time()
    for _ in range(sweeps):
        _half(A.indptr, A.indices, A.data, R, ridge, weighted, L)
        _half(B.indptr, B.indices, B.data, L, ridge, weighted, R)
    seconds = time.process_time() - clock
    return _predictor(mean, L[:, -1], R[:, -1], L[:, :-1], R[:, :-1]), seconds


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _half(start, columns, values, R, ridge, weighted, L):
    """Rows of L, and their biases in its last column, that fit best beside a ridge, which is
    multiplied by the number of a row's entries if `weighted`."""
    r = R.shape[1]
    G, x, v = np.empty((r, r)), np.empty(r), np.empty(r)
    for i in range(len(start) - 1):
        G[:] = 0.0
        x[:] = 0.0
        for p in range(start[i], start[i + 1]):
            j = columns[p]
            v[:] = R[j]
            v[r - 1] = 1.0
            e = values[p] - R[j, r - 1]
            for a in range(r):
                x[a] += v[a] * e
                for b in range(a + 1):
                    G[a, b] += v[a] * v[b]
        hold = ridge * (start[i + 1] - start[i] if weighted else 1)
        for a in range(r):
            for b in range(a):
                G[b, a] = G[a, b]
            G[a, a] += hold + 1e-12
        L[i] = np.linalg.solve(G, x)


def _predictor(mean: Any, b, c, L, R) -> Predict:
    def predict(test: Ratings) -> np.ndarray:
        return mean + b[test.i] + c[test.j] + np.einsum("tr,tr->t", L[test.i], R[test.j])

    return predict


class Rival(NamedTuple):
    """A contestant: how it learns, and the settings that are tried."""

    fit: Callable[..., tuple[Predict, float]]
    settings: dict[str, tuple]

    def grid(self) -> Iterator[dict]:
        for values in product(*self.settings.values()):
            yield dict(zip(self.settings, values, strict=True))


_RIDGES = (0.02, 0.05, 0.1)
RIVALS = {
    "cornac, biased MF": Rival(
        _cornac,
        {"rank": (10, 50, 100), "rate": (0.005, 0.01), "ridge": _RIDGES, "epochs": (30, 100)},
    ),
    "Surprise, SVD": Rival(
        _surprise,
        {"rank": (20, 100), "rate": (0.005, 0.01), "ridge": (0.02, 0.1), "epochs": (20, 50)},
    ),
    "biased ALS": Rival(
        _als,
        {"rank": (5, 10, 20), "weighted": (True, False),
         "ridge": (0.05, 0.1, 0.3, 3.0, 10.0, 30.0, 100.0, 300.0), "sweeps": (10,)},
    ),
}  # fmt: skip
# Of more than so many ratings the others would take hours: some settings less, and slower steps,
# chosen on the ratings of a share of the users.
_MANY, _USERS = 500_000, 0.1
_LARGE = {
    "cornac, biased MF": {"rank": (10, 50), "rate": (0.002, 0.005), "epochs": (30,)},
    "Surprise, SVD": {"rank": (20,), "rate": (0.002, 0.005), "epochs": (20,)},
    "biased ALS": {"ridge": (0.3, 1.0, 3.0, 30.0, 100.0, 300.0)},
}
_QUICK = {"rank": (10,), "rate": (0.01,), "ridge": (0.1, 10.0), "epochs": (20,)}


def compared(name: str, folder: Path, seeds: int, quick: bool) -> Result:
    """Everybody on one data set."""
    data = load(name, folder)
    found: dict[str, dict[str, Any]] = {
        "ours, defaults": {"setting": "rank auto", "errors": [], "seconds": [], "covered": []}
    }
    train, _ = data.split(0)
    large = len(data.y) > _MANY
    searched = train.of_some_users(_USERS) if large else train
    for rival, (fit, settings) in RIVALS.items():
        settings = settings | (_LARGE[rival] if large else {})
        small = {name: _QUICK.get(name, values) for name, values in settings.items()}
        try:
            best = _chosen(rival, Rival(fit, small if quick else settings), searched)
        except ImportError as why:
            found[rival] = {"setting": f"not here: {why.name}", "errors": [], "seconds": []}
            continue
        found[rival] = {"setting": best, "errors": [], "seconds": []}
    with progress_bar(f"{name}, seeds", seeds) as advance:
        for seed in range(seeds):
            with one_thread_each():
                _all_once(found, data, seed)
            advance(1)
    return _told(name, data, found, seeds)


def _chosen(name: str, rival: Rival, train: Ratings) -> dict:
    """The settings that are best on a validation part of the training ratings."""
    part, validation = train.split(1)
    grid, errors = list(rival.grid()), []
    with progress_bar(f"{name}, settings", len(grid)) as advance:
        for how in grid:
            predict, _ = rival.fit(part, 0, **how)
            errors.append(_rmse(predict, part, validation))
            advance(1)
    return grid[int(np.argmin(errors))]


def _all_once(found: dict, data: Ratings, seed: int) -> None:
    train, test = data.split(seed)
    for name, facts in found.items():
        if isinstance(facts["setting"], dict):
            predict, seconds = RIVALS[name].fit(train, seed, **facts["setting"])
        elif name.startswith("ours"):
            if seed == 0:
                _ours(train, seed)  # kernels are compiled, or loaded, before the clock starts
            predict, seconds, covered = _ours(train, seed)
            facts["covered"].append(covered(test))
        else:
            continue
        facts["errors"].append(_rmse(predict, train, test))
        facts["seconds"].append(seconds)


def _rmse(predict: Predict, train: Ratings, test: Ratings) -> float:
    """Of predictions that are kept within the scale of the ratings."""
    z = np.clip(predict(test), train.y.min(), train.y.max())
    with np.errstate(over="ignore", invalid="ignore"):
        error = float(np.sqrt(np.mean((z - test.y) ** 2)))
    return error if np.isfinite(error) else np.inf


def _told(name: str, data: Ratings, found: dict, seeds: int) -> Result:
    ours, *others = ((who, facts) for who, facts in found.items() if facts["errors"])
    mean = {who: float(np.mean(facts["errors"])) for who, facts in (ours, *others)}
    seconds = {who: float(np.median(facts["seconds"])) for who, facts in (ours, *others)}
    best = min((who for who, _ in others), key=mean.__getitem__)
    ratio, pace = mean[ours[0]] / mean[best], seconds[ours[0]] / seconds[best]
    rows = [
        [who, f"{mean[who]:.4f}", f"{seconds[who]:.2f}",
         ", ".join(f"{k} {v:g}" for k, v in facts["setting"].items())
         if isinstance(facts["setting"], dict) else facts["setting"]]
        for who, facts in (ours, *others)
    ]  # fmt: skip
    part = " by a tenth of the users" if len(data.y) > _MANY else ""
    covered = float(np.mean(ours[1]["covered"]))
    holds = {"error": ratio <= _AS_GOOD, "time": pace <= _AS_FAST}
    return Result(
        f"Ratings: {name}",
        f"{len(data.y):,} ratings by {data.shape[0]:,} of {data.shape[1]:,}, a tenth of them to be "
        f"predicted, {seeds} seeds. Settings of the others are the best of a grid on a tenth of "
        f"the training ratings{part}. Ours has {ratio:.4f} times the error of the best of them "
        f"({best}), in {pace:.2f} times its training time: of all, seconds of the processor while "
        "it learns, on one thread, from data that are in its own form already; "
        f"promised are {_AS_GOOD} and {_AS_FAST}. Its intervals of 90% hold {covered:.1%}.",
        ["method", "error", "CPU seconds", "settings"],
        rows,
        _draw(mean, name),
        "Root mean square error, the mean over the seeds.",
        {"error": mean, "seconds": seconds, "best_rival": best, "ratio": ratio, "pace": pace,
         "covered": covered, "holds": holds,
         "settings": {who: facts["setting"] for who, facts in found.items()}},
        in_words=True,
    )  # fmt: skip


def _draw(mean: dict[str, float], name: str) -> Figure:
    with report.look():
        picture = Figure(figsize=(9, 0.6 + 0.5 * len(mean)), layout="constrained")
        axes = picture.subplots()
        colours = [report.BLUE, *[report.ORANGE] * (len(mean) - 1)]
        axes.barh(range(len(mean)), list(mean.values()), color=colours, height=0.6)
        axes.set_yticks(range(len(mean)), list(mean))
        low, high = min(mean.values()), max(mean.values())
        axes.set_xlim(low - (high - low) - 0.01 * low, high + 0.02 * low)
        for y, value in enumerate(mean.values()):
            axes.text(value, y, f" {value:.4f}", va="center")
        axes.set(title=name, xlabel="root mean square error", ylim=(len(mean) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        return picture
