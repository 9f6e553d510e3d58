"""Laws that every replay keeps, whatever the workload."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.fleets import MS, engine, fleet, physics, random_fleet, random_trace, step_time, trace
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import replay

SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=60, deadline=None)


def workload(seed: int) -> tuple[Trace, Fleet]:
    draw = np.random.default_rng(seed)
    shared = bool(draw.random() < 0.5)
    name = str(draw.choice(["vllm-0.32", "vllm-0.32", "sglang-0.5", "trtllm-1.2"]))
    drawn = random_fleet(draw, name=name, prefix_caching=bool(draw.random() < 0.7))
    return random_trace(draw, shared=shared), drawn


def columns(run: RunRecord) -> bytes:
    parts = (run.first_token_s, run.finish_s, run.cached_tokens, run.preemption_count, run.replica, run.status)
    return b"".join(part.tobytes() for part in parts) + run.gaps.count.tobytes() + repr(run.busy).encode()


@LAWS
@given(SEEDS)
def test_requests_tokens_and_blocks_are_conserved(seed: int) -> None:
    rows, drawn = workload(seed)
    run = replay(rows, drawn, telemetry_interval_s=0.05)
    ended = run.status == Status.FINISHED
    assert np.isfinite(run.finish_s[ended]).all()
    assert np.isnan(run.finish_s[~ended]).all()
    assert run.gaps.count.sum() == np.maximum(run.output_tokens[ended] - 1, 0).sum()
    last = run.telemetry
    assert last.running[-1].sum() == last.waiting[-1].sum() == 0
    assert (last.kv_used_fraction[-1] == 0.0).all(), "every block is free again, cached or not"
    assert (last.kv_used_fraction >= 0.0).all()
    assert (last.kv_used_fraction <= 1.0).all()
    limit = [g.replica.deployment.engine.max_sequence_count for g in drawn.groups for _ in range(g.replica_count)]
    assert (last.running <= limit).all()


@LAWS
@given(SEEDS)
def test_nothing_happens_before_its_cause(seed: int) -> None:
    rows, drawn = workload(seed)
    run = replay(rows, drawn)
    ended = run.status == Status.FINISHED
    streams = ended & (run.output_tokens > 0)
    assert (run.first_token_s[streams] > run.arrival_s[streams]).all()
    assert (run.finish_s[streams] >= run.first_token_s[streams]).all()
    assert (run.finish_s[ended] > run.arrival_s[ended]).all()
    assert (run.cached_tokens < np.maximum(run.input_tokens, 1)).all()
    assert run.end_s == (run.finish_s[ended].max() if ended.any() else 0.0)


@LAWS
@given(SEEDS)
def test_the_same_input_gives_the_same_bytes(seed: int) -> None:
    assert columns(replay(*workload(seed))) == columns(replay(*workload(seed)))


@LAWS
@given(SEEDS)
def test_watching_changes_nothing(seed: int) -> None:
    rows, drawn = workload(seed)
    watched = replay(rows, drawn, telemetry_interval_s=0.013, peak_window_s=(0.05, 0.2))
    assert columns(watched) == columns(replay(rows, drawn))
    assert (watched.peak_gaps.count <= watched.gaps.count).all()


@LAWS
@given(SEEDS)
def test_later_requests_do_not_change_earlier_ends(seed: int) -> None:
    """Cut the trace: what had ended before the first arrival that is gone, ended all the same."""
    rows, drawn = workload(seed)
    kept = rows.request_count // 2
    names = ("arrival_s", "input_tokens", "output_tokens", "prefix_node", "session", "priority")
    cut = {name: getattr(rows, name)[:kept] for name in names if getattr(rows, name) is not None}
    whole, part = replay(rows, drawn), replay(replace(rows, **cut), drawn)
    before = whole.finish_s[:kept] < rows.arrival_s[kept]
    assert (whole.finish_s[:kept][before] == part.finish_s[before]).all()


@LAWS
@given(SEEDS)
def test_a_replica_works_exactly_while_it_has_work(seed: int) -> None:
    """Busy time is the length of the union of all stays, from readiness at the scheduler to the last token."""
    rows, drawn = workload(seed)
    group = replace(drawn.groups[0], replica_count=1)
    run = replay(rows, Fleet(groups=(group,), router="round_robin"))
    ended = run.status == Status.FINISHED
    ready_s = run.ready_s[ended]
    work_s, reach_s = 0.0, -1.0
    for start_s, end_s in sorted(zip(ready_s, run.finish_s[ended], strict=True)):
        work_s += max(0.0, end_s - max(start_s, reach_s))
        reach_s = max(reach_s, end_s)
    assert abs(run.busy.prefill_s + run.busy.decode_s - work_s) < 1e-9
    assert run.busy.cached_prefix_s <= run.busy.prefill_s + 1e-12


@LAWS
@given(SEEDS, st.integers(1, 4), st.floats(0.005, 0.2))
def test_one_more_replica_never_lowers_goodput(seed: int, count: int, limit_s: float) -> None:
    """Equal requests, one at a time per replica: least in flight is then the same as one central queue."""
    draw = np.random.default_rng(seed)
    arrival_ms = np.cumsum(draw.exponential(4.0, 60))
    rows = trace(np.column_stack([arrival_ms, np.full(60, 5), np.full(60, 3)]))
    one = physics(settings=engine(max_sequence_count=1, max_batched_tokens=8), time=step_time(token_ps=[MS] * 9))
    fewer, more = (replay(rows, fleet(one, count=replicas)) for replicas in (count, count + 1))
    assert (more.e2e_s <= limit_s).sum() >= (fewer.e2e_s <= limit_s).sum()
    assert (more.finish_s <= fewer.finish_s + 1e-12).all()


@LAWS
@given(SEEDS)
def test_the_router_cannot_see_output_lengths_of_running_requests(seed: int) -> None:
    """Change the lengths of what has not ended yet: a request is sent to the same replica as before."""
    draw = np.random.default_rng(seed)
    count = 30
    arrival_ms = np.cumsum(draw.exponential(3.0, count))
    inputs, outputs = draw.integers(1, 20, count), draw.integers(2, 40, count)
    first = replay(trace(np.column_stack([arrival_ms, inputs, outputs])), fleet(count=3))
    longer = outputs.copy()
    running = first.finish_s[: count - 1] > arrival_ms[-1] / 1000.0
    longer[: count - 1][running] += draw.integers(1, 100, running.sum())
    second = replay(trace(np.column_stack([arrival_ms, inputs, longer])), fleet(count=3))
    assert first.replica[-1] == second.replica[-1]


@LAWS
@given(SEEDS)
def test_requests_together_take_what_the_replicas_were_busy(seed: int) -> None:
    rows, drawn = workload(seed)
    run = replay(rows, drawn, telemetry_interval_s=0.05)
    took = run.ledger
    uneven_s = 1e-12 * sum(g.replica.deployment.engine.max_sequence_count * g.replica_count for g in drawn.groups)
    assert abs(took.prefill_gpu_s.sum() - run.busy.prefill_s) < 1e-11
    assert abs(took.cached_gpu_s.sum() - run.busy.cached_prefix_s) < 1e-11
    assert -1e-11 < run.busy.decode_s - took.decode_gpu_s.sum() < uneven_s + 1e-11
    assert min(took.cached_gpu_s.min(), took.decode_gpu_s.min()) >= 0.0
    assert (took.prefill_gpu_s >= took.cached_gpu_s).all()
    served = run.status == Status.FINISHED
    assert (np.isfinite(took.scheduled_s) == served).all()
    assert (took.scheduled_s[served] >= run.ready_s[served]).all()
    streams = served & (run.output_tokens > 0)
    assert (run.first_token_s[streams] > took.scheduled_s[streams]).all()
    last = run.telemetry.done
    assert abs(last.busy_s[-1].sum() - run.busy.prefill_s - run.busy.decode_s) < 1e-11
    assert last.step_count[-1].sum() == run.busy.step_count
    assert (np.diff(last.busy_s, axis=0) >= 0.0).all()


@LAWS
@given(SEEDS)
def test_gaps_of_classes_are_the_gaps_of_all(seed: int) -> None:
    rows, drawn = workload(seed)
    rows = replace(rows, class_bits=np.arange(rows.request_count, dtype=np.int32) % 2 + 1, classes=("odd", "even"))
    run = replay(rows, drawn, telemetry_interval_s=0.05, peak_window_s=(0.1, 0.4))
    if run.class_gaps:
        odd, even = run.class_gaps["odd"], run.class_gaps["even"]
        assert (odd.gaps.count + even.gaps.count == run.gaps.count).all()
        assert (odd.peak_gaps.count + even.peak_gaps.count == run.peak_gaps.count).all()
        ended = (run.status == Status.FINISHED) & run.of_class("odd")
        assert odd.gaps.count.sum() == np.maximum(run.output_tokens[ended] - 1, 0).sum()
