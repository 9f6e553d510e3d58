"""Where replicas of a simulated fleet stand."""

from dataclasses import replace
from pathlib import Path

import pytest

from reference.fleets import fleet, physics
from tokenfleet.app.scenario import load_scenario
from tokenfleet.app.standing import nodes_of
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: standing
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 8, duration: 10min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
"""


@pytest.mark.parametrize(
    ("text", "stand"),
    [
        ("", [("", (0, 1, 2, 3, 4))]),
        ("redundancy: {replicas_per_node: 2}", [("", (0, 1)), ("", (2, 3)), ("", (4,))]),
        ("zones: [a, b]", [("a", (0, 2, 4)), ("b", (1, 3))]),
        ("zones: [{name: a, gpu_limit: 1}, b]", [("a", (0,)), ("b", (1, 2, 3, 4))]),
    ],
)
def test_replicas_are_dealt_to_the_zones_in_turn(tmp_path: Path, text: str, stand: list) -> None:
    (tmp_path / "stands.yaml").write_text(SCENARIO + text)
    asked = load_scenario(tmp_path / "stands.yaml")
    usual = physics()
    on_l40s = replace(usual, deployment=replace(usual.deployment, gpu="l40s"))
    assert [(node.zone, node.replicas) for node in nodes_of(asked, fleet(on_l40s, count=5))] == stand


def test_a_fleet_too_large_is_refused_before_it_is_dealt(tmp_path: Path) -> None:
    (tmp_path / "stands.yaml").write_text(SCENARIO)
    with pytest.raises(BadInput, match="1,000,000,000 replicas, at most 1,048,576 fit"):
        nodes_of(load_scenario(tmp_path / "stands.yaml"), fleet(physics(), count=10**9))
