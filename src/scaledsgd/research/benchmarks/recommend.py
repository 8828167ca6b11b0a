"""The benchmark of recommendations: our model against others on who chose what, its settings
against a grid, its steps against other optimisers, and what it learns from a stream."""

from __future__ import annotations

import platform
import time
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from threadpoolctl import threadpool_limits

from ... import Recommender
from ...core.choices import Choices
from ...core.factors import Factors
from ...core.linalg import unit
from ...engines.base import open_engine
from ...io.progress_bar import progress_bar
from ...recommend.neighbours import Neighbours
from ...recommend.search import Search
from ...training.choice_trainer import WARM_EPOCHS, ChoicePolicy, ChoiceTrainer
from ...training.history import DivergenceError
from .. import report
from ..demo import Result
from .recommend_data import Data, K
from .recommend_optimisers import Rival
from .recommend_peers import PEERS, SHORT, How, Outcome, by_vectors, contest, timed

RECALL, NDCG = f"recall@{K}", f"ndcg@{K}"
_COLUMNS = {"user": "user", "item": "item"}
_MARKS = "osD^v<>pX"


def fitted(data: Data, how: How, table: dict | None = None, **settings) -> Recommender:
    """Our model with its defaults but for rank."""
    settings = how.settings() | settings
    model = Recommender(**settings)
    with warnings.catch_warnings():  # whether it beats popularity is in the table
        warnings.simplefilter("ignore", RuntimeWarning)
        return model.fit(table or data.events(), **_COLUMNS)


def measured(model: Recommender, data: Data, sides: tuple | None = None) -> dict[str, float]:
    """What it recommends to everybody, by its vectors or by these, measured on the test part;
    nothing to whom it does not know."""
    rows = model.user_ids.find(data.users)
    found = np.full((len(data.users), K), -1, np.int64)
    best, _ = model.recommend_to_rows(rows[rows >= 0], min(K, len(model.item_ids)), sides=sides)
    found[rows >= 0, : best.shape[1]] = np.where(best >= 0, model.item_ids.names()[best], -1)
    return data.measures(found)


class Watch:
    """A callback: NDCG of the test part after some epochs, and the seconds that training took until
    then, without those of looking."""

    def __init__(self, data: Data, epochs: Callable[[int], bool] = lambda epoch: True):
        self.data, self.epochs = data, epochs
        self.model: Recommender | None = None
        self.curve: list[tuple[int, float, float]] = []  # epoch, seconds, NDCG
        self.spent = 0.0

    def __call__(self, told) -> None:
        clock, epoch = time.perf_counter(), int(told.epoch)
        if self.model and self.epochs(epoch):
            angle = self.model.policy_.by_angle and epoch > WARM_EPOCHS
            sides = [unit(side) if angle else side for side in told.factors.sides]
            value = measured(self.model, self.data, (sides[0], sides[1]))[NDCG]
            self.curve.append((epoch, float(self.model.history_["seconds"][-1]), value))
        self.spent += time.perf_counter() - clock


def _ndcg(data: Data, vectors, local: Neighbours | None = None) -> float:
    """NDCG of vectors of users and of items, and of what neighbours say."""
    (users, items), seen = vectors, data.seen(data.users)
    if local is None:
        return data.measures(by_vectors(users, items)(data.users, seen))[NDCG]
    had = (*seen, np.ones(len(seen[1])))
    return data.measures(local.top_k(Search(items), users[data.users], K, had, seen)[0])[NDCG]


# --- The table -----------------------------------------------------------------------------------


