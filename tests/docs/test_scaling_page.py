"""The scaling page names every rule and rung, and its figures are today's."""

from pathlib import Path
from typing import get_args

import pytest

from tokenfleet import catalog, control
from tokenfleet.control.ladder import RungKind
from tokenfleet.performance import cold_start_s

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scaling.md").read_text()
RULES = [getattr(control, name).name for name in control.__all__ if name.endswith("Rule") and name != "Rule"]


@pytest.mark.parametrize("name", [*RULES, *get_args(RungKind)])
def test_every_rule_and_rung_has_its_row(name):
    assert f"| `{name}` |" in PAGE


def test_the_cold_start_on_the_page_is_what_the_function_says():
    start = cold_start_s(55.57e9, catalog.gpu("a100_pcie_80gb"), storage="object_store", image_bytes=5.6e9)
    assert f"it says {start.typical_s:.0f} s ({start.low_s:.0f} to {start.high_s:,.0f})" in PAGE
