import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: asks vLLM's own scheduler; skips without TOKENFLEET_VLLM_PYTHON")
