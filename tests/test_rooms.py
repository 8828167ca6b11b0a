"""The house stays in order: a module that only one other imports is a row of a table or an idea of
its own, the way from a call to the step is short and as docs/architecture.md has it, and the list
of mutations fits the source."""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import scaledsgd
from scaledsgd import ItemRanker, MatrixCompleter, Recommender
from scaledsgd.engines.cpu import choice_kernels, step_kernels
from scaledsgd.recommend import tuning
from scaledsgd.streaming.sources import open_feed
from scaledsgd.streaming.stream import Stream
from scaledsgd.training.choice_trainer import ChoicePolicy

HOME = Path(scaledsgd.__file__).parent
ROOT = Path(__file__).parents[1]

# Who registers a file, and where such files lie: one a command, source, engine, benchmark, figure.
TABLES = {
    "__main__": "cli.",
    "cli.main": "cli.",
    "cli.bench": "research.benchmarks.",
    "streaming.sources": "streaming.sources.",
    "engines.base": "engines.",
    "research.paper.reproduce": "research.paper.",
    "": "",  # the public names, loaded when first asked for
}

# Files that one other imports, and that are worth a name: the idea of each.
IDEAS = {
    "engines.cluster.choices": "who chose what, as the driver of a cluster sees it",
    "engines.cluster.dataset": "observations that no single process holds",
    "engines.cpu.basis_kernels": "what a refresh does with X, compiled",
    "engines.cpu.choices": "rounds of choices, on threads",
    "engines.cpu.llvm": "every private name of Numba and LLVM",
    "engines.cuda.choices": "rounds of choices, on a GPU",
    "io.numbering": "a compiled hash table: Numba is not loaded for ids that are words",
    "recommend.comparisons_cuda": "comparisons drawn on a GPU: CuPy is loaded where there is one",
    "recommend.fold_in": "vectors of users while those of items stay",
    "recommend.tuning": "settings found on held-out choices",
    "research.benchmarks.evidence": "what the success grid does not show: time, noise, distances",
    "research.benchmarks.threads": "what more threads bring, and what they could",
    "research.benchmarks.recommend_optimisers": "SGD and Adam beside our steps",
    "research.paper.reproduce": "the table of figures, and the report on them",
    "serving.api": "the table of routes, as data",
    "serving.playground": "small worlds to play with",
    "serving.server": "one process that listens, answers and learns, until a signal ends it",
    "training.completion": "a fit of entries from beginning to end",
    "training.connected": "whether entries tie all rows and columns together",
    "training.determined": "which rows the entries determine",
    "training.gauss_newton": "a finish for few samples",
    "training.holdout": "what a run is judged by",
    "training.sizes": "by what rows and columns are divided before anything is learned",
}


