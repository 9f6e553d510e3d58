"""Scaling as a person and as a machine reads it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from tokenfleet.app.columns import figures
from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.simulate_run import Simulated
from tokenfleet.contract import Minutes
from tokenfleet.control import LadderStep, ScalingPolicy, ScalingStep
from tokenfleet.domain.run import Degraded, RunRecord, Status
from tokenfleet.planner.scaling import Scaled, ScalingComparison, ScalingSetting
from tokenfleet.simulator.autoscaling import Autoscaler

_MOST_CHANGES: Final = 8
_FROM_0: Final = ("offset_s", 0.0)
"""The clock of a schedule begins with the demand."""
_REFUSALS: Final = {
    Status.REJECTED_BATCH_SHED: "being batch",
    Status.REJECTED_QUOTA_SPENT: "their tenant's quota",
    Status.REJECTED_NEW_SESSION: "opening a session",
    Status.REJECTED_CONTEXT_CAP: "the cap on context",
    Status.REJECTED_OUTPUT_CAP: "the cap on output",
    Status.REJECTED_QUEUE_FULL: "a full queue",
    Status.REJECTED_DEADLINE: "waiting until the deadline",
}
_ALERTS: Final = {
    "no_data": "a signal was missing, and the count was held",
    "start_timeout": "replicas did not become ready in time, and others were asked for",
    "at_maximum": "more replicas than max would have been needed",
    "single_request_too_slow": "TTFT was above its limit for requests that had a replica to themselves",
}


def changes_of(steps: Sequence[ScalingStep]) -> list[ScalingStep]:
    """Ticks at which another count was asked for."""
    return [step for step in steps if step.start_count or step.stop_count]


def scaling_lines(run: Simulated) -> list[str]:
    """What the autoscaler did in a run; none without one."""
    scaler = run.controller.scaler
    if scaler is None:
        return []
    changes = changes_of(scaler.steps)
    counts = [step.ready_count for step in scaler.steps] or [len(scaler.absent)]
    lines = [
        f"{min(counts)} to {max(counts)} replicas ready, {run.gpu_hours:.3g} GPU-hours; asked for another count at "
        f"{len(changes)} of {len(scaler.steps)} ticks",
        broken_words(run.minutes),
    ]
    lines += [_change(step) for step in changes[:_MOST_CHANGES]]
    if len(changes) > _MOST_CHANGES:
        lines.append(f"... and {len(changes) - _MOST_CHANGES} more; all are in decisions.json")
    return [*lines, *_gone(run), *alert_lines(scaler.steps)]


def _gone(run: Simulated) -> list[str]:
    """Replicas that were lost or taken back, by reason."""
    turmoil = run.record.turmoil
    lost = Counter[str]()
    for each in () if turmoil is None else turmoil.decisions:
        if each.kind == "fail":
            lost[each.reason] += len(each.replicas)
    return [f"{'1 replica' if count == 1 else f'{count} replicas'} gone: {reason}" for reason, count in lost.items()]


def ladder_lines(run: Simulated) -> list[str]:
    """Rungs entered and left; none without a ladder."""
    if run.around.ladder is None:
        return []
    steps = run.controller.ladder_steps
    return [*rung_lines(steps), *refusal_lines(run.record), *degraded_lines(run.record)] if steps else rung_lines(steps)


def rung_lines(steps: Sequence[LadderStep]) -> list[str]:
    """The first rungs that were entered and left."""
    if not steps:
        return ["no rung was entered"]
    shown = [_ladder_step(step) for step in steps[:_MOST_CHANGES]]
    if len(steps) > _MOST_CHANGES:
        shown.append(f"... and {len(steps) - _MOST_CHANGES} more; all are in decisions.json")
    return shown


def refusal_lines(record: RunRecord) -> list[str]:
    """How many requests ended at the door, by reason."""
    counts = {name: int((record.status == status).sum()) for status, name in _REFUSALS.items()}
    named = [f"{count:,} for {name}" for name, count in counts.items() if count]
    return [f"turned away: {', '.join(named)}" if named else "nobody was turned away"]


def degraded_lines(record: RunRecord) -> list[str]:
    """How many requests a smaller model answered."""
    count = degraded_count(record)
    return [f"answered by the smaller model: {count:,}"] if count else []


def degraded_count(record: RunRecord) -> int:
    """Requests that were answered with less than they asked for."""
    if record.turmoil is None:
        return 0
    finished = record.status == Status.FINISHED
    return int((finished & (record.turmoil.degraded != Degraded.NOTHING)).sum())


def broken_words(minutes: Minutes) -> str:
    """How long a promise was broken."""
    total = int((minutes.request_count > 0).sum())
    if minutes.broken_count == 0:
        return f"every one of {total} minutes with arrivals keeps the promise"
    return (
        f"{minutes.broken_count} of {total} minutes with arrivals break a promise, "
        f"{minutes.longest_broken_count} of them in a row"
    )


def alert_lines(steps: Sequence[ScalingStep]) -> list[str]:
    """Alerts, with the number of ticks that raised each."""
    raised = Counter(alert for step in steps for alert in step.alerts)
    return [f"ALERT at {count} of {len(steps)} ticks: {_ALERTS[alert]}" for alert, count in sorted(raised.items())]


def decisions_document(run: Simulated) -> dict[str, object]:
    """Everything that was decided, tick by tick, and everything that became of replicas."""
    scaler = run.controller.scaler
    turmoil = run.record.turmoil
    return {
        "scaling": None if scaler is None else [asdict(step) for step in scaler.steps],
        "ladder": None if run.around.ladder is None else [asdict(step) for step in run.controller.ladder_steps],
        "replicas": [] if turmoil is None else [asdict(decision) for decision in turmoil.decisions],
    }


def scaling_document(run: Simulated) -> dict[str, object] | None:
    """The summary of scaling; ``None`` without an autoscaler."""
    scaler = run.controller.scaler
    if scaler is None or run.around.policy is None:
        return None
    return {
        **scaler_document(run.around.policy, scaler),
        "gpu_hours": run.gpu_hours,
        **minutes_document(run.minutes),
    }


def scaler_document(policy: ScalingPolicy, scaler: Autoscaler) -> dict[str, object]:
    """By what an autoscaler went, and how often it asked for another count."""
    return {
        "rules": rules_document(policy),
        "cold_start_s": scaler.cold_start_s,
        "change_count": len(changes_of(scaler.steps)),
        "alerts": dict(Counter(alert for step in scaler.steps for alert in step.alerts)),
    }


def minutes_document(minutes: Minutes) -> dict[str, object]:
    """Minutes with a broken promise."""
    return {
        "minute_count": int((minutes.request_count > 0).sum()),
        "broken_minute_count": minutes.broken_count,
        "longest_broken_minute_count": minutes.longest_broken_count,
    }


def rules_document(policy: ScalingPolicy) -> list[dict[str, object]]:
    """The rules of a policy with their limits."""
    return [{"name": rule.name} | _limits(rule) for rule in policy.rules]


def _limits(rule: object) -> dict[str, object]:
    return {name: getattr(rule, name) for name in getattr(type(rule), "__dataclass_fields__", {}) if name != "name"}


def comparison_document(found: ScalingComparison, setting: ScalingSetting) -> dict[str, object]:
    """The comparison for machines."""
    return {
        "cold_start_s": setting.cold_start_s,
        "capacity_per_s": found.capacity_per_s,
        "fixed_is_enough": found.fixed_is_enough,
        "slow_alone_minute_count": found.slow_alone_minute_count,
        "kept_over_all": found.kept_over_all,
        "best": found.best.name,
        "ways": [_way_document(way) for way in found.ways],
    }


def _way_document(way: Scaled) -> dict[str, object]:
    return {
        "name": way.name,
        "rules": None if way.policy is None else rules_document(way.policy),
        "gpu_hours": way.gpu_hours,
        "most_replica_count": way.most_count,
        "change_count": way.change_count,
        **minutes_document(way.minutes),
    }


def comparison_rows(found: ScalingComparison) -> list[str]:
    """The comparison as a table, the best marked."""
    heads = ("", "GPU-hours", "broken minutes", "in a row", "most replicas", "changes", "")
    return [*figures([heads, *(_row(way, best=way is found.best) for way in found.ways)]), *_left_out(found)]


def _left_out(found: ScalingComparison) -> list[str]:
    """Minutes that no way to scale can mend; none in most traffic."""
    count = found.slow_alone_minute_count
    if not count:
        return []
    minutes = "1 minute breaks" if count == 1 else f"{count} minutes break"
    return [f"{minutes} though each request has a replica to itself: no way to scale mends that, and none counts it"]


def _row(way: Scaled, *, best: bool) -> tuple[str, ...]:
    broken = way.minutes
    counts = (broken.broken_count, broken.longest_broken_count, way.most_count, way.change_count)
    return way.name, f"{way.gpu_hours:.3g}", *map(str, counts), "<- best" if best else ""


def advice(found: ScalingComparison, setting: ScalingSetting) -> list[str]:
    """What follows from the comparison."""
    best, fixed = found.best, found.ways[0]
    start = shown_duration(setting.cold_start_s)
    if not found.fixed_is_enough:
        held = "over all requests the promise holds; more replicas (max) may mend these, too"
        return [
            f"Even {fixed.most_count} replicas that are ready all the time break {fixed.minutes.broken_count} minutes: "
            f"no way to scale mends that. {f'But {held}.' if found.kept_over_all else 'Plan a larger fleet first.'}"
        ]
    if best is fixed and any(not way.minutes.broken_count for way in found.ways[1:]):
        count, are = ("1 replica", "is") if fixed.most_count == 1 else (f"{fixed.most_count} replicas", "are")
        return [
            f"{count} all the time {are} the cheapest: demand does not fall far enough below its peak, or not for long "
            "enough, to do with fewer."
        ]
    if best is fixed:
        return [
            f"Nothing that starts replicas within {start} keeps every minute: run {fixed.most_count} all the time, "
            "or shorten the cold start."
        ]
    saved = 1.0 - best.gpu_hours / fixed.gpu_hours
    lines = [f"{best.name} keeps every minute with {saved:.0%} fewer GPU-hours than {fixed.most_count} all the time."]
    if best.policy is not None:
        lines += [_thresholds(rule.name, _limits(rule)) for rule in best.policy.rules]
    if best.name == "schedule":
        lines.append("This schedule has seen its own day. Keep a queue rule beside it for the day nobody foresaw.")
    return lines


def _thresholds(name: str, limits: dict[str, object]) -> str:
    """``queue: upper 4, lower 1``, with units and without what is nothing."""
    told = (_threshold(key, value) for key, value in limits.items() if value is not None and (key, value) != _FROM_0)
    return f"{name}: {', '.join(told)}"


def _threshold(key: str, value: object) -> str:
    if isinstance(value, float) and key.endswith("_s") and not key.endswith("_per_s"):
        return f"{key.removesuffix('_s').replace('_', ' ')} {shown_duration(value)}"
    if isinstance(value, float) and key.endswith("_fraction"):
        return f"{key.removesuffix('_fraction').replace('_', ' ')} {value:.0%}"
    return f"{key.removesuffix('_count').replace('_', ' ')} {_number(value)}"


def _number(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{count} from {int(at_s) // 3600:02d}:{int(at_s) // 60 % 60:02d}" for at_s, count in value)
    if isinstance(value, dict):
        return " ".join(f"{priority}={_number(limit)}" for priority, limit in sorted(value.items()))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _change(step: ScalingStep) -> str:
    what = f"start {step.start_count}" if step.start_count else f"stop {step.stop_count}"
    return f"at {shown_duration(step.time_s)}: {what} (to {step.target_count}), {step.rule}: {step.reason}"


def _ladder_step(step: LadderStep) -> str:
    verb = "enter" if step.entered else "leave"
    return f"at {shown_duration(step.time_s)}: {verb} {step.kind} (rung {step.rung_count}): {step.reason}"
