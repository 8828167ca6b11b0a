"""A schedule: everything that can meet does so once, and nobody is in two places."""

from itertools import combinations, product

import numpy as np
import pytest

from scaledsgd.engines.schedule import schedule

CASES = [(2, workers, symmetric) for workers in (1, 2, 3, 5, 8) for symmetric in (True, False)]
CASES += [(3, workers, True) for workers in (1, 2, 4)]


@pytest.mark.parametrize(("arity", "workers", "symmetric"), CASES)
def test_blocks_meet_once_and_have_one_holder_at_a_time(arity, workers, symmetric):
    plan = schedule(arity, workers, symmetric)
    met = []
    for groups in plan.groups:
        held = groups.ravel().tolist()
        assert sorted(held) == list(range(plan.blocks))
        met += [pair for group in groups.tolist() for pair in combinations(sorted(group), arity)]
    all_pairs = combinations(range(plan.blocks), arity)
    if not symmetric:  # rows of one side never meet each other
        all_pairs = product(range(workers), range(workers, 2 * workers))
    assert sorted(met) == sorted(all_pairs)


@pytest.mark.parametrize(("arity", "workers", "symmetric"), CASES)
def test_a_sample_falls_to_a_group_that_holds_its_blocks(arity, workers, symmetric):
    plan, rng = schedule(arity, workers, symmetric), np.random.default_rng(0)
    named = rng.integers(0, plan.blocks, (2000, arity))
    named[::4] = named[::4, :1]  # all rows in one block
    if not symmetric:
        named = rng.integers([0, workers], [workers, 2 * workers], (2000, 2))
    bucket = plan.buckets(named, rng.integers(0, 2**31, 2000))
    groups = plan.groups.reshape(-1, plan.groups.shape[2])
    for blocks, group in zip(named, groups[bucket], strict=True):
        assert set(blocks.tolist()) <= set(group.tolist())
    same = bucket[(named == named[:, :1]).all(axis=1)]
    if symmetric and workers > 1:  # who could go anywhere is spread over the sub-rounds
        assert len(np.unique(same // plan.groups.shape[1])) > len(plan.groups) / 2
