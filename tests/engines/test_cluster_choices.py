"""Who chose what on a Ray cluster: as well as on one machine, from files that no process holds."""

import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec

import numpy as np
import pytest

from scaledsgd import RayEngine, Recommender, load
from scaledsgd.core.choices import Choices
from scaledsgd.core.factors import Factors
from scaledsgd.engines.base import SoftmaxRound, SquaredRound, open_engine
from scaledsgd.engines.cluster.choice_shard import ChoiceJob, ChoicePlan, ChoiceShard
from scaledsgd.engines.cluster.splits import Slab
from scaledsgd.recommend.tuning import Found, Tuner
from scaledsgd.research.benchmarks.recommend_data import made_up
from scaledsgd.training.choice_trainer import ChoicePolicy, ChoiceTrainer

pytestmark = pytest.mark.slow

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
runner = pytest.importorskip("commands").runner
if find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'scaledsgd[ray]'", allow_module_level=True)

SHAPE = (90, 61)
FIXED = {
    "rank": 16, "temperature": 0.14, "contrast": 1.1, "product": "cosine", "alpha0": 0.1,
    "ridge": 2.0, "epochs": 8, "negatives": 64, "random_state": 0,
}  # fmt: skip
POLICY = {"alpha0": 0.1, "ridge": 2.0, "tau": 0.14, "c": 1.1, "negatives": 64}


@pytest.fixture(scope="module")
def data():
    return made_up(0, (400, 300, 12_000))


