"""Do the tests notice? Breaks the code in one place at a time and runs the tests that should.

    python benchmarks/mutants.py                    # all of them, two at a time
    python benchmarks/mutants.py training core      # some rooms, or names (a part of one will do)
    python benchmarks/mutants.py --jobs 16          # as many at a time as there are cores
    python benchmarks/mutants.py --list             # which there are, and do all fit the source?

Each mutation replaces one text, which must be in its file exactly once, in a copy of the package;
the working tree is never touched. A mutant is killed if a test fails (or hangs, or crashes), and
has survived if all pass; one that was stopped by the clock counts as killed, and is named at the
end, since on a busy machine it may be slow alone. Tests that fail without any mutation (where an
extra is missing) count for nothing. The list is in mutants.toml: a mutation that changes nothing
that anybody could observe says `equivalent = "why"`, and does not count.

Ends with status 1 if fewer than 90% are killed, or fewer than 85% in training and core/factors, or
if some could not be run. Needs `.[test]`, no network, and about a gigabyte of memory a job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scaledsgd"
LIST = Path(__file__).with_suffix(".toml")

ENOUGH, ENOUGH_AT_HEART = 0.90, 0.85
HEART = ("training/", "core/factors.py")
SECONDS = 300  # for the tests of one mutant: those that take longer hang

# A compiled function is cached by its own file. What calls it from another would not be compiled
# anew, so that a mutant of compiled code begins with an empty cache.
COMPILED = ("numba", "njit", "def sigmoid")


# Processes that have imported what the package imports: half of what most mutants cost.
SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(
    ["pytest", "hypothesis", "numba", "scipy.sparse", "scipy.special", "sklearn.utils.validation",
     "pandas", "pyarrow.parquet", "safetensors.numpy", "narwhals", "threadpoolctl"]
)  # fmt: skip


class Mutant(NamedTuple):
    name: str
    file: str  # below src/scaledsgd
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def room(self) -> str:
        room, _, module = self.file.partition("/")
        return f"{room}/{module}" if self.file in HEART else room

    @property
    def at_heart(self) -> bool:
        return self.file.startswith(HEART)

    @property
    def compiled(self) -> bool:
        text = (SOURCE / self.file).read_text()
        return any(word in text for word in COMPILED)

    def text(self, source: Path) -> str:
        """The file with the mutation; an error if it does not fit the file any more."""
        text = (source / self.file).read_text()
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise LookupError(f"{self.name}: {self.old!r} is {found} times in {self.file}")
        mutated = text.replace(self.old, self.new)
        compile(mutated, self.file, "exec")
        return mutated


def mutants() -> list[Mutant]:
    """All of the list, which is checked as a whole: names are unique, and every one fits."""
    told = tomllib.loads(LIST.read_text())
    groups = told.pop("tests")
    found = []
    for file, entries in told.items():
        for name, entry in entries.items():
            tests = entry.get("tests", groups.get(file))
            tests = (tests,) if isinstance(tests, str) else tuple(tests)
            # Literal strings of TOML keep backslashes; a line end is written \\n there.
            old, new = (entry[which].replace("\\n", "\n") for which in ("old", "new"))
            found.append(Mutant(name, file, old, new, tests, entry.get("equivalent", "")))
    (double,) = [n for n, count in Counter(m.name for m in found).items() if count > 1][:1] or [""]
    faults = [f"{double}: two mutants of that name"] if double else []
    for mutant in found:
        try:
            mutant.text(SOURCE)
        except (LookupError, OSError, SyntaxError) as why:
            faults.append(str(why))
        faults += [
            f"{mutant.name}: no {test}"
            for test in mutant.tests
            if not (ROOT / test.partition("::")[0]).exists()
        ]
    if faults:
        sys.exit("\n".join(faults))
    return found


def run_pytest(paths: list[str], folder: Path, room: Path, cold: bool) -> None:
    """In a process that has nothing of the package yet: tests against the copy in a folder. What
    they say goes to room/log, and what is compiled anew to room, if nothing old may be used."""
    os.setsid()
    handle = os.open(room / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(ROOT)
    cache = str(room) if cold else ""  # beside the files
    os.environ |= {
        "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": cache,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }  # fmt: skip
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder / "src"))
    import numba
    import pytest

    numba.config.CACHE_DIR = cache  # type: ignore[attr-defined]
    told = f"-c {ROOT / 'pyproject.toml'} --rootdir {ROOT} -x -q --hypothesis-seed=0 --no-header"
    options = f"{told} -p no:cacheprovider --tb=line -W ignore".split()
    if not any("::" in path for path in paths):
        options += ["-m", "not slow"]
    status = int(pytest.main([*options, *paths]))
    sys.stdout.flush()
    os._exit(status)  # threads of the tests may still be there


class Workshop:
    """A copy of the package, in which one mutant is tried after the other."""

    def __init__(self, folder: Path, source: Path = SOURCE):
        self.folder, self.source = folder, folder / "src" / "scaledsgd"
        # With the caches of Numba, which go by the times of the files.
        shutil.copytree(source, self.source, copy_function=shutil.copy2)

    def run(self, tests: Iterable[str], *, cold: bool = False) -> tuple[int | None, str]:
        """Status of pytest, None if it had to be stopped, and what it said."""
        paths = [test.replace("src/", f"{self.folder}/src/", 1) for test in tests]
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as room:
            process = SERVER.Process(target=run_pytest, args=(paths, self.folder, Path(room), cold))
            process.start()
            process.join(SECONDS)
            if process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)  # it is the first of its group
                process.join()
                return None, "stopped"
            return process.exitcode, Path(room, "log").read_text(errors="replace")

    def outcome(self, mutant: Mutant, useless: set[str]) -> str:
        """ "killed", "stopped" by the clock, "survived", or what went wrong."""
        tests = [test for test in mutant.tests if test not in useless]
        if not tests:
            return "not run"
        path = self.source / mutant.file
        try:
            path.write_text(mutant.text(SOURCE))
            code, said = self.run(tests, cold=mutant.compiled)
        finally:
            shutil.copy2(SOURCE / mutant.file, path)
        if code == 0:
            return "survived"
        if code is None:
            return "stopped"
        if code == 1 or code < 0:  # a crash is noticed, too
            return "killed"
        return f"pytest ended with {code}: {said[-2000:]}"


def select(found: list[Mutant], words: list[str]) -> list[Mutant]:
    """Those whose room is named, or whose name or file contains a word that is no room."""
    rooms = {m.file.partition("/")[0] for m in found}

    def meant(m: Mutant, word: str) -> bool:
        return m.file.startswith(f"{word}/") if word in rooms else word in m.name or word in m.file

    return [m for m in found if any(meant(m, word) for word in words)] if words else found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="rooms, files or names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="do not run them")
    given = parser.parse_args()
    chosen = select(mutants(), given.only)
    if given.list or not chosen:
        for m in chosen:
            print(f"{m.room:<14} {m.name:<40} {m.equivalent and '= '}{m.equivalent}")
        print(f"{len(chosen)} mutants")
        return 0
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    began, outcomes = time.monotonic(), {}
    with (
        tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as home,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        first = Workshop(Path(home, "0"))
        tests = sorted({test for m in chosen for test in m.tests})
        useless = set()
        for test, (code, said) in zip(
            tests, pool.map(lambda t: first.run([t]), tests), strict=True
        ):
            if code != 0:
                useless.add(test)
                print(f"fails without any mutation: {test}: {said[-500:]}", flush=True)
        print(f"{len(tests)} tests: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
        # The others begin with what the first has compiled.
        workshops: SimpleQueue[Workshop] = SimpleQueue()
        workshops.put(first)
        for n in range(1, given.jobs):
            workshops.put(Workshop(Path(home, str(n)), first.source))

        def attempt(mutant: Mutant) -> tuple[Mutant, str, float]:
            clock, workshop = time.monotonic(), workshops.get()
            try:
                return mutant, workshop.outcome(mutant, useless), time.monotonic() - clock
            finally:
                workshops.put(workshop)

        # Those that take longest, to compile, begin.
        runs = [pool.submit(attempt, m) for m in sorted(chosen, key=lambda m: not m.compiled)]
        for run in as_completed(runs):
            mutant, outcome, seconds = run.result()
            outcomes[mutant] = outcome
            told = "equivalent" if mutant.equivalent and outcome == "survived" else outcome
            print(f"{told:<10} {mutant.room:<16} {mutant.name:<40} {seconds:5.1f} s", flush=True)
    return summary(outcomes, time.monotonic() - began)


def summary(outcomes: dict[Mutant, str], seconds: float) -> int:
    """Prints a table by room and returns the status."""
    noticed = {m for m, told in outcomes.items() if told in ("killed", "stopped")}
    faults = [m.name for m, told in outcomes.items() if m not in noticed and told != "survived"]
    counted = [m for m in outcomes if not m.equivalent]
    print(f"\n{'room':<16} killed  survived  equivalent")
    for room in sorted({m.room for m in outcomes}):
        own = [m for m in outcomes if m.room == room]
        killed = sum(m in noticed for m in own if not m.equivalent)
        alike = sum(bool(m.equivalent) for m in own)
        print(f"{room:<16} {killed:>6}  {len(own) - alike - killed:>8}  {alike:>10}")

    def share(some: list[Mutant]) -> float:
        return sum(m in noticed for m in some) / len(some) if some else 1.0

    overall, heart = share(counted), share([m for m in counted if m.at_heart])
    print(f"killed {overall:.1%} of {len(counted)}, {heart:.1%} in {' and '.join(HEART)}", end="")
    print(f"; {seconds / 60:.1f} minutes")
    survived = [m.name for m in counted if outcomes[m] == "survived"]
    if survived:
        print(f"survived: {', '.join(survived)}")
    stopped = [m.name for m, told in outcomes.items() if told == "stopped"]
    if stopped:
        print(f"killed by the clock, after {SECONDS} s: {', '.join(stopped)}")
    wrong = [m.name for m in outcomes if m.equivalent and m in noticed]
    if wrong:
        print(f"called equivalent, and killed: {', '.join(wrong)}")
    if faults:
        print(f"could not be run: {', '.join(faults)}")
    good = overall >= ENOUGH and heart >= ENOUGH_AT_HEART and not faults and not wrong
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