def table(data: Data, how: How) -> Result:
    """Ours against others: quality, and the seconds that it takes."""
    with threadpool_limits(how.jobs):
        mine, curves = _ours(data, how)
        skipped = {name: why for name in how.peers if (why := PEERS[name].skipped(data, how))}
        others = {name: contest(name, data, how) for name in how.peers if name not in skipped}
    runs, curve = mine | others, curves["ours"] or curves["ours, squared"]
    rows, facts = [], []
    for name, run in runs.items():
        reached = next((s for _, s, ndcg in curve if ndcg >= run.measures[NDCG]), None)
        facts.append({"name": name, **run.measures, "seconds": run.seconds, "search": run.search,
                      "ours_reaches_it_after": None if name in mine else reached,
                      "settings": run.settings})  # fmt: skip
        rows.append([name, *(f"{value:.4f}" for value in run.measures.values()),
                     _brief(run.seconds), _brief(run.search),
                     "" if name in mine else _brief(reached)])  # fmt: skip
    rows += [[name, why, *[""] * 5] for name, why in skipped.items()]
    tried = [
        [name, _words({key: value for key, value in one.items() if key != NDCG}),
         f"{one[NDCG]:.4f}", "chosen" if one.items() >= run.settings.items() else ""]
        for name, run in others.items() for one in run.tried
    ]  # fmt: skip
    grids = {name: PEERS[name].grid for name in others}
    found = _words(runs["ours"].settings)
    return Result(
        f"Recommendations, {data.name}",
        f"{data.described()}. Rank {how.rank}, {how.jobs} threads, one seed. All "
        "items that a user had not chosen in training are ranked. Others have their settings from "
        "a grid (below), by NDCG on a tenth of each user's training choices, and are then trained "
        "on all of them; ours has its defaults, and what it found by itself is: " + found + ". "
        "Seconds are those of the final training; the search for settings stands beside. The last "
        "column: how long our training takes to the NDCG of the other.",
        ["", RECALL, NDCG, "coverage", "seconds", "search, s", "ours after, s"], rows,
        _draw_table(runs, curves, data.name),
        f"NDCG@{K} of the test part against seconds of training, without the search for settings. "
        "Ours during its training, of which the first epochs are those of the squared loss.",
        {"data": _sizes(data), "how": how._asdict(), "rows": facts,
         "machine": platform.processor() or platform.machine(), "curves": curves,
         "skipped": skipped, "grids": grids,
         "tried": {name: run.tried for name, run in others.items()}},
        folds={"Settings that were tried": (["", "settings", f"validation {NDCG}", ""], tried)},
    )  # fmt: skip


def _ours(data: Data, how: How) -> tuple[dict[str, Outcome], dict[str, list]]:
    """Both of our losses, and how their quality grows in training."""
    few = data.users[:50]  # compiles what there is to compile
    at = np.isin(data.events()["user"], few)
    fitted(data, how, {name: column[at] for name, column in data.events().items()}, epochs=1)
    runs, curves = {}, {}
    for name, loss in (("ours", "softmax"), ("ours, squared", "squared")):
        watch = Watch(data, lambda epoch: epoch <= WARM_EPOCHS + 4 or epoch % 4 == 0)
        model = Recommender(**how.settings(), loss=loss, callbacks=[watch])
        watch.model, clock = model, time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            model.fit(data.events(), **_COLUMNS)
        whole = time.perf_counter() - clock - watch.spent
        seconds, told = _trained_for(model), measured(model, data)
        # What neighbours say comes last.
        curves[name] = [*watch.curve, (len(model.history_), seconds, told[NDCG])]
        search = whole - seconds
        if whole < SHORT:  # again, and nobody watches
            _, seconds = timed(lambda loss=loss: fitted(data, how, loss=loss), _trained_for)
        runs[name] = Outcome(told, seconds, search, _found(model))
    return runs, curves


def _trained_for(model: Recommender) -> float:
    return float(model.history_["seconds"][-1])


def _found(model: Recommender) -> dict:
    """What the search of a model chose."""
    policy, epochs = asdict(model.policy_), len(model.history_)
    softmax = ("cosine", "tau", "c", "dot_ridge") if policy["loss"] == "softmax" else ()
    local = ("neighbours", "local_ridge", "blend") if policy["neighbours"] else ("neighbours",)
    names = ("loss", "alpha0", "ridge", *softmax, *local)
    return {name: policy[name] for name in names} | {"epochs": epochs}


def _draw_table(runs: dict[str, Outcome], curves: dict[str, list], title: str) -> Figure:
    with report.look():
        picture = Figure(figsize=(10, 5), layout="constrained")
        axes = picture.subplots()
        for (name, curve), line in zip(curves.items(), report.LINES, strict=False):
            _, seconds, ndcg = np.array(curve).T
            axes.plot(seconds, ndcg, label=name, **line)
            axes.plot(seconds[-1], ndcg[-1], "o", color=line["color"])
        others = [name for name in runs if name not in curves]
        least = min(curve[0][1] for curve in curves.values())
        for name, mark in zip(others, _MARKS, strict=False):
            run = runs[name]
            x, y = max(run.seconds, least), run.measures[NDCG]
            axes.plot(x, y, mark, color=report.GREY, markersize=9, label=name, alpha=0.8)
        axes.set(xscale="log", xlabel="seconds of training", ylabel=f"NDCG@{K}", title=title)
        axes.set_ylim(bottom=0)
        picture.legend(loc="outside right center")
        return picture


