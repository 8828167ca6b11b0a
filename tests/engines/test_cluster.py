"""The rounds of one machine on a Ray cluster: by the same calls, to the same results."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, Observations, RayEngine, load
from scaledsgd.engines.cluster import worker
from scaledsgd.engines.cluster.splits import RowGroup
from scaledsgd.engines.cluster.worker import Worker
from scaledsgd.training.metrics import recovery_error

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
runner = pytest.importorskip("commands").runner
if find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'scaledsgd[ray]'", allow_module_level=True)

pytestmark = pytest.mark.slow


def truth(shape, rank=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((d, rank)) for d in shape]


def pairs(left, right, count, seed=1):
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, len(left), count), rng.integers(0, len(right), count)
    return i, j, np.einsum("tr,tr->t", left[i], right[j])


def test_our_own_cluster_listens_on_loopback_only(engine):
    ours, family = {os.getpid(), *descendants(os.getpid())}, set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # listening
                family.add((fields[9], fields[1].split(":")[0]))
    sockets = {inode for pid in ours for inode in open_sockets(pid)}
    addresses = {address for inode, address in family if inode in sockets}
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "0" * 31 + "1"}
    assert addresses
    assert addresses <= loopback


def descendants(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def open_sockets(pid: int) -> set[str]:
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


@pytest.mark.parametrize(("symmetric", "rank"), [(True, 3), (False, 3), (True, 5)])
def test_entries_are_learned_as_on_one_machine(engine, symmetric, rank):
    left, right = (side * [1.0, 0.1, 0.01] for side in truth((90, 60)))  # only a good P solves it
    right = left if symmetric else right
    seen = Observations.pairs(
        *pairs(left, right, 3000), shape=(len(left), len(right)), symmetric=symmetric
    )
    models = [
        MatrixCompleter(rank, symmetric=symmetric, random_state=0, engine=engine).fit(seen)
        for _ in range(2)
    ]
    found = models[0]
    assert recovery_error(found.row_factors_, found.column_factors_, left, right) < 1e-6
    assert np.array_equal(found.factors.X, models[1].factors.X)
    alone = MatrixCompleter(rank, symmetric=symmetric, random_state=0).fit(seen)
    assert len(found.history_) <= 1.5 * len(alone.history_) + 2


def test_comparisons_distances_and_bits_are_learned(engine):
    rng = np.random.default_rng(0)
    (Z,) = truth((64,), 2)
    i, j, k = rng.integers(0, 64, (3, 30_000))
    keep = j != k
    i, j, k = i[keep], j[keep], k[keep]
    y = ((Z[i] * (Z[j] - Z[k])).sum(axis=1) > 0).astype(float)
    ranker = ItemRanker(2, random_state=0, epochs=5, engine=engine).fit(np.stack([i, j, k], 1), y)
    told = ranker.factors.X
    assert np.mean(((told[i] * (told[j] - told[k])).sum(axis=1) > 0) == (y > 0.5)) > 0.95
    squares = ((Z[i] - Z[j]) ** 2).sum(axis=1)
    known = Observations.pairs(i[:2000], j[:2000], squares[:2000], shape=(64, 64), loss="distance")
    map_ = DistanceCompleter(2, random_state=0, engine=engine).fit(known)
    assert map_.predict((i, j)) == pytest.approx(squares, abs=1e-5)
    bits = Observations.pairs(i, j, 1 / (1 + np.exp(-(Z[i] * Z[j]).sum(1))), loss="logistic",
                              symmetric=True)  # fmt: skip
    model = MatrixCompleter(2, loss="logistic", symmetric=True, random_state=0, engine=engine)
    assert model.fit(bits).history_["loss"][-1] < 0.65


def test_new_rows_are_added_by_partial_fit(engine):
    left, right = truth((40, 30), 2)
    model = MatrixCompleter(2, random_state=0, engine=engine)
    model.fit(Observations.pairs(*pairs(left[:30], right, 2000), shape=(30, 30)))
    for seed in range(20):
        new = Observations.pairs(*pairs(left, right, 2000, seed), shape=(40, 30))
        model.partial_fit(new)
    assert recovery_error(model.row_factors_, model.column_factors_, left, right) < 1e-3


def write(folder, left, right, count=4000, parts=3):
    i, j, y = pairs(left, right, count)
    names = np.char.add("film ", j.astype(str))
    for part in range(parts):
        own = slice(part * count // parts, (part + 1) * count // parts)
        table = pa.table({"user": 10 * i[own] + 3, "film": names[own], "stars": y[own]})
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=700)


def test_files_stay_where_they_are_and_the_model_knows_their_ids(engine, tmp_path):
    left, right = truth((50, 40))
    write(tmp_path, left, right)
    model = MatrixCompleter(3, random_state=0, engine=engine)
    model.fit(f"{tmp_path}/*.parquet", row="user", column="film", value="stars")
    told = model.predict(([3, 13], ["film 0", "film 39"]))
    assert told == pytest.approx([left[0] @ right[0], left[1] @ right[39]], abs=1e-5)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert np.array_equal(again.predict(([3], ["film 7"])), model.predict(([3], ["film 7"])))
    numbers = pa.table(dict(zip("rcv", pairs(left, right, 4000), strict=True)))
    pq.write_table(numbers, tmp_path / "numbers.parq")
    plain = MatrixCompleter(3, random_state=0, engine=engine).fit(str(tmp_path / "numbers.parq"))
    assert plain.predict(([0], [0])) == pytest.approx([left[0] @ right[0]], abs=1e-5)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"a": [0], "b": [1]}, "the file has a, b"),
        ({"user": [1], "film": [None], "stars": [1.0]}, "'film': nothing where an id belongs"),
        ({"user": [1], "film": ["x"], "stars": [float("nan")]}, "'stars': nan is not a finite"),
        ({"user": [1.5], "film": ["x"], "stars": [1.0]}, "'user': id 1.5 is not a whole number"),
    ],
)
def test_bad_files_get_one_line(engine, tmp_path, table, told):
    write(tmp_path, *truth((20, 20)), parts=1)
    pq.write_table(pa.table(table), tmp_path / "9.parquet")
    model = MatrixCompleter(2, engine=engine)
    with pytest.raises(ValueError, match=told) as caught:
        model.fit(f"{tmp_path}/*.parquet", row="user", column="film", value="stars")
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "history_")


def test_files_need_a_cluster_and_a_cluster_that_answers():
    with pytest.raises(ValueError, match="engine=RayEngine"):
        MatrixCompleter(2).fit("a/*.parquet", row="a", column="b", value="c")
    with pytest.raises(ValueError, match="at least one of each"):
        RayEngine(workers=0)


def test_a_worker_that_dies_changes_nothing(engine):
    (left,) = truth((3000,), 4)  # blocks of 24 kB and more
    seen = Observations.pairs(*pairs(left, left, 120_000), shape=(3000, 3000), symmetric=True)

    def fit(callbacks=()):
        model = MatrixCompleter(
            4, symmetric=True, random_state=0, epochs=4, tol=0, engine=engine, callbacks=callbacks
        )
        return model.fit(seen).factors.X

    def kill(told):
        if told.epoch == 2:
            _, pid = engine.pool.get([engine.pool[1].where.remote()])[0]
            threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()

    assert np.array_equal(fit([kill]), fit())


def test_a_driver_that_dies_goes_on_from_its_checkpoint(engine, tmp_path):
    left, right = truth((80, 60))
    seen = Observations.pairs(*pairs(left, right, 4000), shape=(80, 60))

    def model(callbacks=(), **changed):
        kept = RayEngine("local", workers=2, checkpoint=str(tmp_path / "kept"))
        kept._pool = engine.pool
        how = {"random_state": 0, "epochs": 6, "tol": 0} | changed
        return MatrixCompleter(3, engine=kept, callbacks=callbacks, **how)

    class Killed(Exception):
        pass

    def die(told):
        if told.epoch == 4:
            raise Killed

    with pytest.raises(Killed):
        model([die]).fit(seen)
    left_over = {path.name.split("-")[0] for path in (tmp_path / "kept").glob("epoch*")}
    assert left_over == {"epoch3"}
    with pytest.raises(ValueError, match="a run with other settings"):
        model(epochs=7).fit(seen)
    with pytest.raises(ValueError, match="a run on other data"):
        model().fit(seen[:3900])
    for other in ((seen.index, seen.targets + 1), (seen.index[:, ::-1] % 60, seen.targets)):
        others = Observations.pairs(*other[0].T, other[1], shape=(80, 60))  # as many
        with pytest.raises(ValueError, match="a run on other data"):
            model().fit(others)
    epochs = []
    resumed = model([lambda told: epochs.append(told.epoch)]).fit(seen)
    whole = MatrixCompleter(3, random_state=0, epochs=6, tol=0, engine=engine).fit(seen)
    assert epochs == [4, 5, 6]
    assert np.array_equal(resumed.factors.X, whole.factors.X)
    assert resumed.history_["loss"].tolist() == whole.history_["loss"].tolist()
    assert np.array_equal(model().fit(seen).factors.X, whole.factors.X)  # it was over already


def test_the_command_line_trains_on_a_cluster(tmp_path):
    left, right = truth((50, 40))
    (tmp_path / "d").mkdir()
    write(tmp_path / "d", left, right)
    words = ["--rank", "3", "--seed", "0", "--ray", "local", "--checkpoint", str(tmp_path / "kept")]
    words += ["--json", "--quiet"]
    # In a process of its own: it lets the cluster go in the end.
    code = "import sys; from scaledsgd.cli.main import main; sys.exit(main())"
    files = [str(path) for path in sorted((tmp_path / "d").iterdir())]
    done = subprocess.run(
        [sys.executable, "-c", code, "fit", *files, "--out", str(tmp_path / "m"), *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert load(tmp_path / "m").predict(([3], ["film 0"])) == pytest.approx(
        [left[0] @ right[0]], abs=1e-5
    )
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a.parquet", "b.parquet"], "2 files are read on a cluster: give --ray"),
        (["a.parquet", "--workers", "2"], "belong to a cluster: give --ray"),
        (["no*.parquet", "--ray", "auto"], "no such file"),
        (["a.csv", "--ray", "auto"], "a cluster reads Parquet files"),
    ],
)
def test_bad_words_get_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b,c\n1,2,3\n")
    code, out, err = runner(capsys)("fit", *words, "--out", "m")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


def test_an_address_where_nobody_answers():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        code = (
            "from scaledsgd import RayEngine\n"
            f"try: RayEngine({address!r}).pool\n"
            "except ValueError as why: print(why)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"no Ray cluster answers at {address}\n"


@pytest.mark.parametrize(
    ("ids", "target", "told"),
    [
        ([7, -7], 1.0, "row group 0, row 2, column 'i': id -7 is not a whole number from 0 up"),
        ([7, 8], 1e200, "row group 0, column 'y': 1e.200 is too large to be squared safely"),
    ],
)
def test_files_are_held_to_the_rules_of_all_input(ids, target, told, tmp_path):
    table = pa.table({"i": ids, "j": ["a", "b"], "y": [0.0, target]})
    pq.write_table(table, tmp_path / "a.parquet")
    split = RowGroup(str(tmp_path / "a.parquet"), 0, 2, ("i", "j"), "y")
    with pytest.raises(ValueError, match=told):
        Worker(0, 1, gpu=False).call(split, "found", "squared", True)


def test_samples_are_for_no_other_eyes_and_swept_when_their_owner_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = "import sys, time; from scaledsgd.engines.cluster import worker; "
    here += f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}; "
    code = here + "print(worker._claimed(sys.argv[1]), flush=True); time.sleep(60)"
    dead, alive = (
        subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
        for name in ("dead", "alive")
    )
    for process in (dead, alive):
        process.stdout.readline()
    (tmp_path / "scaledsgd-dead" / "bucket0.arrow").write_text("who rated what")
    assert (tmp_path / "scaledsgd-dead").stat().st_mode & 0o777 == 0o700
    dead.kill()
    dead.wait()
    (tmp_path / "scaledsgd-notes").mkdir()  # somebody else's
    worker._claimed("new")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"scaledsgd-alive", "scaledsgd-new", "scaledsgd-notes"}
    worker.forget("new")
    alive.kill()
    alive.wait()
    assert not (tmp_path / "scaledsgd-new").exists()


@pytest.mark.slow
def test_engines_of_one_process_are_closed_one_after_the_other():
    code = """if True:
        from scaledsgd import RayEngine

        engines = [RayEngine("local", workers=1) for _ in range(2)]
        assert [len(engine.pool.workers) for engine in engines] == [1, 1]
        for engine in engines:
            engine.close()
        print("closed")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("closed\n"), done.stderr
