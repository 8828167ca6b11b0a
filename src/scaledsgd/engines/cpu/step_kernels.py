"""The step, compiled: one body for a round's frozen diagonal P, one for the paper's per-sample P.

Both are written once for all losses. A factory closes over a loss's row of the table, whose zeros
and ones the compiler folds away, so that each loss gets the code one would write for it by hand.
"""

from __future__ import annotations

import hashlib
import inspect
from functools import cache

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ...core.compiled import njit
from ...core.losses import LOSSES, Loss, sigmoid, weight
from . import permutations as orders
from . import prefetch as memory
from . import turns as meetings
from .intrinsics import PIECE, WIDTHS, bodies, load, store, total, totals, zeros
from .permutations import (
    ALL,
    BITS,
    BLOCK,
    COPIED,
    DEALT,
    IN_PLACE,
    ORDERED,
    fetch_block,
    fetch_targets,
    loops,
    place,
)  # fmt: skip
from .plain import FAST
from .prefetch import ahead, fetch
from .sample_order import ends
from .turns import end_turn, next_turn


def _jit(function):
    fast = set(FAST)
    return njit(nogil=True, cache=True, fastmath=fast, error_model="numpy")(function)


def kernel(factory, loss: Loss, rank: int = 0, **options):
    """The compiled kernel of a loss, from the disk cache when it was compiled before."""
    width = next((width for width in WIDTHS if rank <= width), 0)
    return _compiled(factory, loss.name, width, **options)


@cache
def _compiled(factory, name: str, width: int, **options):
    loss = LOSSES[name]
    # Numba's disk cache looks at this file and at what a kernel closes over, and takes functions by
    # their name: without the hash an edited loss would run as its old binary.
    parts = loss.slope, memory, orders, meetings, ends, bodies
    source = "".join(map(inspect.getsource, parts))
    version = hashlib.sha256(source.encode()).hexdigest()
    return factory(loss, register_jitable(loss.slope), width, version, **options)


# The sigmoid less a half is z p(z^2) / q(z^2) up to 8e-9, below half a unit of float32's last place
# near 1: fitted to its largest error for |z| <= 17.5, beyond which a float32 cannot tell it from 1.
# A step of BPR at r = 3 takes half as long as with an exponential. benchmarks/fit_sigmoid.py fits.
_END = np.float32(17.5)
SIGMOID = (
    (0.249999982, 0.00836863844, 5.47859565e-05, 8.12352381e-08, 1.33160492e-11),
    (1.0, 0.116807816, 0.00161981574, 5.16190256e-06, 3.08081446e-09),
)
_P0, _P1, _P2, _P3, _P4 = map(np.float32, SIGMOID[0])
_Q0, _Q1, _Q2, _Q3, _Q4 = map(np.float32, SIGMOID[1])


@overload(sigmoid)
def _sigmoid(z):
    if z == types.float32:

        def rational(z):
            x = min(max(z, -_END), _END)
            s = x * x
            p = _P0 + s * (_P1 + s * (_P2 + s * (_P3 + s * _P4)))
            q = _Q0 + s * (_Q1 + s * (_Q2 + s * (_Q3 + s * _Q4)))
            return np.float32(0.5) + x * p / q

        return rational
    return sigmoid


@overload(weight)
def _weight(y):
    if isinstance(y, types.Complex):
        return lambda y: y.imag
    one = np.float32(1) if y == types.float32 else 1.0
    return lambda y: one


def _coefficients(loss: Loss):
    """a and b for three rows, in the type that does not widen a float32 row."""
    return [tuple(np.float32(c) for c in (*row, 0)[:3]) for row in (loss.a, loss.b)]


@register_jitable
def _combine(c, x0, x1, x2):
    return c[0] * x0 + c[1] * x1 + c[2] * x2


def _parts(loss: Loss, width: int):
    """What is done to `width` columns of a sample's rows, of which `left` are not past the end:
    `form` gives u and v, `scales` what each row's step is multiplied by, `move` what a slope of 1
    moves the rows by."""
    (a, b), triplet = _coefficients(loss), loss.arity == 3

    @register_jitable
    def form(X, rows, q, left):
        x0, x1 = load(X, rows[0], q, left, width), load(X, rows[1], q, left, width)
        # Of a pair the third row is the second again, with coefficients 0.
        x2 = load(X, rows[2], q, left, width) if triplet else x1
        return (x0, x1, x2), _combine(a, x0, x1, x2), _combine(b, x0, x1, x2)

    @register_jitable
    def scales(steps, q, left):
        p0, p1 = load(steps, 0, q, left, width), load(steps, 1, q, left, width)
        return p0, p1, load(steps, 2, q, left, width) if triplet else p1

    @register_jitable
    def move(p, u, v):
        w0, w1, w2 = a[0] * v + b[0] * u, a[1] * v + b[1] * u, a[2] * v + b[2] * u
        m0, m1, m2 = p[0] * w0, p[1] * w1, p[2] * w2
        return (m0, m1, m2), m0 * w0 + m1 * w1 + m2 * w2

    @register_jitable
    def step(X, p, g, rows, q, left):
        x, u, v = form(X, rows, q, left)
        moves, _ = move(p, u, v)
        # Last named, first written: of a row named twice the first move stays.
        if triplet:
            store(X, rows[2], q, left, x[2] - g * moves[2])
        store(X, rows[1], q, left, x[1] - g * moves[1])
        store(X, rows[0], q, left, x[0] - g * moves[0])

    return form, scales, move, step


