"""Model files that somebody has forged or damaged: refused in one line, or as good as any other."""

from __future__ import annotations

import copy
import json
import random
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save

import scaledsgd
from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, ModelFileError, Recommender
from scaledsgd.io import model_file
from scaledsgd.recommend.neighbours import Neighbours

NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    63,
    2**31 - 1,
    -(2**31),
    2**31,
    2**40,
    2**63 - 1,
    -(2**63),
    2**63,
    2**70,
)
REALS = (0.0, -0.0, 0.5, -1.0, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "auto", "\x1b[31m", "a" * 5000, "0", "\ud83d\ude00", "../../etc/passwd", "nan")


def odd(rng: random.Random):
    """A value that no one expects."""
    return rng.choice(
        [
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(REALS),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice([None, True, False, [], {}, [1], {"a": 1}, [[[]]], ["x", None]]),
        ]
    )()


@cache
def originals(home: str) -> list[tuple[dict, dict]]:
    """Arrays and facts of models of every kind, and of every way to come by one."""
    rng = np.random.default_rng(0)
    words = np.array([f"n{i}" for i in range(12)], object)
    i, j = rng.integers(0, 12, (2, 150))
    table = {"u": words[i], "v": words[j], "y": rng.random(150), "k": i * 7, "l": j * 3}
    named, numbered = ({"row": a, "column": b, "value": "y"} for a, b in ("uv", "kl"))
    events = {"user": "u", "item": "l"}
    M = np.outer(np.arange(1.0, 9), np.arange(1.0, 7))
    D = np.subtract.outer(np.arange(9.0), np.arange(9.0)) ** 2
    triplets = np.stack([rng.permutation(8)[:3] for _ in range(100)])
    short = {"epochs": 2, "random_state": 0}
    models = [
        MatrixCompleter(rank=2, **short).fit(M),
        MatrixCompleter(rank="auto", **short).fit(table, **named),
        MatrixCompleter(rank=2, loss="logistic", dtype="float32", **short).fit(table, **numbered),
        MatrixCompleter(rank=2, random_state=0).partial_fit(table, **named),
        MatrixCompleter(rank=2, refresh="sample", learning_rate=0.1, **short).fit(M),
        MatrixCompleter(rank=2, symmetric=True, **short).fit(D),
        DistanceCompleter(rank=2, **short).fit(D),
        ItemRanker(rank=2, **short).fit(table, **events),
        ItemRanker(rank=2, random_state=0).partial_fit(table, **events),
        ItemRanker(rank=2, **short).fit(triplets),
        Recommender(rank=3, random_state=0).partial_fit(table, **events),
        Recommender(rank=3, loss="squared", epochs=1, random_state=0).fit(table, **events),
    ]
    spoken_for = Recommender(rank=3, random_state=0).partial_fit(table, **events)
    items = len(spoken_for.item_ids)  # each speaks for the next
    ring, ones = np.roll(np.arange(items, dtype=np.int32), -1), np.ones(items, np.float32)
    spoken_for._neighbours = Neighbours(np.arange(items + 1), ring, 0.5 * ones)
    models.append(spoken_for)
    path, found = Path(home, "original"), []
    for model in models:
        told = {
            "position": {"line": 5, "byte": 70},
            "lines": 5,
            "events": 5,
            "refused": 0,
            "batch": 9,
        }
        model.remember_position("/a.csv", told)
        model.save(path)
        found.append(model_file.read(path))
    return found


# --- Forgeries: the checksum is right ------------------------------------------------------------


def places(value, path=()) -> list[tuple]:
    """Where everything lies in a tree of JSON."""
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, part in parts for place in places(part, (*path, key)))]


def change_fact(rng: random.Random, facts: dict) -> None:
    *way, last = rng.choice(places(facts)[1:])
    home = facts
    for key in way:
        home = home[key]
    what = rng.randrange(4)
    if what == 0 and isinstance(home, dict):
        del home[last]
    elif what == 1 and isinstance(home, dict):
        home[rng.choice(["x", "rank", "rows", "seed"])] = odd(rng)
    else:
        home[last] = odd(rng)


def change_array(rng: random.Random, arrays: dict[str, np.ndarray]) -> None:
    if not arrays:
        return
    name = rng.choice(sorted(arrays))
    old = arrays[name]
    what = rng.randrange(10)
    if what == 0:
        del arrays[name]
    elif what == 1:
        arrays[rng.choice(["P", "kept0", "kept1", "users", "ids0", "ids1", "x"])] = old
    elif what == 2:
        arrays[name] = old[: rng.randrange(len(old) + 1)]
    elif what == 3:
        arrays[name] = np.concatenate([old, old])[: len(old) + rng.randrange(1, len(old) + 2)]
    elif what == 4 and old.dtype != object:
        kind = rng.choice(
            ["int8", "uint8", "int32", "int64", "uint64", "float32", "float64", "bool"]
        )
        with np.errstate(all="ignore"):
            arrays[name] = old.astype(kind)
    elif what == 5:
        arrays[name] = rng.choice([old[None], old.reshape(-1), old.T, old[..., None], old[:, None]])
    elif what == 6:
        arrays[name] = arrays[rng.choice(sorted(arrays))]
    elif old.size:
        new = old.copy()
        at = tuple(rng.randrange(n) for n in new.shape)
        if new.dtype == object:
            new[at] = rng.choice([odd(rng), new.flat[0]])
        elif new.dtype.kind == "f":
            with np.errstate(over="ignore"):
                new[at] = rng.choice([*REALS, *map(float, NUMBERS)])
        elif new.dtype == bool:
            new[at] = not new[at]
        else:
            low, high = np.iinfo(new.dtype).min, np.iinfo(new.dtype).max
            near = [n for n in NUMBERS if low <= n <= high]
            new[at] = rng.choice([*near, low, high, len(new), len(new) - 1, new.flat[0]])
        arrays[name] = new


