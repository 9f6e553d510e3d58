import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tokenfleet import simulator
from tokenfleet.app import replay_cache
from tokenfleet.app.cli import main
from tokenfleet.app.replay_cache import ReplayCache
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import ErrorBand
from tokenfleet.domain.world import Clients, Happening, World
from tokenfleet.planner import Hopeless, replays
from unit.planner import toy

SCENARIO = {
    "name": "kept",
    "workload": {"lengths": {"input": "500:2000", "output": "100:300"}, "peak_rate": 8, "duration": "4min"},
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpus": ["h100_sxm", "l40s"],
    "slo": {"ttft_p99": "1s", "itl_p99": "80ms"},
}


FAILURE = World(happenings=(Happening(time_s=2.0, kind="fail", replicas=(0,)),), clients=Clients(attempt_count=3))


def fleet_of(replica, count=2):
    return Fleet(groups=(ReplicaGroup(replica=replica, replica_count=count),))


@pytest.fixture
def kept(tmp_path):
    cache = ReplayCache(tmp_path / "replays")
    assert cache.open()
    return cache


def same(one, other):
    """Every field of a record, and of what it holds, down to the type of each column."""
    assert type(one) is type(other)
    if is_dataclass(one):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"peak_window_s": (1.0, 5.0)},
        {"telemetry_interval_s": 2.0},
        {"world": FAILURE},
        {"world": FAILURE, "telemetry_interval_s": 0.5},
    ],
    ids=str,
)
def test_what_is_read_is_what_was_replayed(kept, more):
    plain, fleet = toy.trace(rate=60.0), fleet_of(toy.replica())
    trace = replace(plain, class_bits=(plain.input_tokens % 3).astype(np.int32), classes=("odd", "even"))
    first, again = kept.replay(trace, fleet, **more), kept.replay(replace(trace), fleet_of(toy.replica()), **more)
    assert (kept.run_count, kept.found_count) == (1, 1)
    same(again, first)
    same(again, simulator.replay(trace, fleet, **more))
    assert "world" not in more or again.turmoil.lost_count > 0
    assert set(again.class_gaps) == ({"odd", "even"} if "telemetry_interval_s" in more else set())


def test_gaps_of_classes_are_kept(kept):
    plain = toy.trace(rate=60.0)
    bits = (np.arange(plain.request_count) % 3).astype(np.int32)
    trace = replace(plain, class_bits=bits, classes=("chat", "batch"))
    first, again = (
        kept.replay(trace, fleet_of(toy.replica()), peak_window_s=(1.0, 5.0), telemetry_interval_s=2.0)
        for _ in range(2)
    )
    assert (kept.run_count, kept.found_count) == (1, 1)
    assert list(again.class_gaps) == ["chat", "batch"]
    for name, apart in first.class_gaps.items():
        same(again.class_gaps[name], apart)
        assert apart.gaps.count.sum() == np.maximum(first.output_tokens[first.of_class(name)] - 1, 0).sum()


def test_a_replay_that_somebody_looks_at_is_not_kept(kept):
    trace, fleet, window_s = toy.trace(rate=500.0), fleet_of(toy.replica(slots=1)), (0.2, 0.6)
    strict = Hopeless(toy.slo(ttft=0.05), window_s, peak_only=False)
    assert kept.replay(trace, fleet, peak_window_s=window_s, hopeless=strict).cut_s is not None
    loose = replace(strict, slo=toy.slo(ttft=1e6, itl=1e6), looks=[])
    whole = kept.replay(trace, fleet, peak_window_s=window_s, hopeless=loose)
    assert whole.cut_s is None
    assert list(kept.folder.iterdir()) == []
    same(kept.replay(trace, fleet, peak_window_s=window_s), whole)
    assert (kept.run_count, kept.found_count) == (3, 0)


