"""Tries without end: `python tests/fuzz/run.py --minutes 30`, or a number of each kind.

Every try has a number, from which all of it is drawn: `--only forged:1234` repeats one. They run in
processes of their own, so that one that dies is told and the others go on. Nothing may end in a
traceback or a signal, take a minute or two gigabytes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 1)]

KINDS = {
    "forged": ("models", "try_forged"),
    "damaged": ("models", "try_damaged"),
    "files": ("files", "try_file"),
    "commands": ("command_lines", "try_command"),
    "calls": ("calls", "try_call"),
}
SECONDS, BYTES = 60, 2 << 30  # of one try
_HANGS = 600  # seconds by the clock, of which a busy machine may give a try few
_CHUNK = 2000  # tries of a process, which begins by fitting what it will forge


def tried(kind: str, number: int, home: str) -> str:
    """What became of one try."""
    module, name = KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that numbers of strangers overflow is theirs to know
        return getattr(__import__(module), name)(random.Random(f"{kind}:{number}"), home)


def waited() -> float:
    """Seconds for which this thread could have run and others did, as far as the system tells: a
    try does not answer for them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, LookupError, ValueError):
        return 0.0


def work(kind: str, start: int, count: int) -> None:
    """Some tries in this process, a line each."""
    faulthandler.enable()
    # The memory of a try, whatever the interpreter and the compiler have mapped.
    resource.setrlimit(resource.RLIMIT_AS, (BYTES + (6 << 30),) * 2)
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        with contextlib.suppress(Exception):  # what is compiled and fitted once, off the clock
            tried(kind, start, home)
        for number in range(start, start + count):
            print(json.dumps([number]), flush=True)
            # Of the processor's time, which ends whatever loops; and by the clock, if it waits.
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(_HANGS)
            begun = time.monotonic() - waited()
            try:
                end = tried(kind, number, home)
            except BaseException:
                end = "WRONG " + traceback.format_exc()
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            spent = time.monotonic() - waited() - begun
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if peak > BYTES:
                end = f"WRONG {peak / 1e9:.1f} GB"
            elif spent > SECONDS:
                end = f"WRONG {spent:.0f} s"
            print(json.dumps([number, end, spent, peak]), flush=True)
            if peak > BYTES:
                return


def chunk(kind: str, start: int, count: int, ends: collections.Counter, wrong: list) -> tuple:
    """Tries in processes of their own. Returns the longest one, and the most memory."""
    longest, most = (0.0, ""), 0.0
    stop = start + count
    while start < stop:
        command = [sys.executable, __file__, "--work", f"{kind}:{start}:{stop - start}"]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        if not lines:
            raise SystemExit(done.stderr)
        for number, end, spent, peak in (line for line in lines if len(line) == 4):
            ends[end if not end.startswith("WRONG") else "WRONG"] += 1
            if end.startswith("WRONG"):
                wrong.append((f"{kind}:{number}", end))
            longest, most = max(longest, (spent, f"{kind}:{number}")), max(most, peak)
        start = lines[-1][0] + 1
        if len(lines[-1]) == 1:
            ends["DIED"] += 1
            wrong.append(
                (f"{kind}:{lines[-1][0]}", f"status {done.returncode} {done.stderr[-3000:]}")
            )
    return longest, most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first try")
    parser.add_argument("--only", help="repeat one, as forged:1234")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, help="how many")
    given = parser.parse_args()
    if given.work:
        kind, start, count = given.work.split(":")
        work(kind, int(start), int(count))
        return 0
    if given.only:
        kind, number = given.only.split(":")
        with tempfile.TemporaryDirectory() as home:
            os.chdir(home)
            print(tried(kind, int(number), home))
        return 0
    wanted = {kind: getattr(given, kind) for kind in KINDS}
    until = time.monotonic() + 60 * (given.minutes or 0)
    ends = {kind: collections.Counter() for kind in KINDS}
    wrong, longest, most = [], (0.0, ""), 0.0
    done = dict.fromkeys(KINDS, 0)
    while True:
        for kind in KINDS:
            count = _CHUNK if given.minutes else min(_CHUNK, wanted[kind] - done[kind])
            if count > 0 and (not given.minutes or time.monotonic() < until):
                found = chunk(kind, given.seed + done[kind], count, ends[kind], wrong)
                longest, most = max(longest, found[0]), max(most, found[1])
                done[kind] += count
        if given.minutes and time.monotonic() >= until:
            break
        if not given.minutes and all(done[kind] >= wanted[kind] for kind in KINDS):
            break
    for name, why in wrong[:20]:
        print(f"--- {name}\n{why}", file=sys.stderr)
    for kind, told in ends.items():
        if told:
            print(f"{kind}: {done[kind]:,} tries, {json.dumps(dict(told.most_common()))}")
    slowest = f"longest try {longest[0]:.1f} s ({longest[1]})"
    print(f"{slowest}, most memory {most / 1e9:.2f} GB, {len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
