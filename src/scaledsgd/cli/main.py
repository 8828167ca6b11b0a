"""The command line: data on stdout, messages on stderr, exit code 2 for input that is no good."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from ..io.progress_bar import progress_bar
from . import bench as bench_cli
from . import doctor as doctor_cli
from . import recommend as recommend_cli
from . import reproduce as reproduce_cli
from . import serve as serve_cli
from . import stream as stream_cli
from .options import (
    AtLeast,
    Clip,
    Column,
    Data,
    Dtype,
    Encoding,
    Files,
    First,
    Item,
    Json,
    Kind,
    Loss,
    MaxMemory,
    Mode,
    Model,
    NoHeader,
    Page,
    Quiet,
    Refresh,
    Row,
    Second,
    Separator,
    Similarity,
    Skip,
    Target,
    Third,
    ThirdOrCount,
    Time,
    User,
    Value,
    Weight,
    choice,
    file,
    flag,
    folder,
    job_count,
    number,
    time_span,
    whole,
    whole_or_auto,
)
from .screen import printable, show, show_results, write_rows

if TYPE_CHECKING:
    from ..io.tables import Source

app = typer.Typer(
    help="Low-rank matrices from single entries, distances or comparisons.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def demo(out: Page = Path("demo"), as_json: Json = False) -> None:
    """Run the examples, and write a page with their pictures."""
    from ..research.demo import run, write

    results = ((result.title, result) for result in run())
    show_results(results, lambda found: write(list(found.values()), out), as_json)


@app.command()
def fit(
    files: Files,
    out: Annotated[Path, typer.Option(help="Where the model goes.", metavar="MODEL")],
    force: Annotated[bool, flag("--force", "Replace a file that is no model.")] = False,
    kind: Annotated[Kind | None, choice("matrix, distance, ranking, recommender.")] = None,
    user: User = None,
    item: Item = None,
    row: Row = None,
    column: Column = None,
    value: Value = None,
    at_least: AtLeast = None,
    weight: Weight = None,
    time: Time = None,
    half_life: Annotated[str | None, time_span("Recommender: of weights, as 30d.")] = None,
    i: First = None,
    j: Second = None,
    k: Third = None,
    target: Target = None,
    unsquared: Annotated[
        bool, flag("--unsquared", "Distance: values are distances, not their squares.")
    ] = False,
    symmetric: Annotated[bool, flag("--symmetric", "A symmetric matrix: M ~ X X^T.")] = False,
    loss: Annotated[Loss | None, choice("squared, huber, logistic, softmax or bpr.")] = None,
    mode: Annotated[Mode | None, choice("Ranking: item-item or user-item.")] = None,
    similarity: Annotated[
        Similarity | None, choice("Item-item: cosine, adjusted, jaccard or shrunk.")
    ] = None,
    comparisons: Annotated[int | None, whole("Item-item: comparisons to draw.")] = None,
    rank: Annotated[int | None, whole_or_auto("How many directions to learn, or auto.")] = None,
    regularization: Annotated[float | None, number("Matrix: a ridge, or auto.")] = None,
    epochs: Annotated[int | None, whole("Passes over the data.")] = None,
    learning_rate: Annotated[float | None, number("The paper's alpha, or auto.")] = None,
    damping: Annotated[float | None, number("Of P, or auto; 0 is the paper's.")] = None,
    plain: Annotated[bool, flag("--plain", "Plain SGD, without P.")] = False,
    refresh: Annotated[Refresh | None, choice("Renew P every round or sample.")] = None,
    jobs: Annotated[int | None, job_count("Threads")] = None,
    device: Annotated[str | None, choice("cpu, cuda or auto.")] = None,
    dtype: Annotated[Dtype | None, choice("Of the factors: float32 or float64.")] = None,
    seed: Annotated[int | None, whole("Of the start and the order.")] = None,
    ray: Annotated[str | None, choice("Address of a Ray cluster, auto or local.")] = None,
    workers: Annotated[int | None, whole("Of the cluster.")] = None,
    checkpoint: Annotated[Path | None, folder("Folder to go on from after a crash.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn a model from a file, or on a cluster from many.

    --user and --item name the columns of who chose what, and ask for a
    recommender.
    """
    from ..io.model_file import check_place
    from ..io.readers import open_file
    from ..io.tables import InputError
    from ..io.text_format import text_format
    from .tasks import estimator, summary, train, train_on_cluster

    check_place(out, files, force)
    text = text_format(separator, encoding, no_header)
    given = {
        "rank": rank, "epochs": epochs, "learning_rate": learning_rate, "damping": damping,
        "refresh": refresh, "n_jobs": jobs, "device": device, "dtype": dtype, "random_state": seed,
        "loss": loss, "mode": mode, "symmetric": symmetric or None, "scaled": not plain,
        "regularization": regularization, "similarity": similarity, "comparisons": comparisons,
        "half_life": half_life,
        "engine": _cluster(ray, workers, jobs, checkpoint),
    }  # fmt: skip
    settings = {
        name: getattr(value, "value", value)  # of a choice, the word
        for name, value in given.items()
        if value is not None
    }
    kind = kind or (Kind.recommender if user or item else Kind.matrix)
    if unsquared and (kind != Kind.distance or ray is not None):
        raise InputError("--unsquared: goes with --kind distance, and not with --ray")
    model = estimator(kind, settings | {"verbose": True})
    names = {
        "row": row, "column": column, "value": value, "i": i, "j": j, "k": k, "target": target,
        "user": user, "item": item, "time": time, "weight": weight,
    }  # fmt: skip
    begun = monotonic()
    if ray is not None:
        train_on_cluster(model, files, names, at_least)
    elif len(files) == 1:
        train(model, open_file(files[0], text), names, at_least, unsquared)
    else:
        raise InputError(f"{len(files)} files are read on a cluster: give --ray")
    model.save(out)
    model.settle()
    show({"model": str(out)} | summary(model, monotonic() - begun), as_json)


