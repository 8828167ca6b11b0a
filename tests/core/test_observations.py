import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd import MatrixCompleter, Observations
from scaledsgd.io.ids import Ids

pairs, triplets, matrix = Observations.pairs, Observations.triplets, Observations.matrix
full = np.array([[1.0, 2.0], [3.0, 4.0]])

REFUSED = [
    (lambda: pairs([], [], []), "no observations"),
    (lambda: matrix(sp.coo_array((3, 3))), "no observations"),
    (lambda: matrix(np.full((2, 2), np.nan)), "no observations"),
    (lambda: pairs([0, 1], [1, 0], [1.0, np.nan]), "observation 1: target nan"),
    (lambda: pairs([0], [1], [np.inf]), "observation 0: target inf is not"),
    (lambda: pairs([0], [1], ["six"]), "target 'six' is not a number"),
    (lambda: pairs([0, 1], [1, 0], [[1.0], [2.0]]), "targets form a list, not an array of 2"),
    (lambda: pairs([0, 1], [1, 0], [10**400, 1]), "target 1000.* is not a number"),
    (lambda: pairs([0, -3], [1, 1], [1.0, 1.0]), "observation 1: index -3 is negative"),
    (lambda: pairs([0, 1.5], [1, 1], [1.0, 1.0]), "row index 1.5 is not a whole number"),
    (lambda: pairs([0], [2**63], [1.0]), "column index 9223372036854775808 does not fit"),
    (lambda: pairs([0], [2**70], [1.0]), "column index 1180591620717411303424 does not fit"),
    (lambda: pairs([0], [1e300], [1.0]), "column index 1e.300 does not fit"),
    (lambda: pairs(["a"], [1], [1.0]), "row index 'a' is not a whole number"),
    (lambda: pairs([0], [7], [1.0], shape=(3, 3)), "observation 0: index 7 is past the end, 3"),
    (lambda: pairs([2, 3], [0, 0], [1.0, 1.0], shape=(3, 9)), "observation 1: index 3 is past"),
    (lambda: pairs([0, 0], [1, 2], [1.0, 1.0], shape=(9, 2)), "observation 1: index 2 is past"),
    (lambda: pairs([0, 5, 7], [0, 0, 0], [1.0] * 3, shape=(3, 3)), "observation 1: index 5"),
    (lambda: pairs([0], [-1], [1.0]), "observation 0: index -1 is negative"),
    (lambda: pairs([0], [2.0**63], [1.0]), "column index 9.22.* does not fit 64 bits"),
    (lambda: pairs(np.array([2**63], object), [0], [1.0]), "row index 9223372036854775808 does"),
    (lambda: pairs([0, 0, 0], [1, 1, 1], [1.0, np.nan, np.inf]), "observation 1: target nan"),
    (lambda: pairs([0, 1], [1, 0], [1.0, 1.0001], symmetric=True), "not symmetric"),
    (lambda: pairs([0, 1], [1], [1.0]), "do not pair up"),
    (lambda: pairs([0], [1], [1.0], shape=(3, 2), symmetric=True), "square, this one is 3 x 2"),
    (lambda: matrix(np.ones((3, 2)), symmetric=True), "square, this one is 3 x 2"),
    (lambda: matrix(full, symmetric=True), r"entry \(0, 1\) is 2.0 and entry \(1, 0\) is 3.0"),
    (lambda: pairs([0], [1], [-0.5], loss="distance"), r"target -0.5 of the distance loss"),
    (lambda: pairs([0], [1], [1.5], loss="logistic"), r"target 1.5 of the logistic .* \[0, 1\]"),
    (lambda: triplets([0, 1], [1, 2], [2, 2]), "observation 1: a triplet compares item 2"),
    (lambda: triplets([0], [1], [2, 3]), "do not match"),
    (lambda: pairs([0], [1], [1.0], loss="hinge"), "unknown loss 'hinge': choose from squared"),
    (lambda: pairs([2**32 + 1], [0], [1.0], shape=(10, 10)), "index 4294967297 is past the end"),
    (lambda: pairs([0], [1], [1e200]), "target 1e.200 is too large"),
    (lambda: Ids().add([2**70]), "is neither a string nor an integer of 64 bits"),
    (lambda: Ids().add([np.inf]), "id inf is not a whole number"),
    (lambda: Ids().add([2.0**63]), "is not a whole number of 64 bits"),
    (lambda: Ids().add(np.array([2**63], object)), "id 9223372036854775808 is neither"),
    (lambda: Ids().add([True]), "id True is neither"),
    (lambda: Ids().add(["a", 3]), "mixed types, 'a' in row 0 and 3 in row 1"),
    (lambda: Ids([1, 2]).add(["a"]), "'a' is not of the type of 1"),
    (lambda: Ids().add([1.5]), "id 1.5 is not a whole number"),
    (lambda: Ids().add(["a", None]), "row 1: id None is neither"),
    (lambda: Ids(["a"]).rows(["b"]), "'b' was never seen"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_bad_input_is_named_in_one_line(build, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_duplicates_are_observations_of_their_own():
    seen = matrix(sp.coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 0]))))
    assert seen.targets.tolist() == [1.0, 2.0, 0.0]


