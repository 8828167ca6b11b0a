"""What each user chose, and last: what recommendations leave out, and what an event follows."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..core.compiled import njit
from ..io.ids import Ids


class Histories:
    """Items by user, with what she gave them. Users and items are row numbers here.

    >>> told = Histories(Ids())
    >>> told.add(np.array([0, 1, 0]), np.array([4, 4, 2]), np.array([5.0, 3.0, 1.0]))
    >>> told.of(np.array([0]))
    (array([0, 2]), array([2, 4]...), array([1., 5.], dtype=float32))
    """

    def __init__(self, users: Ids):
        self.users = users
        # The last item of each user, -1 where there is none; longer than there are users, so that
        # new ones rarely move it.
        self.previous = np.full(0, -1, np.int32)
        self._table = sp.csr_array((0, 0), dtype=np.float32)
        self._new: list[tuple] = []  # events that are not in the table yet

    def follow(self, users: np.ndarray, items: np.ndarray) -> None:
        """Remember the last item of each of these users, in the order of events."""
        self.room()
        self.previous[users] = items

    def room(self) -> np.ndarray:
        """`previous`, long enough for all users."""
        short = len(self.users) - len(self.previous)
        if short > 0:
            more = np.full(max(short, len(self.previous)), -1, np.int32)
            self.previous = np.concatenate([self.previous, more])
        return self.previous

    def add(self, users: np.ndarray, items: np.ndarray, values: np.ndarray | None = None) -> None:
        """Remember events, which are not copied and must stay as they are. They are sorted into the
        table when somebody asks."""
        values = np.ones(len(users), np.float32) if values is None else values
        self._new.append(
            (np.asarray(users, np.int32), np.asarray(items, np.int32),
             np.asarray(values, np.float32))
        )  # fmt: skip

    def take(self, start: np.ndarray, items: np.ndarray, values: np.ndarray) -> None:
        """Hold a table that somebody else made, as it is: where the items of each user begin and
        the end, items in order, and values."""
        width = int(items.max(initial=-1)) + 1
        self._table = sp.csr_array((values, items, start), shape=(len(start) - 1, width))

    @property
    def table(self) -> sp.csr_array:
        """Users x items; of events of a user on the same item the last counts."""
        if self._new:
            users, items, values = (np.concatenate(c) for c in zip(*self._new, strict=True))
            self._table, self._new = _updated(self._table, last_of(users, items, values)), []
        return self._table

    def of(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the items of each of the users begin and end, the items, and their values."""
        table = self.table
        held = users < len(table.indptr) - 1  # whoever came later has nothing in it
        begin = np.where(held, table.indptr[np.where(held, users, 0)], 0)
        end = np.where(held, table.indptr[np.where(held, users + 1, 0)], 0)
        start = np.concatenate([[0], np.cumsum(end - begin)])
        at = np.arange(start[-1]) + np.repeat(begin - start[:-1], end - begin)
        return start, table.indices[at], table.data[at]

    def frozen(self) -> Histories:
        """For readers in other threads, who do not see what is added later."""
        still = Histories(self.users.frozen())
        still.previous, still._table = self.previous, self.table
        return still

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it but the names of the users, for a file."""
        table = self.table
        return {
            "previous": self.room()[: len(self.users)],
            "seen_start": table.indptr,
            "seen_items": table.indices,
            "seen_values": table.data,
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back what `arrays` gave."""
        self.previous = arrays["previous"].copy()
        self.take(*(arrays[f"seen_{part}"] for part in ("start", "items", "values")))


def _updated(old: sp.csr_array, new: sp.csr_array) -> sp.csr_array:
    """Both tables in one; where both have a value, that of the new one. Rows are in order, and are
    merged in O(n): to sort all of them again would cost a stream more than to learn."""
    if not old.nnz:
        return new
    start = np.zeros(max(len(old.indptr), len(new.indptr)), old.indptr.dtype)
    items = np.empty(old.nnz + new.nnz, np.int32)
    values = np.empty(len(items), np.float32)
    tables = ((t.indptr, t.indices, t.data) for t in (old, new))
    (a, b, c), (d, e, f) = tables
    count = _merge(a, b, c, d, e, f, start, items, values)
    items, values = items[:count].copy(), values[:count].copy()
    return sp.csr_array((values, items, start), shape=(len(start) - 1, int(items.max()) + 1))


@njit(nogil=True, cache=True)
def _merge(
    old_start, old_items, old_values, new_start, new_items, new_values, start, items, values
):
    n = 0
    for row in range(len(start) - 1):
        p = q = p_end = q_end = 0
        if row < len(old_start) - 1:
            p, p_end = old_start[row], old_start[row + 1]
        if row < len(new_start) - 1:
            q, q_end = new_start[row], new_start[row + 1]
        while p < p_end or q < q_end:
            if q == q_end or (p < p_end and old_items[p] < new_items[q]):
                items[n], values[n] = old_items[p], old_values[p]
                p += 1
            else:
                p += p < p_end and old_items[p] == new_items[q]
                items[n], values[n] = new_items[q], new_values[q]
                q += 1
            n += 1
        start[row + 1] = n
    return n


def last_of(users: np.ndarray, items: np.ndarray, values: np.ndarray) -> sp.csr_array:
    """Users x items with the last value of each pair.

    >>> last_of(np.array([1, 0, 1]), np.array([0, 0, 0]), np.array([3.0, 2.0, 5.0])).toarray()
    array([[2.], [5.]])
    """
    order = np.lexsort((items, users))  # stable: of equal pairs the last one stays last
    users, items, values = users[order], items[order], values[order]
    last = np.ones(len(users), bool)
    last[:-1] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
    users, items, values = users[last], items[last], values[last]
    shape = (int(users.max()) + 1, int(items.max()) + 1)
    start = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=shape[0]))])
    return sp.csr_array((values, items, start), shape=shape)