def imported(tree: ast.Module, package: str, known: set[str]) -> set[str]:
    """The modules, of those known, that a module of that package imports, wherever it does so."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= inside & known or {base}
    return found & known


def importers() -> dict[str, set[str]]:
    """By module, without the name of the package: those that import it."""
    files = {}
    for path in HOME.rglob("*.py"):
        parts = path.relative_to(HOME.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    found = defaultdict(set)
    for name, path in files.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for other in imported(ast.parse(path.read_text()), package, set(files)) - {name}:
            if files[other].stem != "__init__":
                found[short(other)].add(short(name))
    return found


def short(name: str) -> str:
    return name.removeprefix("scaledsgd").removeprefix(".")


def test_a_module_with_one_importer_is_a_row_or_an_idea():
    alone = {name: next(iter(who)) for name, who in importers().items() if len(who) == 1}
    rows = {n for n, who in alone.items() if who in TABLES and n.startswith(TABLES[who])}
    assert len(alone) > len(rows) > 10
    unexplained = {
        name: f"merge it into {alone[name]}?" for name in alone.keys() - rows - IDEAS.keys()
    }
    assert not unexplained
    assert not IDEAS.keys() - alone.keys() | IDEAS.keys() & rows, "others import these by now"


# --- From a call to the step ----------------------------------------------------------------------

# Who stands between two files: a lock around public methods, and who starts threads.
WRAPPERS = {"estimators/base.py: _guarded.<locals>.call", "engines/cpu/crew.py"}


def walks() -> dict[str, list[tuple[str, str]]]:
    """The table of docs/architecture.md: of each call the files and the functions on its way."""
    text = (ROOT / "docs/architecture.md").read_text()
    text = text.partition("## From a call to the step")[2].partition("\n## ")[0]
    file_of, found = {}, {}
    for line in re.findall(r"^\|(.*`.*)\|$", text, re.MULTILINE):
        walk = []
        for cell in line.split("|"):
            *_, (name, file) = re.findall(r"`([\w.]+)`(?: \(`([\w/.]+)`\))?", cell)
            file_of[name] = file or file_of.get(name) or file_of[f"{name.split('.')[0]}.fit"]
            walk.append((file_of[name], name.split(".")[-1]))
        found[walk[0][0].split("/")[-1]] = walk
    return found


def test_walks_are_short_and_lead_through_what_there_is():
    found = walks()
    assert len(found) == 5
    for walk in found.values():
        assert len(walk) <= 5  # four hops
        for file, name in walk:
            nodes = ast.walk(ast.parse((HOME / file).read_text()))
            assert name in {getattr(node, "name", "") for node in nodes}, f"{file}: {name}"


def stream(folder: Path, table: dict[str, np.ndarray]) -> None:
    source = folder / "events.jsonl"
    rows = zip(*(values.tolist() for values in table.values()), strict=True)
    source.write_text(
        "".join(json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in rows)
    )
    model = MatrixCompleter(rank=2, n_jobs=1, random_state=0)
    list(Stream(model, open_feed(str(source)), folder / "m.model").checkpoints())


@pytest.mark.parametrize("entry", ["completers.py", "stream.py", "ranker.py", "recommender.py"])
def test_walks_are_what_happens(entry, tmp_path, monkeypatch):
    stacks = set()

    def watched(kernel, name: str, file: str):
        def call(*args):
            frame, stack = sys._getframe(1), [(file, name)]
            while frame:
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(HOME):
                    stack.append((str(path.relative_to(HOME)), frame.f_code.co_qualname))
                frame = frame.f_back
            stacks.add(tuple(reversed(stack)))
            return kernel(*args)

        return call

    def made(factory, *args, **options):
        name = factory.__name__
        return watched(compiled(factory, *args, **options), name, "engines/cpu/step_kernels.py")

    compiled = step_kernels.kernel
    monkeypatch.setattr(step_kernels, "kernel", made)
    softmax = watched(choice_kernels.softmax, "softmax", "engines/cpu/choice_kernels.py")
    monkeypatch.setattr(choice_kernels, "softmax", softmax)
    rng = np.random.default_rng(0)
    i, j = rng.integers(30, size=(2, 600))
    how = {"rank": 2, "n_jobs": 1, "random_state": 0}
    match entry:
        case "completers.py":
            M = np.outer(1.0 + rng.random(30), 1.0 + rng.random(30))
            MatrixCompleter(**how).fit(np.where(rng.random(M.shape) < 0.8, M, np.nan))
        case "stream.py":
            stream(tmp_path, {"row": i, "column": j, "value": 1.0 + i * j})
        case "ranker.py":
            triplets = rng.permuted(np.tile(np.arange(30), (600, 1)), axis=1)[:, :3]
            ItemRanker(**how, epochs=2).fit(triplets, rng.random(600) < 0.5)
        case "recommender.py":
            found = tuning.Found(ChoicePolicy(), 2, {})  # not what chance would choose
            monkeypatch.setattr(tuning.Tuner, "find", lambda *_: found)
            Recommender(**how).fit({"user": i, "item": j}, user="user", item="item")
    wanted, ways = walks()[entry], set()
    for stack in stacks:
        files = [
            file for file, name in stack
            if file not in WRAPPERS and f"{file}: {name}" not in WRAPPERS
        ]  # fmt: skip
        files = [file for file, _ in groupby(files)]
        names = {(file, name.split(".")[-1]) for file, name in stack}
        if files == [file for file, _ in wanted] and names >= set(wanted):
            ways.add(stack)
    assert ways, stacks


def test_every_mutation_fits_the_source():
    script = ROOT / "benchmarks" / "mutants.py"
    done = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
