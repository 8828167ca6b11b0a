"""The benchmark of recommendations: its own rivals against brute force, its split, its measures."""

import json
import time

import numpy as np
import pytest
import scipy.sparse as sp
from commands import runner

from scaledsgd.core.choices import Choices
from scaledsgd.core.reference import squared_loss
from scaledsgd.research.benchmarks import recommend, recommend_data, recommend_peers
from scaledsgd.research.benchmarks.recommend_data import Data, K, load, made_up, split
from scaledsgd.research.benchmarks.recommend_optimisers import softmax_gradients, squared_gradients
from scaledsgd.research.benchmarks.recommend_peers import PEERS, How, contest
from scaledsgd.training.choice_trainer import ChoicePolicy
from scaledsgd.training.history import DivergenceError

HOW = How(rank=4, jobs=1, quick=True)


@pytest.fixture(scope="module")
def data() -> Data:
    return made_up(0, (40, 60, 500))


def first_items(scores: np.ndarray, data: Data) -> np.ndarray:
    """The K best that the user did not have, by sorting."""
    scores = np.where(data.train.toarray()[data.users] > 0, -np.inf, scores[data.users])
    return np.argsort(-scores, axis=1, kind="stable")[:, :K]


def ask(model, data: Data) -> np.ndarray:
    return model(data.users, data.seen(data.users))


def test_popularity_is_how_often_an_item_was_chosen(data):
    counts = np.tile(data.train.toarray().sum(axis=0), (data.train.shape[0], 1))
    found = ask(recommend_peers.popularity(data.train, HOW), data)
    assert (found == first_items(counts, data)).all()


@pytest.mark.parametrize(("k", "shrink"), [(5, 0.0), (20, 10.0), (500, 1.0)])
def test_neighbours_are_those_of_the_cosine(data, k, shrink):
    X = data.train.toarray().astype(float)
    n = X.sum(axis=0)
    S = X.T @ X / np.maximum(np.sqrt(np.outer(n, n)) + shrink, 1e-9)
    np.fill_diagonal(S, 0)
    near = np.argsort(-S, axis=1, kind="stable")[:, :k]
    W = np.zeros_like(S)
    np.put_along_axis(W, near, np.take_along_axis(S, near, 1), 1)
    scores = X @ W.T
    found = ask(recommend_peers.item_knn(data.train, HOW, k=k, shrink=shrink), data)
    theirs = first_items(scores, data)
    if k > X.shape[1]:
        mine, theirs = (np.take_along_axis(scores[data.users], at, 1) for at in (found, theirs))
        assert mine == pytest.approx(theirs, rel=1e-5)
    else:  # which of equal neighbours is the k-th may differ, and so a little in the order
        mine, theirs = (data.measures(at)[f"ndcg@{K}"] for at in (found, theirs))
        assert mine == pytest.approx(theirs, abs=0.02)


def test_ease_regresses_each_item_on_the_others(data):
    X, ridge = data.train.toarray().astype(float), 7.0
    B = np.zeros((X.shape[1], X.shape[1]))
    for j in range(X.shape[1]):
        others = np.delete(np.arange(X.shape[1]), j)
        A = X[:, others]
        B[others, j] = np.linalg.solve(A.T @ A + ridge * np.eye(len(others)), A.T @ X[:, j])
    found = ask(recommend_peers.ease(data.train, HOW, ridge=ridge), data)
    assert np.mean(found == first_items(X @ B, data)) > 0.99  # but for ties in float32


def test_few_items_are_ranked_as_far_as_there_are_any():
    few = Data("few", *split(sp.csr_array(np.ones((3, 6))), 0.5, 0))
    for name in ("popularity", "item-kNN", "EASE"):
        found = ask(PEERS[name].fit(few.train, HOW, **PEERS[name].settings(True)[0]), few)
        assert [set(row[row >= 0]) for row in found] == [set(row.indices) for row in few.test]


def test_nothing_is_in_two_parts(data):
    held = data.held_out(seed=0)
    parts = [part.toarray() for part in (held.train, held.test, data.test)]
    assert sum(parts).max() == 1
    assert (parts[0] + parts[1] == data.train.toarray()).all()
    assert (parts[0].sum(axis=1) > 0).all()


