"""Command lines that nobody should type: an exit code, a line on stderr, and no file harmed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import warnings
from functools import cache
from pathlib import Path

import files
import models
import numpy as np
import typer.main
from streams import write

from scaledsgd import ItemRanker, MatrixCompleter, Recommender
from scaledsgd.cli.main import main

typer.main.get_command = cache(typer.main.get_command)  # four fifths of what a try would cost

NUMBERS = ("0", "1", "2", "3", "5", "-1", "1.5", "nan", "inf", "1e309", "x", "", "1_0",
    "99999999999",
           "auto", "\uff12")  # fmt: skip
NAMES = ("user", "item", "value", "time", "row", "column", "nope", "", "1", "i", "\x1b[2J")
FILES = ("good.csv", "good.jsonl", "good.parquet", "good.npz", "good.mtx", "events.csv",
    "comparisons.csv",
         "odd", "nowhere.csv", ".", "", "matrix.model", "/dev/null", "-", "*.parquet")  # fmt: skip
MODELS = (
    "matrix.model",
    "ranker.model",
    "recommender.model",
    "odd.model",
    "nowhere",
    "good.csv",
    ".",
    "",
)
OUTS = ("out1", "out2", "no/where", ".", "good.csv", "matrix.model", "/proc/x")
IDS = (
    "u1",
    "u3",
    "1",
    "3",
    "99",
    "",
    "x",
    "-1",
    "\x1b",
    "007",
    "1,2",
    '"1',
    "1\r2",
    "\u00e9",
    "0x1",
)

_COLUMNS = {f"--{name}": NAMES for name in ("row", "column", "value", "i", "j", "k", "target",
    "user",
            "item", "time", "weight")}  # fmt: skip
_TEXT = {
    "--separator": (",", ";", "tab", "::", "x", ""),
    "--encoding": ("utf-8", "latin-1", "utf-16", "nope", ""),
    "--no-header": None, "--quiet": None, "--json": None,
}  # fmt: skip
_FIT = {
    "--kind": ("matrix", "distance", "ranking", "recommender", "cube"),
    "--rank": NUMBERS, "--epochs": ("1", "2", "0", "x"), "--learning-rate": ("0.1", "auto",
        *NUMBERS),
    "--damping": NUMBERS, "--plain": None, "--refresh": ("round", "sample", "x"), "--jobs": ("1",
        "2", "0", "x"),
    "--device": ("cpu", "abacus"), "--dtype": ("float32", "float64", "int8"), "--seed": NUMBERS,
    "--symmetric": None, "--loss": ("squared", "logistic", "softmax", "x"), "--at-least": NUMBERS,
    "--half-life": ("30d", "x", "0", "nan"), "--similarity": ("cosine", "x"),
        "--comparisons": ("50", "0", "x"),
    "--force": None, "--max-memory": ("1G", "100M", "x", "0", "-1"), "--workers": ("2",),
        "--checkpoint": ("c",),
}  # fmt: skip
_STREAM = {
    "--out": OUTS, "--batch": ("5", "0", "x", "1"), "--every": ("5", "0", "x"), "--seconds": ("1",
        "0", "nan"),
    "--idle": ("0.01", "0", "x"), "--restart": None, "--final": None, "--skip-lost": None,
    "--new": ("matrix", "distance", "ranking", "recommender", "x"), "--rank": ("1", "2", "0"),
    "--seed": NUMBERS, "--symmetric": None, "--loss": ("squared", "logistic"),
}  # fmt: skip
_RANK = {"--titles": FILES, "-k": NUMBERS}
COMMANDS = {
    "fit": ((FILES,), {"--out": OUTS}, _COLUMNS | _TEXT | _FIT),
    "predict": ((MODELS, FILES), {}, _COLUMNS | _TEXT | {"--skip-unknown": None}),
    "evaluate": ((MODELS, FILES), {}, _COLUMNS | _TEXT | {"--skip-unknown": None,
        "--at-least": NUMBERS}),
    "stream": ((MODELS,), {"--from": FILES}, _COLUMNS | _TEXT | _STREAM),
    "similar": ((MODELS, IDS), {}, _RANK | _TEXT | {"--by": ("angle", "score", "x")}),
    "recommend": (
        (MODELS, IDS), {},
        _RANK | _TEXT | {"--items": IDS, "--candidates": FILES, "--exclude": FILES, "--seen": None,
                         "--skip-unknown": None},
    ),
    "explain": ((MODELS, IDS, IDS), {}, _RANK | _TEXT),
}  # fmt: skip

# What goes well with each, so that half of the tries get far.
_GOES_WELL = {
    "fit": [
        ["fit", "good.csv", "--out", "out1", "--rank", "1", "--epochs", "2"],
        ["fit", "good.parquet", "--out", "out1", "--epochs", "1", "--symmetric"],
        ["fit", "good.mtx", "--out", "out2", "--rank", "2", "--epochs", "1"],
        ["fit", "comparisons.csv", "--out", "out1", "--kind", "ranking", "--rank", "2",
            "--epochs", "1"],
        ["fit", "events.csv", "--out", "out1", "--kind", "ranking", "--user", "user", "--item",
            "item",
         "--comparisons", "50", "--rank", "2", "--epochs", "1"],
    ],
    "predict": [["predict", "matrix.model", "good.csv"], ["predict", "ranker.model",
        "comparisons.csv"]],
    "evaluate": [
        ["evaluate", "matrix.model", "good.csv"],
        ["evaluate", "recommender.model", "events.csv", "--k", "3"],
    ],
    "stream": [
        ["stream", "out3", "--from", "good.jsonl", "--new", "matrix", "--rank", "1"],
        ["stream", "out3", "--from", "good.csv", "--new", "matrix", "--rank", "1", "--batch", "5"],
        ["stream", "out3", "--from", "events.csv", "--new", "recommender", "--rank", "1"],
        ["stream", "out3", "--from", "good.parquet", "--new", "distance", "--rank", "1"],
    ],
    "similar": [["similar", "recommender.model", "3", "-k", "2"], ["similar", "ranker.model", "1",
        "-k", "2"]],
    "recommend": [["recommend", "recommender.model", "u1"], ["recommend", "ranker.model",
        "--items", "1,3"]],
    "explain": [["explain", "recommender.model", "u1", "3"]],
}  # fmt: skip


@cache
def workshop(home: str) -> dict[str, bytes]:
    """Files to work with, kept so that they can be put back."""
    os.chdir(home)
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 6, (2, 60))
    y = rng.random(60)
    users = [f"u{n}" for n in i]
    good = {"row": i, "column": j, "value": y}
    for name in ("good.csv", "good.jsonl"):
        write(Path(name), good)
    write(Path("x.parquet"), good)
    Path("1.parquet").rename("good.parquet")
    Path("2.parquet").unlink()
    np.savez("good.npz", **good)
    Path("good.mtx").write_bytes(files.sound()["sparse.mtx"])
    events = {"user": np.array(users, object), "item": j, "value": np.round(5 * y), "time": i}
    write(Path("events.csv"), events)
    write(Path("comparisons.csv"), {"i": i, "j": j, "k": (j + 1) % 6, "target": np.round(y)})
    MatrixCompleter(1, epochs=2, random_state=0).fit(
        good, row="row", column="column", value="value"
    ).save("matrix.model")
    both = {"user": "user", "item": "item"}
    ItemRanker(2, epochs=1, random_state=0).fit(events, **both).save("ranker.model")
    Recommender(2, loss="squared", epochs=1, random_state=0).fit(events, **both).save(
        "recommender.model"
    )
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


def line(rng: random.Random) -> list[str]:
    """A command line: one that goes well and some more words, or words by chance."""
    command = rng.choice([*COMMANDS, "fit", "stream", "recommend"])
    places, needed, options = COMMANDS[command]
    if rng.random() < 0.6:
        words = list(rng.choice(_GOES_WELL[command]))
        if rng.random() < 0.2:
            words[rng.randrange(1, len(words))] = rng.choice([*FILES, *NUMBERS, *NAMES])
    else:
        words = [command, *(rng.choice(pool) for pool in places)]
        for option, pool in needed.items():
            words += [option, rng.choice(pool)]
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        option = rng.choice(sorted(options))
        words += [option] if options[option] is None else [option, rng.choice(options[option])]
    if rng.random() < 0.02:
        words.insert(
            rng.randrange(len(words)), rng.choice(["--", "--frob", "-", "\0", "--json=x", "-k"])
        )
    # A search for settings takes seconds: those are tried by the tests of the recommender.
    events = "--user" in words and "ranking" not in words
    if events or (words[0] == "fit" and "recommender" in words):
        words += ["--loss", "squared", "--epochs", "1"]
    return [word for word in words if "\0" not in word]


def try_command(rng: random.Random, home: str) -> str:
    kept = workshop(home)
    name, content = files.made(rng)
    Path("odd").unlink(missing_ok=True)
    suffix = Path(name).suffix
    Path(f"odd{suffix}").write_bytes(content)
    Path("odd.model").write_bytes(models.forged(rng, home) if rng.random() < 0.3 else content)
    words = [f"odd{suffix}" if word == "odd" else word for word in line(rng)]
    before = snapshot()
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(),
        open(os.devnull) as nothing,
    ):  # fmt: skip
        warnings.simplefilter("default")
        stdin = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        try:
            code = main(
                [*words, *(["--max-memory", "1G"] if words[0] in ("fit", "stream") else [])]
            )
        except BaseException as why:
            raise AssertionError(f"{words}: {why!r}") from why
        finally:
            os.dup2(stdin, 0)
            os.close(stdin)
    after = snapshot()
    told, said = out.getvalue(), err.getvalue()
    assert code in (0, 1, 2), (words, code)
    assert "Traceback" not in said, (words, said)
    assert not set("\x1b\x9b\x07\x08") & set(said), (words, said)
    if code == 2:
        faults = [line for line in said.splitlines() if line.startswith("scaledsgd: ")]
        assert faults, (words, said)
        assert all(
            before.get(name) == after.get(name) or name in made_by(words) for name in before | after
        ), words
    elif "--json" in words and told:
        for part in told.splitlines() if {"stream", "predict"} & set(words) else [told]:
            json.loads(part)
    for name in kept:
        if name not in made_by(words):
            assert after.get(name) == before.get(name), (words, name)
    for path in Path().iterdir():
        if path.name not in kept and path.name not in ("model", "original", "written", "odd.model"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in kept.items():
        if after.get(name) != hashlib.sha256(content).hexdigest():
            Path(name).write_bytes(content)
    return f"{next(filter(COMMANDS.get, words), 'no command')} {code}"


def made_by(words: list[str]) -> set[str]:
    """What a command may write: its output, if that is a model, the lock beside it, and a stream's
    last checkpoint before it met what ended it."""
    outs = {words[n + 1] for n, word in enumerate(words[:-1]) if word == "--out"}
    outs |= {words[1]} if words[0] == "stream" and len(words) > 1 else set()
    free = ("out", "matrix.model") if "--force" not in words else ("",)
    outs = {Path(out).name for out in outs if out.startswith(free) or out.endswith(".model")}
    return outs | {f".{out}.lock" for out in outs} | {f".{Path(w).name}.lock" for w in words if w}


def snapshot() -> dict[str, str]:
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path().iterdir() if p.is_file()
    }