# --- Its own settings ----------------------------------------------------------------------------

_TAUS, _CS = (0.07, 0.1, 0.14, 0.2, 0.28), (0.9, 1.05, 1.2, 1.35, 1.5)
_GRID_EPOCHS = 10  # at least; as many as the search found


def grid(data: Data, how: How) -> Result:
    """What it finds by itself against the best temperature and contrast, seen on the test part."""
    model = fitted(data, how)
    policy, choices = replace(model.policy_, loss="softmax"), data.choices()
    warm, length = _trainer(data, policy, how), len(model.history_) - WARM_EPOCHS
    length = max(length, _GRID_EPOCHS)
    warm.warm_up(choices)
    taus, cs = (_TAUS[::2], _CS[::3]) if how.quick else (_TAUS, _CS)

    local = None
    if policy.neighbours:
        local = Neighbours.of(choices, policy.neighbours, policy.local_ridge).times(policy.blend)

    def ndcg(**changes) -> float:
        run = warm.copy(**changes)
        try:
            if run.policy.loss == "softmax":
                run.descend(choices, length)
        except DivergenceError:
            return 0.0
        return _ndcg(data, run.vectors(), local)

    own = ndcg(loss=model.policy_.loss)
    found: dict[str, np.ndarray] = {}
    with progress_bar("grid", 2 * len(taus) * len(cs)) as advance:
        for name, cosine in (("cosine", True), ("dot", False)):
            ridge = policy.dot_ridge or 1.0  # of products; cosines have none
            table = np.zeros((len(taus), len(cs)))
            for at in np.ndindex(table.shape):
                table[at] = ndcg(cosine=cosine, tau=taus[at[0]], c=cs[at[1]], dot_ridge=ridge)
                advance(1)
            found[name] = table
    best, where = max(
        (table.max(), f"{name}, temperature {taus[at[0]]}, contrast {cs[at[1]]}")
        for name, table in found.items()
        for at in [np.unravel_index(table.argmax(), table.shape)]
    )
    rows = [
        [f"{name}, temperature {tau}", *(f"{value:.4f}" for value in row)]
        for name, table in found.items()
        for tau, row in zip(taus, table, strict=True)
    ]
    return Result(
        f"Found settings against a grid, {data.name}",
        f"NDCG@{K} on the test part after {length} epochs from one warm start, with the "
        "neighbours that the search found. What the "
        f"search found ({_words(_found(model))}) has {own:.4f}, which is {own / best:.1%} of the "
        f"best of the grid, seen on the test part: {best:.4f} ({where}).",
        [f"NDCG@{K}", *(f"contrast {c}" for c in cs)], rows, _draw_grid(found, taus, cs),
        f"NDCG@{K} on the test part by temperature and contrast.",
        {"data": _sizes(data), "how": how._asdict(), "found": _found(model), "own": own,
         "best": float(best), "best_at": where, "share": float(own / best), "taus": taus, "cs": cs,
         "ndcg": {name: table.tolist() for name, table in found.items()}},
    )  # fmt: skip


def _draw_grid(found: dict[str, np.ndarray], taus, cs) -> Figure:
    with report.look():
        picture = Figure(figsize=(10, 4), layout="constrained")
        top = max(table.max() for table in found.values())
        for axes, (name, table) in zip(picture.subplots(1, 2), found.items(), strict=True):
            axes.imshow(table, cmap="Blues", vmin=0.5 * top, vmax=1.1 * top, aspect="auto")
            for (row, column), value in np.ndenumerate(table):
                colour = "white" if value > 0.9 * top else "black"
                axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour)
            axes.set_xticks(range(len(cs)), [str(c) for c in cs])
            axes.set_yticks(range(len(taus)), [str(tau) for tau in taus])
            axes.set(xlabel="contrast c", ylabel="temperature", title=name)
            axes.grid(visible=False)
        return picture


