import os
from pathlib import Path

from tokenfleet.performance.coefficients import constants_table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "physics.md"


def test_the_page_lists_the_constants_that_are_used():
    text = PAGE.read_text()
    head, mark, _ = text.partition("| constant | value |")
    assert mark, "the page has lost its table of constants"
    if os.environ.get("TOKENFLEET_UPDATE_DOCS"):
        PAGE.write_text(head + constants_table())
    assert PAGE.read_text() == head + constants_table()
