"""Measures again what the README and the docs say, and writes it where it stands: `make figures`.

python benchmarks/figures.py                     # everything that this machine can measure: hours
python benchmarks/figures.py --quick             # what takes about a minute at most
python benchmarks/figures.py --only distances    # one command, or several
python benchmarks/figures.py --given threads=there.json    # what a command printed elsewhere
python benchmarks/figures.py --check             # runs nothing: is every figure in its place?

figures.toml says which number comes from where. A place in a document is found by the text around
it: `{command > part > row > column}` stands for a number there, and names the command, and the way
through its JSON or, as `{command > /words ([0-9]+)/}`, through what it prints. `~0.5` at the end
overrides the command's noise: by which share the number differs if it is measured again.
A new number is written as the old one was: as many digits, with an exponent or without.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from scaledsgd.core.memory import cores
from scaledsgd.engines.cuda.kernels import unavailable

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "figures"
NUMBER = r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
QUICK = 1.0  # minutes

# What a command may need: what lacks, or nothing.
NEEDS = {
    "a GPU": unavailable,
    "16 cores": lambda: "" if cores() >= 16 else f"{cores()} cores, not 16",
    "peers": lambda: absent("libmf", "implicit", "cornac"),
    "Surprise": lambda: absent("cornac", "surprise"),
    "Ray": lambda: absent("ray"),
    "data": lambda: "" if (ROOT / "../shared/data").is_dir() else "no ../shared/data",
}


def absent(*modules: str) -> str:
    lacking = [name for name in modules if find_spec(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


class Place(NamedTuple):
    """A number in a document: where it stands, and where it comes from."""

    file: str
    start: int
    end: int
    text: str
    command: str
    path: tuple[str, ...]
    noise: float


class Misplaced(Exception):
    """A figure that is not where the table says."""


# --- Places ---------------------------------------------------------------------------------------


def places(table: dict) -> Iterator[Place]:
    """Every number that figures.toml knows, in the documents as they are."""
    for entry in table["text"]:
        text = (ROOT / entry["in"]).read_text()
        yield from met(entry["text"], text, 0, entry["in"], table["command"])
    for entry in table["table"]:
        text = (ROOT / entry["in"]).read_text()
        for start, cell, row, column in cells(text, entry):
            template = entry["cell"].replace("<row>", row).replace("<column>", column)
            template = template.replace("<row>", row)  # which the column may have named
            yield from met(template, cell, start, entry["in"], table["command"])


def met(template: str, text: str, offset: int, file: str, commands: dict) -> Iterator[Place]:
    """The numbers where a text has the words of a template, which it must have once.

    >>> [one.text for one in met("{a > b} ms", "takes 3.2 ms", 0, "x.md", {"a": {"noise": 0}})]
    ['3.2']
    """
    words = re.split(r"\{(.*?)\}", template)  # words, field, words, field, ...
    spaced = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in words[::2])
    found = list(re.finditer(rf"({NUMBER})".join(spaced), text))
    if len(found) != 1:
        raise Misplaced(f"{file}: {len(found)} times, not once: {template}")
    for group, field in enumerate(words[1::2], 1):
        path, _, noise = field.partition(" ~")
        command, *way = path.split(" > ")
        if command not in commands:
            raise Misplaced(f"{file}: there is no command {command!r}")
        start, end = (offset + at for at in found[0].span(group))
        share = float(noise) if noise else commands[command]["noise"]
        yield Place(file, start, end, found[0][group], command, tuple(way), share)


def cells(text: str, entry: dict) -> Iterator[tuple[int, str, str, str]]:
    """Where each cell of a table begins, its text, and its row and column in figures.toml, in which
    "" leaves one out; so does a cell that is blank."""
    head = [at.start() for at in re.finditer(r"^" + re.escape(entry["below"]), text, re.MULTILINE)]
    if len(head) != 1:
        raise Misplaced(f"{entry['in']}: {len(head)} tables begin with {entry['below']}")
    body = re.match(r"(?:\|.*\n){2}((?:\|.*\n?)+)", text[head[0] :])
    if body is None or len(lines := body[1].splitlines(keepends=True)) != len(entry["rows"]):
        raise Misplaced(f"{entry['in']}: not {len(entry['rows'])} rows: {entry['below']}")
    start = head[0] + body.start(1)
    for row, line in zip(entry["rows"], lines, strict=True):
        at, parts = start + 1, line.split("|")[2:-1]
        at += line.index("|", 1)
        if len(parts) != len(entry["columns"]):
            raise Misplaced(f"{entry['in']}: not {len(entry['columns'])} columns: {line}")
        for column, cell in zip(entry["columns"], parts, strict=True):
            if row and column and cell.strip():
                yield at, cell, row, column
            at += len(cell) + 1
        start += len(line)


def check(table: dict) -> list[Place]:
    """All places. Every command must have one, and what is left out must be there, too."""
    found = list(places(table))
    idle = table["command"].keys() - {place.command for place in found}
    if idle:
        raise Misplaced(f"no document has a figure of {', '.join(sorted(idle))}")
    spans = sorted((place.file, place.start, place.end) for place in found)
    for (file, _, end), (other, start, _) in pairwise(spans):
        if file == other and start < end:
            raise Misplaced(f"{file}: two figures at {start}")
    for entry in table["left"]:
        if entry["what"] not in (ROOT / entry["in"]).read_text():
            raise Misplaced(f"{entry['in']}: not there: {entry['what']}")
    return found


# --- Figures --------------------------------------------------------------------------------------


def measured(name: str, command: dict) -> str:
    """Run a command: what it printed, or the file that it wrote."""
    words = shlex.split(command["run"])
    if words[0] == "scaledsgd":
        words += ["--json", "--out", str(BUILD / name)]
    bin = Path(sys.executable).parent
    env = os.environ | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:  # what it printed may be the news that a promise is not kept
        print(f"{name}: exit code {done.returncode}")
    told = (ROOT / command["reads"]).read_text() if "reads" in command else done.stdout
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"{name}.txt").write_text(told)
    return told


def value(told: str, path: tuple[str, ...]) -> float:
    """The number at the end of a path.

    >>> value('{"a": [{"name": "b", "c": "1,5e1 s"}]}', ("a", "b", "c"))
    150.0
    >>> value("took 3 of 12 s", ("/of ([0-9]+)/",))
    12.0
    """
    first, *rest = path
    if first.startswith("/"):
        found = re.search(first.strip("/"), told)
        if found is None:
            raise KeyError(first)
        return number(found[1])
    here: Any = json.loads(told)
    for key in (first, *rest):
        here = step(here, key)
    return number(here)


def step(here: Any, key: str) -> Any:
    """A member, or a row of a result's table; of a list an element by its number or its name, some
    elements (member=value), a member of all, the least or the most; the n-th number of a text (#n);
    a share in percent (%).

    >>> cases = [{"seed": 0, "error": 5}, {"seed": 1, "error": 3}, {"seed": 1, "error": 4}]
    >>> step(step(step(cases, "seed=1"), "error"), "max"), step(0.25, "%")
    (4, 25.0)
    """
    if key == "%":
        return 100 * number(here)
    if isinstance(here, str):
        return re.findall(NUMBER, here)[int(key.lstrip("#")) - 1]
    if isinstance(here, dict):
        return here[key] if key in here else here["table"][key]
    if key in ("min", "max"):
        return {"min": min, "max": max}[key](here)
    if key.isdecimal():
        return here[int(key)]
    if "=" in key:
        name, _, wanted = key.partition("=")
        return [one for one in here if str(one[name]) == wanted]
    named = [one for one in here if one.get("name") == key]
    return named[0] if named else [one[key] for one in here]


def number(found: Any) -> float:
    if isinstance(found, str):
        found = re.findall(NUMBER, found)[0].replace(",", "")
    return float(found)


def written(number: float, old: str) -> str:
    """A number as another one is written.

    >>> written(0.2914, ".289"), written(1234567.8, "1,738,318"), written(0.0012, "6.778e-02")
    ('.291', '1,234,568', '1.200e-03')
    >>> written(3e-9, "1.2e-8"), written(187.3, "89.4"), written(-3.4, "14")
    ('3.0e-9', '187.3', '-3')
    """
    digits, e, power = old.partition("e")
    after = len(digits.partition(".")[2])
    if e:
        told = f"{number:.{after}e}"
        return told if len(power.lstrip("+-")) > 1 else re.sub(r"e([-+])0", r"e\1", told)
    told = f"{number:{',' if ',' in old else ''}.{after}f}"
    return told.replace("0.", ".", 1) if re.match(r"-?\.", old) and abs(number) < 1 else told


def changed(old: str, new: str, noise: float) -> bool:
    """Whether two numbers differ by more than noise."""
    a, b = number(old), number(new)
    return abs(a - b) > noise * abs(a)


def rewrite(file: str, new: dict[Place, str]) -> None:
    path = ROOT / file
    text = path.read_text()
    for place in sorted(new, key=lambda place: -place.start):
        text = text[: place.start] + new[place] + text[place.end :]
    path.write_text(text)


def update(found: list[Place], told: dict[str, str]) -> int:
    """Write the numbers of some commands, and show what has become of them. How many changed."""
    shown = Table("", "", "was", "is", "noise", "changed")
    new: dict[Place, str] = {}
    for place in found:
        if place.command in told:
            name = " > ".join((place.command, *place.path))
            try:
                text = written(value(told[place.command], place.path), place.text)
            except (KeyError, IndexError, StopIteration, ValueError, TypeError):
                shown.add_row(place.file, name, place.text, "not measured", "", "?")
                continue
            differs = changed(place.text, text, place.noise)
            mark = "CHANGED" if differs else "" if text == place.text else "within noise"
            shown.add_row(place.file, name, place.text, text, f"{place.noise:.0%}", mark)
            new[place] = text
    for file in {place.file for place in new}:
        rewrite(file, {place: text for place, text in new.items() if place.file == file})
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(shown)
    return sum(changed(place.text, text, place.noise) for place, text in new.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="run nothing, look at the places")
    parser.add_argument("--quick", action="store_true", help="what takes about a minute at most")
    parser.add_argument("--only", nargs="+", metavar="COMMAND", help="these commands")
    parser.add_argument("--given", nargs="+", metavar="COMMAND=FILE", help="printed elsewhere")
    asked = parser.parse_args()
    table = tomllib.loads(Path(__file__).with_name("figures.toml").read_text())
    try:
        found = check(table)
    except Misplaced as why:
        raise SystemExit(f"figures.toml: {why}") from None
    print(f"{len(found)} figures of {len(table['command'])} commands are in their places")
    for entry in table["left"]:
        print(f"left out: {entry['in']}, {entry['what']}: {entry['why']}")
    if asked.check:
        return
    told = {name: Path(file).read_text() for name, file in
            (one.split("=", 1) for one in asked.given or ())}  # fmt: skip
    wanted = asked.only or ([] if asked.given else list(table["command"]))
    if unknown := (set(wanted) | told.keys()) - table["command"].keys():
        raise SystemExit(f"no such command: {', '.join(unknown)}")
    for name in wanted:
        command = table["command"][name]
        lacks = next(filter(None, (NEEDS[need]() for need in command.get("needs", ()))), "")
        if lacks:
            print(f"skipped: {name}: {lacks}")
        elif not asked.quick or command["minutes"] <= QUICK:
            print(f"{name}: {command['run']} (about {command['minutes']:g} min)", flush=True)
            told[name] = measured(name, command)
    print(f"{update(found, told)} figures have changed by more than their noise")


if __name__ == "__main__":
    main()