def forged(rng: random.Random, home: str) -> bytes:
    """A file of ours but for a few places, with the checksum of what it now holds."""
    arrays, facts = copy.deepcopy(rng.choice(originals(home)))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        change_array(rng, arrays) if rng.random() < 0.5 else change_fact(rng, facts)
    packed, texts = {}, []
    for name, array in arrays.items():
        if array.dtype == object:
            texts.append(name)
            text = json.dumps(array.tolist()).encode()
            array = np.frombuffer(text, np.uint8)
        packed[name] = np.ascontiguousarray(array)
    told = json.dumps(facts)
    deep = rng.random()
    if deep < 0.01:
        told = told.replace('"own": {', '"own": {"x": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1)
    elif deep < 0.02:
        texts.append(rng.choice(["X", "x", "P"]))
    elif deep < 0.03:
        told = rng.choice(["[]", "null", "{}", '"x"', "1e999", "9" * 5000, ""])
    header = {"format": model_file.FORMAT, "facts": told, "texts": json.dumps(texts)}
    header["sha256"] = model_file._digest(packed, header)
    return save(packed, metadata=header)


# --- Damages -------------------------------------------------------------------------------------


@cache
def written(home: str) -> list[bytes]:
    path, found = Path(home, "written"), []
    for arrays, facts in originals(home):
        model_file.write(path, arrays, facts)
        found.append(path.read_bytes())
    return found


def damaged(rng: random.Random, home: str) -> bytes:
    """A file that a disk or a wire has changed."""
    content = bytearray(rng.choice(written(home)))
    what = rng.randrange(5)
    if what == 0:
        return bytes(content[: rng.randrange(len(content))])
    if what == 1:
        at = rng.randrange(len(content))
        return bytes(content[:at] + content[at + rng.randrange(1, 64) :])
    if what == 2:
        at = rng.randrange(len(content))
        return bytes(content[:at] + rng.randbytes(rng.randrange(1, 64)) + content[at:])
    for _ in range(rng.choice([1, 1, 2, 16])):
        region = rng.choice([8, 400, len(content)])
        content[rng.randrange(min(region, len(content)))] = rng.randrange(256)
    return bytes(content)


# --- What is tried -------------------------------------------------------------------------------

REFUSALS = (
    ValueError,
    ArithmeticError,
    MemoryError,
)  # one line and an exit code on the command line


def asked(model, path: Path) -> None:
    """Everything that a model can be asked, taught and told to keep."""
    rows, columns = model.factors.shape
    names = [list(range(n)) if model.ids is None else model.ids[s].names().tolist()
             for s, n in enumerate((rows, columns))]  # fmt: skip
    some = names[0][:3] * 2, names[1][-2:] * 3
    if isinstance(model, ItemRanker | Recommender):
        model.similar(names[1], k=3)
        model.similar(names[1][0], k=2)
        if model.ids is not None:
            for user in model.user_ids.names().tolist():
                model.recommend(user=user, k=3)
        model.recommend(items=names[1][:2], k=2)
        if isinstance(model, ItemRanker):
            model.predict(np.array([names[1][:3]], object if model.ids else int))
    else:
        assert np.isfinite(model.predict(some)).all()
    assert np.isfinite(model.singular_values_).all()
    model.save(path)
    again = scaledsgd.load(path)
    assert np.array_equal(again.factors.X, model.factors.X)
    if model.ids is None:
        return
    table = {"u": names[0][:6], "l": (names[1] * 6)[:6], "y": [0.5] * 6}
    if isinstance(model, ItemRanker | Recommender):
        table["u"] = (model.user_ids.names().tolist() * 6)[:6]
        model.partial_fit(table, user="u", item="l")
    else:
        model.partial_fit(table, row="u", column="l", value="y")
    model.save(path)


def meaning(content: bytes) -> tuple:
    """What a file says: which blank stands between two words of its header says nothing."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def attempt(content: bytes, home: str, damaged: bool) -> str:
    """What becomes of a file: "refused", or "read"; anything else is raised."""
    path = Path(home, "model")
    path.write_bytes(content)
    try:
        model = scaledsgd.load(path)
    except ModelFileError as why:
        assert "\n" not in str(why) and str(path) in str(why), why
        return "refused"
    if damaged:
        sound = map(meaning, written(home))
        assert meaning(content) in sound, "a damaged file was read"
        return "read"
    try:
        asked(model, path)
    except REFUSALS:
        return "read, then refused"
    return "read"


def try_forged(rng: random.Random, home: str) -> str:
    return attempt(forged(rng, home), home, damaged=False)


def try_damaged(rng: random.Random, home: str) -> str:
    return attempt(damaged(rng, home), home, damaged=True)
