"""From the keys of a scenario to a scaling policy, a ladder, and the world in which they run."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import catalog, control, performance
from tokenfleet.app.events import happenings_of
from tokenfleet.app.pools_fleet import phase_fleet
from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.scaled_group import check_quota, counting, scaled_group, sees_all, with_count
from tokenfleet.app.scaling_types import AutoscalingSpec, LadderSpec, MarkSpec, RungSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import time_of_day_s
from tokenfleet.app.world_question import clients_of, door_of
from tokenfleet.control import Ladder, Mark, Rule, Rung, ScalingPolicy
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.scaling import ScalingSetting
from tokenfleet.simulator.supply import spot_reclaims, stock_outs

_SECONDS_PER_HOUR: Final = 3600
_SECONDS_PER_MINUTE: Final = 60


def cold_start_of(asked: Scenario, spec: AutoscalingSpec, fleet: Fleet) -> tuple[float, str]:
    """Seconds from asking for a replica to its first request, and a sentence on where they come from."""
    if asked.cold_start is not None:
        return asked.cold_start, f"Cold start: {shown_duration(asked.cold_start)}, as the scenario says."
    replica = fleet.groups[0].replica
    layout = replica.deployment.layout
    start = performance.cold_start_s(
        float(replica.memory.weights_bytes * layout.gpu_count),
        catalog.gpu(replica.deployment.gpu),
        gpu_count=layout.gpu_count,
        storage=spec.storage,
        node_is_warm=spec.warm_node,
        image_is_cached=spec.cached_image,
        compiled_is_cached=spec.compile_cache,
    )
    stages = ", ".join(f"{each.stage.replace('_', '-')} {shown_duration(each.typical_s)}" for each in start.stages)
    typical, low, high = (shown_duration(each) for each in (start.typical_s, start.low_s, start.high_s))
    text = f"Cold start: {typical} ({low} to {high}), estimated from starts that others measured: {stages}."
    return start.typical_s, f"{text} Time your own and write cold_start."


def setting_of(
    asked: Scenario, spec: AutoscalingSpec, fleet: Fleet, trace: Trace, pool: str | None = None
) -> ScalingSetting:
    """What every way to scale this fleet has in common.

    Args:
        asked: The scenario.
        spec: Its scaling.
        fleet: Its replicas; the number of those that are scaled is set to the most that may ever run.
        trace: The traffic, which spot reclaims and stock-outs follow.
        pool: The pool that it is, where there are several.

    Raises:
        BadInput: nobody says which of several groups is scaled, or an event brings back what the autoscaler replaces.
    """
    _check_events(asked, pool)
    index = scaled_group(asked, spec, fleet)
    most = with_count(fleet, index, spec.max)
    before = sum(group.replica_count for group in fleet.groups[:index])
    cold_start_s, _ = cold_start_of(asked, spec, replace(fleet, groups=fleet.groups[index : index + 1]))
    supply = spec.supply
    reclaims = spot_reclaims(
        trace.arrival_s,
        range(before + spec.min, before + spec.max),
        per_hour=supply.spot_reclaims_per_hour,
        notice_s=supply.spot_notice,
        seed=asked.seed,
    )
    return ScalingSetting(
        fleet=most,
        slo=asked.slo.targets(),
        start_count=spec.start or (spec.min if len(fleet.groups) > 1 else max(spec.min, 1)),
        cold_start_s=cold_start_s,
        tick_s=spec.tick,
        happenings=happenings_of(asked, most, pool, reclaims, replaces=True),
        stock_outs_s=stock_outs(
            trace.arrival_s, per_hour=supply.stock_outs_per_hour, mean_s=supply.stock_out, seed=asked.seed + 1
        ),
        clients=clients_of(asked),
        admission=door_of(asked),
        priorities=(0, 1) if asked.batch is not None else _priorities(trace),
        group_index=index,
        sees_all=sees_all(fleet),
    )


def _check_events(asked: Scenario, pool: str | None) -> None:
    """Where an autoscaler replaces what is lost, no node or zone comes back by the clock, and no version changes."""
    problems = [
        Problem(f"events[{index}]", "a rollout in a fleet that is scaled", "give it a fixed count of replicas")
        for index, event in enumerate(asked.events)
        if event.pool == pool and event.what == "rollout"
    ]
    problems += [
        Problem(
            f"events[{index}].back_after",
            "the autoscaler replaces what is lost with a node or a zone, after a cold start",
            "leave back_after out",
        )
        for index, event in enumerate(asked.events)
        if event.pool == pool and event.place and event.what != "slow" and event.back_after is not None
    ]
    if problems:
        raise BadInput(problems)


def policy_of(spec: AutoscalingSpec, setting: ScalingSetting, trace: Trace) -> ScalingPolicy:
    """The policy that a scenario describes.

    Raises:
        BadInput: a limit that its signal never reaches, counts beyond the quota, a schedule out of order, a signal
            that there is not.
    """
    _check_seen(spec, setting, trace)
    ahead_s = spec.ahead or setting.cold_start_s
    replica = setting.scaled.replica
    made: dict[str, Callable[[], Rule]] = {
        "queue": lambda: control.QueueRule(limit_count=spec.queue),
        "kv": lambda: control.KvRule(limit_fraction=spec.kv),
        "active": lambda: control.ActiveRule(limit_count=spec.active or 0.0),
        "active_tokens": lambda: control.ActiveTokensRule(limit_tokens=float(spec.active_tokens or 0)),
        "free_kv": lambda: control.FreeKvRule(
            limit_tokens=float(spec.free_kv or 0),
            capacity_tokens=float(replica.kv_pool_tokens),
        ),
        "wait": lambda: control.WaitRule(limits_s=_wait_limits_s(spec, setting)),
        "ttft": lambda: control.TtftRule(limit_s=spec.ttft or _promised_ttft_s(setting.slo)),
        "drain": lambda: control.DrainRule(limit_s=spec.drain, capacity_per_s=spec.capacity),
        "schedule": lambda: control.ScheduleRule(
            entries=_entries(spec), ahead_s=ahead_s, offset_s=time_of_day_s(trace)
        ),
        "forecast": lambda: control.ForecastRule(ahead_s=ahead_s, capacity_per_s=spec.capacity),
        "seasonal": lambda: control.SeasonalRule(ahead_s=ahead_s, capacity_per_s=spec.capacity),
    }
    policy = ScalingPolicy(
        rules=tuple(made[name]() for name in dict.fromkeys(spec.policy)),
        max_count=spec.max,
        min_count=spec.min,
        up_step_count=spec.step,
        relax_fraction=spec.relax,
        stable_s=spec.stable,
        down_cool_down_s=spec.cool_down,
        start_timeout_s=spec.start_timeout,
        capacity_per_s=spec.capacity,
    )
    control.check_policy(
        policy,
        slot_count=replica.deployment.engine.max_sequence_count,
        queue_limit_count=setting.admission.queue_limit_count,
    )
    check_quota(spec, setting)
    return counting(policy, setting.staying_count)


def _check_seen(spec: AutoscalingSpec, setting: ScalingSetting, trace: Trace) -> None:
    """Refuse signals that these replicas never give, where one would wait for them in vain."""
    if "ttft" in spec.policy and trace.request_count and not trace.output_tokens.any():
        what = "ttft, and nothing is generated here: no first token is ever seen"
        raise BadInput.at("autoscaling.policy", what, "go by queue, active, wait or drain")
    keeps_none = setting.scaled.replica.memory.kv_capacity_bytes == 0
    if keeps_none and ("free_kv" in spec.policy or set(spec.policy) == {"kv"}):
        what = f"{'free_kv' if 'free_kv' in spec.policy else 'kv'}, and the model keeps no KV"
        raise BadInput.at("autoscaling.policy", what, "go by queue, active, wait or drain")


_RUNG_KEYS: Final = {
    "limit_tokens": "limit",
    "quota_tokens_per_s": "quota",
    "input_tokens": "input",
    "wait_s": "wait",
    "session_count": "sessions",
    "waiting_count": "waiting",
    "kv_fraction": "kv",
    "ttft_p90_s": "ttft",
}
_RUNG_NAMES: Final = re.compile(rf"\b(?:{'|'.join(_RUNG_KEYS)})\b")


def ladder_of(spec: LadderSpec, where: str = "ladder") -> Ladder:
    """The ladder that a scenario describes under a key.

    Raises:
        BadInput: rungs without hysteresis or limit, or above the longest queue there can be, a smaller model without a
            passed evaluation.
    """
    most = spec.queue_limit
    beyond = [
        Problem(f"{where}.rungs[{index}].enter.waiting", f"no more than {most:,} ever wait", "enter at fewer")
        for index, rung in enumerate(spec.rungs)
        if rung.enter.waiting is not None and rung.enter.waiting > most
    ]
    if beyond:
        raise BadInput(beyond)
    ladder = Ladder(
        rungs=tuple(_rung(each) for each in spec.rungs),
        queue_limit_count=spec.queue_limit,
        climb_s=spec.climb,
        calm_s=spec.calm,
    )
    try:
        control.check_ladder(ladder, where)
    except BadInput as error:
        raise BadInput(_as_written(problem) for problem in error.problems) from None
    return ladder


def _as_written(problem: Problem) -> Problem:
    """A problem of a ladder, with the keys of a scenario for the names in the ladder."""
    said = (
        _RUNG_NAMES.sub(lambda name: _RUNG_KEYS[name[0]], text) for text in (problem.where, problem.what, problem.mend)
    )
    return Problem(*said)


def smaller_groups(asked: Scenario, spec: LadderSpec) -> tuple[ReplicaGroup, ...]:
    """The replicas of the smaller model, where a rung sends requests there.

    Raises:
        BadInput: the rung does not say where it runs, or it cannot run there.
    """
    for index, rung in enumerate(spec.rungs):
        if rung.give_up != "smaller_model":
            continue
        if rung.pool is not None:
            what = f'names the pool "{rung.pool}", and there are no pools'
            raise BadInput.at(f"ladder.rungs[{index}].pool", what, "write model and fleet")
        where = f"ladder.rungs[{index}].fleet"
        if rung.fleet is None:
            what = f"nobody says on which replicas {rung.model} runs"
            raise BadInput.at(where, what, "write fleet: {gpu: l40s, replicas: 2}")
        small = catalog.model(rung.model)
        made = phase_fleet(asked, rung.fleet, small, where).groups
        return tuple(replace(group, is_smaller_model=True) for group in made)
    return ()


def batch_of(spec: LadderSpec, trace: Trace) -> npt.NDArray[np.bool_] | None:
    """Which requests are batch, by their label; ``None`` where no label is named.

    Raises:
        BadInput: a label that no request of the traffic has.
    """
    if not spec.batch:
        return None
    seen = trace.observed
    labels = () if seen is None else seen.labels
    unknown = [label for label in spec.batch if label not in labels]
    if seen is None or seen.label is None or unknown:
        what = f"no request has the label {', '.join(unknown or spec.batch)}"
        known = f"labels of the traffic: {', '.join(labels)}" if labels else "this traffic has no labels"
        raise BadInput.at("ladder.batch", what, known)
    return np.isin(seen.label, [labels.index(label) for label in spec.batch])


def without_effect(ladder: Ladder, trace: Trace, batch: npt.NDArray[np.bool_] | None) -> tuple[str, ...]:
    """Rungs that a replay of this traffic notes and cannot act on, and why."""
    kinds = {rung.kind for rung in ladder.rungs}
    notes = []
    if any(rung.enter.ttft_p90_s is not None for rung in ladder.rungs) and not trace.output_tokens.any():
        notes.append("No rung is entered by its ttft: nothing is generated, so no first token is ever seen.")
    if "shed_batch" in kinds and batch is None:
        notes.append("The rung shed_batch turns nobody away: no label of the traffic is named under ladder.batch.")
    if "tenant_quota" in kinds and trace.tenant is None:
        notes.append("The rung tenant_quota turns nobody away: the traffic names no tenants.")
    return tuple(notes)


def check_before_pools(ladder: Ladder, where: str) -> None:
    """Refuse a rung that only the door of one fleet has.

    Raises:
        BadInput: with its place.
    """
    for index, rung in enumerate(ladder.rungs):
        if rung.kind == "cap_wait":
            what = "a door in front of pools does not know when a replica admits whom it let in"
            raise BadInput.at(f"{where}.rungs[{index}].give_up", what, "take admission.deadline, for all")


def promised_ttft_s(slo: Slo) -> float | None:
    """The tightest promise of TTFT; ``None`` without one."""
    return min((target.limit_s for target in slo.latency if target.metric == "ttft"), default=None)


def _promised_ttft_s(slo: Slo) -> float:
    promised = promised_ttft_s(slo)
    if promised is None:
        raise BadInput.at("autoscaling.ttft", "no TTFT is promised, so there is no limit to scale by", "write ttft: 2s")
    return promised


def _priorities(trace: Trace) -> tuple[int, ...]:
    return (0,) if trace.priority is None else tuple(np.unique(trace.priority).tolist())


def _wait_limits_s(spec: AutoscalingSpec, setting: ScalingSetting) -> dict[int, float]:
    """By priority; one limit for all where only one is written."""
    if not isinstance(spec.wait, dict):
        return dict.fromkeys(setting.priorities, spec.wait or 0.0)
    unknown = sorted(set(spec.wait) - set(setting.priorities))
    if unknown:
        what = f"no request has priority {', '.join(map(str, unknown))}"
        raise BadInput.at(
            "autoscaling.wait", what, f"priorities of the traffic: {', '.join(map(str, setting.priorities))}"
        )
    return spec.wait


def _entries(spec: AutoscalingSpec) -> tuple[tuple[float, int], ...]:
    found = []
    for written, count in (spec.schedule or {}).items():
        hour, minute = written.split(":")
        found.append((float(int(hour) * _SECONDS_PER_HOUR + int(minute) * _SECONDS_PER_MINUTE), count))
    return tuple(sorted(found))


def _rung(spec: RungSpec) -> Rung:
    record = spec.evaluation
    return Rung(
        kind=spec.give_up,
        enter=_mark(spec.enter),
        leave=_mark(spec.leave),
        limit_tokens=spec.limit,
        quota_tokens_per_s=spec.quota,
        input_tokens=spec.input,
        output_tokens=spec.output,
        session_count=spec.sessions,
        wait_s=spec.wait,
        model=spec.model,
        evaluation=None
        if record is None
        else control.Evaluation(
            model=spec.model,
            measure=record.measure,
            score=record.score,
            required_score=record.required,
            as_of=record.as_of,
            source=record.source,
        ),
    )


def _mark(spec: MarkSpec) -> Mark:
    return Mark(waiting_count=spec.waiting, kv_fraction=spec.kv, ttft_p90_s=spec.ttft)
