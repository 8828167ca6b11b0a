"""The workers of a run: started, asked and let go through Ray."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from ...io.progress_bar import progress_bar
from .choice_shard import ChoicePlan
from .splits import Plan
from .worker import Worker

# What is done with every split, in words.
_TOLD = {
    "found": "reading ids", "picked": "looking at samples", "counted": "counting",
    "read": "fetching entries", "events": "reading ids",
}  # fmt: skip

_AHEAD = 2  # calls that wait at a worker: it never idles, and few results lie about


class WorkerPool:
    """Actors that Ray restarts when they die. Numbers past the last begin anew."""

    def __init__(
        self, address: str, workers: int, threads: int, gpus: float, verbose: bool = False
    ):
        self.verbose = verbose  # whether somebody is told of reading and sorting
        self._ours = connect(address, workers * threads)
        import ray

        cpus = ray.cluster_resources().get("CPU", 0)
        if workers * threads > cpus:
            raise ValueError(
                f"{workers} workers of {threads} threads need {workers * threads} CPUs, the "
                f"cluster has {cpus:g}"
            )
        actor: Any = ray.remote(Worker)
        hire = actor.options(
            num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=-1,
            scheduling_strategy="SPREAD",
        )  # fmt: skip
        self.workers = [hire.remote(number, threads, gpus > 0) for number in range(workers)]
        self.get([worker.ready.remote() for worker in self.workers])

    def __getitem__(self, number: int) -> Any:
        return self.workers[number % len(self.workers)]

    def get(self, refs: list) -> list:
        """What was asked for, or the error that a worker met, as if it had been met here."""
        import ray
        from ray.exceptions import RayTaskError

        try:
            return ray.get(refs)
        except RayTaskError as why:
            raise why.cause from None

    def each(self, method: str, splits: Iterable, arguments: Iterable[tuple]) -> Iterable:
        """A function of every split, in order, a few at a time. A split is always asked of the
        same worker, who may have a copy of it."""
        waiting, splits = [], list(splits)
        with progress_bar(_TOLD[method], len(splits), self.verbose) as advance:
            for number, (split, given) in enumerate(zip(splits, arguments, strict=True)):
                if len(waiting) == _AHEAD * len(self.workers):
                    yield self.get(waiting[:1])[0]
                    waiting.pop(0)
                    advance(1)
                waiting.append(self[number].call.remote(split, method, *given))
            for ref in waiting:
                yield self.get([ref])[0]
                advance(1)

    def sort(self, plan: Plan | ChoicePlan) -> tuple[list, dict[int, Any]]:
        """Bring all samples to the disks of those who will run them. Returns the plan in a box, and
        how many samples every bucket has, or what every worker has of choices."""
        import ray

        box, waiting, sizes = [ray.put(plan)], [], {}
        with progress_bar("sorting", 2 * len(plan.splits), self.verbose) as advance:
            for number in range(len(plan.splits)):
                if len(waiting) >= _AHEAD * len(self.workers):
                    self.get(waiting.pop(0))
                    advance(1)
                call = self[number].cut.options(num_returns=len(self.workers))
                pieces = call.remote(box, number)
                pieces = [pieces] if len(self.workers) == 1 else pieces
                told = zip(self.workers, pieces, strict=True)
                waiting.append([worker.add.remote(box, number, piece) for worker, piece in told])
            for refs in waiting:
                self.get(refs)
                advance(1)
            calls = [worker.sizes.remote(box) for worker in self.workers]
            for call in calls:
                sizes |= self.get([call])[0]
                advance(len(plan.splits) / len(calls))
        return box, sizes

    def forget(self, name: str) -> None:
        """Have a plan removed from the disks."""
        with suppress(Exception):  # the cluster may be gone already, at the end of the process
            for worker in self.workers:
                worker.forget.remote(name)

    def close(self) -> None:
        import ray

        if not ray.is_initialized():  # another engine has ended the cluster of this process
            return
        self.get([worker.ready.remote() for worker in self.workers])  # after all they have to do
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []  # nobody asks them again: Ray would start anew for it
        if self._ours:
            ray.shutdown()


def connect(address: str, cpus: int) -> bool:
    """Join a cluster, or start one. Whether it is ours."""
    known = _running() if address == "auto" else None if address == "local" else address
    if known is None and "ray" not in sys.modules:
        # Read when Ray is loaded: what it starts then listens on loopback addresses only.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Blocks that were replaced go at once. By itself Ray lets go once a second, by when every
        # block may have been replaced again and again.
        os.environ.setdefault("RAY_free_objects_batch_size", "1")
        os.environ.setdefault("RAY_free_objects_period_milliseconds", "10")
        if "RAY_AUTH_MODE" not in os.environ:  # versions that know it ask for this token
            os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", token_hex(32)
    try:
        import ray
    except ImportError:
        raise ValueError("a cluster needs Ray: pip install 'scaledsgd[ray]'") from None

    if ray.is_initialized():
        return False
    quiet: Any = {"logging_level": "ERROR", "log_to_driver": False}
    if known is not None:
        if "://" not in known and not _answers(known):
            raise ValueError(f"no Ray cluster answers at {known}")
        ray.init(address=known, **quiet)
        return False
    count = max(cpus, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=count, include_dashboard=False, **quiet)
    if not ray.util.get_node_ip_address().startswith(("127.", "::1")):
        ray.shutdown()
        raise ValueError(
            "Ray was loaded before it could be told to listen on loopback addresses only: start a "
            "cluster and give its address, or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
        )
    return True


def _running() -> str | None:
    """The cluster that the environment names, or that `ray start` left word of and that answers."""
    named = os.environ.get("RAY_ADDRESS")
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    if named or not note.exists():
        return named
    found = note.read_text().strip()
    return found if _answers(found) else None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError):
        return False
    return True
