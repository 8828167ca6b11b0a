"""The threads of a process: each by itself, or as a group that waits for each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from threading import Lock

import numpy as np
from threadpoolctl import ThreadpoolController

from ...core.memory import cores
from .intrinsics import CONCURRENT
from .turns import counters, stop

# Of threads that wait for each other at barriers all must have begun: one such group at a time
# has the pool.
_alone = Lock()


class Crew:
    """So many threads.

    >>> Crew(2).each(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, jobs: int):
        self.jobs = jobs

    def each(self, work: Callable, parts: list) -> list:
        """What becomes of every part. Whoever asks takes part, and waits for nobody who has not
        begun: to wake a thread takes longer than many a part does."""
        found, left = [None] * len(parts), iter(range(len(parts)))

        def some() -> None:
            for n in left:
                found[n] = work(parts[n])

        others = range(min(self.jobs, len(parts)) - 1)
        started = [_pool(self.jobs, os.getpid()).submit(some) for _ in others]
        try:
            some()
        finally:
            started = [one for one in started if not one.cancel()]
            wait(started)
        for one in started:
            one.result()
        return found

    def together(self, work: Callable[[int, int, np.ndarray], None], groups: int) -> None:
        """Call work(thread, threads, state) for threads that take the turns of so many groups
        (turns.py). Should one fail, or who waits for them be interrupted, all stop after the turn
        that they are in, and none runs on."""
        threads, state = self.count(groups), counters(groups)
        if threads == 1:
            return work(0, 1, state)

        def safely(thread: int) -> None:
            try:
                work(thread, threads, state)
            except BaseException:
                stop(state)
                raise

        pool, started = _pool(self.jobs, os.getpid()), []
        try:
            for thread in range(threads):
                started.append(pool.submit(safely, thread))
            for one in started:
                one.result()
        except BaseException:
            stop(state)
            wait(started)
            raise

    def count(self, groups: int) -> int:
        """Threads for so many groups: no more than there are cores, whatever was asked for."""
        return min(groups, self.jobs, cores()) if CONCURRENT else 1


class _OneThreadOfBlas:
    """A limit for all of a process, from the first who asks for it to the last who is done."""

    def __init__(self):
        self.lock, self.inside, self.limited = Lock(), 0, []

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            # A limit of the library's own asks for all there is to know about each: too long for
            # a round that takes less.
            for library in _blas() if self.inside == 1 else ():
                if (threads := library.num_threads or 1) > 1:
                    self.limited.append((library, threads))
                    library.set_num_threads(1)

    def __exit__(self, *_) -> None:
        with self.lock:
            self.inside -= 1
            while self.inside == 0 and self.limited:
                library, threads = self.limited.pop()
                library.set_num_threads(threads)


_one_thread = _OneThreadOfBlas()


def one_thread_each(alone: bool = False) -> AbstractContextManager[None]:
    """BLAS of one thread, as long as the context lasts, for threads of ours that call it: for one
    such group at a time, if `alone`."""
    return _one_group() if alone else _one_thread


@contextmanager
def _one_group() -> Iterator[None]:
    with _alone, _one_thread:
        yield


@cache
def _blas() -> list:
    """The libraries of this process, looked for once: that takes milliseconds."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


@lru_cache(maxsize=8)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads are started once a process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(threads)
