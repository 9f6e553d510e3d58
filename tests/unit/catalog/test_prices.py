"""Published prices: which one to reckon with, and when there is none."""

import pytest

from tokenfleet.catalog import api_prices, gpu, gpu_prices, reference_price
from tokenfleet.catalog.tables import rows
from tokenfleet.domain.errors import BadInput


def test_every_price_is_of_a_known_part_with_source_and_date():
    for row in rows("gpu_prices"):
        assert gpu(row["gpu"]).name == row["gpu"]
    assert sum(len(gpu_prices(name)) for name in {row["gpu"] for row in rows("gpu_prices")}) == 65
    for price in gpu_prices("h100_sxm"):
        assert price.source
        assert price.as_of.startswith("202")
        assert price.price_usd_per_gpu_hour > 0


def test_the_reference_is_the_quote_nearest_the_median_of_all():
    h200 = reference_price("H200")
    published = sorted([10.0, 3.5, 7.912, 6.305, 2.25, 5.75, 4.0])
    quotes = [10.0, 3.5, 7.912, 6.305, 2.25]
    median = published[3]
    assert h200.price.price_usd_per_gpu_hour == min(quotes, key=lambda quote: abs(quote - median)) == 6.305
    assert h200.price.provider == "coreweave"
    assert h200.price.evidence == "quote"
    assert h200.published_count == 7
    assert (h200.low_usd_per_gpu_hour, h200.high_usd_per_gpu_hour) == (2.25, 10.0)


def test_ranges_widen_the_spread_and_are_never_the_price():
    a100 = reference_price("a100_sxm_80gb")
    assert (a100.price.provider, a100.price.price_usd_per_gpu_hour) == ("oci", 4.0)
    assert (a100.low_usd_per_gpu_hour, a100.high_usd_per_gpu_hour) == (1.1, 4.0)


def test_a_secondary_report_stands_in_where_nobody_quotes():
    assert reference_price("h100_nvl").price.evidence == "secondary"
    assert reference_price("h100_sxm", term="reserved_1y") is None, "an index is nobody's offer"


def test_terms_and_providers():
    assert reference_price("h200_sxm", term="spot").price.price_usd_per_gpu_hour == 1.45
    assert reference_price("h100_sxm", provider="AWS").price.price_usd_per_gpu_hour == 6.88
    assert reference_price("h100_sxm", provider="nobody") is None
    with pytest.raises(BadInput, match="on_demand"):
        reference_price("h100_sxm", term="weekly")


def test_no_price_is_none_and_never_zero():
    assert gpu_prices("gaudi3") == ()
    assert reference_price("gaudi3") is None
    with pytest.raises(BadInput, match="nearest"):
        reference_price("h100x")


def test_api_prices_keep_what_is_not_published_unknown():
    prices = api_prices()
    assert len(prices) == 71
    assert any(price.batch_output_usd_per_million_tokens is None for price in prices)
    for price in prices:
        assert price.as_of
        assert price.source
        assert price.input_usd_per_million_tokens is None or price.input_usd_per_million_tokens >= 0