def _steps(loss: Loss, slope, width: int, capped: bool, far: bool):
    """Steps with a frozen diagonal P: `steps[m]` is alpha P for the m-th row of a sample, and alpha
    alone makes it plain SGD. Returns the sum of squared slopes.

    A step changes z by the slope times h = sum_m alpha_m |dz/dx_m|_P^2, to first order. Rows of
    high leverage have a large h; `capped` shortens their step so that h stays within `cap`.

    With `far`, for an X that does not fit the cache, rows are fetched ahead of their turn."""
    third, triplet = loss.arity - 1, loss.arity == 3
    W = width or PIECE
    form, scales, move, step = _parts(loss, W)

    @register_jitable
    def run(X, steps, cap, index, targets, order, shift):
        r, real, lead = X.shape[1], X.dtype.type, ahead(X, third + 1)
        whole = 0 if width else r // W * W
        size, last, squares = min(index.shape[0], 1 << shift), index.shape[0] - 1, 0.0
        end = scales(steps, whole, r - whole)  # of the last columns, or all: never loaded again
        for block in range(len(order)):
            if block + 2 < len(order):
                fetch_block(index, order[block + 2], third + 1)
                fetch_targets(targets, order[block + 2])
            now, after = order[block], order[min(block + 1, len(order) - 1)]
            for c in range(size):
                t = np.uint64(place(now, c, size))
                if far:
                    soon = place(now if c + lead < size else after, c + lead, size)
                    fetch(X, index, np.uint64(min(soon, last)), width, triplet)
                rows = index[t, 0], index[t, 1], index[t, third]
                z, h = zeros(X, W), zeros(X, W)
                for q in range(0, whole, W):
                    _, u, v = form(X, rows, q, W)
                    z = z + u * v
                    if capped:
                        h = h + move(scales(steps, q, W), u, v)[1]
                if width or whole < r:
                    _, u, v = form(X, rows, whole, r - whole)
                    z = z + u * v
                    if capped:
                        h = h + move(end, u, v)[1]
                score, lever = totals(z, h) if capped else (total(z), cap)
                g, w = real(slope(score, targets[t].real)), weight(targets[t])
                squares += w * g * g
                g *= w
                if capped:  # without a branch, which would be guessed wrong now and then
                    g *= cap / max(w * lever, cap)
                for q in range(0, whole, W):
                    step(X, scales(steps, q, W), g, rows, q, W)
                if width or whole < r:
                    step(X, end, g, rows, whole, r - whole)
        return squares

    return run


def rounds(loss: Loss, slope, width: int, version: str, capped: bool = False, far: bool = False):
    """Steps on the samples of a `MiniBatch`. Returns the sum of squared slopes."""
    steps_on = _steps(loss, slope, width, capped, far)

    @_jit
    def run(X, steps, cap, index, targets, order, shift):
        _ = version  # part of the cache key
        return steps_on(X, steps, cap, index, targets, order, shift)

    return run


