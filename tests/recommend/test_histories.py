"""What each user chose: nobody's history is lost, the last value of an item counts."""

from itertools import pairwise

import numpy as np

from scaledsgd.io.ids import Ids
from scaledsgd.recommend.histories import Histories


def test_every_user_has_her_items_and_who_came_later_has_none():
    told = Histories(Ids(["ann", "bob", "cem", "dee"]))
    told.add(np.array([0, 2, 0]), np.array([5, 1, 3]), np.array([1.0, 2.0, 3.0]))
    assert told.of(np.array([2]))[2].tolist() == [2.0]  # it is in the table now
    told.add(np.array([2, 0]), np.array([1, 4]), np.array([9.0, 4.0]))
    start, items, values = told.of(np.array([2, 3, 1, 0, 2]))
    lists = [items[a:b].tolist() for a, b in pairwise(start)]
    assert lists == [[1], [], [], [3, 4, 5], [1]]
    assert values.tolist() == [9.0, 3.0, 4.0, 1.0, 9.0]


def test_the_last_item_of_each_user_is_followed():
    told = Histories(Ids(["ann", "bob"]))
    told.follow(np.array([0, 1, 0]), np.array([5, 6, 7]))
    assert told.room()[:2].tolist() == [7, 6]
    told.users.add(["cem", "dee", "eve"])
    assert told.room()[:5].tolist() == [7, 6, -1, -1, -1]
