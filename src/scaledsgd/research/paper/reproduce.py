"""The paper's figures, and three that it does not show: run, drawn, and written to a folder."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...io.atomic import replace_file
from .. import report
from . import beyond, matrices, rankings
from .runs import Outcome
from .settings import FIGURES, MatrixFigure, Options

BEYOND: dict[str, Callable[[Options], Outcome]] = {
    "kappa": beyond.kappa,
    "coherence": beyond.coherence,
    "drift": beyond.drift,
}
NAMES = (*FIGURES, *BEYOND)

_TUNED = "-tuned"
_VERDICTS = {True: "yes", False: "no", None: "not the paper's data"}


def run(name: str, options: Options) -> Outcome:
    """One experiment.

    >>> run("fig0", Options())
    Traceback (most recent call last):
    ValueError: unknown figure 'fig0': choose from fig1, ...
    """
    if name in BEYOND:
        return BEYOND[name](options)
    if name not in FIGURES:
        raise ValueError(f"unknown figure {name!r}: choose from {', '.join(NAMES)} or all")
    figure = FIGURES[name]
    if isinstance(figure, MatrixFigure):
        return matrices.outcome(figure, options)
    return rankings.outcome(figure, options)


def reproduce(names: list[str], options: Options, folder: Path) -> Iterator[dict]:
    """Run experiments, and after each of them write its files and the report of all that the folder
    holds. Yields what the results file says."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        clock = time.perf_counter()
        outcome = run(name, options)
        stem = name + _TUNED * options.tuned
        facts = _facts(stem, outcome, options, time.perf_counter() - clock)
        for kind in ("png", "svg"):
            replace_file(folder / f"{stem}.{kind}", report.drawn(outcome.picture, kind))
        replace_file(folder / f"{stem}.json", json.dumps(facts, indent=1).encode())
        replace_file(folder / "index.html", page(folder).encode())
        yield facts


def _facts(stem: str, outcome: Outcome, options: Options, seconds: float) -> dict:
    seeds = str(options.seed)
    if options.seeds > 1:
        seeds += f" to {options.seed + options.seeds - 1} (median and range)"
    settings = outcome.settings | {
        "data": outcome.data, "scale": options.scale, "seed": seeds,
        "P renewed every": options.refresh,
        "device": options.device, "threads": options.jobs, "machine": machine(),
        "date": time.strftime("%Y-%m-%d"), "seconds": round(seconds, 1), **_memory(),
    }  # fmt: skip
    return {
        "figure": stem, "title": outcome.title, "shows": outcome.words,
        "caption": outcome.caption, "settings": settings, "curves": outcome.curves,
        "claims": outcome.claims,
    }  # fmt: skip


def machine() -> str:
    """The machine in a few words.

    >>> "cores" in machine()
    True
    """
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )


def _memory() -> dict:
    """The most that this process has held, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak memory of the process": f"{peak / 1e9:.1f} GB"}


def page(folder: Path) -> str:
    """The report of all results in a folder, in one file that needs nothing else."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    order = {name + end: n for n, name in enumerate(NAMES) for end in ("", _TUNED)}
    found = [facts for facts in found if facts.get("figure") in order]
    found.sort(key=lambda facts: (order[facts["figure"]], facts["figure"]))
    held = [row["holds"] for facts in found for row in facts["claims"]]
    return report.page(
        "ScaledSGD: the paper's experiments",
        report.text(
            'Experiments of "Accelerating SGD for Highly Ill-Conditioned Huge-Scale Online Matrix '
            f'Completion" (Zhang, Chiu and Zhang, NeurIPS 2022), run again. Of {len(held)} '
            f"statements, {held.count(True)} hold here, {held.count(False)} do not, and "
            f"{held.count(None)} are about data that were not at hand."
        ),
        *(_entry(facts, folder) for facts in found),
    )


def _entry(facts: dict, folder: Path) -> str:
    name, _, tuned = facts["figure"].partition("-")
    label = name.replace("fig", "Fig. ") + ". " if name in FIGURES else ""
    rows = [[row["paper"], row["measured"], _VERDICTS[row["holds"]]] for row in facts["claims"]]
    settings = facts["settings"]
    told = [[key, value] for key, value in settings.items()]
    return report.section(
        f"{label}{facts['title']}" + (", both methods tuned" if tuned else ""),
        report.text(facts["shows"]),
        report.note(
            "Data: {data}. Seed {seed}. {machine}, {date}: {seconds} s.".format(**settings)
        ),
        report.image((folder / f"{facts['figure']}.svg").read_bytes(), facts["caption"]),
        report.table(["the paper says", "we measured", "holds"], rows, words=True),
        report.folded("Settings", report.table(["setting", "value"], told, words=True)),
    )
