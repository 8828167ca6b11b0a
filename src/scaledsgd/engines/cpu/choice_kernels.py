"""Compiled steps on choices: one event at a time of the whole-data squared loss, and blocks of
matrix products of the sampled softmax. `core/reference.py` says the same in plain NumPy.

Rows are taken from tables whose padding is part of the array (`padded`), so that the compiler sees
them side by side in memory.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from ...core.compiled import njit
from .intrinsics import (
    PIECE,
    arrive,
    arrived,
    give_way,
    load,
    pause,
    prefetch,
    store,
    totals,
    zeros,
)  # fmt: skip
from .prefetch import a_line
from .turns import end_turn, next_turn

_AHEAD, _FURTHER = 8, 32  # choices before its turn: a choice's rows are asked for, and the choice
_APART = 16  # numbers between rows of a room
_ROWS = 256  # whose squares are added up before they are added to the rest
_W = PIECE  # columns that a squared step works on at once
_PATIENCE = 5_000  # looks for others, some 300 us, before a thread sleeps between them

_jit = njit(nogil=True, cache=True, fastmath=True, error_model="numpy")

# Of exp below: 2^f on [-1/2, 1/2] by a polynomial, good to 2e-7, and the exponent's bits set by
# hand, so that the loop around it becomes vector instructions. Scores beyond the clamp are 0.
_LOG2_E = np.float32(1.44269504)
_LOWEST, _HIGHEST = np.float32(-80), np.float32(60)
_POWERS = tuple(
    np.float32(c)
    for c in (0.00132669704, 0.00967545975, 0.0555074262, 0.240221218, 0.693146949, 1.00000007)
)


def padded(X: np.ndarray) -> np.ndarray:
    """X (n, r) with the room between its rows, as an array in one piece.

    >>> from scaledsgd.core.linalg import aligned
    >>> padded(aligned(3, 10, np.float32)).shape
    (3, 16)
    """
    shape, strides = (len(X), X.strides[0] // X.itemsize), (X.strides[0], X.itemsize)
    return np.lib.stride_tricks.as_strided(X, shape, strides)


@register_jitable
def _fetch(X, row):
    """Begin to load a row."""
    for q in range(0, X.shape[1], a_line(X)):
        prefetch(X, row, q, 0)


@_jit
def squared(U, V, r, users, items, weights, order, theta, seen, ridges, grams, means):
    """A step on the two rows of each choice that `order` names. Returns the sum of the squared
    residuals.

    seen, ridges : of each user, and of each item.
    grams, means : (2, r) alpha_0 x_q^2 summed over the rows of a side, and x_q^2 averaged over its
        events; users first.
    """
    (n, m), (lu, li), squares = seen, ridges, 0.0
    one, least = np.float32(1), np.float32(1e-30)  # past the last column nothing is curved
    # With room up to where registers end: what is stored under a mask is not soon to be read.
    room = -(-r // _W) * _W
    steps, G = np.zeros((2, room), np.float32), np.zeros((2, room), np.float32)
    C = G.copy()
    G[:, :r], C[:, :r] = grams, means
    # Choices lie anywhere in memory, and so do their rows: both are asked for before their turn.
    us, vs, ws = (
        np.empty(_AHEAD, np.int64),
        np.empty(_AHEAD, np.int64),
        np.empty(_AHEAD, np.float32),
    )
    for t in range(len(order) + _AHEAD):
        place = t % _AHEAD
        u, i, w = us[place], vs[place], theta * ws[place]
        if t < len(order):
            if t + _FURTHER < len(order):
                at = order[t + _FURTHER]
                prefetch(users, at, 0, 0)
                prefetch(items, at, 0, 0)
                prefetch(weights, at, 0, 0)
            at = order[t]
            us[place], vs[place], ws[place] = users[at], items[at], weights[at]
            _fetch(U, us[place])
            _fetch(V, vs[place])
        if t < _AHEAD:
            continue
        nu, ni, hu, hi = n[u], m[i], lu[u], li[i]
        bu, bi = w / nu, w / ni
        products, leverage = zeros(U, _W), zeros(U, _W)
        for q in range(0, r, _W):
            left = r - q
            x, v = load(U, u, q, left, _W), load(V, i, q, left, _W)
            # The curvature of all her choices and of the rest: what a step on one is divided by.
            a = nu * load(C, 1, q, _W, _W) + (one + bu) * (load(G, 1, q, _W, _W) + hu)
            b = ni * load(C, 0, q, _W, _W) + (one + bi) * (load(G, 0, q, _W, _W) + hi)
            both = one / (a * b + least)  # one division for two
            p, s = b * both, a * both
            store(steps, 0, q, _W, p)
            store(steps, 1, q, _W, s)
            products = products + x * v
            leverage = leverage + p * v * v + s * x * x
        z, lever = totals(products, leverage)
        squares += (one - z) * (one - z)
        e = w * (one - z) / (one + w * lever)  # the residual after the step, not before
        for q in range(0, r, _W):
            left = r - q
            x, v = load(U, u, q, left, _W), load(V, i, q, left, _W)
            gu, gi = load(G, 1, q, _W, _W) + hu, load(G, 0, q, _W, _W) + hi
            store(U, u, q, left, x + load(steps, 0, q, _W, _W) * (e * v - bu * gu * x))
            store(V, i, q, left, v + load(steps, 1, q, _W, _W) * (e * x - bi * gi * v))
    return squares


@_jit
def number(order, users, items, left, right, jobs, numbers, counts, begin, end):
    """The task, by visit and then by group, of each choice of `order` from `begin` to `end`,
    and how many each task has. left, right : the block of each user, and of each item."""
    for k in range(begin, end):
        u = left[users[order[k]]]
        numbers[k] = (right[items[order[k]]] - u) % jobs * jobs + u
        counts[numbers[k]] += 1


@_jit
def squared_turns(thread, threads, state, plan, order, starts, rows, events, frozen, sums):
    """`squared` on the choices of each turn, as one of several threads (turns.py)."""
    groups, owner, visits = plan
    (U, V, r), (users, items, weights) = rows, events
    theta, seen, ridges, grams, means = frozen
    while True:
        k, g = next_turn(state, thread, threads, groups, owner, visits)
        if k < 0:
            return
        task = k * groups.shape[1] + g
        part = order[starts[task] : starts[task + 1]]
        sums[k, g] = squared(
            U, V, r, users, items, weights, part, theta, seen, ridges, grams, means
        )
        end_turn(state, groups, g)


@_jit
def squares(X, r, weights):
    """x_q^2 summed over the rows with each of the weights (k, d): (k, r)."""
    out, part = np.zeros((len(weights), r)), np.empty((len(weights), r), X.dtype)
    for start in range(0, len(X), _ROWS):  # sums of few in the precision of X
        part[:] = 0
        for row in range(start, min(start + _ROWS, len(X))):
            x = X[row]
            for k in range(len(weights)):
                w = X.dtype.type(weights[k, row])
                for q in range(r):
                    part[k, q] += w * x[q] * x[q]
        out += part
    return out


@register_jitable
def _exp(x):
    y = min(max(x, _LOWEST), _HIGHEST) * _LOG2_E
    k = np.floor(y + np.float32(0.5))
    f = y - k
    p = _POWERS[0]
    p = p * f + _POWERS[1]
    p = p * f + _POWERS[2]
    p = p * f + _POWERS[3]
    p = p * f + _POWERS[4]
    p = p * f + _POWERS[5]
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


def _products(turned):
    """out <- A B, or A^T B: of matrices as small as those of a block, in half of BLAS's time."""

    @register_jitable
    def product(A, B, out, m, n):
        """A (m, k), or (k, m); B (k, n); out (m, n); more columns may follow."""
        k = len(B)
        for c in range(0, n, 2 * _W):
            left, more = n - c, n - c - _W
            for t in range(0, m, 4):  # of fewer than four rows some are done again
                t1, t2, t3 = min(t + 1, m - 1), min(t + 2, m - 1), min(t + 3, m - 1)
                p0, p1, p2, p3 = zeros(B, _W), zeros(B, _W), zeros(B, _W), zeros(B, _W)
                s0, s1, s2, s3 = zeros(B, _W), zeros(B, _W), zeros(B, _W), zeros(B, _W)
                for q in range(k):
                    x, y = load(B, q, c, left, _W), load(B, q, c + _W, more, _W)
                    if turned:
                        a0, a1, a2, a3 = A[q, t], A[q, t1], A[q, t2], A[q, t3]
                    else:
                        a0, a1, a2, a3 = A[t, q], A[t1, q], A[t2, q], A[t3, q]
                    p0, s0 = p0 + a0 * x, s0 + a0 * y
                    p1, s1 = p1 + a1 * x, s1 + a1 * y
                    p2, s2 = p2 + a2 * x, s2 + a2 * y
                    p3, s3 = p3 + a3 * x, s3 + a3 * y
                for row, p, s in ((t, p0, s0), (t1, p1, s1), (t2, p2, s2), (t3, p3, s3)):
                    store(out, row, c, left, p)
                    store(out, row, c + _W, more, s)

    return product


