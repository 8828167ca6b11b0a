import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

import scaledsgd
from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, ModelFileError, Recommender
from scaledsgd.io import model_file as store
from scaledsgd.io.ids import Ids

ids = st.lists(st.text(max_size=5), min_size=3, max_size=12, unique=True)


@settings(max_examples=25)
@given(names=ids, rank=st.integers(1, 3), dtype=st.sampled_from(["float32", "float64"]))
def test_a_model_comes_back_as_it_was(tmp_path_factory, names, rank, dtype):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    columns = {"row": "who", "column": "what", "value": "n"}
    table = {"who": names, "what": list(range(len(names))), "n": np.arange(float(len(names)))}
    model = MatrixCompleter(rank=rank, epochs=2, dtype=dtype, random_state=0)
    model.fit(table, **columns).save(path)
    again = scaledsgd.load(path)
    assert again.get_params() == model.get_params()
    entries = (names, list(range(len(names))))
    assert np.array_equal(again.predict(entries), model.predict(entries))
    assert again.history_.records == model.history_.records
    # Training goes on from where it was, to the bit.
    assert np.array_equal(
        again.partial_fit(table, **columns).row_factors_,
        model.partial_fit(table, **columns).row_factors_,
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_estimator_can_be_kept(tmp_path, symmetric):
    path = tmp_path / "model"
    rng = np.random.default_rng(0)
    D = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0))) ** 2
    triplets = np.stack([rng.permutation(6)[:3] for _ in range(50)])
    mode = "item-item" if symmetric else "user-item"
    for model in (DistanceCompleter(rank=1, epochs=2), ItemRanker(rank=2, mode=mode, epochs=1)):
        model.fit(D if isinstance(model, DistanceCompleter) else triplets).save(path)
        again = scaledsgd.load(path)
        assert type(again) is type(model)
        assert np.array_equal(again.factors.X, model.factors.X)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    MatrixCompleter(rank=1, epochs=1).fit(np.ones((4, 4))).save(path)
    return path


@settings(max_examples=60)
@given(cut=st.floats(0, 0.999), flip=st.none() | st.floats(0, 0.999))
def test_a_damaged_file_is_refused(tmp_path_factory, cut, flip):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    MatrixCompleter(rank=1, epochs=1).fit(np.ones((4, 4))).save(path)
    content = bytearray(path.read_bytes())
    if flip is None:
        content = content[: int(cut * len(content))]
    else:
        content[int(flip * len(content))] ^= 0x55
    path.write_bytes(content)
    try:
        scaledsgd.load(path)
    except ModelFileError as why:
        assert str(path) in str(why)
        assert "\n" not in str(why)
    else:
        pytest.fail("a damaged file was read")


def test_foreign_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "other.safetensors"
    save_file({"weights": np.zeros(3)}, path)
    with pytest.raises(ModelFileError, match="another program's"):
        scaledsgd.load(path)
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(ModelFileError, match="damaged"):
        scaledsgd.load(path)
    store.write(path, {}, {"estimator": "os.system"})
    with pytest.raises(ModelFileError, match="unknown kind of model"):
        scaledsgd.load(path)
    with pytest.raises(FileNotFoundError, match="no such model"):
        scaledsgd.load(tmp_path / "nowhere")


def change(name: str, at, value):
    def forge(arrays, facts):
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return forge


def put(value, *way):
    def forge(arrays, facts):
        for key in way[:-1]:
            facts = facts[key]
        facts[way[-1]] = value

    return forge


def nested(arrays, facts):
    facts["own"]["columns"] = eval("[" * 90 + "]" * 90)


