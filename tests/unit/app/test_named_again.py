"""A plan of named pools again: what replays came to is kept, whatever prices and limits say of it."""

import json

import pytest

from commands import ended
from tokenfleet.app import replay_cache
from tokenfleet.app.replay_cache import ReplayCache

PAIR = """\
name: pair
workload: {lengths: {input: 900:2500, output: 30:60}, mean_rate: 6, duration: 60s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 900ms, itl_p99: 60ms}
gpus: l40s
precision: fp8
redundancy: {replicas: n+1}
pools:
  small: {model: Qwen/Qwen3-0.6B, gpu: l4, precision: bf16, takes: {input_up_to: 500}}
  main: {}
"""
CHANGES = {
    "nothing": (),
    "price": ("pools:", "prices: {usd_per_gpu_hour: {l40s: 9}}\npools:"),
    "limit": ("ttft_p95: 900ms", "ttft_p95: 950ms"),
    "days": ("pools:", "valid_days: 7\npools:"),
    "spare": ("n+1", "n+2"),
    "demand": ("duration: 60s", "duration: 61s"),
    "pool": ("main: {}", "main: {max_batched_tokens: 1024}"),
}
IN_SHORT = ("nothing", "price", "limit")
QUESTIONS = [pytest.param(name, marks=[] if name in IN_SHORT else [pytest.mark.long]) for name in CHANGES]
MOST_RUN = {"nothing": 0, "days": 0, "price": 10}
"""Replays anew at most, where promise and demand are the same: another price leads the search past other counts."""


def bytes_of(capsys, folder, text, *options):
    (folder / "it.yaml").write_text(text)
    code, _, _ = ended(capsys, "plan", folder / "it.yaml", "-o", folder / "out", "--quiet", *options)
    assert code == 0
    return (folder / "out" / "plan.json").read_bytes()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("again")


@pytest.fixture
def caches(monkeypatch, kept):
    """Every replay cache that is opened; what they keep lies in a folder of this module."""
    monkeypatch.setattr(replay_cache, "cache_folder", lambda: kept / "replays")
    opened, begin = [], ReplayCache.__init__

    def noted(self, *asked, **more):
        begin(self, *asked, **more)
        opened.append(self)

    monkeypatch.setattr(ReplayCache, "__init__", noted)
    return opened


@pytest.mark.parametrize("change", QUESTIONS)
def test_a_plan_again_has_the_bytes_of_a_first_one(capsys, kept, caches, change):
    other = PAIR.replace(*CHANGES[change]) if CHANGES[change] else PAIR
    assert (other == PAIR) == (change == "nothing")
    bytes_of(capsys, kept, PAIR)
    caches.clear()
    again = bytes_of(capsys, kept, other)
    ran = sum(cache.run_count for cache in caches)
    assert again == bytes_of(capsys, kept, other, "--no-cache")
    replayed_count = json.loads(again)["search"]["replayed_count"]
    assert ran <= MOST_RUN.get(change, replayed_count)
    assert replayed_count > 50
    # What replays came to, and the records of the runs that a plan shows; not those of all that were tried.
    assert len([path for path in (kept / "replays").iterdir() if not path.suffix]) < 20 * len(CHANGES)