def epochs(data: Data, how: How) -> Result:
    """Whether more epochs hurt."""
    asked, rows, facts = (2, 4) if how.quick else (5, 20, 50, 200), [], []
    with progress_bar("epochs", len(asked)) as advance:
        for most in asked:
            model = fitted(data, how, epochs=most)
            facts.append({"epochs": most, "run": len(model.history_) - WARM_EPOCHS,
                          **measured(model, data)})  # fmt: skip
            rows.append([str(most), str(facts[-1]["run"]), f"{facts[-1][RECALL]:.4f}",
                         f"{facts[-1][NDCG]:.4f}"])  # fmt: skip
            advance(1)
    recall = np.array([fact[RECALL] for fact in facts])
    fall = float((1 - recall / np.maximum.accumulate(recall)).max())
    curves = {name: [fact[name] for fact in facts] for name in (RECALL, NDCG)}
    return Result(
        f"More epochs, {data.name}",
        "Default settings but for the number of epochs of the softmax, which is the most that may "
        f"be run. The largest fall of recall below its best before is {fall:.1%}.",
        ["epochs at most", "were run", RECALL, NDCG], rows,
        _lines(curves, "epochs at most", "test part", list(asked), log=True),
        "Quality of the test part against epochs.",
        {"data": _sizes(data), "how": how._asdict(), "rows": facts, "largest_fall": fall},
    )  # fmt: skip


# --- Its steps -----------------------------------------------------------------------------------

_LENGTH = 0.8  # of a row when cosines begin, as in training
# Two decades each, of our usual step and of theirs.
_RATES = {
    "softmax": {
        "ScaledSGD": (0.3, 1.0, 3.0, 10.0, 30.0),
        "SGD": (10.0, 30.0, 100.0, 300.0, 1000.0),
        "Adam": (0.001, 0.003, 0.01, 0.03, 0.1),
    },
    "squared": {
        "ScaledSGD": (0.1, 0.3, 1.0, 3.0, 10.0),
        "SGD": (0.003, 0.01, 0.03, 0.1, 0.3),
        "Adam": (0.001, 0.003, 0.01, 0.03, 0.1),
    },
}