def test_whatever_changes_a_replay_changes_its_name(kept, monkeypatch):
    trace, replica = toy.trace(), toy.replica()
    kept.replay(trace, fleet_of(replica))
    kept.replay(trace, fleet_of(replica, 3))
    kept.replay(replace(trace, output_tokens=trace.output_tokens + 1), fleet_of(replica))
    kept.replay(trace, fleet_of(replace(replica, kv_block_count=replica.kv_block_count - 1)))
    kept.replay(trace, fleet_of(replace(replica, step_time=replace(replica.step_time, pair_ps=2))))
    kept.replay(trace, replace(fleet_of(replica), router="round_robin"))
    kept.replay(trace, replace(fleet_of(replica), scrape_s=1.0))
    kept.replay(trace, fleet_of(replica), peak_window_s=(0.0, 3.0))
    kept.replay(trace, fleet_of(replica), world=FAILURE)
    kept.replay(trace, fleet_of(replica), world=replace(FAILURE, absent=(1,)))
    assert (kept.run_count, kept.found_count) == (10, 0)
    kept.replay(trace, fleet_of(replace(replica, band=ErrorBand(step_time_factor=3.0, evidence="other"))))
    assert (kept.run_count, kept.found_count) == (10, 1)
    monkeypatch.setattr(simulator, "kernel_digest", lambda: "edited")
    edited = ReplayCache(kept._folder)
    edited.replay(trace, fleet_of(replica))
    assert edited.run_count == 1


def limited(replica, setting, of_model=None):
    engine = replace(replica.deployment.engine, context_limit_tokens=setting)
    deployment = replace(replica.deployment, engine=engine)
    return replace(replica, deployment=deployment, model_context_tokens=of_model)