def chosen(count=1500, seed=0) -> Choices:
    """Users who choose items of their kind, and all items."""
    rng = np.random.default_rng(seed)
    users = np.concatenate([np.arange(SHAPE[0]), rng.integers(0, SHAPE[0], count)])
    items = (rng.integers(0, SHAPE[1] // 3, len(users)) * 3 + users % 3) % SHAPE[1]
    items[: SHAPE[1]] = np.arange(SHAPE[1])
    return Choices.of(users, items, 1.0 + users % 2, shape=SHAPE).merged()


def sorted_rows(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T[::-1])]


@pytest.mark.parametrize("workers", [1, 3])
def test_an_epoch_visits_every_choice_once_and_draws_every_item(workers, tmp_path, monkeypatch):
    """Shards of a plan, without a cluster."""
    choices, blocks = chosen(), 1 if workers == 1 else 8 * workers
    columns = choices.users, choices.items, choices.weights
    monkeypatch.setattr(Slab, "read", lambda slab: (*slab.box, None))
    halves = [Slab([c[k::2] for c in columns], 0) for k in (0, 1)]
    plan = ChoicePlan("p", halves, SHAPE, workers, blocks, weighted=True)
    groups = np.array_split(np.random.default_rng(0).permutation(blocks), workers)
    groups = tuple(tuple(map(int, group)) for group in groups)
    visited, drawn = [], []

    class Watching:
        def run(self, engine, factors, seen, rng):
            names = np.concatenate([np.arange(b, SHAPE[1], blocks) for b in groups[job.group]])
            assert seen.shape == (plan.users_of(worker), len(names)) == factors.shape
            users = seen.users.astype(int) * workers + worker
            visited.append(np.stack([users, names[seen.items], seen.weights.astype(int)], 1))
            pool = np.arange(len(names))
            drawn.append(names[seen.negatives(pool, 30, len(pool) // 2, rng)].ravel())
            return float(len(seen))

    for worker in range(workers):
        (tmp_path / str(worker)).mkdir()
        shard = ChoiceShard(plan, worker, tmp_path / str(worker))
        for group in range(workers):
            items = sum(len(range(b, SHAPE[1], blocks)) for b in groups[group])
            factors = Factors(np.zeros((plan.users_of(worker) + items, 2)), plan.users_of(worker))
            for k in range(2):
                how = (k, 2), False, Watching(), [], False
                job = ChoiceJob([], (1.0, np.inf), 5, groups, group, *how)
                total, ran = shard.run(job, None, factors)
                assert total == ran == len(visited[-1])
    told = sorted_rows(np.concatenate(visited))
    wanted = np.stack([*columns[:2], columns[2].astype(int)], 1)
    assert np.array_equal(told, sorted_rows(wanted))
    often = np.bincount(np.concatenate(drawn), minlength=SHAPE[1])
    assert often.min() > 0.5 * often.mean()  # all items are as likely


def frozen(choices: Choices, factors: Factors) -> SquaredRound:
    seen = choices.row_weights()
    ridges = [np.linspace(0.1, 0.5, len(side)) for side in factors.sides]
    grams = np.stack([0.1 * (side**2).sum(axis=0) for side in factors.sides])
    means = np.stack([w @ side**2 / w.sum() for w, side in zip(seen, factors.sides, strict=True)])
    return SquaredRound(1e-3, seen, ridges, grams, means)


@pytest.mark.parametrize("what", ["squared", "softmax"])
def test_small_steps_add_up_to_those_of_one_machine(engine, what):
    """In any order, where no step sees what another one did."""
    choices, held = chosen(), engine.held(chosen())
    factors = engine.start_choices(SHAPE, 4, seed=1, scale=(0.5, 0.5), dtype="float32")
    before = engine.local(factors.X).copy()
    here = Factors(before.copy(), SHAPE[0])
    here.X = open_engine("cpu").put(here.X)
    moved = []
    for runner_, seen, X in ((engine, held, factors), (open_engine("cpu"), choices, here)):
        rng = np.random.default_rng(0)
        for part in seen.portions(rng, 2):
            if what == "squared":
                runner_.run_squared(X, seen, part, frozen(choices, Factors(before, SHAPE[0])))
            else:  # all items are negatives: those of a group on a cluster
                P = np.stack([np.eye(4)] * 2)
                round = SoftmaxRound(P, (1e-5, 1e-5), 16, 0.3, 0.0, False, 0.5)
                negatives = seen.negatives(np.arange(SHAPE[1]), -(-len(part) // 16), 61, rng)
                runner_.run_softmax(X, seen, part, negatives, round)
        moved.append(np.asarray(runner_.local(X.X)) - before)
    assert np.linalg.norm(moved[0] - moved[1]) < 0.02 * np.linalg.norm(moved[1])


def test_row_weights_samples_and_histories_are_those_of_one_machine(engine):
    choices, held = chosen(), engine.held(chosen())
    for own, wanted in zip(held.row_weights(), choices.row_weights(), strict=True):
        assert own == pytest.approx(wanted)
    assert len(held) == len(choices)
    start, items, weights = held.histories()
    users = np.repeat(np.arange(SHAPE[0]), np.diff(start))
    assert np.array_equal(users, choices.users) and np.array_equal(items, choices.items)
    assert np.array_equal(weights, choices.weights)
    everything = held.gathered(10**6, seed=0)
    assert sorted_rows(np.stack([everything.users, everything.items], 1)).tolist() == (
        np.stack([choices.users, choices.items], 1).tolist()
    )
    some = held.gathered(300, seed=0)
    count, whole = np.bincount(some.users), np.bincount(choices.users)
    assert 200 < len(some) <= 300 and len(count) < SHAPE[0]
    assert np.isin(count, whole).all()  # users with all that they chose
    assert some.shape == (len(count), SHAPE[1])


def learned(data, engine, loss="softmax", epochs=8, **how) -> tuple[float, np.ndarray]:
    runner_ = engine or open_engine("cpu")
    seen = runner_.held(data.choices())
    scale = 16**-0.5, 16**-0.5
    factors = runner_.start_choices(seen.shape, 16, seed=0, scale=scale, dtype="float32")
    policy = ChoicePolicy(loss, **POLICY | how)
    trainer = ChoiceTrainer(factors, policy, runner_, np.random.default_rng(0))
    trainer.run(seen, epochs=epochs)
    users, items = trainer.vectors()
    scores = np.where(data.train.toarray() > 0, -np.inf, users @ items.T)
    top = np.argsort(-scores[data.users], axis=1)[:, :20]
    return data.measures(top)["ndcg@20"], engine.local(factors.X) if engine else factors.X


@pytest.mark.parametrize(
    ("loss", "how"),
    [
        ("squared", {}),
        ("softmax", {}),
        ("softmax", {"cosine": False, "tau": 0.2, "dot_ridge": 0.25}),
        ("bpr", {"cosine": False, "dot_ridge": 0.1}),
    ],
)
def test_two_workers_rank_as_well_as_one_machine(engine, data, loss, how):
    here, _ = learned(data, None, loss, **how)
    there, X = learned(data, engine, loss, **how)
    assert there > 0.97 * here > 0.3
    assert np.array_equal(learned(data, engine, loss, **how)[1], X)  # and to the bit again


def write(folder, data, seed=0, **more):
    """Events in three files, some of them twice."""
    users, items = data.events().values()
    order = np.random.default_rng(seed).permutation(np.arange(len(users)).repeat(2))
    order = order[: 3 * len(users) // 2]
    for part, own in enumerate(np.array_split(order, 3)):
        table = {"who": 10 * users[own] + 3, "what": np.char.add("w", items[own].astype(str))}
        table |= {name: make(own) for name, make in more.items()}
        pq.write_table(pa.table(table), folder / f"{part}.parquet", row_group_size=2000)
    return users[order], items[order], order


def test_files_give_the_model_that_a_table_gives(engine, data, tmp_path):
    users, items, order = write(
        tmp_path, data, weight=lambda own: 1.0 + own % 5, at=lambda own: own % 100
    )
    names = {"user": "who", "item": "what", "weight": "weight", "time": "at"}
    how = FIXED | {"half_life": 40.0, "loss": "squared"}
    model = Recommender(**how, engine=engine).fit(f"{tmp_path}/*.parquet", **names)
    table = {
        "who": 10 * users + 3, "what": np.char.add("w", items.astype(str)),
        "weight": 1.0 + order % 5, "at": order % 100,
    }  # fmt: skip
    here = Recommender(**how).fit(table, **names)
    assert model._unit == pytest.approx(here._unit, rel=1e-5)
    for own, wanted in zip(_tables(model), _tables(here), strict=True):
        assert own == pytest.approx(wanted, rel=1e-4)
    for side in (0, 1):
        seen, names_there = model._trainer.seen[side], model.ids[side].names()
        wanted = here._trainer.seen[side][here.ids[side].rows(names_there, "id")]
        assert seen == pytest.approx(wanted, rel=1e-4)
    asked = data.events()["user"][:50] * 10 + 3
    told, wanted = (m.recommend(asked, k=20)[0] for m in (model, here))
    alike = np.mean([len({*a} & {*b}) for a, b in zip(told.tolist(), wanted.tolist(), strict=True)])
    assert alike > 12


def _tables(model) -> list[np.ndarray]:
    """Who has what by name, as a dense table."""
    table = model.histories.table.toarray()
    who = np.argsort(model.user_ids.names())
    what = np.argsort(model.item_ids.names().astype(str))
    wide = np.zeros((len(who), len(what)))
    wide[:, : table.shape[1]] = table
    return list(wide[who][:, what])


def test_a_model_of_a_cluster_answers_is_saved_and_learns_on_here(engine, data, tmp_path):
    write(tmp_path, data)
    model = Recommender(**FIXED, engine=engine)
    model.fit(f"{tmp_path}/*.parquet", user="who", item="what")
    assert {"popularity", "squared", "softmax"} <= set(model.measures_)
    assert model.measures_["squared"][0] > model.measures_["popularity"][0]
    found = model.recommend(3, k=5)[0]
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.recommend(3, k=5)[0].tolist() == found.tolist()
    had = {f"w{item}" for item in data.train[[0]].indices}
    assert not had & set(found)
    rows = model.factors.shape
    model.partial_fit({"who": [3, 7], "what": ["w1", "new"]}, user="who", item="what")
    assert model.factors.shape == (rows[0] + 1, rows[1] + 1)
    assert len(model.recommend(7, k=5)[0]) == 5


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"who": [1], "other": ["x"], "weight": [1.0]}, "the file has who, other, weight"),
        ({"who": [1], "what": [None], "weight": [1.0]}, "'what': nothing where an id belongs"),
        ({"who": [1], "what": ["x"], "weight": [-1.0]}, "weight -1 is not from"),
        ({"who": ["ann"], "what": ["x"], "weight": [1.0]}, "ids are numbers here .* words there"),
    ],
)
def test_bad_events_get_one_line(engine, data, tmp_path, table, told):
    write(tmp_path, data, weight=lambda own: 1.0 + own % 5)
    pq.write_table(pa.table(table), tmp_path / "9.parquet")
    model = Recommender(**FIXED, engine=engine)
    with pytest.raises(ValueError, match=told) as caught:
        model.fit(f"{tmp_path}/*.parquet", user="who", item="what", weight="weight")
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "history_")
    with pytest.raises(ValueError, match="half_life needs"):
        Recommender(half_life="1d", engine=engine).fit("a", user="who", item="what")
    with pytest.raises(ValueError, match="2 workers share users, of whom there are 1"):
        engine.held(Choices.of([0], [0], shape=(1, 1)))


def test_a_worker_that_dies_changes_nothing(engine, data):
    def kill():
        _, pid = engine.pool.get([engine.pool[1].where.remote()])[0]
        os.kill(pid, signal.SIGKILL)

    whole = learned(data, engine)[1]
    accident = threading.Timer(0.3, kill)
    accident.start()
    disturbed = learned(data, engine, epochs=8)[1]
    accident.join()
    assert np.array_equal(disturbed, whole)


def test_a_driver_that_dies_goes_on_from_its_checkpoint(engine, data, tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    write(tmp_path / "d", data)
    searches = []

    def find(tuner, loss, epochs):
        searches.append(loss)
        return Found(ChoicePolicy(loss, **POLICY), 5, {"popularity": (0.1, 0.2)})

    monkeypatch.setattr(Tuner, "find", find)

    def model(callbacks=(), **changed):
        kept = RayEngine("local", workers=2, checkpoint=str(tmp_path / "kept"))
        kept._pool = engine.pool
        return Recommender(**FIXED | changed, engine=kept, callbacks=callbacks)

    class Killed(Exception):
        pass

    def die_at(epoch):
        def told(progress):
            if progress.epoch == epoch:
                raise Killed

        return told

    def fit(one):
        return one.fit(f"{tmp_path}/d/*.parquet", user="who", item="what")

    for epoch in (3, 8):
        with pytest.raises(Killed):
            fit(model([die_at(epoch)]))
    with pytest.raises(ValueError, match="a run with other settings"):
        fit(model(epochs=7))
    epochs = []
    resumed = fit(model([lambda told: epochs.append(told.epoch)]))
    assert epochs == [9, 10, 11] and len(searches) == 1
    whole = fit(Recommender(**FIXED, engine=engine))
    assert np.array_equal(resumed.factors.X, whole.factors.X)
    assert resumed.history_["loss"].tolist() == whole.history_["loss"].tolist()
    assert resumed.measures_ == whole.measures_
    pq.write_table(pa.table({"who": [3], "what": ["w0"]}), tmp_path / "d" / "9.parquet")
    with pytest.raises(ValueError, match="a run on other data"):
        fit(model())


def test_the_command_line_learns_from_events_on_a_cluster(data, tmp_path):
    (tmp_path / "d").mkdir()
    write(tmp_path / "d", data)
    files = [str(path) for path in sorted((tmp_path / "d").iterdir())]
    words = ["--user", "who", "--item", "what", "--rank", "8", "--epochs", "4", "--seed", "0"]
    words += ["--ray", "local", "--workers", "2", "--json", "--quiet", "--out", str(tmp_path / "m")]
    # In a process of its own: it lets the cluster go in the end.
    code = "import sys; from scaledsgd.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "fit", *files, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(load(tmp_path / "m").recommend(3, k=5)[0]) == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--user", "who"], "--item: events need it"),
        (["--user", "who", "--item", "what", "--value", "v"], "say which values are choices"),
        (
            ["--user", "who", "--item", "what", "--value", "v", "--at-least", "4"],
            "--at-least: a cluster learns from all events",
        ),
        (
            ["--kind", "ranking", "--user", "who", "--item", "what"],
            "events are made comparisons of without --ray",
        ),
    ],
)
def test_bad_words_get_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"who": [1], "what": [2], "v": [3.0]}), "a.parquet")
    code, out, err = runner(capsys)("fit", "a.parquet", *words, "--ray", "auto", "--out", "m")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