def turns(loss: Loss, slope, width: int, version: str, capped: bool = False, far: bool = False):
    """Steps on samples of many shards, one for each group of every visit, as one of several threads
    (turns.py): of visit visits[k] that part of its shards which parts[k] says. What each turn adds
    to the sum of squared slopes is added to sums[k, group]."""
    steps_on, (*_, hand) = _steps(loss, slope, width, capped, far), loops(loss.arity)

    @_jit
    def run(thread, threads, state, frozen, samples, starts, plan, key, way, room, sums):
        _ = version  # part of the cache key
        (X, steps, cap), (index, targets), (groups, owner, visits, parts) = frozen, samples, plan
        order, held_index, held_targets = room
        straight = np.array([BLOCK])
        while True:
            k, g = next_turn(state, thread, threads, groups, owner, visits)
            if k < 0:
                return
            shard = visits[k] * groups.shape[1] + g
            begin, end = starts[shard], starts[shard + 1]
            own_index, own_targets = index[begin:end], targets[begin:end]
            whole = way in (DEALT, IN_PLACE)
            at, stop = ends(parts[k, 0], parts[k, 1], parts[k, 2], end - begin, whole)
            squares = sums[k, g]
            while at < stop:
                last, what = hand(
                    own_index, own_targets, key, at, stop, way, order, held_index, held_targets
                )
                some_index, some_targets, some, shift = own_index, own_targets, straight, ALL
                if what == ORDERED:
                    some, shift = order[: (last - at) // BLOCK], BITS
                elif what == COPIED:
                    some_index, some_targets = held_index[: last - at], held_targets[: last - at]
                else:
                    some_index, some_targets = own_index[at:last], own_targets[at:last]
                squares += steps_on(X, steps, cap, some_index, some_targets, some, shift)
                at = last
            sums[k, g] = squares
            end_turn(state, groups, g)

    return run


def scoring(loss: Loss, slope, width: int, version: str, far: bool = False):
    """z of every sample."""
    third, triplet = loss.arity - 1, loss.arity == 3
    W = width or PIECE
    form, *_ = _parts(loss, W)

    @_jit
    def score(X, index, out):
        _ = version  # part of the cache key
        r, last, lead = X.shape[1], index.shape[0] - 1, ahead(X, third + 1)
        for t in range(index.shape[0]):
            if far:
                fetch(X, index, min(t + lead, last), width, triplet)
            rows, z = (index[t, 0], index[t, 1], index[t, third]), zeros(X, W)
            for q in range(0, r, W):
                _, u, v = form(X, rows, q, r - q)
                z = z + u * v
            out[t] = total(z)

    return score


@njit(nogil=True, cache=True)
def scale(X, columns):
    """X <- X diag(columns). Of short rows with room between them, NumPy takes three to six times as
    long."""
    for row in range(X.shape[0]):
        for q in range(X.shape[1]):
            X[row, q] *= columns[q]


@njit(nogil=True, cache=True, error_model="numpy")
def shrink(X, rows, columns):
    """X_iq <- X_iq / (1 + rows_i columns_q), of as many columns as are given."""
    one = X.dtype.type(1)
    for row in range(X.shape[0]):
        for q in range(len(columns)):
            X[row, q] /= one + rows[row] * columns[q]


@njit(nogil=True, cache=True, error_model="numpy")
def _sherman_morrison(P, u, sign, Pu):
    """P <- (P^-1 + sign u u^T)^-1 in place; False, P untouched, where that is not positive."""
    r = len(u)
    uPu = 0.0
    for p in range(r):
        Pu[p] = 0.0
        for q in range(r):
            Pu[p] += P[p, q] * u[q]
        uPu += Pu[p] * u[p]
    # Below 1e-8 half of float64's digits are gone from the quotient; NaN fails the test too.
    if not 1.0 + sign * uPu > 1e-8:
        return False
    for p in range(r):
        for q in range(r):
            P[p, q] -= sign * Pu[p] * Pu[q] / (1.0 + sign * uPu)
    return True


def sampled(loss: Loss, slope, width: int, version: str):
    """The paper to the letter: P follows every sample by Sherman-Morrison. `P` and `change` (the
    cumulative change of the Gram) hold one matrix a side. Stops after the first sample whose
    update of P fails. Returns how many samples were run, their sum of squared slopes, and whether P
    is sound."""
    arity, a, b = loss.arity, loss.a, loss.b
    left_right = loss.sides

    @njit(nogil=True, cache=True, error_model="numpy")
    def run(X, P, change, rates, index, targets):
        _ = version  # part of the cache key
        r, sides = X.shape[1], P.shape[0]
        before, steps = np.empty((arity, r)), np.empty((arity, r))
        u, v, work = np.empty(r), np.empty(r), np.empty(r)
        total = 0.0
        for t in range(index.shape[0]):
            z = 0.0
            for q in range(r):
                u[q] = v[q] = 0.0
                for m in range(arity):
                    before[m, q] = X[index[t, m], q]
                    u[q] += a[m] * before[m, q]
                    v[q] += b[m] * before[m, q]
                z += u[q] * v[q]
            g, w = slope(z, targets[t].real), weight(targets[t])
            total += w * g * g
            g *= w
            for m in range(arity):
                other = (1 - left_right[m]) % sides
                for p in range(r):
                    steps[m, p] = 0.0
                    for q in range(r):
                        steps[m, p] += P[other, p, q] * (a[m] * v[q] + b[m] * u[q])
            sound = True
            for m in range(arity):
                named = False
                for n in range(m):
                    named = named or index[t, n] == index[t, m]
                if named:
                    continue
                row, side = X[index[t, m]], left_right[m] % sides
                for q in range(r):
                    row[q] = before[m, q] - rates[m] * g * steps[m, q]
                    u[q] = row[q]  # u and v are spent; u is now the new row in float64
                sound = sound and _sherman_morrison(P[side], u, 1.0, work)
                sound = sound and _sherman_morrison(P[side], before[m], -1.0, work)
                for p in range(r):
                    for q in range(r):
                        change[side, p, q] += u[p] * u[q] - before[m, p] * before[m, q]
            if not sound:
                return t + 1, total, False
        return index.shape[0], total, True

    return run
