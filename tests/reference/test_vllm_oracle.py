"""vLLM's own scheduler and the plain engine decide the same, step by step; so the compiled kernel does too.

The recorded timelines are vLLM 0.32's and need no vLLM. With one (see ``vllm_oracle``) hundreds of random workloads
are compared live: ``pytest -m vllm -n 0``; ``TOKENFLEET_UPDATE_TIMELINES=1`` records the file anew.
"""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reference.fleets import MS, engine, trace
from reference.vllm_oracle import (
    VLLM_PYTHON,
    Timeline,
    Vllm,
    Workload,
    from_record,
    plain_timeline,
    random_workload,
    recorded,
    with_leaving,
    with_windows,
)
from tokenfleet.simulator import replay

RECORDED = Path(__file__).with_name("vllm_timelines.json")
WORKLOADS_PER_TEST = 60
SEEDS_TO_RECORD = {False: (9079, 9238, 9253, 9260, 9312), True: (9085, 9160, 9238, 9264, 9322, 9327)}
"""Short, and with preemptions; by whether prompts are shared."""
KINDS = [
    pytest.param({"prefix_caching": caching, "async_scheduling": asynchronous}, shared, id=name)
    for asynchronous, mode in ((False, "sync"), (True, "async"))
    for caching, shared, name in (
        (False, False, f"{mode}-no-cache"),
        (True, False, f"{mode}-cache-unshared"),
        (True, True, f"{mode}-cache-shared"),
    )
]
LATER_KINDS = [
    pytest.param({"prefix_caching": True, "async_scheduling": asynchronous, **rules}, True, id=f"{mode}-{name}")
    for asynchronous, mode in ((False, "sync"), (True, "async"))
    for rules, name in (
        ({"long_prefill_tokens": 5}, "long-prefill-limit"),
        ({"scheduling": "priority"}, "priority"),
        ({"scheduling": "priority", "long_prefill_tokens": 3}, "both"),
    )
]
WINDOW_KINDS = [
    pytest.param({"prefix_caching": False, "async_scheduling": asynchronous, **rules}, id=f"{mode}-windows-{name}")
    for asynchronous, mode in ((False, "sync"), (True, "async"))
    for rules, name in (
        ({}, "fcfs"),
        ({"scheduling": "priority", "long_prefill_tokens": 3}, "priority-and-limit"),
    )
]
RECORDED_ROWS = json.loads(RECORDED.read_text()) if RECORDED.exists() else []


@pytest.fixture(scope="module")
def vllm():
    if VLLM_PYTHON is None:
        pytest.skip("needs TOKENFLEET_VLLM_PYTHON: a Python with vLLM 0.32 in it")
    asked = Vllm(VLLM_PYTHON)
    yield asked
    asked.close()


def small(requests, *, blocks=100, after_s=None, **settings) -> Workload:
    """Rows of (arrival in ms, input tokens, output tokens); blocks of 4, 8 tokens a step unless told otherwise."""
    return Workload(
        trace=trace(requests),
        settings=engine(**({"max_batched_tokens": 8} | settings)),
        block_count=blocks,
        after_s=after_s,
    )


def named() -> dict[str, Workload]:
    """Small workloads, one rule each."""
    late = [(0, 6, 4), (12, 5, 3)]
    chunks = [(0, 3, 6), (5, 14, 2), (5, 3, 2)]
    thrash = [(0, 7, 5), (5, 24, 1)]
    full = [(0, 7, 6), (0, 7, 6)]
    urgent = small(full, blocks=5, max_batched_tokens=16, scheduling="priority")
    urgent = replace(urgent, trace=replace(urgent.trace, priority=np.array([1, 0], dtype=np.int32)))
    behind = small([(0, 2, 4), (0, 3, 4), (5, 1, 4)], blocks=3, scheduling="priority")
    behind = replace(behind, trace=replace(behind.trace, priority=np.array([0, 5, 0], dtype=np.int32)))
    leaving = [(0, 20, 15), (1, 20, 2)]
    gone = {"blocks": 9, "max_batched_tokens": 64, "after_s": (0.035, np.inf)}
    return {
        "an arrival during a step joins the next one": small(late),
        "under async scheduling it joins the one after": small(late, async_scheduling=True),
        "decodes first, then one chunk after the other": small(chunks),
        "the gate keeps a prompt out that does not fit whole": small(thrash, blocks=7),
        "without the gate it is admitted and preempted": small(thrash, blocks=7, full_prompt_gate=False),
        "a preempted request computes everything again": small(full, blocks=5, max_batched_tokens=16),
        "with a cache it resumes with one token": small(full, blocks=5, max_batched_tokens=16, prefix_caching=True),
        "the watermark keeps blocks free while somebody runs": small(
            [(0, 7, 6), (5, 27, 1)], blocks=10, max_batched_tokens=64, watermark_fraction=0.2
        ),
        "without chunks a prompt waits for a budget of its own": small(
            [(0, 3, 6), (5, 8, 1), (5, 3, 2)], chunked_prefill=False
        ),
        "a short prompt passes a long one that may not take the whole step": small(chunks, long_prefill_tokens=4),
        "one that is alone may": small([(0, 14, 2)], long_prefill_tokens=4),
        "the less urgent one is preempted": urgent,
        "those behind one that preempts itself go without a token": behind,
        "who leaves is let go before the outputs of the step that ends": small(leaving, **gone),
        "under async scheduling the step in flight goes on": small(leaving, async_scheduling=True, **gone),
    }


