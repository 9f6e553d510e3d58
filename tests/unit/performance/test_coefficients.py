import pytest

from tokenfleet.performance import constants
from tokenfleet.performance.coefficients import constant, engine_family, engine_version


def test_every_constant_has_a_unit_a_range_and_a_source():
    for name, entry in constants().items():
        assert entry.name == name
        assert entry.unit in {"1", "s", "GiB", "KiB", "B/s"}
        assert entry.low <= entry.value <= entry.high, name
        assert len(entry.what) > 10, name
        assert len(entry.source) > 10, name


def test_every_engine_family_has_all_its_constants():
    for family in ("vllm", "vllm_v0", "trtllm", "trtllm_2024", "sglang", "other"):
        for name in ("launch_s", "step_s", "sequence_s", "request_s"):
            assert constant(name, family) > 0


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("vllm-0.32", "vllm"),
        ("vllm-0.8.1", "vllm"),
        ("vllm-0.7.3", "vllm_v0"),
        ("vllm", "vllm"),
        ("trtllm-1.2", "trtllm"),
        ("tensorrt-llm-0.14", "trtllm_2024"),
        ("sglang-0.5", "sglang"),
        ("lmdeploy-0.2", "other"),
    ],
)
def test_engine_versions_choose_their_constants(name, family):
    assert engine_family(name) == family


def test_a_version_compares_part_by_part():
    assert engine_version("vllm-0.9.1") < engine_version("vllm-0.21")
    assert engine_version("trtllm-1.2.0rc6")[1] == (1, 2, 0)
