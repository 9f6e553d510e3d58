"""Preemption by swap in a scenario."""

import pytest

from tokenfleet import catalog
from tokenfleet.app.engine_settings import with_overrides
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: swap
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 8, duration: 10min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
"""


def loaded(folder, engine):
    (folder / "swap.yaml").write_text(SCENARIO + f"engine: {engine}\n")
    return load_scenario(folder / "swap.yaml")


def test_host_memory_is_an_engine_setting(tmp_path):
    asked = loaded(tmp_path, "{preemption: swap, swap_space: 16GiB}")
    engine = with_overrides(catalog.engine("vllm", gpu=catalog.gpu("l40s")), asked.engine, catalog.model(asked.model))
    assert (engine.preemption, engine.swap_bytes) == ("swap", 16 << 30)


@pytest.mark.parametrize(
    ("engine", "part"),
    [
        ("{preemption: swap}", "swap_space"),
        ("{swap_space: 16GiB}", "swap_space"),
        ("{name: sglang, preemption: recompute}", "a setting of vllm"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, engine, part):
    with pytest.raises(BadInput) as caught:
        loaded(tmp_path, engine)
    assert part in str(caught.value)
