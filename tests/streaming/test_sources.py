"""What a stream refuses, and where it cannot write: nothing crashes, and nothing is lost."""

import json
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import runner
from streams import events, write

from scaledsgd import load
from scaledsgd.io.atomic import alone


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return runner(capsys)


def fuzzed(count: int, seed: int):
    """Lines, and whether each is an event."""
    rng = random.Random(seed)
    good = [
        lambda: f'{{"row": "u{rng.randrange(99)}", "column": {rng.randrange(99)}, "value": 1.5}}',
        lambda: (
            f'{{"value": -2e3, "more": [1, {{}}], "column": "{rng.randrange(99)}", "row": "é"}}'
        ),
        lambda: f' {{"row": {rng.randrange(99)}, "column": {rng.randrange(99)}.0, "value": "7"}}\r',
        lambda: '{"row": "\\u00e9\\"", "column": 9223372036854775807, "value": true}',
    ]
    bad = [
        lambda: '{"row": "u1", "column": 2}',
        lambda: '{"row": "u1", "column": 2, "value": 1.5',
        lambda: '{"row": "u1", "column": 2, "value": 1.5} {}',
        lambda: f'{{"row": "u1", "column": 2, "value": {9 * 10 ** rng.randrange(310, 4000)}}}',
        lambda: f'{{"row": "u1", "column": 2, "value": 1e{rng.randrange(101, 999)}}}',
        lambda: f'{{"row": "u1", "column": {rng.randrange(2**63, 2**80)}, "value": 1}}',
        lambda: f'{{"row": "u1", "column": -{rng.randrange(1, 2**70)}, "value": 1}}',
        lambda: '{"row": "u1", "column": 1.5, "value": 1}',
        lambda: '{"row": "u1", "column": "seven", "value": 1}',
        lambda: '{"row": "u1", "column": "007", "value": 1}',
        lambda: '{"row": "", "column": 7, "value": 1}',
        lambda: '{"row": "\\ud800", "column": 7, "value": 1}',
        lambda: '{"row": "a\\u0000b", "column": 7, "value": 1}',
        lambda: '{"row": null, "column": 7, "value": 1}',
        lambda: '{"row": ["u"], "column": {}, "value": {"a": 1}}',
        lambda: '{"row": "u", "column": 7, "value": NaN}',
        lambda: '{"row": "u", "column": 7, "value": -Infinity}',
        lambda: '{"row": "u", "column": 7, "value": "four"}',
        lambda: "[" * rng.randrange(1, 30_000),
        lambda: rng.choice(["7", '"u"', "null", "[]", "row,column,value", "u1,2,3", "}{", "\\"]),
        lambda: bytes([rng.randrange(0x80, 0xC0)]) + b'{"row": "u", "column": 7, "value": 1}',
        lambda: b'{"row": "u\xff", "column": 7, "value": 1}',
        lambda: b'{"row": "u\0", "column": 7, "value": 1}',
        lambda: b"\0" * rng.randrange(1, 9),
        lambda: rng.randbytes(rng.randrange(1, 40)).replace(b"\n", b"!") + b"\xff",
    ]
    for _ in range(count):
        sound = rng.random() < 0.7
        line = rng.choice(good if sound else bad)()
        yield (line if isinstance(line, bytes) else line.encode()), sound


def test_fuzzed_lines_are_refused_one_by_one(call):
    lines = list(fuzzed(100_000, seed=0))
    lines[500] = (
        b'{"row": "u1", "column": 2, "value": 1, "text": "%s"}' % (b"x" * 3_000_000),
        False,
    )
    lines[501] = (b"", None)  # a line with nothing on it is neither
    Path("a.jsonl").write_bytes(b"".join(line + b"\n" for line, _ in lines))
    wanted = ("--row", "row", "--column", "column", "--value", "value", "--json")
    code, out, err = call("stream", "m", "--from", "a.jsonl", "--new", "matrix", *wanted)
    told = json.loads(out.splitlines()[-1])
    assert code == 0
    assert told["refused"] == sum(sound is False for _, sound in lines)
    assert told["events"] == sum(sound is True for _, sound in lines)
    assert told["lines"] == len(lines)
    shown = err.splitlines()
    first = next(n for n, (_, sound) in enumerate(lines, 1) if sound is False)
    assert len(shown) == 11
    assert shown[0].startswith(f"refused: a.jsonl, line {first}: ")
    assert shown[-1] == f"refused: {told['refused']} lines in all"
    assert max(map(len, shown)) < 200
    model = load("m")
    assert np.isfinite(model.factors.X).all()
    assert model.predict((["u1", "é"], [7, 7])).shape == (2,)