# What somebody may write into a file whose checksum is right, and what is said of it.
FORGERIES = {
    "an item beyond the items": (change("seen_items", 0, 999), "seen_items has numbers outside"),
    "an item before the first": (change("seen_items", 0, -2), "seen_items has numbers outside"),
    "a last item beyond": (change("previous", 0, 10**6), "previous has numbers outside"),
    "offsets that fall": (change("seen_start", 1, 10**6), "seen_start has numbers outside"),
    "offsets that end early": (change("seen_start", -1, 1), "seen_start does not go from 0"),
    "offsets that begin late": (change("seen_start", 0, 1), "seen_start does not go from 0"),
    "offsets that leave one out": (
        lambda a, f: a.update(seen_start=np.minimum(a["seen_start"], a["seen_start"][-1] - 1)),
        "seen_start does not go from 0"),
    "the same name twice": (change("ids1", 0, "i1"), "ids1 has 1 entries twice"),
    "a name that is a number": (change("ids1", 0, 7), "ids1 holds something that is not a string"),
    "rows of the other side": (put(1, "factors", "rows"), "has the shape"),
    "more rows than there are": (put(10**9, "factors", "rows"), "factors.rows: 1000000000 is not"),
    "rows below none": (put(-3, "factors", "rows"), "factors.rows: -3 is not"),
    "not a number": (change("X", (0, 0), np.nan), "X is not a table of moderate numbers"),
    "a weight below 0": (change("weights0", 0, -1.0), "weights0 has numbers outside"),
    "too few weights": (lambda a, f: a.update(weights1=a["weights1"][:-1]),
        "weights1 has the shape"),
    "weights of another type": (
        lambda a, f: a.update(weights1=a["weights1"].astype(np.int8)), "weights1 is of type int8"),
    "an array too many": (lambda a, f: a.update(kept0=a["X"]), "kept0 is unknown"),
    "an array too few": (lambda a, f: a.pop("previous"), "previous is missing"),
    "a fact too few": (lambda a, f: f.pop("random"), "'random' is missing"),
    "a fact too many": (put(1, "more"), "'more' is unknown"),
    "facts of other types": (nested, "own.columns: not an object"),
    "a count in words": (put("many", "samples"), "samples: 'many' is not a whole number"),
    "a count of halves": (put(0.5, "samples"), "samples: 0.5 is not a whole number"),
    "a count beyond 64 bits": (put(2**80, "samples"), "samples: 12089258196"),
    "another rank, which may be set at any time": (put(5, "settings", "rank"), None),
    "a setting that is none": (put(0, "settings", "rank"), "rank=0 is not a whole number"),
    "a setting of nobody": (put(0, "settings", "evil"), "unexpected keyword argument 'evil'"),
    "an engine": (put("x", "settings", "callbacks"), "an engine and callbacks are not kept"),
    "a million threads": (put(10**6, "settings", "n_jobs"), "n_jobs=1000000 is not"),
    "another generator": (put("MT19937", "random", "bit_generator"), "random.bit_generator"),
    "a step below 0": (put(-1.0, "policy", "tau"), "policy.tau: -1.0 is not a number above 0"),
    "a step of nothing": (put(0.0, "policy", "tau"), "policy.tau: 0.0 is not a number above 0"),
    "a batch of nothing": (put(0, "streams", "s", "batch"), "streams.s.batch: 0 is not"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_file_is_refused(case, tmp_path):
    """The checksum has no key: whoever changes a file can write a new one."""
    forge, told = FORGERIES[case]
    path = tmp_path / "m"
    chosen = {"u": [f"u{n % 5}" for n in range(20)], "i": [f"i{n % 7}" for n in range(20)]}
    model = Recommender(rank=2, random_state=0).partial_fit(chosen, user="u", item="i")
    told_of = {"position": {"line": 1}, "lines": 1, "events": 1, "refused": 0, "batch": 9}
    model.remember_position("s", told_of)
    model.save(path)
    arrays, facts = store.read(path)
    forge(arrays, facts)
    store.write(path, arrays, facts)
    if told is None:
        scaledsgd.load(path)
        return
    with pytest.raises(ModelFileError, match=told) as why:
        scaledsgd.load(path)
    assert str(path) in str(why.value) and "\n" not in str(why.value)


def test_a_forged_stream_is_refused(tmp_path):
    """Of a model in the middle of a round: P, and the snapshot that it may go back to."""
    path, table = tmp_path / "m", {"u": [0, 1, 2] * 9, "v": [0, 1, 2, 3, 4, 5, 6, 7, 8] * 3}
    table["y"] = np.arange(27.0)
    names = {"row": "u", "column": "v", "value": "y"}
    model = MatrixCompleter(2, random_state=0).partial_fit(table, **names)
    forgeries = {
        "P is missing": lambda a, f: a.pop("P"),
        "P has the shape": lambda a, f: a.update(P=np.ones(3)),
        "kept1 has the shape": lambda a, f: a.update(kept1=np.ones((9, 3))),
        "kept1: 99 rows of 9": lambda a, f: a.update(kept1=np.ones((99, 2))),
        "kept_columns has numbers": lambda a, f: a.update(kept_columns=np.array([3])),
        "left: -1 is not": lambda a, f: f.update(left=-1),
        "policy.columns: 9 is not": lambda a, f: f["policy"].update(columns=9),
        "policy.kind: 'x' is not": lambda a, f: f["policy"].update(kind="x"),
    }
    for told, forge in forgeries.items():
        model.save(path)
        arrays, facts = store.read(path)
        assert facts["left"]
        forge(arrays, facts)
        store.write(path, arrays, facts)
        with pytest.raises(ModelFileError, match=told):
            scaledsgd.load(path)


def test_facts_that_somebody_has_edited_are_refused(saved):
    """Though they might be a model's: a sum covers them."""
    with safe_open(saved, framework="numpy") as file:
        header, names = file.metadata(), list(file.keys())
        arrays = {name: file.get_tensor(name) for name in names}
    facts = json.loads(header["facts"])
    facts["settings"]["random_state"] = 77
    saved.write_bytes(save(arrays, metadata=header | {"facts": json.dumps(facts)}))
    with pytest.raises(ModelFileError, match="checksum"):
        scaledsgd.load(saved)


def test_facts_without_end_are_refused(saved):
    arrays, _ = store.read(saved)
    text = '{"own": ' + "[" * 100_000 + "]" * 100_000 + "}"
    header = {"format": store.FORMAT, "facts": text, "texts": "[]"}
    header["sha256"] = store._digest(arrays, header)
    saved.write_bytes(save(arrays, metadata=header))
    with pytest.raises(ModelFileError, match="recursion"):
        scaledsgd.load(saved)


def test_what_could_not_be_read_again_is_not_written(saved):
    before, model = saved.read_bytes(), scaledsgd.load(saved)
    model.factors.X[0, 0] = np.inf
    with pytest.raises(ModelFileError, match="X is not a table of moderate numbers"):
        model.save(saved)
    assert saved.read_bytes() == before


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        MatrixCompleter(rank=1, epochs=1).fit(np.zeros((5, 5)) + 2).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_names_keep_their_rows(tmp_path):
    """Integer ids in no order, one set of names for both sides, and settings of NumPy's types."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(30) * 7
    i, j = np.triu_indices(30)
    z = rng.standard_normal(30)
    table = {"a": ids[i], "b": ids[j], "y": z[i] * z[j]}
    names = {"row": "a", "column": "b", "value": "y"}
    model = MatrixCompleter(rank=np.int64(1), symmetric=True, random_state=0)
    model.fit(table, **names).save(tmp_path / "m")
    again = scaledsgd.load(tmp_path / "m")
    assert again.predict((ids[i], ids[j])) == pytest.approx(table["y"], abs=1e-6)
    more = {"a": [1001], "b": [1002], "y": [1.0]}
    again.partial_fit(more, **names)
    assert again.factors.X.shape == (32, 1)


numbers = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40), max_size=60)
words = st.lists(st.text(max_size=2), max_size=60)


@given(batches=st.lists(numbers, max_size=6) | st.lists(words, max_size=6), keep=st.integers(0, 99))
def test_ids_are_a_dictionary_in_order_of_appearance(batches, keep):
    known, ids = {}, Ids()
    for batch in batches:
        rows = [known.setdefault(name, len(known)) for name in batch]
        assert ids.add(batch).tolist() == rows
    assert ids.names().tolist() == list(known)
    assert ids.rows(list(known)).tolist() == list(known.values())
    ids.keep(keep)
    assert ids.names().tolist() == list(known)[:keep]
    assert [name in ids for name in known] == [row < keep for row in known.values()]
    assert ids.add(list(known)).tolist() == list(known.values())
