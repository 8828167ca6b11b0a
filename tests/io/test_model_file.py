import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scaledsgd
from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, ModelFileError
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