def test_a_context_limit_that_no_request_meets_changes_no_replay(kept):
    trace = toy.trace()
    longest = int((trace.input_tokens + trace.output_tokens).max())
    first = kept.replay(trace, fleet_of(limited(toy.replica(), None)))
    for setting, of_model in ((longest, None), (longest + 1, 10), (None, longest)):
        other = fleet_of(limited(toy.replica(), setting, of_model))
        same(kept.replay(trace, other), first)
        same(simulator.replay(trace, other), first)
    assert (kept.run_count, kept.found_count) == (1, 3)
    for setting, of_model in ((longest - 1, None), (None, longest - 1), (longest // 2, longest)):
        other = fleet_of(limited(toy.replica(), setting, of_model))
        turned_away = kept.replay(trace, other)
        same(turned_away, simulator.replay(trace, other))
        assert (turned_away.status != first.status).any()
    assert (kept.run_count, kept.found_count) == (4, 3)
    # Where all are shorter the same limit is met by nobody.
    shorter = replace(trace, input_tokens=np.minimum(trace.input_tokens, 1))
    kept.replay(shorter, fleet_of(toy.replica()))
    kept.replay(shorter, fleet_of(limited(toy.replica(), int(shorter.output_tokens.max()) + 1)))
    assert (kept.run_count, kept.found_count) == (5, 4)


def test_a_damaged_record_is_replayed_again(kept):
    trace, fleet = toy.trace(), fleet_of(toy.replica())
    told = []
    kept._announce = told.append
    kept.replay(trace, fleet)
    (path,) = kept._folder.iterdir()
    whole = path.read_bytes()
    for damaged in (whole[:-10], whole[:100], b"", b"no json\n" + whole, whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        kept.replay(trace, fleet)
        assert path.read_bytes() == whole
    assert (kept.run_count, kept.found_count) == (6, 0)
    assert len(told) == 5
    assert all("damaged" in line for line in told)


def test_what_was_used_longest_ago_goes_first(kept):
    replica = toy.replica()
    traces = [toy.trace(seed=seed) for seed in range(6)]
    for age, trace in enumerate(traces):
        kept.replay(trace, fleet_of(replica))
        (new,) = [path for path in kept._folder.iterdir() if path.stat().st_mtime > 1e9]
        os.utime(new, (1000 + age, 1000 + age))
    kept.replay(traces[0], fleet_of(replica))
    size = max(path.stat().st_size for path in kept._folder.iterdir())
    small = ReplayCache(kept._folder, most_bytes=4 * size)
    assert small.open()
    assert sum(path.stat().st_size for path in kept._folder.iterdir()) <= 4 * size
    small.replay(traces[0], fleet_of(replica))
    small.replay(traces[1], fleet_of(replica))
    assert (small.run_count, small.found_count) == (1, 1)


def test_writers_side_by_side_leave_whole_records(kept):
    traces = [toy.trace(seed=seed) for seed in range(4)] * 6
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda trace: kept.replay(trace, fleet_of(toy.replica())), traces))
    assert len(list(kept._folder.iterdir())) == 4
    for trace, record in zip(traces, records, strict=True):
        same(kept.replay(trace, fleet_of(toy.replica())), record)


def planned(folder, *options, **changes):
    (folder / "kept.yaml").write_text(yaml.safe_dump(SCENARIO | changes))
    with pytest.raises(SystemExit) as end:
        main(["plan", str(folder / "kept.yaml"), "-o", str(folder / "out"), "--json", *options])
    assert not end.value.code
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


CHANGES = (
    {"prices": {"usd_per_gpu_hour": {"l40s": 0.2}}},
    {"redundancy": {"replicas": "n+2"}},
    {"slo": {"ttft_p99": "700ms", "itl_p99": "90ms"}},
    {"slo": {"ttft_p99": "1200ms", "itl_p99": "80ms"}},
    {"workload": SCENARIO["workload"] | {"growth": 1.1}},
    {"gpus": ["h100_sxm"]},
    {"engine": {"context_limit": 20_000}},
    {"engine": {"context_limit": 2_000}},
)
QUESTIONS = [
    pytest.param(changes, few, marks=[pytest.mark.long] if (number + half) % 2 else [])
    for number, changes in enumerate(CHANGES)
    for half, few in enumerate([5_000, 500])
]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The folder of what is kept of the unchanged question, for each number of requests that are few: made once."""
    made = {}

    def folder(few):
        if few not in made:
            made[few] = tmp_path_factory.mktemp(f"usual{few}")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(replays, "FEW_REQUESTS", few)
                patch.setattr(replay_cache, "cache_folder", lambda: made[few] / "replays")
                planned(made[few])
        return made[few] / "replays"

    return folder


@pytest.mark.parametrize(("changes", "few"), QUESTIONS)
def test_a_plan_is_the_same_bytes_with_and_without_what_was_kept(tmp_path, monkeypatch, usual, changes, few):
    monkeypatch.setattr(replays, "FEW_REQUESTS", few)
    folder = tmp_path / "replays"
    shutil.copytree(usual(few), folder)
    monkeypatch.setattr(replay_cache, "cache_folder", lambda: folder)
    warm = planned(tmp_path, **changes)
    ran = len(list(folder.iterdir()))
    assert planned(tmp_path, "--no-cache", **changes) == warm
    assert len(list(folder.iterdir())) == ran > 10
    assert planned(tmp_path, **changes) == warm
    assert len(list(folder.iterdir())) == ran


def test_the_cache_lies_where_caches_lie(tmp_path):
    told = "from tokenfleet.app.replay_cache import cache_folder; print(cache_folder())"
    for variable, folder in (("XDG_CACHE_HOME", tmp_path), ("HOME", tmp_path / ".cache")):
        environment = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
        done = subprocess.run(
            [sys.executable, "-c", told],
            env=environment | {variable: str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(done.stdout.strip()) == folder / "tokenfleet" / "replays"


def test_a_disk_that_refuses_costs_nothing_but_time(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("in the way")
    assert not ReplayCache(file / "replays").open()
    monkeypatch.setattr(replay_cache, "cache_folder", lambda: file / "replays")
    assert planned(tmp_path) == planned(tmp_path, "--no-cache")
