"""The questions of the case collection that a review answers, each from its own inputs."""

from functools import cache

import pytest
import yaml

from shared import SHARED, needs_shared
from tokenfleet.app.review import review

pytestmark = [needs_shared, pytest.mark.shared]


@cache
def case(name):
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    (found,) = (case for case in read["cases"] if case["id"] == name)
    return found["inputs"], found["expected"]["values"]


@pytest.fixture
def rules_of(tmp_path):
    def found(**sheet):
        path = tmp_path / "sheet.yaml"
        path.write_text(yaml.safe_dump({"sizing": sheet}))
        return {finding.rule.id for finding in review(path).findings}

    return found


def test_a06(rules_of):
    given, expected = case("A06")
    assert expected["validate"] == "reject"
    assert "unreachable-signal" in rules_of(scale_target=given["target"], scale_signal_max=given["metric_max"])
    assert "unreachable-signal" not in rules_of(scale_target=2, scale_signal_max=given["queue"])


def test_a08(rules_of):
    given, expected = case("A08")
    count, _, period, _ = given["startup_probe"].split()
    for load_s in given["load_s"]:
        killed = "probe-kills-start" in rules_of(cold_start_s=load_s, startup_probe_s=int(count) * int(period))
        assert killed != expected["ok"][load_s]


def test_a12(rules_of):
    given, expected = case("A12")
    assert expected["flag"] == "single_zone_single_sku"
    assert "single-zone" in rules_of(zone_count=len(given["zones"]), gpu_model_count=1)
    assert "single-zone" not in rules_of(zone_count=len(given["zones"]), gpu_model_count=2)


def test_a17(rules_of):
    given, expected = case("A17")
    assert expected["decision"] == "deny"
    told = {"gpus_per_replica": given["gpus_per_replica"], "quota_gpus": given["quota_gpus"]}
    assert "past-quota" in rules_of(max_replica_count=given["max_replicas"], **told)
    assert "past-quota" not in rules_of(max_replica_count=4, **told)


def test_m24(rules_of):
    given, expected = case("M24")
    assert expected["requires"] == ["absolute_kv_bytes", "start_order"]
    assert sum(given["fractions"]) < 1
    assert "shared-gpu-start" in rules_of(engines_per_gpu=len(given["fractions"]))
    assert "shared-gpu-start" not in rules_of(engines_per_gpu=len(given["fractions"]), start_in_order=True)
