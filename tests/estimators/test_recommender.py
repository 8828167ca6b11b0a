"""Who chose what: what the recommender learns, answers, forgets and refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from scaledsgd import DivergenceError, Recommender, load
from scaledsgd.estimators.recommender import seconds
from scaledsgd.recommend.evaluation import evaluate, top_measures
from scaledsgd.recommend.interactions import read
from scaledsgd.training import choice_trainer

USERS, ITEMS, KINDS, EACH = 240, 120, 6, 12
NAMES = {"user": "user", "item": "item"}


def drawn(seed: int = 0, each: int = EACH) -> dict:
    """Users who choose among the items of their kind, the popular ones more often; one in six of
    their choices is any item."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(USERS), each)
    inside = (ITEMS // KINDS * rng.random(len(user)) ** 2).astype(int) * KINDS + user % KINDS
    item = np.where(rng.random(len(user)) < 1 / 6, rng.integers(0, ITEMS, len(user)), inside)
    return {"user": user, "item": item}


def split(table: dict, share: float = 0.25, seed: int = 0) -> tuple[dict, dict]:
    held = np.random.default_rng([seed, 1]).random(len(table["user"])) < share
    return tuple({name: c[part] for name, c in table.items()} for part in (~held, held))


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    train, _ = split(drawn())
    return Recommender(rank=8, random_state=0).fit(train, **NAMES)


def popularity(train: dict, test: dict) -> float:
    """Recall@20 of the most popular items that a user has not had."""
    seen, wanted = (
        sp.csr_array((np.ones(len(t["user"])), (t["user"], t["item"])), shape=(USERS, ITEMS))
        for t in (train, test)
    )
    wanted = wanted - wanted.multiply(seen > 0)
    wanted.eliminate_zeros()
    counts = np.asarray(seen.sum(axis=0), float)
    return evaluate(lambda users: np.tile(counts, (len(users), 1)), seen, wanted, k=20)["recall@20"]


@pytest.mark.parametrize("loss", ["softmax", "squared", "bpr"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_it_finds_what_users_choose_better_than_popularity(loss, jobs):
    train, test = split(drawn())
    model = Recommender(rank=8, loss=loss, n_jobs=jobs, random_state=0).fit(train, **NAMES)
    assert model.evaluate(test)["recall@20"] > 1.5 * popularity(train, test)
    told = model.measures_
    assert told[model.policy_.loss][0] > told["popularity"][0]


def test_its_measures_are_those_of_an_independent_implementation(fitted):
    train, test = split(drawn())
    found = fitted.evaluate(test, k=20)
    had = {(u, i) for u, i in zip(train["user"], train["item"], strict=True)}
    recall, ndcg = [], []
    for user in range(USERS):
        wanted = {i for u, i in zip(test["user"], test["item"], strict=True) if u == user}
        wanted = {i for i in wanted if (user, i) not in had and i in fitted.item_ids}
        if not wanted or user not in fitted.user_ids:
            continue
        first = fitted.recommend(user, k=20)[0].tolist()
        hits = [place for place, item in enumerate(first) if item in wanted]
        recall.append(len(hits) / len(wanted))
        ideal = sum(1 / np.log2(place + 2) for place in range(min(20, len(wanted))))
        ndcg.append(sum(1 / np.log2(place + 2) for place in hits) / ideal)
    assert found["recall@20"] == pytest.approx(np.mean(recall))
    assert found["ndcg@20"] == pytest.approx(np.mean(ndcg))


def test_answers_keep_to_what_was_asked(fitted):
    had = fitted.histories.of(fitted.user_ids.rows([3]))[1]
    items, scores = fitted.recommend(3, k=10)
    assert not set(items) & set(fitted.item_ids.names()[had]) and (np.diff(scores) <= 0).all()
    assert set(fitted.recommend(3, k=3, candidates=[0, 1, 2, 3], filter_seen=False)[0]) <= {
        0,
        1,
        2,
        3,
    }
    assert items[0] not in fitted.recommend(3, k=10, exclude=items[:1])[0]
    many, _ = fitted.recommend([3, 4], k=10)
    assert many[0].tolist() == items.tolist()
    near = fitted.similar(6, k=5)[0]
    assert np.mean(near % KINDS == 0) > 0.5 and 6 not in near


def test_shares_of_an_explanation_add_up_and_name_items_of_a_kind(fitted):
    wanted = int(fitted.recommend(0, k=1)[0][0])
    items, shares = fitted.explain(0, wanted)
    assert shares.sum() == pytest.approx(1) and (np.diff(shares) <= 0).all()
    assert items[0] % KINDS == wanted % KINDS
    had = int(items[0])  # what she chose is explained by her other choices
    assert had not in fitted.explain(0, had)[0]


def test_an_unknown_user_gets_what_a_trained_one_gets(fitted):
    train, _ = split(drawn())
    same = []
    for user in range(60):
        liked = np.unique(train["item"][train["user"] == user]).tolist()
        folded = fitted.recommend(items=liked, k=10)[0]
        same.append(np.isin(folded, fitted.recommend(user, k=10)[0]).mean())
    assert np.mean(same) > 0.6


def test_a_stream_from_nothing_learns_and_goes_on_after_a_save(tmp_path):
    train, test = split(drawn())
    order = np.random.default_rng(1).permutation(len(train["user"]))
    batches = [{n: c[part] for n, c in train.items()} for part in np.array_split(order, 6)]
    one, two = (Recommender(rank=8, random_state=0) for _ in range(2))
    for number, batch in enumerate(batches):
        one.partial_fit(batch, **NAMES)
        if number == 3:  # killed, and begun anew from its file
            two.save(tmp_path / "m")
            two = load(tmp_path / "m")
        two.partial_fit(batch, **NAMES)
    assert np.array_equal(one.factors.compact(), two.factors.compact())
    assert one.evaluate(test, **NAMES)["recall@20"] > 1.4 * popularity(train, test)


@pytest.mark.parametrize(
    "how",
    [
        {"product": "cosine", "temperature": 0.2, "contrast": 1.1},
        {"product": "dot", "temperature": 0.2, "contrast": 1.1},
        {"loss": "bpr"},
    ],
)
def test_new_events_new_users_and_new_items_help(how):
    train, test = split(drawn(each=16))
    known = (train["user"] < 200) & (train["item"] < 114) & (np.arange(len(train["user"])) % 10 > 2)
    old, new = ({n: c[part] for n, c in train.items()} for part in (known, ~known))
    model = Recommender(rank=8, random_state=0, **how).fit(old, **NAMES)
    before = model.evaluate(test)
    model.partial_fit(new, **NAMES)
    after = model.evaluate(test)
    assert after["recall@20"] * after["users"] > 1.05 * before["recall@20"] * before["users"]
    again = Recommender(rank=8, random_state=0, **how).fit(train, **NAMES).evaluate(test)
    assert after["recall@20"] > 0.9 * again["recall@20"] and after["users"] == again["users"] > 200


def test_a_saved_model_answers_as_it_did(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.policy_ == fitted.policy_ and again.measures_.keys() == fitted.measures_.keys()
    assert again.recommend(5, k=9)[0].tolist() == fitted.recommend(5, k=9)[0].tolist()
    assert again.explain(5, 9)[1].tolist() == fitted.explain(5, 9)[1].tolist()


def test_weights_and_half_life_weigh_the_loss():
    # Everybody has chosen both; the weights say which is dear, or which is of late.
    user = np.repeat(np.arange(60), 4)
    item = np.tile([0, 1, 2, 3], 60)
    weight = np.where(np.isin(item, (0, 1)) == (user % 2 == 0), 5.0, 0.2)
    time = np.where(weight > 1, 100.0, 0.0)
    table = {"user": user, "item": item, "weight": weight, "time": time}
    for how, names in (
        ({}, {"weight": "weight"}),
        ({"half_life": 10}, {"time": "time"}),
    ):
        model = Recommender(rank=2, loss="squared", random_state=0, **how)
        model.fit(table, **NAMES, **names)
        for who, dear in ((0, {0, 1}), (1, {2, 3})):
            assert set(model.recommend(who, k=2, filter_seen=False)[0]) == dear


def test_it_says_when_it_is_no_better_than_popularity():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(300), 6)
    item = (100 * rng.random(len(user)) ** 3).astype(int)  # taste is the same for all
    with pytest.warns(RuntimeWarning, match="no better than by popularity") as told:
        model = Recommender(rank=16, random_state=0, alpha0=3.0, ridge=0.5, loss="squared")
        model.fit({"user": user, "item": item}, **NAMES)
    assert [one.filename for one in told] == [__file__]


def test_settings_are_scikit_learns():
    model = Recommender(rank=3, temperature=0.2)
    assert clone(model).get_params() == model.get_params()


BAD = [
    ({"weight": [1.0, 0.0, 1.0]}, "weight 0.0 is not above 0"),
    ({"weight": [1.0, np.nan, 1.0]}, "not a finite number"),
    ({"weight": [1.0, -2.0, 1.0]}, "weight -2.0 is not above 0"),
]


@pytest.mark.parametrize(("column", "told"), BAD)
def test_wrong_weights_are_refused_in_one_line(column, told):
    table = {"user": [1, 1, 2], "item": [1, 2, 1]} | column
    with pytest.raises(ValueError, match=told) as why:
        Recommender(rank=1).fit(table, **NAMES, weight="weight")
    assert "\n" not in str(why.value)


@pytest.mark.parametrize("name", ["ridge", "alpha0", "temperature", "contrast"])
def test_settings_beyond_what_float32_can_step_with_are_refused(name):
    model = Recommender(rank=2, random_state=0, **{name: 1e30})
    with pytest.raises(ValueError, match=f"{name}=1e.30 is not"):
        model.fit(drawn(), **NAMES)


def test_wrong_weights_are_told_by_their_place_in_the_input():
    """And not by that among the events in the order of their times."""
    table = {"user": [1, 1, 2], "item": [1, 2, 1], "weight": [1.0, 1.0, -1.0], "time": [3, 2, 1]}
    with pytest.raises(ValueError, match=r"observation 2: weight -1.0 is not above 0"):
        Recommender(rank=1).fit(table, **NAMES, weight="weight", time="time")


def test_dates_are_times(tmp_path):
    """In text, in Parquet, and in tables, in seconds."""
    pd = pytest.importorskip("pandas")
    dates = [
        "2026-11-16T10:00:00Z",
        "2026-11-14",
        "2026-11-15 12:00:00",
        "2026-11-16T12:00:00+02:00",
    ]
    seconds_ = [1794823200.0, 1794614400.0, 1794744000.0, 1794823200.0]
    table = {"user": ["a", "a", "b", "b"], "item": [1, 2, 1, 3], "time": dates}
    names = (*NAMES.values(), None, "time")
    frame = pd.DataFrame(table)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "words.parquet")
    stamps = pd.to_datetime(frame["time"], utc=True, format="ISO8601")
    frame.assign(time=stamps.dt.tz_localize(None)).to_parquet(tmp_path / "stamps.parquet")
    for given in (table, *(str(path) for path in tmp_path.iterdir())):
        assert read(given, names).times.tolist() == sorted(seconds_)
    (tmp_path / "a.csv").write_text("user,item,time\n1,2,2026-11-16\n1,3,soon\n")
    with pytest.raises(ValueError, match="line 3, column 'time': 'soon' is not a number or a date"):
        read(str(tmp_path / "a.csv"), names)


def test_wrong_questions_are_refused_in_one_line(fitted):
    for ask, told in (
        (lambda: fitted.recommend(99_999), "user 99999 was never seen in training"),
        (lambda: fitted.recommend(3, candidates=[]), "candidates is empty"),
        (lambda: fitted.recommend(3, k=ITEMS + 1), "is not a whole number from 1 to"),
        (lambda: fitted.recommend(items=[]), "is empty"),
        (lambda: fitted.recommend(3, items=[1]), "a user or a list of items"),
        (lambda: Recommender(half_life="30x").fit({}, **NAMES), "half_life='30x'"),
        (lambda: Recommender(half_life="1d").fit({"user": [1], "item": [1]}, **NAMES), "time="),
        (lambda: Recommender(loss="hinge").fit({}, **NAMES), "loss='hinge'"),
    ):
        with pytest.raises(ValueError, match=told):
            ask()
    assert seconds("2 min") == 120


def test_top_measures_of_a_known_case():
    test = sp.csr_array(np.array([[1, 0, 1, 0], [0, 0, 0, 1]]))
    ndcg, recall = top_measures(np.array([[2, 1], [0, 1]]), test)
    assert recall.tolist() == [0.5, 0] and ndcg[0] == pytest.approx(1 / (1 + 1 / np.log2(3)))


@pytest.mark.parametrize("loss", ["softmax", "bpr"])
def test_what_a_stream_shows_as_its_loss_is_that_of_the_events_that_came_last(loss, monkeypatch):
    train, more = split(drawn())
    model = Recommender(rank=8, loss=loss, epochs=6, random_state=0).fit(train, **NAMES)
    if model.policy_.loss == loss:
        last = model.history_["loss"][-1]
        assert model.residual == pytest.approx(np.sqrt(last) if loss == "bpr" else last)
    model.policy_.loss = loss
    name = f"{loss}_epoch"
    epoch, passes = getattr(choice_trainer.ChoiceTrainer, name), []
    monkeypatch.setattr(
        choice_trainer.ChoiceTrainer, name,
        lambda *given: passes.append(epoch(*given)) or passes[-1],
    )  # fmt: skip
    rng, told = np.random.default_rng(0), []
    for table in (more, more, more | {"item": rng.integers(0, ITEMS, len(more["item"]))}):
        told.append(model.partial_fit(table, **NAMES).residual)
    assert told[1] < told[0]  # known by now
    first = passes[:: len(passes) // 3]  # of each batch, before it was learned
    assert told == pytest.approx(np.sqrt(first) if loss == "bpr" else first)
    assert told[2] > 1.05 * told[1]  # choices without a taste


def test_a_trial_that_diverges_is_not_taken(monkeypatch):
    monkeypatch.setattr(choice_trainer, "_BPR_STEP", 1e30)
    model = Recommender(rank=8, loss="bpr", random_state=0).fit(drawn(), **NAMES)
    assert model.measures_["bpr"][0] == 0 and model.policy_.loss == "squared"


@pytest.mark.parametrize("loss", ["softmax", "squared", "bpr"])
def test_a_run_that_diverges_says_so_and_leaves_the_model_as_it_was(loss, monkeypatch):
    train, more = split(drawn())
    model = Recommender(rank=8, loss=loss, epochs=2, random_state=0).fit(train, **NAMES)
    model.policy_.loss = loss
    monkeypatch.setattr(choice_trainer, "_STREAM_THETA", np.inf)
    # Nothing less makes all of them diverge, however they are compiled.
    model.policy_.rate, model.policy_.cosine = np.inf, True
    with pytest.raises(DivergenceError, match=r"^diverged in epoch \d+ .*: try another ridge"):
        model.partial_fit(more, **NAMES)
    assert np.isfinite(model.factors.X).all()
    monkeypatch.setattr(choice_trainer, "_THETA", (np.inf, 1.0))
    model.policy_.rate = 1.0
    before = [part.tolist() for part in model.recommend([3, 4], k=5)]
    with pytest.raises(DivergenceError):
        model.fit(more, **NAMES)
    assert [part.tolist() for part in model.recommend([3, 4], k=5)] == before
    with pytest.raises(DivergenceError):
        (fresh := Recommender(rank=8, loss=loss, random_state=0)).fit(more, **NAMES)
    with pytest.raises(NotFittedError):
        fresh.recommend(3)
