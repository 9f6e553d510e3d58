"""The whole bill: named lines that add up, and holes that stay holes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.cost import USUAL_LINES, CostLine, cost_sheet, rerank_line
from tokenfleet.domain.errors import BadInput


def line(name, quantity, usd):
    return CostLine(name=name, quantity=quantity, unit="month", usd_per_unit=usd)


def test_the_lines_add_up():
    sheet = cost_sheet([line("gpus", 8 * 730, 3.45), line("storage", 2_000, 0.023), line("engineers", 0.5, 12_000)])
    assert sheet.total_usd == pytest.approx(20_148 + 46 + 6_000)
    assert sheet.share_fraction("gpus") == pytest.approx(20_148 / 26_194)
    assert sheet.cents() == {"gpus": 2_014_800, "storage": 4_600, "engineers": 600_000}
    assert sheet.share_fraction("nothing") is None


def test_a_price_nobody_knows_leaves_no_total():
    sheet = cost_sheet([line("gpus", 100, 3.0), line("vector_store", 10, None), line("tools", 0, None)])
    assert sheet.unknown == ("vector_store",)
    assert sheet.known_usd == 300.0
    assert sheet.total_usd is None
    assert sheet.cents() is None
    assert sheet.share_fraction("gpus") is None


@given(amounts=st.lists(st.floats(0.0, 1e7), min_size=1, max_size=12))
def test_cents_are_the_total_rounded_once(amounts):
    sheet = cost_sheet([line(str(index), 1.0, usd) for index, usd in enumerate(amounts)])
    cents = sheet.cents()
    assert abs(sum(cents.values()) - sheet.total_usd * 100) <= 0.51
    for index, usd in enumerate(amounts):
        assert abs(cents[str(index)] - usd * 100) < 1.0 + 1e-6


def test_a_published_rerank():
    # 100 documents of 500 tokens are 50,000 tokens: about 0.0001 dollars on a small model of one's own.
    own = rerank_line(1, documents_per_query_count=100, tokens_per_document=500, usd_per_million_tokens=0.0022)
    assert own.quantity == pytest.approx(0.05)
    assert own.usd == pytest.approx(0.0001, abs=2e-5)
    with_query = rerank_line(
        1000, documents_per_query_count=100, tokens_per_document=500, query_tokens=20, usd_per_million_tokens=0.02
    )
    assert with_query.usd == pytest.approx(1.04)


def test_doubled_and_negative_lines_are_told_at_once():
    with pytest.raises(BadInput) as caught:
        cost_sheet([line("gpus", 1, 1.0), line("gpus", 1, 1.0), line("cpu", -1, 1.0), line("logs", 1, -1.0)])
    assert len(caught.value.problems) == 3
    assert len(set(USUAL_LINES)) == len(USUAL_LINES)