_product, _product_turned = _products(False), _products(True)


@_jit
def exp_rows(S, n, sums):
    """S <- exp(S) in place, of the first n columns, and the sum of each row."""
    for b in range(S.shape[0]):
        row, total = S[b], np.float32(0)
        for j in range(n):
            e = _exp(row[j])
            row[j] = e
            total += e
        sums[b] = total


@register_jitable
def _gather(x, out, cosine):
    """out <- x, of unit length for cosines. Returns 1 over the length, else 1."""
    over, length = np.float32(1), np.float32(1e-20)
    for q in range(len(out)):
        length += x[q] * x[q]
    if cosine:
        over /= np.sqrt(length)
    for q in range(len(out)):
        out[q] = x[q] * over
    return over


@register_jitable
def _project(g, a, over):
    """The gradient of a cosine: it loses its part along its own row, of unit length in a, and is
    divided by the row's length."""
    along = np.float32(0)
    for q in range(len(g)):
        along += g[q] * a[q]
    for q in range(len(g)):
        g[q] = (g[q] - along * a[q]) * over


@register_jitable
def _descend(x, h, alpha):
    for q in range(len(h)):
        x[q] -= alpha * h[q]


@_jit
def _levers(A, P):
    """a P a' of each row of A."""
    H, out = np.empty(A.shape, np.float32), np.empty(len(A), np.float32)
    _product(A, P, H, *A.shape)
    for b in range(len(A)):
        total = np.float32(0)
        for q in range(A.shape[1]):
            total += H[b, q] * A[b, q]
        out[b] = total
    return out


