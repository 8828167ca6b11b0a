"""From a file of distances to coordinates."""

import csv
import io
import json

import numpy as np
import pytest
from commands import runner, write

from scaledsgd import DistanceCompleter, MatrixCompleter

PLACES = np.random.default_rng(1).random((30, 2)) * 100


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return runner(capsys)


@pytest.fixture
def roads(run) -> str:
    rows = [(f"t{a}", f"t{b}", np.linalg.norm(PLACES[a] - PLACES[b]))
            for a in range(30) for b in range(a) if (a + b) % 2]  # fmt: skip
    return write(rows, ("from", "to", "km"))


def test_distances_that_are_not_squared_give_points_where_the_anchors_say(run, roads):
    fit = "fit", roads, "--kind", "distance", "--unsquared", "--seed", "0", "--out", "m"
    assert run(*fit)[0] == 0
    anchors = write([(f"t{n}", *PLACES[n]) for n in (3, 4, 5)], ("t", "e", "n"), "anchors.csv")
    code, out, _ = run("points", "m", "--anchors", anchors)
    header, *lines = csv.reader(io.StringIO(out))
    assert (code, header) == (0, ["point", "x1", "x2"])
    for name, *place in lines:
        assert np.allclose(np.array(place, float), PLACES[int(name[1:])], atol=1e-3)
    code, out, _ = run("points", "m", "--json")
    free = np.array([[line["x1"], line["x2"]] for line in map(json.loads, out.splitlines())])
    assert np.allclose(free.mean(axis=0), 0, atol=1e-6)


def test_what_is_refused(run, roads):
    assert "goes with --kind distance" in run("fit", roads, "--unsquared", "--out", "m")[2]
    wrong = write([("a", "b", 1.0), ("a", "c", -2.0)], ("from", "to", "km"), "wrong.csv")
    told = run("fit", wrong, "--kind", "distance", "--unsquared", "--out", "m")
    assert told[0] == 2 and "wrong.csv, line 3, column 'km': -2 is not a distance" in told[2]
    assert run("fit", roads, "--rank", "1", "--epochs", "2", "--out", "m")[0] == 0
    assert run("points", "m")[0] == 2


@pytest.mark.filterwarnings("ignore::scaledsgd.UndeterminedWarning")
def test_completers_read_files(run, roads):
    named = {"row": "from", "column": "to", "value": "km"}
    with open(roads, newline="") as file:
        rows = list(csv.DictReader(file))
    table = {name: [row[name] for row in rows] for name in ("from", "to")}
    table["km"] = [float(row["km"]) for row in rows]
    for make in (MatrixCompleter, DistanceCompleter):
        read, given = (make(epochs=3, random_state=0).fit(data, **named) for data in (roads, table))
        read.partial_fit(roads, **named), given.partial_fit(table, **named)
        assert np.array_equal(read.factors.X, given.factors.X)
    with pytest.raises(ValueError, match="name the columns"):
        MatrixCompleter().fit(roads)
