"""Finds the research data that lies beside a checkout on the machines where it exists."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the research data beside the checkout")