@app.command()
def predict(
    model: Model, file: Data, row: Row = None, column: Column = None, i: First = None,
    j: Second = None, k: Third = None, clip: Clip = None, skip_unknown: Skip = False,
    separator: Separator = None, encoding: Encoding = None, no_header: NoHeader = False,
    max_memory: MaxMemory = None, quiet: Quiet = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Predict what a file asks for: CSV on stdout, or a JSON object a line."""
    from .. import load
    from .tasks import ask

    names = {"row": row, "column": column, "i": i, "j": j, "k": k}
    with progress_bar("predicting", None):
        loaded, source = load(model), _source(file, separator, encoding, no_header)
        query = ask(loaded, source, names, skip_unknown=skip_unknown)
        values = query.predictions(clip).astype(str)
    if query.skipped:
        print(f"left out for ids never trained on: {query.skipped}", file=sys.stderr)
    ids = [query.table[name].tolist() for name in query.names]
    write_rows([*query.names, "prediction"], [*ids, map(float, values)], as_json)


@app.command()
def evaluate(
    model: Model, file: Data, row: Row = None, column: Column = None, value: Value = None,
    at_least: AtLeast = None, i: First = None, j: Second = None, k: ThirdOrCount = None,
    target: Target = None, user: User = None, item: Item = None, skip_unknown: Skip = False,
    separator: Separator = None, encoding: Encoding = None, no_header: NoHeader = False,
    max_memory: MaxMemory = None, quiet: Quiet = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Compare a model with the targets in a file, or with what users chose: for a recommender,
    and with --user and --item."""
    from .. import load
    from ..estimators.recommender import Recommender
    from .tasks import ask, find

    names = {"row": row, "column": column, "value": value, "i": i, "j": j, "k": k, "target": target}
    with progress_bar("evaluating", None):
        loaded, source = load(model), _source(file, separator, encoding, no_header)
        if user is not None or item is not None or isinstance(loaded, Recommender):
            found = find(loaded, source, names | {"user": user, "item": item}, at_least)
        else:
            query = ask(loaded, source, names, skip_unknown=skip_unknown)
            found = query.evaluation() | {"skipped": query.skipped}
    show(found, as_json)


@app.command()
def points(
    model: Model,
    anchors: Annotated[
        Path | None, file("Ids and places of a few points, which the others are turned to fit.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    as_json: Json = False,
) -> None:
    """Write the points that were found from distances: CSV on stdout, or a JSON object a line."""
    from .. import load
    from ..estimators.completers import DistanceCompleter
    from ..io.tables import InputError
    from .tasks import anchored

    loaded = load(model)
    if not isinstance(loaded, DistanceCompleter):
        raise InputError(f"{model}: not a model of distances")
    if anchors is None:
        places = loaded.points_
    else:
        known = anchored(loaded, _source(anchors, separator, encoding, no_header))
        places = loaded.align(*known)
    names = loaded.ids[0].names().tolist() if loaded.ids else range(len(places))
    header = ["point", *(f"x{axis + 1}" for axis in range(places.shape[1]))]
    write_rows(header, [names, *places.T.tolist()], as_json)


def _cluster(ray: str | None, workers: int | None, jobs: int | None, checkpoint: Path | None):
    if ray is None:
        if workers is not None or checkpoint is not None:
            raise typer.BadParameter("--workers and --checkpoint belong to a cluster: give --ray")
        return None
    if find_spec("ray") is None:  # told before pyarrow is missed, which the same extra brings
        raise ModuleNotFoundError(name="ray")
    from .. import RayEngine

    place = str(checkpoint) if checkpoint else None
    return RayEngine(ray, workers or 2, threads=jobs or 1, checkpoint=place, verbose=True)


def _source(file: Path, separator: str | None, encoding: str | None, no_header: bool) -> Source:
    from ..io.readers import open_file
    from ..io.text_format import text_format

    return open_file(file, text_format(separator, encoding, no_header))


doctor_cli.register(app)
recommend_cli.register(app)
reproduce_cli.register(app)
bench_cli.register(app)
stream_cli.register(app)
serve_cli.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns 0, 1 if the run failed, or 2 if the input is no good."""
    warnings.showwarning = _warn
    try:
        status = app(arguments, prog_name="scaledsgd", standalone_mode=False)
        sys.stdout.flush()
        return status or 0  # that of a command which ended early, as it was asked to
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted, nothing was written", file=sys.stderr)
        return 130
    except ModuleNotFoundError as why:
        if not (command := doctor_cli.to_install(why.name)):
            raise
        print(f"scaledsgd: this needs {why.name}: {command}", file=sys.stderr)
        return 2
    except Exception as why:
        if not _foreseen(why):
            raise
        from ..training.history import DivergenceError

        text = getattr(why, "format_message", why.__str__)()  # typer's errors have the former
        if text or not hasattr(why, "format_message"):  # none when help was shown in its place
            print("scaledsgd:", printable(text or type(why).__name__), file=sys.stderr)
        return 1 if isinstance(why, DivergenceError) else 2


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    print("scaledsgd: warning:", printable(str(message)), file=sys.stderr)


def _foreseen(why: Exception) -> bool:
    """Bad usage, bad input, or a run that diverged: not a fault of ours that needs a traceback."""
    usual = (ValueError, OSError, MemoryError, ArithmeticError)
    return hasattr(why, "format_message") or isinstance(why, usual)