@given(st.integers(2, 40), st.integers(0, 2**31), st.booleans())
def test_asymmetry_is_found_wherever_it_hides(d, seed, spoilt):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, d))
    i, j = np.nonzero(rng.random((d, d)) < 0.7)
    y = (A + A.T)[i, j]
    mirrored = [t for t in range(len(i)) if i[t] != j[t] and np.any((i == j[t]) & (j == i[t]))]
    if spoilt and mirrored:
        y[rng.choice(mirrored)] += 0.1
        with pytest.raises(ValueError, match="not symmetric"):
            pairs(i, j, y, symmetric=True)
    elif len(i):
        assert len(pairs(i, j, y, symmetric=True)) == len(i)


def test_asymmetry_is_found_across_blocks(monkeypatch):
    monkeypatch.setattr("scaledsgd.core.observations._BLOCK", 10)
    i, j = np.divmod(np.arange(400), 20)
    y = np.minimum(i, j) * 20.0 + np.maximum(i, j)
    assert len(pairs(i, j, y, symmetric=True)) == 400
    y[3 * 20 + 17] = -1
    with pytest.raises(ValueError, match=r"entry \(3, 17\) is -1.0 and entry \(17, 3\) is 77.0"):
        pairs(i, j, y, symmetric=True)


@given(st.lists(st.text(max_size=4)), st.lists(st.text(max_size=4)))
def test_ids_give_rows_in_order_of_appearance(first, second):
    ids = Ids(first)
    rows = ids.add(second)
    assert [ids.names(row) for row in rows] == second
    order = list(dict.fromkeys(first + second))
    assert len(ids) == len(order)
    assert ids.rows(order).tolist() == list(range(len(order)))


def test_observations_can_be_used_again():
    """Training reorders a copy, also where it holds some samples out."""
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 40, (2, 2000))
    seen = pairs(i, j, np.outer(np.arange(40.0), np.ones(40))[i, j], shape=(40, 40))
    before = seen.index.copy(), seen.targets.copy()
    for dtype in ("float64", "float32"):
        model = MatrixCompleter(rank=1, epochs=3, dtype=dtype, random_state=0)
        model.fit(seen)
        model.partial_fit(seen)
        assert np.array_equal(seen.index, before[0])
        assert np.array_equal(seen.targets, before[1])


def test_numbers_at_the_limits_of_their_type_are_taken():
    ends = [2**63 - 1, -(2**63)]
    assert Ids().add(np.array(ends, object)).tolist() == [0, 1]
    assert Ids(ends).names().tolist() == ends
    far = pairs([2**31 - 3, 0], [0, 2], [1.0, 1.0])
    assert far.index[0].tolist() == [2**31 - 3, 0]
    assert far.index.dtype == np.int64  # the right side's rows are numbered after the left's
    assert pairs([3 * 2**31], [0], [1.0]).index[0, 0] == 3 * 2**31


def test_a_symmetric_matrix_is_as_large_as_its_largest_index():
    assert pairs([0], [7], [1.0], symmetric=True).shape == (8, 8)


def test_rounding_is_no_asymmetry():
    """Of a matrix that was computed as a product, entries near zero differ by what is lost."""
    y = [1e6, 1e-4, 1e-4 + 1e-9]
    assert len(pairs([0, 1, 2], [0, 2, 1], y, symmetric=True)) == 3


def test_targets_are_measured_whatever_their_sign():
    seen = pairs([0, 1], [1, 0], [3.0, -4.0])
    assert (seen.largest, seen.size) == (4.0, pytest.approx(np.sqrt(12.5)))
    with pytest.raises(ValueError, match="too large for dtype='float32'"):
        MatrixCompleter(1, dtype="float32").fit(pairs([0, 1], [1, 0], [1.0, -1e16]))


def test_holding_out_leaves_the_caller_what_was_given():
    rows, columns, values = np.arange(9) % 3, np.arange(9) // 3, np.arange(9.0)
    told = Observations.pairs(rows, columns, values)
    index, targets = told.index.copy(), told.targets.copy()
    rest, held = told.hold_out(np.array([4, 7]))
    assert np.array_equal(told.index, index) and np.array_equal(told.targets, targets)
    assert sorted([*rest.targets, *held.targets]) == values.tolist()
