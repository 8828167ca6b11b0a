"""Do the tests notice? Breaks the code in one place at a time and runs the tests that should.

    python benchmarks/mutants.py                    # all of them, two at a time
    python benchmarks/mutants.py training core      # some rooms, or names (a part of one will do)
    python benchmarks/mutants.py --list

Each mutation replaces one text, which must be in its file exactly once, in a copy of the package;
the working tree is never touched. A mutant is killed if a test fails (or hangs, or crashes), and
has survived if all pass. The list is in mutants.toml: a mutation that changes nothing that anybody
could observe says `equivalent = "why"`, and does not count.

Ends with status 1 if fewer than 90% are killed, or fewer than 85% in training and core/factors.
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
from concurrent.futures import ThreadPoolExecutor
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
COMPILED = ("numba", "def sigmoid")


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


def run_pytest(paths: list[str], folder: Path, cache: str, log: Path) -> None:
    """In a process that has nothing of the package yet: tests against the copy in a folder."""
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder / "src"))
    import hypothesis.configuration
    import numba
    import pytest

    hypothesis.configuration.set_hypothesis_home_dir(folder / "hypothesis")
    if cache:
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = cache  # type: ignore[attr-defined]
    options = [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
        "-x",
        "-q",
        "--hypothesis-seed=0",
        "-p",
        "no:cacheprovider",
        "--no-header",
    ]
    if not any("::" in path for path in paths):
        options += ["-m", "not slow"]
    status = int(pytest.main([*options, "--tb=line", "-W", "ignore", *paths]))
    sys.stdout.flush()
    os._exit(status)  # threads of the tests may still be there


class Workshop:
    """A copy of the package, in which one mutant is tried after the other."""

    def __init__(self, folder: Path):
        self.folder, self.source = folder, folder / "src" / "scaledsgd"
        # With the caches of Numba, which go by the times of the files.
        shutil.copytree(SOURCE, self.source, copy_function=shutil.copy2)

    def run(self, tests, *, cold: bool = False) -> tuple[int | None, str]:
        """Status of pytest, None if it had to be stopped, and what it said."""
        paths = [test.replace("src/", f"{self.folder}/src/", 1) for test in tests]
        log = self.folder / "log"
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            process = SERVER.Process(
                target=run_pytest, args=(paths, self.folder, cache if cold else "", log)
            )
            process.start()
            process.join(SECONDS)
            if process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)  # it is the first of its group
                process.join()
                return None, "stopped"
        return process.exitcode, log.read_text(errors="replace")

    def outcome(self, mutant: Mutant) -> str:
        """ "killed", "survived", or what went wrong."""
        path = self.source / mutant.file
        text = mutant.text(SOURCE)
        try:
            path.write_text(text)
            code, said = self.run(mutant.tests, cold=any(word in text for word in COMPILED))
        finally:
            shutil.copy2(SOURCE / mutant.file, path)
        if code == 0:
            return "survived"
        if code is None or code == 1 or code < 0:  # a crash is noticed, too
            return "killed"
        return f"pytest ended with {code}: {said[-2000:]}"


def select(found: list[Mutant], words: list[str]) -> list[Mutant]:
    """Those whose room is named, or whose name or file contains a word."""
    if not words:
        return found
    return [
        m for m in found if any(w == m.room or w in m.name or w in m.file for w in words)
    ]  # fmt: skip


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
    os.environ["OMP_NUM_THREADS"] = "1"
    began, outcomes = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as home:
        workshops: SimpleQueue[Workshop] = SimpleQueue()
        for n in range(given.jobs):
            workshops.put(Workshop(Path(home, str(n))))
        first = workshops.get()
        code, said = first.run(sorted({test for m in chosen for test in m.tests}))
        workshops.put(first)
        if code != 0:
            sys.exit(f"the tests fail without any mutation:\n{said}")

        def attempt(mutant: Mutant) -> tuple[Mutant, str, float]:
            clock, workshop = time.monotonic(), workshops.get()
            try:
                return mutant, workshop.outcome(mutant), time.monotonic() - clock
            finally:
                workshops.put(workshop)

        with ThreadPoolExecutor(given.jobs) as pool:
            for mutant, outcome, seconds in pool.map(attempt, chosen):
                outcomes[mutant] = outcome
                told = "equivalent" if mutant.equivalent and outcome == "survived" else outcome
                print(
                    f"{told:<10} {mutant.room:<16} {mutant.name:<40} {seconds:5.1f} s", flush=True
                )
    return summary(outcomes, time.monotonic() - began)


def summary(outcomes: dict[Mutant, str], seconds: float) -> int:
    """Prints a table by room and returns the status."""
    faults = [m.name for m, told in outcomes.items() if told not in ("killed", "survived")]
    counted = [m for m in outcomes if not m.equivalent]
    print(f"\n{'room':<16} killed  survived  equivalent")
    for room in sorted({m.room for m in outcomes}):
        own = [m for m in outcomes if m.room == room]
        killed = sum(outcomes[m] == "killed" for m in own if not m.equivalent)
        alike = sum(bool(m.equivalent) for m in own)
        print(f"{room:<16} {killed:>6}  {len(own) - alike - killed:>8}  {alike:>10}")

    def share(some: list[Mutant]) -> float:
        return sum(outcomes[m] == "killed" for m in some) / len(some) if some else 1.0

    overall, heart = share(counted), share([m for m in counted if m.at_heart])
    print(f"killed {overall:.1%} of {len(counted)}, {heart:.1%} in {' and '.join(HEART)}", end="")
    print(f"; {seconds / 60:.1f} minutes")
    survived = [m.name for m in counted if outcomes[m] == "survived"]
    if survived:
        print(f"survived: {', '.join(survived)}")
    wrong = [m.name for m in outcomes if m.equivalent and outcomes[m] == "killed"]
    if wrong:
        print(f"called equivalent, and killed: {', '.join(wrong)}")
    if faults:
        print(f"could not be run: {', '.join(faults)}")
    good = overall >= ENOUGH and heart >= ENOUGH_AT_HEART and not faults and not wrong
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