def test_lines_that_a_model_cannot_learn_from_are_refused(call):
    Path("a.csv").write_text(
        'i,j,k,target\n1,2,3,1\n1,2,2,1\n1,2,3,0.5\n"1",3,2,7\n4,5,6\n\n1,3,2,0\n1,3,2,0,1\n'
    )
    code, out, err = call(
        "stream", "m", "--from", "a.csv", "--new", "ranking", "--rank", "2", "--json"
    )
    assert code == 0
    assert json.loads(out)["events"] == 3
    assert err.splitlines() == [
        "refused: a.csv, line 3: an item compared with itself",
        "refused: a.csv, line 5: target: 7.0 is outside [0, 1]",
        "refused: a.csv, line 6: 3 fields, but the header has 4",
        "refused: a.csv, line 9: 5 fields, but the header has 4",
    ]


BAD = {
    "no model": (("m2", "--from", "a.csv"), "m2: no such model file"),
    "no source": (("m", "--from", "b.csv"), "b.csv: cannot be read (No such file or directory)"),
    "no parquet": (("m", "--from", "x/*.parquet"), "x/*.parquet: no such file"),
    "no column": (("m", "--from", "a.csv", "--row", "who"), "no column 'who': the file has"),
    "not its columns": (("m", "--from", "a.csv", "--i", "user"), "--i: the columns of this model"),
    "no batch": (("m", "--from", "a.csv", "--batch", "0"), "--batch 0: not a whole number from 1"),
    "no folder": (("m", "--from", "a.csv", "--out", "x/y"), "x/y: cannot be written"),
    "no stream": (("m", "--from", "redis://localhost/x"), "redis://host:port/db/STREAM"),
    "a shorter file": (
        ("m", "--from", "cut.csv"),
        "cut.csv: not the file that was learned from before",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_told_in_a_line(case, call):
    arguments, message = BAD[case]
    table = events(100)
    write(Path("a.csv"), {name: table[name] for name in ("user", "item", "value")})
    Path("cut.csv").write_bytes(Path("a.csv").read_bytes())
    assert call("stream", "m", "--from", "cut.csv", "--new", "matrix")[0] == 0
    Path("cut.csv").write_text("user,item,value\n")
    before = Path("m").read_bytes()
    code, out, err = call("stream", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert Path("m").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path):
    """Half a megabyte of disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_last_checkpoint(call, small_disk):
    source = write(Path("a.csv"), events(60_000))
    out = small_disk / "m"
    wanted = ("--new", "matrix", "--rank", "8", "--batch", "2000", "--every", "2000", "--json")
    columns = ("--row", "user", "--column", "item", "--value", "value")
    code, told, err = call("stream", str(out), "--from", source, *wanted, *columns)
    assert (code, err) == (2, f"scaledsgd: {out}: cannot be written (No space left on device)\n")
    last = json.loads(told.splitlines()[-1])
    assert load(out)._trainer.samples == last["events"] > 0
    assert {path.name for path in small_disk.iterdir()} == {"m", ".m.lock"}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, told, err = call("stream", str(out), "--from", source, *wanted, *columns)
    assert (code, err) == (2, f"scaledsgd: {out}: cannot be written (Read-only file system)\n")
    assert load(out)._trainer.samples == last["events"]


def test_two_streams_do_not_write_one_model(call):
    source = write(Path("a.csv"), events(100))
    with alone("m"):
        code, _, err = call("stream", "m", "--from", source, "--new", "matrix", "--row", "user",
                            "--column", "item", "--value", "value")  # fmt: skip
    assert (code, err) == (2, "scaledsgd: m: another process is writing it\n")


def test_a_ranking_waits_for_the_first_user_with_two_items(call):
    """However long: until then there is nothing to learn, and nothing is lost."""
    lines = [f'{{"user": {n}, "item": {n % 9}}}\n' for n in range(30)]
    lines += [f'{{"user": {n % 10}, "item": {n % 7}}}\n' for n in range(30)]
    Path("a.jsonl").write_text("".join(lines))
    wanted = ("--new", "ranking", "--rank", "2", "--user", "user", "--item", "item", "--json")
    code, out, err = call("stream", "m", "--from", "a.jsonl", *wanted, "--batch", "10")
    told = json.loads(out.splitlines()[-1])
    assert (code, err, told["events"], told["refused"]) == (0, "", 60, 0)
    assert len(load("m").user_ids) == 30
    Path("a.jsonl").write_text("".join(lines[:30]))
    code, out, err = call("stream", "n", "--from", "a.jsonl", *wanted, "--batch", "10")
    assert (code, out) == (2, "") and "30 lines, and nothing to learn yet" in err


def test_numbers_are_spelled_as_everybody_does(call):
    Path("a.csv").write_text("row,column,value\n1,1,1_000\n1,2,\uff11\n1,3,1\n2,1,2\n2,3,3\n")
    code, out, err = call(
        "stream", "m", "--from", "a.csv", "--new", "matrix", "--rank", "1", "--json"
    )
    assert (code, json.loads(out)["events"], err.count("is not a number")) == (0, 3, 2)
    code, _, err = call("fit", "a.csv", "--out", "n", "--rank", "1")
    assert (code, err) == (2, "scaledsgd: a.csv, line 2, column 'value': '1_000' is not a number\n")
    assert call("fit", "a.csv", "--out", "n", "--rank", "1_0")[0] == 2
