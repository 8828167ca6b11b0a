"""Who chose what, from files as people have them: fit, evaluate, recommend, explain and stream."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import runner, write
from rated import two_kinds

from scaledsgd import Recommender, load

FIT = (
    "fit", "a.csv", "--user", "who", "--item", "what", "--out", "m.model", "--rank", "4",
    "--seed", "0",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> bytes:
    """A model of the table, as its file."""
    path = tmp_path_factory.mktemp("model") / "m.model"
    model = Recommender(rank=4, random_state=0)
    model.fit(two_kinds(), user="who", item="what").save(path)
    return path.read_bytes()


@pytest.fixture
def run(capsys, tmp_path, monkeypatch, trained):
    monkeypatch.chdir(tmp_path)
    table = two_kinds()
    write(zip(*table.values(), strict=True), header=tuple(table))
    Path("m.model").write_bytes(trained)
    return runner(capsys)


def items(out: str) -> list:
    return [row["item"] for row in json.loads(out)]


def test_fit_tells_what_it_found(run):
    code, out, _ = run(*FIT, "--json")
    facts, model = json.loads(out), load("m.model")
    assert code == 0 and facts["kind"] == "Recommender"
    pairs = set(zip(*list(two_kinds().values())[:2], strict=True))
    assert (facts["users"], facts["items"], facts["choices"]) == (60, 24, len(pairs))
    assert facts["loss"] == model.policy_.loss
    ndcg, recall = model.measures_[facts["loss"]]
    assert facts["ndcg@20"] == pytest.approx(ndcg, abs=1e-4)
    assert facts["recall@20"] == pytest.approx(recall, abs=1e-4)
    popular = model.measures_["popularity"][0]
    assert facts["popularity_ndcg@20"] == pytest.approx(popular, abs=1e-4)
    assert {"ridge", "epochs", "seconds"} <= facts.keys()


@pytest.mark.parametrize("loss", ["squared", "softmax", "bpr"])
def test_every_loss_of_choices_can_be_asked_for(run, loss):
    code, _, _ = run(*FIT, "--loss", loss, "--epochs", "2")
    assert code == 0 and load("m.model").loss == loss


def test_values_choose_and_weights_weigh(run):
    stars = two_kinds()["stars"]
    code, out, _ = run(*FIT, "--value", "stars", "--at-least", "4", "--json", "--loss", "squared")
    assert code == 0 and 0 < json.loads(out)["choices"] <= (stars >= 4).sum()
    kept = load("m.model").histories.of(np.arange(60))[2]
    assert set(kept) == {1}  # a value is no weight
    run(*FIT, "--weight", "stars", "--loss", "squared")
    assert len(set(load("m.model").histories.of(np.arange(60))[2])) > 1


def test_recommend_among_candidates(run):
    model = load("m.model")
    code, out, _ = run("recommend", "m.model", "u3", "-k", "3")
    assert code == 0 and items(out) == model.recommend("u3", 3)[0].tolist()
    wanted = ["red1", "red2", "blue1", "blue2", "blue3"]
    Path("c.txt").write_text("\n".join(wanted))  # no header
    write([("red1",), ("blue2",)], header=("item",), name="x.csv")
    code, out, _ = run("recommend", "m.model", "u3", "--candidates", "c.txt", "--seen")
    assert code == 0 and set(items(out)) == set(wanted)
    code, out, _ = run(
        "recommend", "m.model", "u3", "--candidates", "c.txt", "--exclude", "x.csv", "--seen"
    )
    assert code == 0 and set(items(out)) == {"red2", "blue1", "blue3"}
    code, out, _ = run("recommend", "m.model", "--items", "red3, red4", "-k", "3")
    assert code == 0 and items(out) == model.recommend(items=["red3", "red4"], k=3)[0].tolist()
    code, out, _ = run("similar", "m.model", "red3", "-k", "2")
    assert code == 0 and items(out) == model.similar("red3", 2)[0].tolist()


def test_reasons_add_up(run):
    write([("red3", "Rouge"), ("blue1", "Bleu")], header=("id", "title"), name="t.csv")
    code, out, _ = run("explain", "m.model", "u0", "rouge", "--titles", "t.csv", "-k", "99")
    rows, model = json.loads(out), load("m.model")
    assert code == 0 and sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["item"] for row in rows] == model.explain("u0", "red3")[0].tolist()
    assert {row["title"] for row in rows} <= {"", "Rouge", "Bleu"}


def later() -> list[tuple[str, str, int]]:
    """An item for each user that she has not had, with stars."""
    had = set(zip(*list(two_kinds().values())[:2], strict=True))
    all_items = [f"{kind}{n}" for kind in ("red", "blue") for n in range(12)]
    return [
        (f"u{n}", next(one for one in all_items if (f"u{n}", one) not in had), 1 + n % 5)
        for n in range(60)
    ]


def test_evaluate_finds_its_columns(run):
    rows = later()
    write([(stars, what, who) for who, what, stars in rows], header=("stars", "what", "who"),
          name="later.csv")  # fmt: skip
    code, out, _ = run("evaluate", "m.model", "later.csv", "--k", "5", "--json")
    table = {"who": [row[0] for row in rows], "what": [row[1] for row in rows]}
    assert code == 0 and json.loads(out) == load("m.model").evaluate(table, k=5)
    rated = ("--value", "stars", "--at-least", "4", "--json")
    _, out, _ = run("evaluate", "m.model", "later.csv", *rated)
    assert json.loads(out)["users"] == sum(row[2] >= 4 for row in rows)


@pytest.mark.parametrize(("ending", "mark"), [("csv", ";"), ("dat", "::"), ("inter", "\t")])
def test_streams_of_choices(run, ending, mark):
    typed = ("user_id:token", "item_id:token", "rating:float")
    header = {"csv": [("who", "what", "stars")], "dat": [], "inter": [typed]}[ending]
    rows = [(int(u[1:]), w, 1) for u, w, _ in zip(*two_kinds().values(), strict=True)]
    if ending == "dat":  # numbers alone, and no header
        rows = [(user, what[-1], 1) for user, what, _ in rows]
    lines = [mark.join(map(str, line)) + "\n" for line in [*header, *rows]]
    Path(f"a.{ending}").write_text("".join(lines))
    names = {"csv": ("who", "what", "stars"), "dat": ("1", "2", "3"),
             "inter": ("user_id", "item_id", "rating")}[ending]  # fmt: skip
    columns = [text for pair in zip(("--user", "--item", "--weight"), names, strict=True)
               for text in pair]  # fmt: skip
    new = ("--new", "recommender", "--rank", "2", "--json")
    code, out, _ = run("stream", "s.model", "--from", f"a.{ending}", *new, *columns)
    told = json.loads(out.splitlines()[-1])
    assert code == 0 and (told["events"], told["refused"], told["rows"]) == (len(rows), 0, 60)
    assert len(load("s.model").recommend(3, 2)[0]) == 2
    code, _, err = run("evaluate", "s.model", f"a.{ending}")  # its columns were found
    assert code == 2 and f"a.{ending}: nothing to evaluate" in err


def table_with(weight: str) -> str:
    return f"who,what,w,when\nann,tea,2,9\nbob,tea,{weight},5\nbob,rye,1,1\n"


WEIGHED = ("--user", "who", "--item", "what", "--weight", "w", "--time", "when")
BAD_TABLES = {
    "weight 0": (table_with("0"), WEIGHED, "b.csv, line 3, column 'w': weight 0 is not"),
    "negative weight": (table_with("-1"), WEIGHED, "b.csv, line 3, column 'w': weight -1"),
    "no weight": (table_with("nan"), WEIGHED, "b.csv, line 3, column 'w': weight nan"),
    "endless weight": (table_with("inf"), WEIGHED, "b.csv, line 3, column 'w': weight inf"),
    "separator": (table_with("1"), (*WEIGHED, "--separator", "#"), "--separator '#': not one of"),
    "encoding": (table_with("1"), (*WEIGHED, "--encoding", "runes"), "--encoding 'runes': not an"),
    "latin-1": (
        "who,what\nann,caf\xe9\n", WEIGHED[:4],
        "b.csv, line 2: byte 0xe9 is not UTF-8: --encoding latin-1 may help"),
    "another separator": (table_with("1"), (*WEIGHED, "--separator", ";"), "no column 'who'"),
    "half-life without time": (
        table_with("1"), (*WEIGHED[:4], "--half-life", "30d"), "--half-life: needs"),
    "half-life": (table_with("1"), (*WEIGHED, "--half-life", "30x"), "half_life='30x'"),
    "value alone": (table_with("1"), (*WEIGHED[:4], "--value", "w"), "--at-least X, or give --we"),
    "at-least alone": (table_with("1"), (*WEIGHED[:4], "--at-least", "4"), "Give --value NAME"),
    "nothing that good": (
        table_with("1"), (*WEIGHED[:4], "--value", "w", "--at-least", "4"), "no w is 4 or more"),
    "loss": (table_with("1"), (*WEIGHED, "--loss", "logistic"), "loss='logistic'"),
    "setting of another kind": (
        table_with("1"), (*WEIGHED, "--mode", "user-item"), "--mode: a recommender has no such"),
    "no choices": ("who,what\n", WEIGHED[:4], "b.csv: no observations"),
    "one column": ("who\nann\n", ("--kind", "recommender"), "2 columns are needed"),
}  # fmt: skip


def refused(run, message: str, *arguments: str) -> None:
    before = Path("m.model").read_bytes()
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err
    assert Path("m.model").read_bytes() == before


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables(run, name):
    content, options, message = BAD_TABLES[name]
    Path("b.csv").write_bytes(content.encode("latin-1"))
    refused(run, message, "fit", "b.csv", "--out", "m.model", "--rank", "1", *options)


BAD_QUESTIONS = {
    "unknown user": (("recommend", "m.model", "nobody"), "user 'nobody' was never seen"),
    "nobody to explain": (("explain", "m.model", "nobody", "red1"), "user 'nobody' was never"),
    "nothing to explain": (("explain", "m.model", "u1", "green"), "'green' is no id of an item"),
    "k": (("recommend", "m.model", "u1", "-k", "25"), "k=25 is not a whole number from 1 to"),
    "k of similar": (("similar", "m.model", "red1", "-k", "25"), "k=25"),
    "k of candidates": (
        ("recommend", "m.model", "u1", "--candidates", "two.csv", "-k", "3"), "the 2 items"),
    "no candidates": (("recommend", "m.model", "u1", "--candidates", "none.csv"), "none.csv: no i"),
    "empty file": (("recommend", "m.model", "u1", "--candidates", "empty.csv"), "empty.csv: the f"),
    "unknown candidate": (
        ("recommend", "m.model", "u1", "--exclude", "green.csv"),
        "green.csv, line 3, column 'item': item 'green' was never seen"),
    "nothing left": (
        ("recommend", "m.model", "u1", "--candidates", "two.csv", "--exclude", "two.csv"),
        "no items to recommend"),
    "by": (("similar", "m.model", "red1", "--by", "score"), "--by: this model, of kind Rec"),
    "k of evaluate": (("evaluate", "m.model", "a.csv", "--k", "what"), "--k what: not a whole"),
    "other columns": (("evaluate", "m.model", "two.csv"), "two.csv: no column 'who'"),
    "nothing new": (("evaluate", "m.model", "a.csv"), "a.csv: nothing to evaluate"),
    "predictions": (("predict", "m.model", "a.csv"), "predicts no values"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_bad_questions(run, name):
    for file, rows in (("two", ["red1", "red2"]), ("none", []), ("green", ["red1", "green"])):
        write([(row,) for row in rows], header=("item",), name=f"{file}.csv")
    Path("empty.csv").touch()
    arguments, message = BAD_QUESTIONS[name]
    refused(run, message, *arguments)


def test_unknown_candidates_can_be_left_out(run):
    write([("red1",), ("green",)], header=("item",), name="c.csv")
    asked = ("recommend", "m.model", "u1", "--candidates", "c.csv", "--seen", "--skip-unknown")
    code, out, _ = run(*asked)
    assert code == 0 and items(out) == ["red1"]


def test_quiet_and_the_lines_of_a_pipe(run, monkeypatch):
    monkeypatch.setattr("scaledsgd.io.progress_bar.EVERY", 0.01)
    code, out, err = run(*FIT, "--json")
    assert code == 0 and "fitting" in err and json.loads(out)
    code, out, err = run(*FIT, "--json", "--quiet")
    assert (code, err) == (0, "") and json.loads(out)
