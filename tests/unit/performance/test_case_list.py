"""Every case of the collection that asks for memory or step time is answered by some test."""

import re
from pathlib import Path

import pytest
import yaml

from shared import SHARED, needs_shared

TESTS = Path(__file__).resolve().parents[1]


@needs_shared
@pytest.mark.shared
def test_every_case_of_memory_and_step_time_has_a_test():
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text(encoding="utf-8"))
    asked = {case["id"] for case in read["cases"] if {"memory_model", "perf_model"} & set(case["tests"])}
    texts = "\n".join(page.read_text(encoding="utf-8") for page in TESTS.rglob("test_*.py")).lower()
    tested = re.compile(r"def test_(?:\w*_)?([a-z]\d\d)(?=[_(])|id=\"([a-z]\d\d)-|case\(\"([a-z]\d\d)\"")
    found = {name.upper() for names in tested.findall(texts) for name in names if name}
    assert asked
    assert asked - found == set()
