"""A premium tier on pools that a scenario names: four ways, each sized in all pools together."""

import json

import pytest

from commands import ended
from unit.app.named_pools import chain, shared

CHAIN = chain(traffic="mean_rate: 7, duration: 60s", slo="{ttft_p95: 3s, error_rate: 0.1%}", precision="bf16")
SHARED = shared("mean_rate: 20, duration: 40s")


def tiers(capsys, folder, text: str, *options: str) -> dict:
    path = folder / "it.yaml"
    path.write_text(text)
    code, out, err = ended(capsys, "tiers", path, "--share", "20%", *options, "--json", "--quiet")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_four_ways_are_sized_in_all_pools_together(capsys, tmp_path) -> None:
    found = tiers(capsys, tmp_path, CHAIN, "--promise", "ttft_p95=500ms")
    _, out, _ = ended(capsys, "size", tmp_path / "it.yaml", "--json", "--quiet")
    sized = json.loads(out)
    usual = [pool["carrying_replica_count"] + pool["spare_replica_count"] for pool in sized["pools"]]
    assert found["usual_replica_count"] == sum(usual)
    assert found["usual_usd_per_hour"] == pytest.approx(sized["price_usd_per_hour"])
    (together,) = found["pools"]
    assert together["pools"] == ["rank", "small", "main"]
    assert [way["name"] for way in found["options"]] == ["own", "priority", "shared", "alike"]
    usd = [0.75, 0.75, 1.55]
    for way, own in zip(found["options"], together["options"], strict=True):
        counts = own["pool_replica_count"]
        assert (way["replica_count"], way["usd_per_hour"]) == (own["replica_count"], own["usd_per_hour"])
        assert way["replica_count"] == sum(counts)
        assert way["usd_per_hour"] == pytest.approx(sum(n * each for n, each in zip(counts, usd, strict=True)))
        for tier in ("premium", "others"):
            assert all(result["kept"] for result in own[tier] if result["sample_count"])
        assert own["premium"][0]["predicted"] <= 0.5
    ways = {way["name"]: way["replica_count"] for way in found["options"]}
    # First in line needs no more replicas than waiting for one's turn; each tier has spare replicas of its own.
    assert sum(usual) <= ways["priority"] <= ways["shared"]
    assert ways["own"] >= 2 * len(usual) * 2


def test_a_pool_beside_another_goes_with_it(capsys, tmp_path) -> None:
    found = tiers(capsys, tmp_path, SHARED, "--promise", "ttft_p95=250ms")
    for own in found["pools"][0]["options"]:
        embed, main = own["pool_replica_count"]
        assert embed == main
        assert own["usd_per_hour"] == pytest.approx(
            found["usual_usd_per_hour"] / found["usual_replica_count"] * 2 * main
        )


def test_a_person_sees_every_pool_and_what_was_not_asked_for(capsys, tmp_path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(CHAIN + "utilization_cap: 90%\n")
    code, out, _ = ended(capsys, "tiers", path, "--share", "20%", "--promise", "ttft_p95=1s", "--quiet")
    assert code == 0
    assert "small: 2 replicas of l4 (bf16), $1.50/h, one promise to all" in out
    assert "of those of" not in out
    assert out.count("rank and small and main: ") == 4
    assert out.count("utilization_cap was not asked for with both tiers") == 4


def test_pools_that_keep_no_promise_are_an_answer(capsys, tmp_path) -> None:
    found = tiers(capsys, tmp_path, CHAIN.replace("3s", "20ms").replace("60s", "20s"), "--promise", "ttft_p95=10ms")
    assert found["options"] == []
    assert "ttft_p95 is" in found["why_not"][0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("precision: bf16\npools", "precision: bf16\nbatch: {takes: {share: 10%}}\npools", "batch: is offline work"),
        ("main: {}", 'main: {window: {opens: "22:00", closes: "06:00"}}', "pools.main.window: is offline work"),
        ("main: {}", "main: {autoscaling: {max: 3}}", "pools.main"),
    ],
)
def test_offline_work_and_scaled_pools_are_refused(capsys, tmp_path, old, new, said) -> None:
    path = tmp_path / "it.yaml"
    assert old in CHAIN
    path.write_text(CHAIN.replace(old, new))
    code, out, err = ended(capsys, "tiers", path, "--share", "20%", "--promise", "ttft_p95=1s", "--quiet")
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
