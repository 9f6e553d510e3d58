from dataclasses import replace

from tokenfleet.planner.quotes import quote
from unit.planner.toy import price


def test_no_price_is_not_free():
    assert quote([price("a100_sxm_80gb", 1.0)], "h100_sxm") is None


def test_the_quote_nearest_the_median_counts():
    found = quote([price("g", usd) for usd in (1.0, 2.0, 9.0, 10.0)], "g")
    assert found.price.price_usd_per_gpu_hour == 2.0
    assert (found.low_usd_per_gpu_hour, found.high_usd_per_gpu_hour, found.published_count) == (1.0, 10.0, 4)


def test_of_two_equally_near_the_newer_then_the_cheaper():
    old, new = price("g", 1.0, as_of="2026-01-01"), price("g", 3.0, as_of="2026-10-01")
    assert quote([old, new], "g").price is new
    same = [price("g", 3.0), price("g", 1.0)]
    assert quote(same, "g").price.price_usd_per_gpu_hour == 1.0


def test_hearsay_only_where_nobody_quotes():
    heard, index, own = price("g", 2.0, evidence="secondary"), price("g", 3.0, evidence="index"), price("g", 9.0)
    assert quote([heard, index, own], "g").price is own
    assert quote([heard, index], "g").price is heard
    assert quote([index], "g").price is index


def test_order_does_not_matter():
    offers = [price("g", usd, provider=name) for usd, name in ((2.0, "b"), (2.0, "a"), (4.0, "c"))]
    assert quote(offers, "g") == quote(offers[::-1], "g")


def test_a_reference_counts_as_it_is_and_its_ends_are_the_range():
    made = replace(price("g", 2.0, evidence="reference"), low_usd_per_gpu_hour=3.0, high_usd_per_gpu_hour=9.0)
    found = quote([made], "g")
    assert found.price is made
    assert (found.low_usd_per_gpu_hour, found.high_usd_per_gpu_hour) == (3.0, 9.0)
