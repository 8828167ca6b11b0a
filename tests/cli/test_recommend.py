"""Ratings in, similar items and recommendations out, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import runner, write
from rated import two_kinds

from scaledsgd import load


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = two_kinds()
    write(zip(*table.values(), strict=True), header=tuple(table))
    titles = [
        (name, f"The {name.title()} ({1990 + at})")
        for at, name in enumerate(sorted(set(table["what"])))
    ]
    write([*titles, ("green", "Never Seen (2000)")], header=("id", "title"), name="titles.csv")
    return runner(capsys)


FIT = (
    "fit", "a.csv", "--kind", "ranking", "--user", "who", "--item", "what",
    "--value", "stars", "--out", "m.model", "--rank", "4", "--seed", "0",
)  # fmt: skip


def test_ratings_in_answers_out(run):
    code, out, _ = run(*FIT, "--json", "--similarity", "jaccard", "--comparisons", "3000")
    facts = json.loads(out)
    assert code == 0 and facts["kind"] == "ItemRanker" and 0.5 < facts["test_auc"] < 1
    model = load("m.model")
    assert (model.similarity, model.comparisons) == ("jaccard", 3000)
    code, out, _ = run("similar", "m.model", "the red3", "--titles", "titles.csv", "-k", "4")
    rows = json.loads(out)
    assert code == 0 and [row["item"] for row in rows] == model.similar("red3", 4)[0].tolist()
    assert rows[0]["title"].startswith(f"The {rows[0]['item'].title()} (")
    code, out, _ = run("recommend", "m.model", "u3", "-k", "3", "--json")
    assert code == 0
    assert [row["item"] for row in json.loads(out)] == model.recommend(user="u3", k=3)[0].tolist()
    code, out, _ = run("recommend", "m.model", "--items", "red3, blue4", "-k", "3")
    assert code == 0
    assert [r["item"] for r in json.loads(out)] == model.recommend(["red3", "blue4"], 3)[0].tolist()


def test_what_users_chose_later_is_found_among_all_items(run):
    """Against the places that recommend gives them, counted here."""
    run(*FIT)
    model, table = load("m.model"), two_kinds()
    had = set(zip(table["who"], table["what"], strict=True))
    later = [("u0", "red"), ("u1", "blue"), ("u2", "red"), ("u3", "red")]
    later = [
        (who, next(f"{kind}{n}" for n in range(12) if (who, f"{kind}{n}") not in had))
        for who, kind in later
    ]
    write([*later, ("nobody", "red0"), ("u0", "green")], header=("who", "what"), name="later.csv")
    code, out, _ = run(
        "evaluate", "m.model", "later.csv", "--user", "who", "--item", "what", "--json"
    )
    found = json.loads(out)
    assert code == 0 and found["users"] == 4 and found["left_out"] == 2
    places = [model.recommend(user=who, k=24)[0].tolist().index(what) for who, what in later]
    assert found["mrr"] == pytest.approx(sum(1 / (1 + p) for p in places) / 4)
    assert found["recall@10"] == pytest.approx(sum(p < 10 for p in places) / 4)

    code, _, told = run("evaluate", "m.model", "a.csv", "--user", "who", "--item", "what")
    assert code == 2 and "leakage: item" in told and told.count("\n") == 1
    code, _, told = run("evaluate", "m.model", "a.csv", "--user", "who")
    assert code == 2 and "belong together" in told


def test_a_terminal_shows_a_table(run, monkeypatch):
    run(*FIT)
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _, out, _ = run("similar", "m.model", "red3", "--titles", "titles.csv", "-k", "4")
    lines = out.splitlines()
    assert lines[0].startswith("Similar to The Red3 (") and "title" in out and "[" not in out
    assert max(map(len, lines)) <= 80


BAD_COMMANDS = {
    "unknown item": (("similar", "m.model", "green"), "'green' is no id of an item"),
    "near title": (("similar", "m.model", "The Rod3", "--titles", "titles.csv"), "The Red3"),
    "middle of a title": (("similar", "m.model", "ed3 (", "--titles", "titles.csv"), "The Red3"),
    "many titles": (("similar", "m.model", "the red", "--titles", "titles.csv"), "any of 12 items"),
    "a title never rated": (
        ("similar", "m.model", "never seen", "--titles", "titles.csv"), "is item green, which was"),
    "k": (("similar", "m.model", "red1", "-k", "-1"), "k=-1"),
    "unknown user": (("recommend", "m.model", "nobody"), "user 'nobody' was never seen"),
    "nobody": (("recommend", "m.model"), "a user or --items"),
    "item alone": (("fit", "a.csv", "--item", "what", "--out", "n.model"), "--user"),
    "no column": ((*FIT, "--time", "when"), "no column 'when'"),
    "another kind": ((*FIT, "--kind", "matrix"), "--kind recommender or --kind r"),
    "other columns": ((*FIT, "--row", "who"), "--row: the columns of this kind are user, item"),
    "candidates": (
        ("recommend", "m.model", "u1", "--candidates", "titles.csv", "--skip-unknown"),
        "--candidates: this model, of kind ItemRanker"),
    "bad similarity": ((*FIT, "--similarity", "pearson"), "'pearson'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_bad_commands(run, name):
    arguments, message = BAD_COMMANDS[name]
    run(*FIT)
    before = Path("m.model").read_bytes()
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err
    assert Path("m.model").read_bytes() == before and not Path("n.model").exists()


def test_a_rating_that_is_no_number_is_found(run):
    with open("a.csv", "a") as file:
        file.write("u1,red1,nan\n")
    code, _, err = run(*FIT)
    assert code == 2 and f"a.csv, line {len(two_kinds()['who']) + 2}: value nan" in err


def test_other_models_rank_nothing(run):
    run("fit", "a.csv", "--row", "who", "--column", "what", "--out", "m.model", "--rank", "1")
    code, _, err = run("similar", "m.model", "red1")
    assert code == 2 and "MatrixCompleter ranks no items" in err