@_jit
def _scores(A, W, beta, T, S, sums, gu):
    """exp of the scores of some choices against some negatives, their sums, and the negatives' rows
    added up with them.

    A, W : (b, r), (n, r) rows, of unit length for cosines.
    S, sums, gu : (b, n), (b,), (b, r) what is found; T (r, n): room.
    """
    (n, r), b = W.shape, len(A)
    for q in range(r):
        for j in range(n):
            T[q, j] = beta * W[j, q]
    _product(A, T, S, b, n)
    exp_rows(S, n, sums)
    _product(S, W, gu, b, r)


@_jit
def _negatives(A, S, weights, sums, P, how, gn, mass):
    """Gradients of the negatives, not yet projected, and their curvature: gn (n, r), mass (n,).

    sums : (b,) over all negatives of the block.
    """
    tau, c, cosine, _ = how
    beta, p, C = np.float32(1) / tau, np.empty(len(A), np.float32), np.empty(A.shape, np.float32)
    for k in range(len(A)):
        p[k] = c * weights[k] / sums[k]
        for q in range(A.shape[1]):
            C[k, q] = p[k] * beta * A[k, q]
    _product_turned(S, C, gn, *gn.shape)
    if not cosine:
        levers = _levers(A, P[0])
        mass[:] = 0
        for k in range(len(A)):
            lever = p[k] * levers[k]
            for j in range(len(mass)):
                mass[j] += lever * S[k, j]


@_jit
def _own_rows(A, B, lengths, weights, sums, P, alpha, how, gu, gi):
    """Gradients of the users' and of the items' rows of some choices, times P. Returns the sum of
    their losses.

    A, B : (b, r) those rows, of unit length for cosines; lengths (2, b): 1 over their own.
    gu : (b, r) the negatives' rows, added up with their weights exp(s); then the gradient.

    With dot products a step is divided by 1 + its own curvature, as an implicit one would be.
    """
    tau, c, cosine, ridge = how
    one, beta, loss = np.float32(1), np.float32(1) / tau, 0.0
    for k in range(len(A)):
        o, own = weights[k] * beta, np.float32(0)
        p = c * o / sums[k]
        for q in range(A.shape[1]):
            own += A[k, q] * B[k, q]
            gu[k, q] = p * gu[k, q] - o * B[k, q]
            gi[k, q] = -o * A[k, q]
        loss += weights[k] * (c * np.log(sums[k]) - beta * own)
    if cosine:
        for k in range(len(A)):
            _project(gu[k], A[k], lengths[0, k])
            _project(gi[k], B[k], lengths[1, k])
        return loss
    lu, li = _levers(A, P[0]), _levers(B, P[1])
    for k in range(len(A)):
        h = alpha * weights[k]
        eu = one / (one + h * (beta * beta * li[k] + ridge))
        ei = one / (one + h * (beta * beta * lu[k] + ridge))
        for q in range(A.shape[1]):
            gu[k, q] = eu * (gu[k, q] + ridge * weights[k] * A[k, q])
            gi[k, q] = ei * (gi[k, q] + ridge * weights[k] * B[k, q])
    return loss


@_jit
def wait(counter, target):
    """Return when so many have arrived. Whoever waits for long lets others have its core."""
    arrive(counter, 0)
    tries = 0
    while arrived(counter, 0) < target:
        tries += 1
        pause()
        if tries > _PATIENCE:
            give_way()


@_jit
def _added(parts):
    """The sum of a few rows."""
    out = parts[0].copy()
    for other in range(1, len(parts)):
        out += parts[other]
    return out


