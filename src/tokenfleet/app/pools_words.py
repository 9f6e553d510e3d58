"""A simulation of several pools as a person reads it: the promise, then where the time goes, pool by pool."""

from collections.abc import Sequence
from typing import Final

from tokenfleet.app.lane_words import lane_lines
from tokenfleet.app.pools_found import found_lines
from tokenfleet.app.pools_run import PoolRow, SimulatedPools, stage_words
from tokenfleet.app.quantities import shown_count, shown_duration
from tokenfleet.app.scaling_words import changes_of, degraded_lines, refusal_lines, rung_lines
from tokenfleet.app.simulate_words import demand_lines, fleet_name, latency_lines, promise_lines, tenant_lines
from tokenfleet.app.summary import data
from tokenfleet.app.world_words import event_words, reading_lines

Block = tuple[str, Sequence[str]]
_MOST_EVENTS: Final = 8


def pools_blocks(run: SimulatedPools, next_lines: Sequence[str]) -> list[Block]:
    """The blocks a terminal shows."""
    blocks: list[Block] = [
        ("Way", [stage_words(run.pools)]),
        ("Pools", [*(line for row in run.rows for line in pool_lines(row)), *shared_lines(run.rows)]),
        ("Demand", demand_lines(run.record, run.slo, run.waited_for)),
        ("Latency", latency_lines(run.waited_for, run.batch)),
        *([("World", around)] if (around := around_lines(run)) else []),
        *([("Ladder", door_lines(run))] if run.climbers else []),
        *([("Batch", lane_lines(run.record, run.batch))] if run.batch is not None else []),
        ("Time", time_lines(run)),
        *([("Tenants", tenant_lines(run.fairness))] if run.fairness is not None else []),
        ("Promise", promise_lines(run.peak_window_s, run.peak, run.whole)),
        ("Found", found_lines(run.found_at_peak, run.peak, run.limits)),
    ]
    read = data(run.workload.quality)
    if read:
        blocks.append(("Data", read))
    return [*blocks, ("Assumed", list(run.assumptions)), ("Next", next_lines)]


def pool_lines(row: PoolRow) -> list[str]:
    """One pool: who it is, and what it did."""
    fleet = "; ".join(fleet_name(group) for group in row.named.fleet.groups)
    busy = "" if row.busy_fraction is None else f"busy {_percent(row.busy_fraction)}, "
    line = (
        f"  {shown_count(row.call_count)} calls, p50 {_time(row.stay_p50_s)}, p95 {_time(row.stay_p95_s)}; {busy}"
        f"{row.waiting_peak_count:,} waiting at most"
    )
    line += "" if row.kv_peak_fraction is None else f", KV memory {_percent(row.kv_peak_fraction)} at most"
    beside = "" if row.named.beside is None else f", beside {row.named.beside}"
    lines = [f"{row.named.name} {row.named.does}: {row.named.model.name} on {fleet}{beside}", line]
    if row.refused_count or row.preemption_count:
        lines.append(f"  {row.refused_count:,} refused, {row.preemption_count:,} preemptions")
    if row.timed_out_count or row.cancelled_count:
        lines.append(f"  {row.timed_out_count:,} timed out, {row.cancelled_count:,} left by their users")
    if row.lost_count:
        lines.append(f"  {row.lost_count:,} lost with a replica")
    if row.late_count is not None:
        lines.append(f"  {row.late_count:,} calls ended after the window had closed")
    return lines


def shared_lines(rows: Sequence[PoolRow]) -> list[str]:
    """How busy the GPUs are that several pools stand on."""
    lines = []
    counts = {row.named.name: row.named.fleet.groups[0].replica_count for row in rows}
    for host in rows:
        here = [host, *(row for row in rows if row.named.beside == host.named.name)]
        if len(here) > 1:
            names = ", ".join(row.named.name for row in here)
            busy_count = sum((row.busy_fraction or 0.0) * counts[row.named.name] for row in here)
            lines.append(f"The GPUs that {names} share are busy {_percent(busy_count / counts[host.named.name])}")
    return lines


def around_lines(run: SimulatedPools) -> list[str]:
    """What became of replicas, and how each pool was scaled; none in a quiet world."""
    turmoil, reading = run.record.turmoil, reading_lines(run.record, run.reads_tokens_per_s, None)
    if turmoil is None:
        return reading
    lines = [
        f"{turmoil.refused_count:,} attempts refused, {turmoil.lost_count:,} lost with a replica; "
        f"{int((turmoil.attempt_count > 1).sum()):,} requests were sent more than once"
    ]
    lines += reading
    hours = {row.named.name: row.gpu_hours for row in run.rows}
    for name, scaler in run.scalers.items():
        counts = [step.ready_count for step in scaler.steps] or [len(scaler.absent)]
        lines.append(
            f"{name}: {min(counts)} to {max(counts)} replicas ready, {hours[name]:.3g} GPU-hours; asked for another "
            f"count at {len(changes_of(scaler.steps))} of {len(scaler.steps)} ticks"
        )
    told = [
        f"{name}, {event_words(each)}"
        for name, pool in run.staged.pools.items()
        if pool.record.turmoil is not None and name not in run.scalers
        for each in pool.record.turmoil.decisions
    ]
    lines += told[:_MOST_EVENTS]
    if len(told) > _MOST_EVENTS:
        lines.append(f"... and {len(told) - _MOST_EVENTS} more; all are in decisions.json")
    return lines


def door_lines(run: SimulatedPools) -> list[str]:
    """Rungs entered and left, door by door, and who was turned away; none without a ladder."""
    steps = [f"{name}: {line}" for name, climber in run.climbers.items() for line in rung_lines(climber.ladder_steps)]
    return [*steps, *refusal_lines(run.record), *degraded_lines(run.record)] if run.climbers else []


def time_lines(run: SimulatedPools) -> list[str]:
    """Where the mean request spends its time."""
    parts = [(row.named.name, row.mean_s) for row in run.rows]
    parts += [("transfers", run.transfer_mean_s), ("waits and windows", run.wait_mean_s)]
    total_s = sum(seconds for _, seconds in parts)
    if total_s <= 0:
        return ["No request finished."]
    shown = [f"{name} {shown_duration(seconds)} ({_percent(seconds / total_s)})" for name, seconds in parts if seconds]
    return [f"of a mean request: {', '.join(shown)}"]


def _time(value_s: float | None) -> str:
    return "unknown" if value_s is None else shown_duration(value_s)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.3g} %"