def workloads_to_record() -> dict[str, Workload]:
    """The named ones, and a few random ones of each kind."""
    found = named()
    for kind in KINDS + LATER_KINDS:
        settings, shared = kind.values
        for seed in SEEDS_TO_RECORD[shared]:
            name = f"random {kind.id} {seed}"
            found[name] = random_workload(seed, request_limit=5, shared=shared, **settings)
    for kind in WINDOW_KINDS:
        for seed in SEEDS_TO_RECORD[False]:
            drawn = random_workload(seed, request_limit=5, **kind.values[0])
            found[f"random {kind.id} {seed}"] = with_windows(drawn, seed)
    return found


def seconds(times_ps: tuple[int, ...]) -> np.ndarray:
    """Times of a timeline; what never happened (-1) is NaN."""
    return np.where(np.array(times_ps) < 0, np.nan, np.array(times_ps) / 1e12)


def assert_same(workload: Workload, asked: Timeline) -> None:
    """Plain engine against vLLM, and the columns of the compiled replay too."""
    assert plain_timeline(workload) == asked
    run = replay(workload.trace, workload.fleet, world=workload.world)
    np.testing.assert_array_equal(run.first_token_s, seconds(asked.first_ps))
    np.testing.assert_array_equal(run.finish_s, seconds(asked.finish_ps))
    assert run.busy.step_count == len(asked.steps)
    lost = Counter(request for step in asked.steps for request in step.preempted)
    cached = {}
    for step in asked.steps:
        for request, computed, _ in step.batch:
            cached.setdefault(request, computed)
    rows = [row for row, finish_ps in enumerate(asked.finish_ps) if finish_ps >= 0]
    np.testing.assert_array_equal(run.preemption_count[rows], [lost[row] for row in rows])
    np.testing.assert_array_equal(run.cached_tokens[rows], [cached[row] for row in rows])


@pytest.mark.parametrize("row", RECORDED_ROWS, ids=lambda row: row["name"])
def test_recorded_timelines(row) -> None:
    assert_same(Workload.from_row(row["workload"]), from_record(row))


def test_recorded_timelines_cover_the_rules() -> None:
    assert [row["name"] for row in RECORDED_ROWS] == list(workloads_to_record())
    steps = [step for row in RECORDED_ROWS for step in from_record(row).steps]
    assert sum(len(step.preempted) for step in steps) > 40
    assert sum(computed > 0 and tokens > 1 for step in steps for _, computed, tokens in step.batch) > 100


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
def test_recorded_timelines_are_what_vllm_decides(vllm) -> None:
    lines = [
        json.dumps({"name": name, "workload": workload.as_row(), **recorded(vllm.ask(workload))}, separators=(",", ":"))
        for name, workload in workloads_to_record().items()
    ]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    if os.environ.get("TOKENFLEET_UPDATE_TIMELINES"):
        RECORDED.write_text(text)
    assert RECORDED.read_text() == text


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize(("settings", "shared"), KINDS + LATER_KINDS)
def test_random_workloads(vllm, settings, shared) -> None:
    preempted = cached = 0
    for seed in range(WORKLOADS_PER_TEST):
        workload = random_workload(seed, shared=shared, **settings)
        asked = vllm.ask(workload)
        assert_same(workload, asked)
        preempted += sum(len(step.preempted) for step in asked.steps)
        cached += replay(workload.trace, workload.fleet).cached_tokens.sum()
    assert preempted > WORKLOADS_PER_TEST, "the pools are tight enough to matter"
    assert not shared or cached > 10 * WORKLOADS_PER_TEST


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize(("settings", "shared"), KINDS + LATER_KINDS)
def test_random_workloads_whose_users_leave(vllm, settings, shared) -> None:
    left = 0
    for seed in range(WORKLOADS_PER_TEST):
        workload = with_leaving(random_workload(seed, shared=shared, **settings), seed)
        asked = vllm.ask(workload)
        assert_same(workload, asked)
        left += sum(finish_ps < 0 for finish_ps in asked.finish_ps)
    assert left > WORKLOADS_PER_TEST


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize("settings", WINDOW_KINDS)
def test_random_workloads_with_windows(vllm, settings) -> None:
    preempted = 0
    for seed in range(WORKLOADS_PER_TEST):
        workload = with_windows(random_workload(seed, **settings), seed)
        asked = vllm.ask(workload)
        assert_same(workload, asked)
        preempted += sum(len(step.preempted) for step in asked.steps)
    assert preempted > WORKLOADS_PER_TEST


def null_block_workload() -> Workload:
    """Nine usable blocks. The second request needs the seven that are free, and vLLM keeps int(0.1 x 10) = 1 back."""
    return small([(0, 4, 6), (5, 28, 1)], blocks=9, max_batched_tokens=64, watermark_fraction=0.1)


NULL_BLOCK_FIRST_PS = (10 * MS, 70 * MS)
"""vLLM: the second request is admitted when the first has ended."""


def test_watermark_counts_the_null_block() -> None:
    workload = null_block_workload()
    assert plain_timeline(workload).first_ps == NULL_BLOCK_FIRST_PS
    run = replay(workload.trace, workload.fleet)
    np.testing.assert_array_equal(run.first_token_s, np.array(NULL_BLOCK_FIRST_PS) / 1e12)


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
def test_vllm_counts_the_null_block_in_its_watermark(vllm) -> None:
    assert vllm.ask(null_block_workload()).first_ps == NULL_BLOCK_FIRST_PS