@_jit
def softmax(
    thread, grid, counter, U, V, choices, negatives, owners, P, alphas, how, shared
):  # fmt: skip
    """All blocks of a round, of which each thread has a part: in products some choices against some
    negatives, by their place in a grid of threads; rows by their number, so that none writes what
    another one reads or writes. Threads wait for each other up to three times a block. Returns the
    sum of the losses of this thread's choices.

    grid : parts of the choices, and of the negatives.
    choices : users, items, weights, each (blocks, b); a choice of weight 0 is none.
    negatives : (blocks, N).
    owners : which thread has the row of each user, item and negative; shapes as above.
    shared : what threads fill for each other. Two sets where one thread may begin a block while
        another still ends the last: rows of negatives (2, N, r) and 1 over their lengths (2, N).
        One of the others: rows of choices (2, b, r), users first, and 1 over their lengths (2, b);
        by part of the negatives, sums of scores (., b) and gradients of users (., b, r); by part
        of the choices, gradients of negatives (., N, r) and their curvature (., N); and steps
        (2, b, r).
    """
    (users, items, weights), (own_users, own_items, own_negatives) = choices, owners
    rows, lengths, both, ends, sums, gu, gn, mass, steps = shared
    cosine, (b, r), N, total, waits = how[2], steps.shape[1:], negatives.shape[1], 0.0, 0
    deep, wide = grid
    threads, down, along = deep * wide, thread // wide, thread % wide
    top, bottom = down * b // deep, (down + 1) * b // deep  # of the products
    left, right = along * N // wide, (along + 1) * N // wide
    first, last = thread * b // threads, (thread + 1) * b // threads  # of the choices' own rows
    # Rows lie so far apart that no few lines of the cache are asked for a whole column.
    S = np.empty((bottom - top, right - left + _APART), np.float32)
    T = np.empty((r, right - left + _APART), np.float32)
    A, B = both[0], both[1]
    mine, G, H = np.empty(N, np.int64), np.empty((N, r), np.float32), np.empty((N, r), np.float32)
    one, beta = np.float32(1), np.float32(1) / how[0]
    for block in range(len(negatives)):
        alpha, own, W, over = alphas[block], 0, rows[block % 2], lengths[block % 2]
        for j in range(N):
            if own_negatives[block, j] == thread:
                mine[own] = j
                own += 1
        for k in range(b):
            if k + _FURTHER < b and own_users[block, k + _FURTHER] == thread:
                _fetch(U, users[block, k + _FURTHER])
            if k + _FURTHER < b and own_items[block, k + _FURTHER] == thread:
                _fetch(V, items[block, k + _FURTHER])
            if own_users[block, k] == thread:
                ends[0, k] = _gather(U[users[block, k]], A[k], cosine)
            if own_items[block, k] == thread:
                ends[1, k] = _gather(V[items[block, k]], B[k], cosine)
        for k in range(own):
            if k + _AHEAD < own:
                _fetch(V, negatives[block, mine[k + _AHEAD]])
            j = mine[k]
            over[j] = _gather(V[negatives[block, j]], W[j], cosine)
        waits += threads
        wait(counter, waits)
        some = A[top:bottom], W[left:right]
        _scores(*some, beta, T, S, sums[along, top:bottom], gu[along, top:bottom])
        if wide > 1:
            waits += threads
            wait(counter, waits)
        scores = _added(sums[:, top:bottom])
        found = gn[down, left:right], mass[down, left:right]
        _negatives(some[0], S, weights[block, top:bottom], scores, P, how, *found)
        part, hu, hi = weights[block, first:last], gu[0, first:last], steps[1, first:last]
        for other in range(1, wide):
            hu += gu[other, first:last]
        scores, pair = scores[first - top : last - top], (A[first:last], B[first:last])
        total += _own_rows(*pair, ends[:, first:last], part, scores, P, alpha, how, hu, hi)
        _product(hu, P[1], steps[0, first:last], last - first, r)
        _product(hi, P[0], hu, last - first, r)
        hi[:] = hu
        waits += threads
        wait(counter, waits)
        for k in range(b):
            if own_users[block, k] == thread:
                _descend(U[users[block, k]], steps[0, k], alpha)
            if own_items[block, k] == thread:
                _descend(V[items[block, k]], steps[1, k], alpha)
        for k in range(own):
            j, curvature = mine[k], np.float32(0)
            G[k] = gn[0, j]
            for other in range(1, deep):
                G[k] += gn[other, j]
            if cosine:
                _project(G[k], W[j], over[j])
                continue
            for other in range(deep):
                curvature += mass[other, j]
            G[k] /= one + alpha * beta * beta * curvature
        _product(G, P[0], H, own, r)
        for k in range(own):
            if k + _AHEAD < own:
                _fetch(V, negatives[block, mine[k + _AHEAD]])
            _descend(V[negatives[block, mine[k]]], H[k], alpha)
    return total
