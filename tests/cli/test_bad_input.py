"""Bad input on the command line costs one line that names the place, and changes nothing."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from commands import FAST, ratings, runner, write

import scaledsgd
from scaledsgd import MatrixCompleter, Recommender
from scaledsgd.io.readers import ArrayFile


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return runner(capsys)


def snapshot() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def refused(run, message: str, *arguments: str) -> None:
    before = snapshot()
    code, out, err = run(*arguments)
    assert message in err
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert snapshot() == before


SQUARE = ("--kind", "matrix", "--symmetric", "--rank", "1")
GOOD = "user,film,stars\n1,2,3\n2,1,3\n"

BAD_TABLES = {
    "empty file": ("", (), "a.csv: the file is empty"),
    "no rows": ("user,film,stars\n", (), "a.csv: no observations"),
    "nan": ("user,film,stars\n1,2,3\n1,3,nan\n", (), "a.csv, line 3: target nan"),
    "inf": ("user,film,stars\n1,2,inf\n", (), "a.csv, line 2: target inf"),
    "bad number": ("user,film,stars\n1,2,x\n", (), "a.csv, line 2, column 'stars': 'x'"),
    "negative id": ("user,film,stars\n-1,2,3\n", (), "a.csv, line 2, column 'user': id -1"),
    "fractional id": ("user,film,stars\n1,2.5,3\n", (), "a.csv, line 2, column 'film': id 2.5"),
    "huge id": (f"user,film,stars\n{2**64},2,3\n", (), f"column 'user': id {2**64}"),
    "rank 0": (GOOD, ("--rank", "0"), "rank=0"),
    "rank too large": (GOOD, ("--rank", "9"), "rank=9"),
    "rank in words": (GOOD, ("--rank", "two"), "'two'"),
    "asymmetric": ("user,film,stars\n1,2,3\n2,1,4\n", SQUARE, "a.csv: not symmetric"),
    "mixed ids": ("user,film,stars\n1,a,3\n2,b,4\n", SQUARE, "'a' is not of the type of 1"),
    "negative distance": (
        "user,film,stars\n1,2,3\n1,3,-4\n", ("--kind", "distance"), "a.csv, line 3: target -4.0"),
    "no probability": (
        "user,film,stars\n1,2,1.5\n", ("--loss", "logistic"), "a.csv, line 2: target 1.5"),
    "j = k": ("i,j,k\n1,2,3\n5,6,6\n", ("--kind", "ranking"), "a.csv, line 3: a triplet compares"),
    "unknown column": (GOOD, ("--row", "nope"), "no column 'nope': the file has user, film, stars"),
    "ragged": ("user,film,stars\n1,2\n", (), "a.csv, line 2: 2 fields"),
    "no header": ("1,2,3\n4,5,6\n", (), "a.csv, line 1: '1' is a number"),
    "a column without a name": ("user,,stars\n1,2,3\n", (), "column 2, of column, has no name"),
    "a column twice": (GOOD, ("--value", "user"), "column 'user' is used twice"),
    "columns of another kind": (GOOD, ("--i", "user"), "--i"),
    "loss of another kind": (GOOD, ("--kind", "distance", "--loss", "logistic"), "--loss"),
    "unknown kind": (GOOD, ("--kind", "cube"), "'cube'"),
    "learning rate": (GOOD, ("--rank", "1", "--learning-rate", "-1"), "learning_rate=-1.0"),
    "no folder": (GOOD, ("--out", "nowhere/m.model"), "nowhere/m.model: cannot be written"),
    "unknown option": (GOOD, ("--frobnicate",), "--frobnicate"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables(run, name):
    content, options, message = BAD_TABLES[name]
    Path("a.csv").write_text(content)
    Path("m.model").write_text("what was there before")
    refused(run, message, "fit", "a.csv", "--out", "m.model", "--force", *options)


def test_nothing_but_a_model_is_replaced(run):
    Path("a.csv").write_text(GOOD)
    Path("same.csv").hardlink_to("a.csv")
    Path("link").symlink_to("a.csv")
    for out in ("a.csv", "./a.csv", "same.csv", "link"):
        refused(run, "is one of the inputs", "fit", "a.csv", "--out", out, "--force", "--rank", "1")
    Path("notes.txt").write_text("dear diary")
    fit = ("fit", "a.csv", "--out", "notes.txt", "--rank", "1")
    refused(run, "notes.txt: a file that is no model is there: --force", *fit)
    refused(run, "a.csv: is one of the inputs", "stream", "m", "--from", "a.csv", "--out", "a.csv")
    assert run(*fit, "--force")[0] == 0
    assert run(*fit)[0] == 0  # now it is one


def test_a_small_file_does_not_take_all_memory(run):
    Path("a.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n100000000 100000000 1\n1 1 1\n"
    )
    limit = "more than the 0.5 GB that may be taken: --max-memory raises that"
    fit = ("fit", "a.mtx", "--out", "m", "--rank", "1", "--max-memory", "500M")
    refused(
        run, f"a model of 100000000 x 100000000 at rank 1 takes 4.8 GB of memory, {limit}", *fit
    )
    Path("a.mtx").write_text("%%MatrixMarket matrix array real general\n40000 40000\n" + "1\n" * 9)
    refused(run, "a.mtx: cannot be read (18 bytes cannot hold 1600000000 entries)", *fit)
    np.savez_compressed("a.npz", i=np.zeros(10**8, np.int8), j=np.arange(3), y=np.zeros(3))
    refused(run, "a.npz: i takes", "fit", "a.npz", "--out", "m", "--max-memory", "100M")
    refused(run, "'much' is not a size", "fit", "a.npz", "--out", "m", "--max-memory", "much")
    wanted = ("--row", "j", "--column", "k", "--value", "y", "--rank", "1", "--epochs", "1")
    np.savez_compressed("a.npz", i=np.zeros(10**8, np.int8), j=range(3), k=range(3), y=[1, 2, 3])
    assert run("fit", "a.npz", "--out", "m", "--max-memory", "100M", *wanted)[0] == 0


def entries(values, rows, columns, shape=(3, 3)):
    return lambda: sp.save_npz("a.npz", sp.coo_array((values, (rows, columns)), shape=shape))


def columns_of(**arrays):
    return lambda: np.savez("a.npz", **arrays)


BAD_MATRICES = {
    "nan": (entries([1.0, np.nan], [0, 2], [1, 2]), (), "a.npz, row 2, column 2: target nan"),
    "inf": (entries([1.0, np.inf], [0, 2], [1, 2]), (), "inf"),
    "not square": (entries([1.0], [0], [1], (3, 4)), ("--symmetric",), "this one is 3 x 4"),
    "asymmetric": (
        entries([1.0, 2.0], [0, 1], [1, 0]), ("--symmetric",), "entry (0, 1) is 1.0"),
    "negative distance": (
        entries([1.0, -2.0], [0, 2], [1, 0]), ("--kind", "distance"),
        "a.npz, row 2, column 0: target -2.0"),
    "nothing known": (
        columns_of(M=np.full((2, 2), np.nan)), (), "nothing is known of the (2, 2) matrix"),
    "nothing to rank": (entries([1.0], [0], [1]), ("--kind", "ranking"), "of 1 items wanted, 0"),
    "nan to rank": (
        entries([1.0, np.nan], [0, 2], [1, 2]), ("--kind", "ranking"),
        "a.npz, row 2, column 2: value nan"),
    "names for a matrix": (entries([1.0], [0], [1]), ("--row", "user"), "--row user"),
    "negative id": (
        columns_of(i=[0, -1], j=[0, 1], y=[1.0, 2.0]), (), "a.npz, row 2, column 'i': id -1"),
    "fractional id": (
        columns_of(i=[0, 1.5], j=[0, 1], y=[1.0, 2.0]), (), "a.npz, row 2, column 'i': id 1.5"),
    "different lengths": (columns_of(i=[0], j=[0, 1], y=[1.0]), (), "i 1, j 2, y 1"),
    "damaged": (lambda: Path("a.npz").write_bytes(b"PK"), (), "a.npz: cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_MATRICES)
def test_bad_matrices(run, name):
    make, options, message = BAD_MATRICES[name]
    make()
    refused(run, message, "fit", "a.npz", "--out", "m.model", "--rank", "1", *options)


def test_files_that_are_not_there(run):
    refused(run, "nowhere.csv: cannot be read", "fit", "nowhere.csv", "--out", "m.model")
    refused(run, "nowhere.model: no such model file", "predict", "nowhere.model", "a.csv")


BAD_QUESTIONS = {
    "unknown id": ("user,film,stars\nu1,1,2\nnobody,1,2\n", "line 3, column 'user': 'nobody'"),
    "unknown number": ("user,film,stars\nu1,77,2\n", "line 2, column 'film': 77"),
    "nan": ("user,film,stars\nu1,1,nan\n", "b.csv, line 2: target nan"),
    "empty": ("user,film,stars\n", "b.csv: no observations"),
    "too few columns": ("user\nu1\n", "b.csv: 3 columns are needed, the file has user"),
}


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_bad_questions(run, name):
    content, message = BAD_QUESTIONS[name]
    write(ratings())
    run("fit", "a.csv", "--out", "m.model", *FAST)
    Path("b.csv").write_text(content)
    refused(run, message, "evaluate", "m.model", "b.csv")


def test_a_matrix_is_no_question_to_a_model_with_ids(run):
    write(ratings())
    run("fit", "a.csv", "--out", "m.model", *FAST)
    sp.save_npz("b.npz", sp.coo_array(np.eye(3)))
    refused(run, "b.npz: holds a matrix, and the model knows", "predict", "m.model", "b.npz")


def test_damaged_models(run):
    MatrixCompleter(rank=1, epochs=1, random_state=0).fit(np.ones((3, 3))).save("m.model")
    whole = Path("m.model").read_bytes()
    write([(0, 1)], header=("row", "column"))
    for cut in (0, 7, 100, len(whole) - 1):
        Path("m.model").write_bytes(whole[:cut])
        refused(run, "m.model: damaged or not a model", "predict", "m.model", "a.csv")


def test_divergence_is_told_and_nothing_is_written(run):
    write(ratings())
    code, out, err = run("fit", "a.csv", "--out", "m.model", *FAST, "--learning-rate", "1e6")
    assert (code, out, err.count("\n")) == (1, "", 1) and "diverged in epoch" in err
    assert not Path("m.model").exists()


def test_texts_of_strangers_do_not_reach_the_terminal(run, monkeypatch, capsys):
    bad = "\x1b[2J\x9b2J"
    titles = f'id,title\n1,"{bad}Heat"\n2,Alien\n3,Go\n'
    Path("titles.csv").write_text(titles)
    rows = [(f"u{n}{bad}", 1 + (n + k) % 3) for n in range(6) for k in range(2)]
    write(rows, header=("user", "item"))
    fit = ("fit", "a.csv", "--out", "m", "--user", "user", "--item", "item", "--rank", "1")
    assert run(*fit)[0] == 0
    asked = (
        ("similar", "m", "1", "--titles", "titles.csv", "-k", "2"),
        ("recommend", "m", f"u0{bad}"),
    )
    for terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", [bool, lambda: True][terminal], raising=False)
        for words in (*asked, ("recommend", "m", bad), ("similar", "m", bad)):
            code, out, err = run(*words)
            assert code == (0 if words in asked else 2)
            out = re.sub(r"\x1b\[[01]m", "", out)  # ours: bold, and no longer
            assert not set("\x1b\x9b") & set(out + err), words


@pytest.mark.parametrize("items", ["1\r2", "x" * 200_000, "", "\n"])
def test_lists_of_items_that_are_none(run, items):
    write([(n, n % 4) for n in range(8)] + [(n, (n + 1) % 4) for n in range(8)], ("user", "item"))
    run("fit", "a.csv", "--out", "m", "--user", "user", "--item", "item", "--rank", "1")
    code, out, err = run("recommend", "m", "--items", items)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert len(err) < 300


def test_an_overflow_is_not_a_divergence(run, monkeypatch):
    def overflow(*_):
        raise OverflowError("int too large")

    monkeypatch.setattr("scaledsgd.cli.tasks.open_file", overflow)
    monkeypatch.setattr("scaledsgd.io.readers.open_file", overflow)
    refused(run, "int too large", "fit", "a.csv", "--out", "m")


def test_whatever_takes_long_says_so(run, monkeypatch):
    """In a pipe: reading, asking, searching. On a terminal there is a line that goes again."""
    write(ratings())
    run("fit", "a.csv", "--out", "m", *FAST)
    events = {"u": [n % 8 for n in range(40)], "i": [n % 5 for n in range(40)]}
    Recommender(1, random_state=0).partial_fit(events, user="u", item="i").save("r")
    sp.save_npz("b.npz", sp.coo_array(np.ones((4, 4))))
    load, matrix = scaledsgd.load, ArrayFile.matrix
    monkeypatch.setattr("scaledsgd.io.progress_bar.EVERY", 0.05)
    monkeypatch.setattr("scaledsgd.load", lambda path: (time.sleep(0.2), load(path))[1])
    monkeypatch.setattr(ArrayFile, "matrix", lambda *a: (time.sleep(0.2), matrix(*a))[1])
    for words, told in (
        (("predict", "m", "a.csv"), "predicting, 0 s"),
        (("evaluate", "m", "a.csv"), "evaluating, 0 s"),
        (("similar", "r", "1"), "loading r, 0 s"),
        (("fit", "b.npz", "--out", "n", "--rank", "1", "--epochs", "1"), "reading b.npz, 0 s"),
    ):
        code, _, err = run(*words)
        assert (code, told in err.splitlines()) == (0, True), words
        assert run(*words, "--quiet")[2] == ""