def test_files_are_split_and_test_choices_that_were_trained_on_are_dropped(tmp_path):
    for name, rows in (("train", ["a,1", "a,2", "b,1"]), ("test", ["a,3", "b,1", "b,2", "c,2"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,what", *rows]))
    data = load(tmp_path.name, tmp_path.parent, 0, None, None)
    assert data.train.toarray().tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert data.test.toarray().tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 0]]
    assert data.users.tolist() == [0, 1]  # nothing is known of the third
    data = load(str(tmp_path / "test.csv"), tmp_path, 0, "what", "who")
    assert data.train.shape == (3, 3) and data.train.nnz + data.test.nnz == 4


def test_measures_are_those_of_the_literature(data):
    found = ask(recommend_peers.item_knn(data.train, HOW, k=10, shrink=1.0), data)
    recall, ndcg = [], []
    for row, user in zip(found, data.users, strict=True):
        wanted = set(data.test[[user]].indices.tolist())
        hits = [1 / np.log2(place + 2) for place, item in enumerate(row) if item in wanted]
        recall.append(len(hits) / len(wanted))
        ndcg.append(sum(hits) / sum(1 / np.log2(p + 2) for p in range(min(K, len(wanted)))))
    measures = data.measures(found)
    assert measures[f"recall@{K}"] == pytest.approx(np.mean(recall))
    assert measures[f"ndcg@{K}"] == pytest.approx(np.mean(ndcg))
    assert measures["coverage"] == len(np.unique(found)) / len(np.unique(data.train.indices))


def test_test_items_that_nobody_chose_in_training_count():
    data = Data("cold", sp.csr_array([[1, 1, 0, 0]]), sp.csr_array([[0, 0, 1, 1]]))
    assert data.measures(np.array([[2]]))[f"recall@{K}"] == 0.5


def test_what_is_watched_is_what_is_left(data):
    """The last point of the curve is the model's own quality, whatever names rows have in it."""
    runs, curves = recommend._ours(data, HOW)
    for name, run in runs.items():
        assert curves[name][-1][2] == pytest.approx(run.measures[f"ndcg@{K}"], abs=1e-3)


@pytest.mark.parametrize("cosine", [True, False])
def test_slopes_of_a_block_are_those_of_the_softmax(cosine):
    policy = ChoicePolicy(tau=0.3, c=1.2, cosine=cosine, dot_ridge=0.7)
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(shape) for shape in ((3, 4), (3, 4), (5, 4))]

    def loss(x, v, w, tau=0.3, c=1.2):
        held = 0.0 if cosine else 0.35 * ((x**2).sum() + (v**2).sum())
        if cosine:
            x, v, w = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, v, w))
        sums = np.log(np.exp(x @ w.T / tau).sum(axis=1))
        return (c * sums - (x * v).sum(axis=1) / tau).sum() + held

    for n, slope in enumerate(softmax_gradients(*rows, policy)):
        for at in np.ndindex(slope.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [part.copy() for part in rows]
                moved[n][at] += step
                ends.append(loss(*moved))
            assert slope[at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_slopes_of_all_choices_are_those_of_the_squared_loss():
    rng, alpha0 = np.random.default_rng(0), 0.3
    users, items = np.divmod(rng.permutation(12), 4)  # each of three users chose each of four items
    choices = Choices(users, items, rng.uniform(0.5, 2, 12), (3, 4))
    sides = [rng.standard_normal((rows, 2)) for rows in (3, 4)]
    seen, ridges = choices.row_weights(), [rng.uniform(1, 2, rows) for rows in (3, 4)]
    named = [users, items]
    shares = [choices.weights / w[at] for w, at in zip(seen, named, strict=True)]
    slopes = squared_gradients(
        *(side[at] for side, at in zip(sides, named, strict=True)), choices.weights, shares,
        [ridge[at] for ridge, at in zip(ridges, named, strict=True)],
        [alpha0 * side.T @ side for side in sides[::-1]],
    )  # fmt: skip
    for n, slope in enumerate(slopes):
        summed = np.zeros_like(sides[n])
        np.add.at(summed, named[n], slope)
        for at in np.ndindex(summed.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [side.copy() for side in sides]
                moved[n][at] += step
                ends.append(squared_loss(*moved, choices, alpha0, ridges))
            assert summed[at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["implicit ALS", "implicit BPR", "cornac BPR"])
def test_others_rank_better_than_chance(data, name):
    pytest.importorskip(PEERS[name].package)
    assert contest(name, data, HOW).measures[f"recall@{K}"] > K / data.train.shape[1]


def test_who_is_missing_is_named(data, monkeypatch):
    monkeypatch.setattr(recommend_peers, "find_spec", lambda name: None)
    assert "pip install" in PEERS["cornac BPR"].skipped(data, HOW)
    assert "60 items" in PEERS["EASE"].skipped(data, HOW._replace(ease_items=50))


@pytest.mark.parametrize("part", ["grid", "epochs", "optimisers", "online", "warm", "memory"])
def test_every_part_has_a_table_and_facts(data, part):
    result = recommend.PARTS[part](data, HOW)
    assert all(len(row) == len(result.header) for row in result.rows)
    assert json.loads(json.dumps(result.facts))["data"]["users"] == 40


def test_the_command_makes_a_page_and_json(capsys, tmp_path, data, monkeypatch):
    monkeypatch.setattr(recommend_data, "made_up", lambda seed: data)
    command = (
        "bench",
        "recommend",
        "--quick",
        "--rank",
        "4",
        "--jobs",
        "1",
        "--peer",
        "popularity",
    )
    code, out, _ = runner(capsys)(*command, "--out", str(tmp_path), "--json")
    facts = json.loads(out)
    assert code == 0 and (tmp_path / "index.html").exists()
    found = facts["table-made-up"]
    assert {"data", "how", "rows", "curves", "skipped", "grids", "tried"} <= set(found)
    names = {"name", f"recall@{K}", f"ndcg@{K}", "coverage", "seconds", "search", "settings"}
    assert all(names <= set(row) for row in found["rows"])
    assert [row["name"] for row in found["rows"]] == ["ours", "ours, squared", "popularity"]


def test_without_data_one_line_says_so(capsys, tmp_path):
    code, _, told = runner(capsys)("bench", "recommend", "--data", str(tmp_path))
    assert code == 2 and "no data" in told
    code, _, told = runner(capsys)("bench", "recommend", "nowhere", "--data", str(tmp_path))
    assert code == 2 and "nowhere: no data set" in told
    code, _, told = runner(capsys)("bench", "recommend", "--quick", "--peer", "nobody")
    assert code == 2 and "--peer nobody: the others are popularity, item-kNN" in told


def test_on_a_gpu_some_parts_are_refused_in_a_line(capsys):
    command = ["bench", "recommend", "--quick", "--part", "memory", "--device", "cuda"]
    code, _, told = runner(capsys)(*command)
    assert code == 2 and "of the CPU alone" in told


def test_of_short_fits_the_median_is_told_and_long_ones_run_once():
    given = iter([0.1, 9.0, 0.2, 0.3, 0.1, 0.2, 0.2, 0.2, 0.2, 5.0])
    _, seconds = recommend_peers.timed(lambda: next(given), lambda told: told)
    assert seconds == 0.2 and list(given) == [5.0]
    _, seconds = recommend_peers.timed(lambda: time.sleep(1.1) or 3.0, lambda told: told)
    assert seconds == 3.0


def test_a_run_of_the_grid_that_diverges_ranks_nothing(data, monkeypatch):
    descend = recommend.ChoiceTrainer.descend

    def diverging(self, choices, epochs):
        if not self.policy.cosine:
            raise DivergenceError(1, 1, None, 1.0, "")
        descend(self, choices, epochs)

    monkeypatch.setattr(recommend.ChoiceTrainer, "descend", diverging)
    facts = recommend.grid(data, HOW).facts
    assert not np.any(facts["ndcg"]["dot"]) and np.all(facts["ndcg"]["cosine"])
