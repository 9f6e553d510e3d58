"""Links: every row complete, and what a measured transfer took."""

import pytest

from tokenfleet import catalog
from tokenfleet.catalog.tables import rows
from tokenfleet.domain.errors import BadInput

H100 = catalog.gpu("h100_sxm")


@pytest.mark.parametrize("row", rows("links"), ids=lambda row: row["name"])
def test_every_link_has_its_facts_and_its_source(row) -> None:
    assert row["source"].startswith("https://")
    assert row["confidence"] in {"low", "medium", "high"}
    found = catalog.link(row["name"], gpu=H100)
    assert 0.0 < found.efficiency_fraction <= 1.0
    assert 0.0 < found.latency_s < 0.01
    assert found.bytes_per_s > 1e9


@pytest.mark.parametrize(("sent_bytes", "took_ms"), [(20e6, 0.54), (290e6, 2.51), (1.13e9, 8.84), (4.50e9, 31.65)])
def test_the_transfers_that_the_figures_come_from(sent_bytes: float, took_ms: float) -> None:
    """Qwen3-8B prompts of 128 to 32,768 tokens over 8 ports of 200 Gbit/s (vLLM with Mooncake)."""
    link = catalog.link("infiniband_200g", gpu=H100)
    assert 1000.0 * (link.latency_s + sent_bytes / (8 * link.bytes_per_s)) == pytest.approx(took_ms, rel=0.06)


def test_inside_a_node_the_gpus_own_link_counts() -> None:
    assert catalog.link("nvlink", gpu=H100).line_bytes_per_s == H100.link_bytes_per_s
    assert catalog.link("PCIe", gpu=H100).line_bytes_per_s == H100.pcie_bytes_per_s
    with pytest.raises(BadInput, match="l40s has no nvlink that we know of"):
        catalog.link("nvlink", gpu=catalog.gpu("l40s"))


def test_other_words_and_near_misses() -> None:
    assert catalog.link("ndr", gpu=H100).name == "infiniband_400g"
    with pytest.raises(BadInput, match="nearest: infiniband_400g"):
        catalog.link("infiniband400", gpu=H100)
