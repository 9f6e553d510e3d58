"""External APIs: charges to the published figure, and where hosting breaks even."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.catalog import api_prices
from tokenfleet.cost import (
    TokenMix,
    TokenUsage,
    api_charge_usd,
    blended_usd_per_million_tokens,
    host_or_buy,
    price_of,
    usd_per_million_of_token_price,
)
from tokenfleet.domain.errors import BadInput

SOL = price_of(api_prices(), "gpt-6-sol")


def priced(**prices):
    names = {
        "input": "input_usd_per_million_tokens",
        "read": "cached_input_usd_per_million_tokens",
        "write": "cache_write_usd_per_million_tokens",
        "output": "output_usd_per_million_tokens",
    }
    return dataclasses.replace(SOL, **{name: prices.get(key) for key, name in names.items()})


def test_a_cache_write_is_charged_once():
    usage = TokenUsage(input_tokens=3, cache_write_tokens=12_304, visible_output_tokens=550)
    price = priced(input=3.0, write=3.75, read=0.3, output=15.0)
    assert api_charge_usd(usage, price) == pytest.approx(0.054399, abs=1e-9)
    twice = api_charge_usd(dataclasses.replace(usage, input_tokens=3 + 12_304), price)
    assert twice == pytest.approx(0.091311, abs=1e-9), "what a gateway charged that counted them twice"


def test_reasoning_is_billed_output():
    usage = TokenUsage(visible_output_tokens=150, reasoning_tokens=1_850)
    assert usage.billed_output_tokens == 2_000
    price = priced(output=10.0)
    seen = TokenUsage(visible_output_tokens=150)
    assert 1 - api_charge_usd(seen, price) / api_charge_usd(usage, price) == pytest.approx(0.925)


def test_an_unknown_price_is_never_a_number():
    assert price_of(api_prices(), "local-vllm") is None
    assert price_of(api_prices(), "gpt-6-sol", provider="nobody") is None
    assert api_charge_usd(TokenUsage(cache_write_tokens=1), priced(input=1.0, output=2.0)) is None
    assert api_charge_usd(TokenUsage(input_tokens=10**6), priced(input=1.0)) == 1.0, "what was not used needs no price"
    assert (
        blended_usd_per_million_tokens(
            priced(input=1.0, output=2.0), TokenMix(input_fraction=0.5, cached_fraction=0.3, output_fraction=0.2)
        )
        is None
    )


def test_a_price_per_million_in_a_field_per_token_is_refused():
    assert usd_per_million_of_token_price(3e-6, where="price") == pytest.approx(3.0)
    assert usd_per_million_of_token_price(0.001, where="price") == pytest.approx(1000.0)
    with pytest.raises(BadInput, match=r"10,000,000 per million; if 10 is the price per million tokens, write 1e-05"):
        usd_per_million_of_token_price(10.0, where="usd_per_token")
    with pytest.raises(BadInput, match="0 or more"):
        usd_per_million_of_token_price(-1e-6, where="usd_per_token")


def test_a_published_comparison_with_a_closed_api():
    # 180 billion tokens over three years at 2 and 10 dollars, input to output 4:1, half of the input cached.
    mix = TokenMix(input_fraction=0.4, cached_fraction=0.4, output_fraction=0.2)
    price = priced(input=2.0, read=0.2, output=10.0)
    assert blended_usd_per_million_tokens(price, mix) == pytest.approx(2.88)
    (row,) = host_or_buy(
        [price],
        mix=mix,
        demand_tokens_per_month=180e9 / 36,
        hosted_usd_per_hour=509_757 / 26_280,
        capacity_tokens_per_s=10_000,
    )
    assert row.api_usd_per_month * 36 == pytest.approx(518_400)
    assert row.hosted_usd_per_month * 36 == pytest.approx(509_757)
    assert row.hosting_is_cheaper
    # 7.2 billion tokens a user: about 25 users are worth the node.
    assert row.break_even_tokens_per_month * 36 / 7.2e9 == pytest.approx(24.6, abs=0.05)


def test_the_whole_bill_counts_and_not_its_busy_part():
    # 2 gpus at 3 dollars, busy a fifth of the month for 500 million tokens: 8.76 a million, not 1.75.
    mix = TokenMix(input_fraction=0.0, cached_fraction=0.0, output_fraction=1.0)
    (row,) = host_or_buy(
        [priced(output=5.0)],
        mix=mix,
        demand_tokens_per_month=500e6,
        hosted_usd_per_hour=6.0,
        capacity_tokens_per_s=500e6 / 0.2 / (730 * 3600),
    )
    assert row.hosted_usd_per_month / 500 == pytest.approx(8.76)
    assert not row.hosting_is_cheaper
    assert row.break_even_tokens_per_month == pytest.approx(876e6)
    assert row.break_even_utilization_fraction == pytest.approx(0.2 * 876 / 500)


@given(
    usd=st.floats(0.01, 1e4),
    capacity=st.floats(1.0, 1e6),
    api=st.floats(0.01, 100.0),
)
def test_at_break_even_both_bills_are_the_same(usd, capacity, api):
    mix = TokenMix(input_fraction=0.5, cached_fraction=0.0, output_fraction=0.5)
    price = priced(input=api, output=api)
    ask = {"mix": mix, "hosted_usd_per_hour": usd, "capacity_tokens_per_s": capacity}
    (row,) = host_or_buy([price], demand_tokens_per_month=1.0, **ask)
    (even,) = host_or_buy([price], demand_tokens_per_month=row.break_even_tokens_per_month, **ask)
    assert even.api_usd_per_month == pytest.approx(even.hosted_usd_per_month)
    used = row.break_even_tokens_per_month / (capacity * 730 * 3600)
    assert row.break_even_utilization_fraction == pytest.approx(used)


def test_the_catalog_is_answered_row_by_row_with_the_unknown_last():
    mix = TokenMix(input_fraction=0.4, cached_fraction=0.4, output_fraction=0.2)
    prices = [price for price in api_prices() if price.kind == "chat"]
    rows = host_or_buy(
        prices, mix=mix, demand_tokens_per_month=1e9, hosted_usd_per_hour=10.0, capacity_tokens_per_s=5e3
    )
    assert len(rows) == len(prices)
    known = [row.api_usd_per_month for row in rows if row.api_usd_per_month is not None]
    assert known == sorted(known)
    assert [row.api_usd_per_month is None for row in rows] == [False] * len(known) + [True] * (len(rows) - len(known))
    assert all(row.hosting_is_cheaper is None for row in rows[len(known) :])


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="add up"):
        TokenMix(input_fraction=0.5, cached_fraction=0.5, output_fraction=0.5)
    with pytest.raises(ValueError, match="capacity"):
        host_or_buy(
            [],
            mix=TokenMix(input_fraction=1.0, cached_fraction=0.0, output_fraction=0.0),
            demand_tokens_per_month=1.0,
            hosted_usd_per_hour=1.0,
            capacity_tokens_per_s=0.0,
        )
