"""What the commands answer."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from commands import FAST, ratings, runner, write

from scaledsgd import load


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return runner(capsys)


@pytest.mark.parametrize("words", [True, False])
def test_fit_predict_evaluate(run, words):
    write(ratings(words))
    code, out, err = run("fit", "a.csv", "--out", "m.model", *FAST, "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "") and facts["rows"] == 8 and facts["mean_loss"] < 1e-12
    write([("u4" if words else 4, 1)], header=("user", "film"), name="asked.csv")
    code, out, err = run("predict", "m.model", "asked.csv")
    (asked,) = csv.DictReader(io.StringIO(out))
    assert (code, err) == (0, "") and list(asked) == ["user", "film", "prediction"]
    assert float(asked["prediction"]) == pytest.approx(10, abs=1e-4)
    code, out, err = run("evaluate", "m.model", "a.csv", "--json")
    assert (code, err) == (0, "") and json.loads(out)["rms_error"] < 1e-5


def test_predict_writes_a_json_object_a_line(run):
    write(ratings())
    run("fit", "a.csv", "--out", "m.model", *FAST)
    _, out, _ = run("predict", "m.model", "a.csv", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == len(ratings())
    assert list(lines[0]) == ["user", "film", "prediction"] and lines[0]["user"] == "u0"


def test_predict_holds_values_within_a_scale(run):
    write(ratings())
    run("fit", "a.csv", "--out", "m.model", *FAST)
    _, out, _ = run("predict", "m.model", "a.csv", "--clip", "2", "4", "--json")
    values = [json.loads(line)["prediction"] for line in out.splitlines()]
    assert min(values) == 2 and max(values) == 4
    code, _, err = run("predict", "m.model", "a.csv", "--clip", "4", "2")
    assert code == 2 and "clip=(4.0, 2.0): low is not below high" in err


def test_columns_by_name_in_any_order(run):
    rows = [(stars, film, "x", user) for user, film, stars in ratings()]
    write(rows, header=("stars", "film", "note", "user"))
    named = ("--row", "user", "--column", "film", "--value", "stars")
    assert run("fit", "a.csv", "--out", "m.model", *FAST, *named)[0] == 0
    assert load("m.model")._ids[0].names()[0] == "u0"
    code, out, _ = run("evaluate", "m.model", "a.csv", *named, "--json")
    assert code == 0 and json.loads(out)["rms_error"] < 1e-5


@pytest.mark.parametrize("name", ["a.mtx", "a.npz", "full.npz"])
def test_matrices_from_files(run, name):
    M = np.outer(np.arange(1.0, 6), np.arange(1.0, 5))
    known = sp.coo_array(np.where(np.add.outer(range(5), range(4)) % 4, M, 0))
    scipy.io.mmwrite("a.mtx", known)
    sp.save_npz("a.npz", known)
    full = known.toarray()
    np.savez("full.npz", M=np.where(full == 0, np.nan, full), other=np.zeros((2, 2)))
    chosen = ("--value", "M") if name == "full.npz" else ()
    assert run("fit", name, "--out", "m.model", *FAST, *chosen)[0] == 0
    code, out, _ = run("evaluate", "m.model", name, *chosen, "--json")
    assert code == 0 and json.loads(out)["rms_error"] < 1e-4
    _, out, _ = run("predict", "m.model", "a.npz")
    assert out.startswith("row,column,prediction\n") and len(out.splitlines()) == known.nnz + 1


def test_distances(run):
    points = np.random.default_rng(0).random((20, 2))
    D = ((points[:, None] - points) ** 2).sum(axis=2)
    write([(i, j, D[i, j]) for i in range(20) for j in range(i) if (i + j) % 3])
    settings = ("--kind", "distance", "--rank", "2", "--epochs", "200", "--seed", "0")
    assert run("fit", "a.csv", "--out", "m.model", *settings)[0] == 0
    _, out, _ = run("evaluate", "m.model", "a.csv", "--json")
    assert json.loads(out)["rms_error"] < 1e-3


def comparisons() -> list[tuple]:
    place, rng = np.arange(12.0), np.random.default_rng(0)
    rows = [tuple(rng.choice(12, 3, replace=False)) for _ in range(3000)]
    near = [(abs(place[i] - place[j]), abs(place[i] - place[k])) for i, j, k in rows]
    named = zip(rows, near, strict=True)
    return [(f"a{i}", f"a{j}", f"a{k}", int(x < y)) for (i, j, k), (x, y) in named if x != y]


@pytest.mark.parametrize("mode", ["item-item", "user-item"])
def test_rankings(run, mode):
    write(comparisons(), header=("i", "j", "k", "nearer"))
    settings = ("--kind", "ranking", "--mode", mode, "--rank", "3", "--epochs", "20", "--seed", "0")
    assert run("fit", "a.csv", "--out", "m.model", *settings)[0] == 0
    _, out, _ = run("evaluate", "m.model", "a.csv", "--json")
    assert json.loads(out)["auc"] > 0.9
    write([(*row[:3],) if row[3] else (row[0], row[2], row[1]) for row in comparisons()],
          header=("i", "j", "k"), name="true.csv")  # fmt: skip
    code, out, _ = run("evaluate", "m.model", "true.csv", "--json")
    assert code == 0 and json.loads(out)["auc"] > 0.9
    _, out, _ = run("predict", "m.model", "true.csv")
    shares = [float(row["prediction"]) for row in csv.DictReader(io.StringIO(out))]
    assert 0 <= min(shares) <= max(shares) <= 1 and np.mean(np.array(shares) > 0.5) > 0.9


def test_bits(run):
    signs = np.outer(np.tile([1, -1], 10), np.tile([1, 1, -1], 6))
    write([(i, j, int(signs[i, j] > 0)) for i in range(20) for j in range(18) if (i + j) % 4])
    run("fit", "a.csv", "--out", "m.model", "--loss", "logistic", *FAST)
    code, out, _ = run("evaluate", "m.model", "a.csv", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["accuracy"] > 0.95 and facts["auc"] > 0.95
    _, out, _ = run("predict", "m.model", "a.csv")
    shares = [float(row["prediction"]) for row in csv.DictReader(io.StringIO(out))]
    assert 0 <= min(shares) <= max(shares) <= 1


def test_unknown_ids_can_be_left_out(run):
    write(ratings())
    run("fit", "a.csv", "--out", "m.model", *FAST)
    write([("u1", 2, 6.0), ("nobody", 2, 1.0), ("u1", 99, 1.0)], name="b.csv")
    code, out, err = run("predict", "m.model", "b.csv", "--skip-unknown")
    assert code == 0 and len(out.splitlines()) == 2 and err.count("\n") == 1 and "2" in err
    _, out, _ = run("evaluate", "m.model", "b.csv", "--skip-unknown", "--json")
    facts = json.loads(out)
    assert facts["skipped"] == 2 and facts["observations"] == 1


def test_ids_of_words_stay_words_when_a_file_has_only_numbers(run):
    write([(str(i), j, 1.0) for i in range(4) for j in "ab"] + [("x", "a", 1.0)])
    run("fit", "a.csv", "--out", "m.model", *FAST)
    write([("2", "a")], header=("user", "film"), name="b.csv")
    code, out, _ = run("predict", "m.model", "b.csv")
    assert code == 0 and out.splitlines()[1].startswith("2,a,")


def test_ids_that_are_numbers_stay_numbers_when_a_file_has_words(run):
    write(ratings(words=False))
    run("fit", "a.csv", "--out", "m.model", *FAST)
    write([(2, 1), ("x", 1)], header=("user", "film"), name="b.csv")
    code, out, _ = run("predict", "m.model", "b.csv", "--skip-unknown")
    assert code == 0 and out.splitlines()[1].startswith("2,1,") and len(out.splitlines()) == 2
    _, _, err = run("predict", "m.model", "b.csv")
    assert "line 3, column 'user': 'x' was never seen" in err


def test_settings_reach_the_model(run):
    write(ratings())
    given = (
        "--rank", "2", "--epochs", "3", "--learning-rate", "0.01", "--damping", "0.5", "--plain",
        "--refresh", "sample", "--jobs", "2", "--dtype", "float32", "--seed", "7",
    )  # fmt: skip
    assert run("fit", "a.csv", "--out", "m.model", *given)[0] == 0
    settings = load("m.model").get_params()
    expected = {
        "rank": 2, "epochs": 3, "learning_rate": 0.01, "damping": 0.5, "scaled": False,
        "refresh": "sample", "n_jobs": 2, "dtype": "float32", "random_state": 7,
    }  # fmt: skip
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize("command", ["fit a.csv --out m", "stream m --from a.csv", "bench speed"])
def test_all_cores_or_a_number_of_them(run, monkeypatch, command):
    code, _, err = run(*command.split(), "--jobs", "0")
    assert code == 2 and "0 is not a whole number from 1 up, or -1 for all cores" in err
    if command.startswith("fit"):
        write(ratings())
        monkeypatch.setattr("scaledsgd.core.memory.cores", lambda: 3)
        assert run(*command.split(), *FAST, "--jobs", "-1")[0] == 0
        assert load("m").n_jobs == 3  # what it was here: a result depends on it


def test_the_same_seed_gives_the_same_model(run):
    write(ratings())
    for name in ("m.model", "n.model"):
        run("fit", "a.csv", "--out", name, *FAST)
    assert np.array_equal(load("m.model").factors.X, load("n.model").factors.X)


def test_duplicates_are_observations(run):
    write([("a", "b", 1.0), ("a", "b", 3.0), ("c", "b", 2.0)])
    code, _, _ = run("fit", "a.csv", "--out", "m.model", *FAST)
    assert code == 0
    _, out, _ = run("evaluate", "m.model", "a.csv", "--json")
    assert json.loads(out)["observations"] == 3


@pytest.mark.slow
def test_doctor(run):
    code, out, _ = run("doctor", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["automatic device"] and facts["threads"]
    assert len(facts["samples_per_second"]) == 4
    assert min(facts["samples_per_second"].values()) > 0
    code, out, _ = run("doctor")
    assert code == 0 and "squared, rank 16" in out and max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_a_reader_that_stops_early_gets_no_traceback(run):
    write(ratings(), name="a.csv")
    run("fit", "a.csv", "--out", "m.model", *FAST)
    write(1000 * [("u1", 1, 1.0)], name="many.csv")
    call = "import sys; from scaledsgd.cli.main import main; sys.exit(main())"
    job = subprocess.Popen(
        [sys.executable, "-c", call, "predict", "m.model", "many.csv"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    job.stdout.close()
    assert job.stderr.read() == b"" and job.wait() == 1
