"""The cheapest counts of several pools, beside every other."""

import itertools

import numpy as np
import pytest

from tokenfleet.planner.pool_counts import cheapest_counts, in_order_of_price, least_counts


class Asked:
    """A question that counts how often it is asked."""

    def __init__(self, needs, slack) -> None:
        self.needs, self.slack, self.count = needs, slack, 0

    def __call__(self, counts) -> bool:
        """Enough once each pool has its need, and all together as much more as ``slack`` asks for."""
        self.count += 1
        spare = sum(count / need - 1.0 for count, need in zip(counts, self.needs, strict=True))
        return all(count >= need for count, need in zip(counts, self.needs, strict=True)) and spare >= self.slack


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_cheaper(seed: int) -> None:
    draw = np.random.default_rng(seed)
    needs = tuple(int(each) for each in draw.integers(1, 6, 3))
    usd = tuple(float(each) for each in draw.integers(1, 9, 3))
    asked = Asked(needs, float(draw.choice([0.0, 0.3, 1.0])))
    found = cheapest_counts(asked, (1, 1, 1), usd, cap_factor=64)
    price = sum(count * each for count, each in zip(found, usd, strict=True))
    assert asked(found)
    for counts in itertools.product(range(1, 12), repeat=3):
        if sum(count * each for count, each in zip(counts, usd, strict=True)) < price:
            assert not asked(counts)


@pytest.mark.parametrize("slack", [2.0, 4.0, 8.0, 16.0])
def test_an_answer_far_from_the_least_counts_is_found_whatever_pools_cost(slack: float) -> None:
    usd = (0.75, 12.28, 0.80, 1.55)
    asked = Asked((1, 1, 1, 1), slack)
    found = cheapest_counts(asked, (1, 1, 1, 1), usd, cap_factor=64)
    assert asked(found)
    # All that is missing is cheapest where replicas are.
    assert found == (1 + slack, 1, 1, 1)
    assert asked.count < 200


class Waits:
    """A question of waits that add up, each shorter with more replicas than its pool has work for."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.work = draw.uniform(0.1, 9.0, 3)
        self.wait_s = draw.uniform(0.05, 3.0, 3)
        self.limit_s = draw.uniform(0.4, 2.0)

    def __call__(self, counts) -> bool:
        free = np.array(counts) - self.work
        return bool((free > 0).all()) and float((self.wait_s / free).sum()) <= self.limit_s

    def cheapest_usd(self, usd: tuple[float, ...], most_usd: float) -> float:
        """By trying all counts of two pools, with the fewest of the third."""
        best = most_usd
        for first, second in itertools.product(
            range(1, int(most_usd / usd[0]) + 1), range(1, int(most_usd / usd[1]) + 1)
        ):
            free = np.array([first, second]) - self.work[:2]
            left_s = self.limit_s - float((self.wait_s[:2] / free).sum()) if (free > 0).all() else 0.0
            if left_s > 0.0:
                third = int(np.ceil(self.work[2] + self.wait_s[2] / left_s))
                best = min(best, first * usd[0] + second * usd[1] + third * usd[2])
        return best


@pytest.mark.parametrize("seed", range(40))
def test_where_waits_of_several_stages_add_up_little_is_cheaper(seed: int) -> None:
    """No pool makes up alone for what plenty of the others gave away: that was up to 3.7 times as dear."""
    draw = np.random.default_rng(seed)
    usd = tuple(float(each) for each in draw.choice([0.75, 1.55, 3.07, 6.14], 3))
    asked = Waits(draw)
    found = cheapest_counts(asked, (1, 1, 1), usd, cap_factor=64)
    price = sum(count * each for count, each in zip(found, usd, strict=True))
    assert asked(found)
    assert price <= 1.3 * asked.cheapest_usd(usd, price)


@pytest.mark.parametrize("seed", range(20))
def test_no_pool_can_do_with_fewer(seed: int) -> None:
    draw = np.random.default_rng(seed)
    needs = tuple(int(each) for each in draw.integers(1, 6, 4))
    usd = tuple(float(each) for each in 10.0 ** draw.uniform(-1, 1, 4))
    asked = Asked(needs, float(draw.choice([0.0, 2.0, 6.0])))
    found = cheapest_counts(asked, tuple(int(each) for each in draw.integers(1, 4, 4)), usd, cap_factor=64)
    assert asked(found)
    for index, count in enumerate(found):
        assert count == 1 or not asked((*found[:index], count - 1, *found[index + 1 :]))


def test_each_pool_has_its_least_count_whatever_the_start() -> None:
    for start in ((1, 1), (4, 2), (9, 9)):
        assert least_counts(Asked((5, 2), 0.0), (20, 20), start) == (5, 2)


def test_there_may_be_none() -> None:
    asked = Asked((500, 1), 0.0)
    assert cheapest_counts(asked, (1, 1), (1.0, 1.0), cap_factor=64) is None
    assert asked.count == 6


def test_dearer_counts_come_later_and_none_comes_twice() -> None:
    listed = list(in_order_of_price((2, 1), (3.0, 2.0)))
    prices = [3.0 * first + 2.0 * second for first, second in listed]
    assert listed[0] == (2, 1)
    assert prices == sorted(prices)
    assert len(set(listed)) == len(listed)