def optimisers(data: Data, how: How) -> Result:
    """ScaledSGD against SGD and Adam on the same losses, from the same random start."""
    length = 3 if how.quick else 10
    # Many choices carry a lower temperature: some such as the search finds.
    tau = 0.2 if data.train.nnz < 2e5 else 0.1
    policies = {
        "squared loss": ChoicePolicy(loss="squared"),
        "softmax, products": ChoicePolicy(cosine=False, tau=0.2, c=1.0, dot_ridge=1.0),
        "softmax, cosines": ChoicePolicy(tau=tau, c=1.1),
    }
    rows, facts, curves = [], {}, {}
    runs = sum(len(rates) for p in policies.values() for rates in _RATES[p.loss].values())
    with progress_bar("optimisers", 2 * runs) as advance:
        for loss, policy in policies.items():
            whole, half = (_raced(data, policy, how, n, advance) for n in (length, length // 2))
            for name in whole:
                ends = [found[name]["ndcg"][-1] for found in (half, whole)]
                rows.append([f"{loss}: {name}", f"{whole[name]['step']:g}",
                             *(f"{end:.4f}" for end in ends)])  # fmt: skip
            share = half["ScaledSGD"]["ndcg"][-1] / max(whole["SGD"]["ndcg"][-1], 1e-12)
            facts[loss] = {"whole": whole, "half": half, "share_of_sgd_in_half": share}
            curves[loss] = {name: found["ndcg"] for name, found in whole.items()}
            curves[loss][f"ScaledSGD, {length // 2} epochs"] = half["ScaledSGD"]["ndcg"]
    shares = [facts[loss]["share_of_sgd_in_half"] for loss in policies]
    return Result(
        f"Optimisers, {data.name}",
        "The whole-data squared loss (alpha_0 0.1, ridge 2), and the sampled softmax with dot "
        "products (temperature 0.2, contrast 1, ridge 1) and with cosines "
        f"(temperature {tau}, contrast 1.1), 1024 negatives, rank {how.rank}, from one "
        f"random start, {length // 2} or {length} epochs in which steps fall; for each "
        f"the best of {len(_RATES['softmax']['SGD'])} steps over two decades, by the final "
        f"NDCG@{K} of the test part. In half of SGD's epochs ScaledSGD reaches {shares[0]:.1%} of "
        f"its end with the squared loss, {shares[1]:.1%} with the softmax of products, "
        f"{shares[2]:.1%} with that of cosines, whose rows of unit length leave P little to do.",
        ["", "step", f"{length // 2} epochs", f"{length} epochs"], rows,
        _draw_optimisers(curves, f"{data.name}, rank {how.rank}"),
        f"NDCG@{K} of the test part after each epoch; thin, where SGD ends.",
        {"data": _sizes(data), "how": how._asdict(), "losses": facts},
    )  # fmt: skip


def _raced(data: Data, policy: ChoicePolicy, how: How, length: int, advance) -> dict[str, dict]:
    """The best step of each method and its NDCG after each epoch, and all that were tried."""
    found = {}
    for name, rates in _RATES[policy.loss].items():
        tried = {}
        for rate in rates[::2] if how.quick else rates:
            step = replace(policy, scaled=name == "ScaledSGD", rate=rate)
            tried[rate] = _descent(data, step, how, length, name)
            advance(1)
        best = max(tried, key=lambda rate, tried=tried: tried[rate][-1])
        found[name] = {"step": best, "ndcg": tried[best], "tried": tried}
    return found


def _draw_optimisers(curves: dict[str, dict[str, list[float]]], title: str) -> Figure:
    with report.look():
        picture = Figure(figsize=(12, 4), layout="constrained")
        panels = picture.subplots(1, len(curves), sharey=True)
        for axes, (loss, methods) in zip(panels, curves.items(), strict=True):
            thin = report.LINES[0] | {"linewidth": 1.0, "marker": "."}
            lines = (*report.LINES[:3], thin)  # the last is ScaledSGD, too, in half of the epochs
            for (name, curve), line in zip(methods.items(), lines, strict=True):
                axes.plot(range(1, len(curve) + 1), curve, label=name, **line)
            axes.axhline(methods["SGD"][-1], color=report.GREY, linewidth=0.8)
            axes.set(xlabel="epochs", title=loss)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set_ylabel(f"NDCG@{K}")
        panels[0].set_ylim(bottom=0)
        panels[-1].legend(loc="lower right")
        picture.suptitle(title)
        return picture


def _descent(data: Data, policy: ChoicePolicy, how: How, length: int, name: str) -> list[float]:
    """NDCG after each epoch from a random start; nothing where a step is too long."""
    trainer, choices, curve = _trainer(data, policy, how), data.choices(), []
    ours = name == "ScaledSGD" or (name == "SGD" and policy.loss == "softmax")
    run = trainer if ours else Rival(trainer, policy.rate, adam=name == "Adam")
    if policy.loss == "squared":
        passes = run.warming(choices, length)
    else:
        _begin(trainer, choices, warm=False)
        passes = (run.softmax_epoch(choices, k / length, (k + 1) / length) for k in range(length))
    with np.errstate(all="ignore"), suppress(DivergenceError):
        for _ in passes:
            vectors = trainer.vectors()
            fine = all(np.isfinite(side).all() for side in vectors)
            curve.append(_ndcg(data, vectors) if fine else 0.0)
    return curve + [0.0] * (length - len(curve))


def _begin(trainer: ChoiceTrainer, choices: Choices, warm: bool) -> None:
    """Bring it to where the softmax begins: by the squared loss, or with the random rows it has."""
    if warm:
        trainer.warm_up(choices)
    else:
        trainer.seen = choices.row_weights()
    if trainer.policy.cosine:
        for side in trainer.factors.sides:
            trainer.engine.set_lengths(side, _LENGTH, trainer.rng)


def _trainer(data: Data, policy: ChoicePolicy, how: How) -> ChoiceTrainer:
    """With fresh factors, as the estimator makes them."""
    engine, scale = open_engine(how.device, how.jobs, 1000.0 * data.train.nnz), how.rank**-0.5
    factors = Factors.start(data.train.shape, how.rank, seed=how.seed, scale=(scale, scale),
                            dtype="float32")  # fmt: skip
    factors.X = engine.put(factors.X)
    return ChoiceTrainer(factors, policy, engine, np.random.default_rng([how.seed, 2]))


def warm(data: Data, how: How) -> Result:
    """What the squared loss is worth as a start of the softmax."""
    model, length = fitted(data, how), 3 if how.quick else 20
    policy, choices = replace(model.policy_, loss="softmax"), data.choices()
    curves: dict[str, list[float]] = {}
    for name in ("from the squared loss", "from random"):
        trainer = _trainer(data, policy, how)
        _begin(trainer, choices, warm=name != "from random")
        curves[name] = []
        for k in range(length):
            trainer.softmax_epoch(choices, k / length, (k + 1) / length)
            curves[name].append(_ndcg(data, trainer.vectors()))
    goal = curves["from random"][-1]
    reached = {
        name: next((at for at, ndcg in enumerate(curve, 1) if ndcg >= goal), None)
        for name, curve in curves.items()
    }
    rows = [
        [name, *(f"{curve[min(at, length) - 1]:.4f}" for at in (1, 5, 10)), f"{curve[-1]:.4f}",
         str(reached[name] or "")]
        for name, curve in curves.items()
    ]  # fmt: skip
    return Result(
        f"The warm start, {data.name}",
        f"The softmax with what the search found ({_words(_found(model))}), {length} epochs, from "
        f"{WARM_EPOCHS} epochs of the squared loss and from a random start. To the quality at the "
        f"end of the latter it takes {reached['from the squared loss']} epochs from the former.",
        [f"NDCG@{K}", "1 epoch", "5", "10", str(length), "epochs to the cold run's end"], rows,
        _lines(curves, "epochs of the softmax", f"NDCG@{K}", goal=goal),
        f"NDCG@{K} of the test part after each epoch; thin, where the cold run ends.",
        {"data": _sizes(data), "how": how._asdict(), "ndcg": curves, "epochs_to_cold": reached},
    )  # fmt: skip


# --- A stream ------------------------------------------------------------------------------------

_PARTS, _UNSEEN = 50, 500  # pieces that a stream comes in, and users who are not trained on


def online(data: Data, how: How) -> Result:
    """What is learned from a stream, from later events, and about users who were not there."""
    rng, events = np.random.default_rng([how.seed, 3]), data.events()
    order = rng.permutation(data.train.nnz)

    def some(at) -> dict[str, np.ndarray]:
        return {name: column[at] for name, column in events.items()}

    whole = fitted(data, how)
    found = {
        "popularity": contest("popularity", data, how).measures,
        "fit": measured(whole, data),
    }
    stream = Recommender(**how.settings())
    for passes in (1, 2, 3):
        for part in np.array_split(rng.permutation(order), 5 if how.quick else _PARTS):
            stream.partial_fit(some(part), **_COLUMNS)
        if passes != 2:
            name = f"a stream from nothing, {passes} pass{'es' if passes > 1 else ''}"
            found[name] = measured(stream, data)
    first, rest = np.split(order, [int(0.9 * len(order))])
    model = fitted(data, how, some(first))
    found["fit on 90%"] = measured(model, data)
    found["and partial_fit of the rest"] = measured(model.partial_fit(some(rest), **_COLUMNS), data)
    found |= _unseen(data, how, whole, rng)
    recall = {name: values[RECALL] for name, values in found.items()}
    streamed = "a stream from nothing, "
    gain = recall["and partial_fit of the rest"] - recall["fit on 90%"]
    facts = {
        "one_pass_to_popularity": recall[streamed + "1 pass"] / recall["popularity"],
        "three_passes_to_fit": recall[streamed + "3 passes"] / recall["fit"],
        "partial_fit_share_of_refit_gain": gain / (recall["fit"] - recall["fit on 90%"]),
        "fold_in_to_trained": recall["fold-in"] / recall["the same users, trained"],
    }
    words = ("{:.2f} times popularity's recall after one pass, {:.0%} of that of fit after three; "
             "partial_fit of the last 10% gains {:.0%} of what training anew gains; users who were "
             "not there get {:.0%} of the recall that they get if trained on.")  # fmt: skip
    return Result(
        f"Online, {data.name}",
        f"Choices in random order, a stream of them in {_PARTS} pieces a pass; "
        + words.format(*facts.values()),
        ["", RECALL, NDCG],
        [[name, f"{values[RECALL]:.4f}", f"{values[NDCG]:.4f}"] for name, values in found.items()],
        _draw_online(recall), f"Recall@{K} of the test part.",
        {"data": _sizes(data), "how": how._asdict(), "measures": found, **facts},
    )  # fmt: skip


def _unseen(data: Data, how: How, whole: Recommender, rng) -> dict[str, dict[str, float]]:
    """Some users whose choices are not trained on, but told later, and the same if they are."""
    users, events = data.users, data.events()
    users = np.sort(rng.permutation(users)[: min(_UNSEEN, len(users) // 4)])
    own = np.isin(events["user"], users)
    model = fitted(data, how, {name: column[~own] for name, column in events.items()})
    item_known = model.item_ids.find(np.arange(data.train.shape[1])) >= 0
    lists = [row[item_known[row]] for row in np.split(data.train[users].indices,
             data.train[users].indptr[1:-1])]  # fmt: skip
    users, lists = users[[len(row) > 0 for row in lists]], [row for row in lists if len(row)]
    part = Data(data.name, data.train, _only(data.test, users))
    answers = model.recommend(items=lists, k=min(K, len(model.item_ids)))[0]
    return {
        "fold-in": part.measures(answers),
        "the same users, trained": measured(whole, part),
    }


def _only(table, users: np.ndarray):
    kept = np.zeros(table.shape[0], table.dtype)
    kept[users] = 1
    table = table.multiply(kept[:, None]).tocsr()
    table.eliminate_zeros()
    return table


def _draw_online(recall: dict[str, float]) -> Figure:
    with report.look():
        picture = Figure(figsize=(10, 4), layout="constrained")
        axes = picture.subplots()
        colours = [report.BLUE if name in ("fit", "the same users, trained") else report.ORANGE
                   for name in recall]  # fmt: skip
        colours[0] = report.GREY
        bars = axes.barh(list(recall), list(recall.values()), color=colours)
        axes.bar_label(bars, fmt="%.3f", padding=4)
        axes.set_axisbelow(True)
        axes.margins(x=0.08)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"recall@{K}")
        return picture


# --- What all of them need -----------------------------------------------------------------------


def _lines(curves: dict[str, list[float]], x: str, y: str, at=None, *, goal=None, log=False
           ) -> Figure:  # fmt: skip
    with report.look():
        picture = Figure(figsize=(8, 4.5), layout="constrained")
        axes = picture.subplots()
        for (name, curve), line in zip(curves.items(), report.LINES, strict=False):
            places = at or range(1, len(curve) + 1)
            axes.plot(places, curve, label=name, marker="o" if len(curve) < 9 else "", **line)
        if goal is not None:
            axes.axhline(goal, color=report.GREY, linewidth=0.8)
        axes.set(xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        if log:
            axes.set_xscale("log")
            axes.set_xticks(at or [], [str(place) for place in at or []])
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="lower right")
        return picture


def _sizes(data: Data) -> dict:
    users, items = data.train.shape
    sizes = {"users": users, "items": items, "train": data.train.nnz, "test": data.test.nnz}
    return {"name": data.name, "asked": len(data.users), **sizes}


def _brief(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:,.0f}"


def _words(settings: dict) -> str:
    """
    >>> _words({"alpha": 10.0, "iterations": 15, "cosine": True})
    'alpha 10, iterations 15, cosine'
    """
    told = {name: value for name, value in settings.items() if value is not False}
    return ", ".join(
        name if value is True else f"{name} {value if isinstance(value, str) else f'{value:g}'}"
        for name, value in told.items()
    )


def memory(data: Data, how: How) -> Result:
    """What a fit takes beside its events, with its search: the most that is held at a time."""
    events = data.events()
    at = np.isin(events["user"], data.users[:50])  # compiles what there is to compile
    fitted(data, how, {name: column[at] for name, column in events.items()}, epochs=1)
    tracemalloc.start()
    model = fitted(data, how, events, epochs=1)  # a longer training holds no more
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    told, factors = sum(c.nbytes for c in events.values()), model.factors.X.nbytes
    sizes = {"events": told, "factors": factors, "3 x events + 4 x factors": 3 * told + 4 * factors,
             "a fit at its peak": peak}  # fmt: skip
    with report.look():
        picture = Figure(figsize=(8, 2.5), layout="constrained")
        axes = picture.subplots()
        axes.barh(list(sizes), [size / 1e6 for size in sizes.values()])
        axes.invert_yaxis()
        axes.set(xlabel="MB")
    return Result(
        f"Memory, {data.name}",
        f"Rank {how.rank}; what Python and NumPy hold at the peak of `fit`, its search for "
        "settings included, without what was there before.",
        ["", "MB"], [[name, f"{size / 1e6:.1f}"] for name, size in sizes.items()], picture, "",
        {"data": _sizes(data), "how": how._asdict(), "bytes": sizes},
    )  # fmt: skip


PARTS: dict[str, Callable[[Data, How], Result]] = {
    "table": table,
    "grid": grid,
    "epochs": epochs,
    "optimisers": optimisers,
    "online": online,
    "warm": warm,
    "memory": memory,
}
