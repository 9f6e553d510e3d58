"""How many replicas to ask for: rules combined, with hysteresis, cool-down, limits of step and of count.

A pure function of one tick and of the state that the tick before left; a live autoscaler and the replay call it alike.

* Up at once, as far as the largest wish and the step limit allow. What is starting counts as asked for, so a fleet
  whose new replicas load for minutes is not doubled at every tick; only what is ready counts as capacity.
* Down late: the fewest that any rule could do with, at the largest of the last minutes, one step per cool-down, and
  only if the survivors would hold what is there.
* A missing signal holds the count and raises an alert. From zero replicas, arrivals at the router bring the first.
"""

from dataclasses import field, replace

from tokenfleet.control.rules import (
    ActiveRule,
    ActiveTokensRule,
    DrainRule,
    ForecastRule,
    FreeKvRule,
    KvRule,
    QueueRule,
    Rule,
    ScheduleRule,
    SeasonalRule,
    Tick,
    TtftRule,
    WaitRule,
    Wish,
)
from tokenfleet.control.signals import Learned, Signals, learn
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

NO_DATA = "no_data"
"""Alert: a signal is missing; the count is held."""
START_TIMEOUT = "start_timeout"
"""Alert: replicas asked for did not become ready in time; they are asked for anew, elsewhere if there is one."""
AT_MAXIMUM = "at_maximum"
"""Alert: more would be asked for than the policy allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """What to scale by, and how fast. The largest wish of all rules counts."""

    rules: tuple[Rule, ...]
    max_count: int
    min_count: int = 1
    up_step_count: int | None = None
    """Most replicas asked for in one tick; ``None``: all that are needed."""
    down_step_count: int = 1
    relax_fraction: float = 0.6
    """Limits are this much tighter for those who may go: the hysteresis."""
    stable_s: float = 300.0
    """A replica goes when none of the wishes of this long would have kept it."""
    up_cool_down_s: float = 0.0
    """From the last change to the next one upwards."""
    down_cool_down_s: float = 300.0
    """From the last change to the next one downwards."""
    start_timeout_s: float | None = None
    """A replica not ready by then does not come; ``None``: wait for ever."""
    capacity_per_s: float | None = None
    """Requests per second that one replica sustains, for the check before one goes; learned when ``None``."""
    survivors_fraction: float = 0.9
    """Part of their capacity and of their KV memory that the survivors may fill with what the one that goes held."""

    @property
    def looks_inside(self) -> bool:
        """Whether any rule asks for waits or active tokens, which not every look at a fleet brings along."""
        return any(isinstance(rule, WaitRule | ActiveTokensRule) for rule in self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """What a tick leaves for the next one."""

    target_count: int
    """Replicas asked for: ready ones and starting ones."""
    since_s: float | None = None
    """The first tick: before a whole window has passed since then, nobody goes."""
    changed_s: float = float("-inf")
    starts_s: tuple[float, ...] = ()
    """When each replica that is starting was asked for."""
    wishes: tuple[tuple[float, int], ...] = ()
    """Lately: when, and the fewest replicas that would have done."""
    learned: Learned = field(default_factory=Learned)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStep:
    """What to do at a tick, and why: an entry of the log."""

    time_s: float
    ready_count: int
    starting_count: int
    """Before this tick's starts."""
    target_count: int
    start_count: int
    """Replicas to start now."""
    stop_count: int
    """Replicas to let go: starting ones first, then ready ones, which drain."""
    give_up_count: int
    """Starting replicas whose time is over."""
    rule: str
    """The rule that decided: its name, ``hold``, ``bounds``, ``arrivals``, or ``replace`` for those that are gone."""
    reason: str
    alerts: tuple[str, ...] = ()


def decide(seen: Signals, policy: ScalingPolicy, state: ScalingState) -> tuple[ScalingStep, ScalingState]:
    """Decide at one tick.

    Args:
        seen: The signals.
        policy: Checked with :func:`check_policy`.
        state: What the tick before returned; ``ScalingState(target_count=...)`` at the first.

    Returns:
        The decision, and the state for the next tick.
    """
    learned = learn(seen, state.learned, ahead_s=_horizon_s(policy))
    starts_s, give_up_count = _still_starting(seen, policy, state)
    up, missing, alerts = _largest(seen, policy, learned, 1.0)
    down, _, _ = _largest(seen, policy, learned, policy.relax_fraction)
    wishes = _recent(seen, policy, state, None if missing else down)
    since_s = seen.time_s if state.since_s is None else state.since_s
    target, rule, reason = _target(seen, policy, replace(state, since_s=since_s, learned=learned), (up, down), wishes)
    if give_up_count:
        alerts = (*alerts, START_TIMEOUT)
    if up is not None and up[1].count > policy.max_count:
        alerts = (*alerts, AT_MAXIMUM)
    here = seen.ready_count + len(starts_s)
    start_count = max(target - here, 0)
    if start_count and target == state.target_count:
        # Nobody asked for more: some of those that were asked for are not there.
        rule, reason = "replace", f"{here} of {target} are ready or on their way, the others are gone; {reason}"
    if missing:
        alerts = (*alerts, NO_DATA)
        reason = f"{reason}; no data for {', '.join(missing)}"
    step = ScalingStep(
        time_s=seen.time_s,
        ready_count=seen.ready_count,
        starting_count=len(starts_s),
        target_count=target,
        start_count=start_count,
        stop_count=max(here - target, 0),
        give_up_count=give_up_count,
        rule=rule,
        reason=reason,
        alerts=alerts,
    )
    kept = starts_s[: max(target - seen.ready_count, 0)]
    return step, ScalingState(
        target_count=target,
        since_s=since_s,
        changed_s=seen.time_s if target != state.target_count else state.changed_s,
        starts_s=(*kept, *(seen.time_s,) * start_count),
        wishes=wishes,
        learned=learned,
    )


def check_policy(
    policy: ScalingPolicy,
    *,
    slot_count: int | None = None,
    queue_limit_count: int | None = None,
    gpus_per_replica_count: int = 1,
    gpu_quota_count: int | None = None,
    where: str = "autoscaling",
) -> None:
    """Refuse a policy that cannot work.

    Args:
        policy: What was asked for.
        slot_count: Sequences that one replica runs at most.
        queue_limit_count: Requests that may wait on one replica before the door closes; ``None``: any number.
        gpus_per_replica_count: GPUs of one replica.
        gpu_quota_count: GPUs there are; ``None``: unknown.
        where: Key of the policy, for the errors.

    Raises:
        BadInput: every limit that its signal can never reach, every count and time that makes no sense, and a
            worst case beyond the quota.
    """
    problems = _bounds(policy, where)
    for rule in policy.rules:
        problems += _out_of_reach(rule, where, slot_count, queue_limit_count)
        if isinstance(rule, ScheduleRule):
            problems += _schedule(rule, policy, where)
    worst = policy.max_count * gpus_per_replica_count
    if gpu_quota_count is not None and worst > gpu_quota_count:
        what = f"{policy.max_count} replicas may come to {worst} gpus, and the quota is {gpu_quota_count}"
        problems.append(Problem(f"{where}.max", what, f"at most {gpu_quota_count // gpus_per_replica_count}"))
    if problems:
        raise BadInput(problems)


def worst_case_gpu_count(policy: ScalingPolicy, gpus_per_replica_count: int) -> int:
    """GPUs that the policy may come to hold: what a quota must be charged with before it runs."""
    return policy.max_count * gpus_per_replica_count


def _horizon_s(policy: ScalingPolicy) -> float:
    return max((rule.ahead_s for rule in policy.rules if isinstance(rule, ForecastRule | SeasonalRule)), default=0.0)


def _still_starting(seen: Signals, policy: ScalingPolicy, state: ScalingState) -> tuple[tuple[float, ...], int]:
    """Moments at which those still starting were asked for, and how many of them have run out of time."""
    newest = state.starts_s[len(state.starts_s) - min(seen.starting_count, len(state.starts_s)) :]
    # Somebody else may have started some: they count from when they are first seen.
    starts_s = (*newest, *(seen.time_s,) * (seen.starting_count - len(newest)))
    if policy.start_timeout_s is None:
        return starts_s, 0
    in_time = tuple(each for each in starts_s if seen.time_s - each < policy.start_timeout_s)
    return in_time, len(starts_s) - len(in_time)


def _largest(
    seen: Signals, policy: ScalingPolicy, learned: Learned, slack_fraction: float
) -> tuple[tuple[str, Wish] | None, tuple[str, ...], tuple[str, ...]]:
    """The rule with the largest wish, rules without data, and alerts."""
    tick = Tick(seen=seen, learned=learned, slack_fraction=slack_fraction)
    asked = [(rule.name, rule.needed(tick)) for rule in policy.rules]
    wishes = [(name, wish) for name, wish in asked if wish is not None]
    missing = tuple(name for name, wish in asked if wish is None)
    alerts = tuple(dict.fromkeys(wish.alert for _, wish in wishes if wish.alert))
    return max(wishes, key=lambda each: each[1].count, default=None), missing, alerts


def _recent(
    seen: Signals, policy: ScalingPolicy, state: ScalingState, down: tuple[str, Wish] | None
) -> tuple[tuple[float, int], ...]:
    """Wishes of the stabilisation window. A tick without data, or without a ready replica to judge by, keeps all."""
    wish = state.target_count if down is None or seen.ready_count == 0 else down[1].count
    kept = tuple(each for each in state.wishes if each[0] > seen.time_s - policy.stable_s)
    return (*kept, (seen.time_s, wish))


def _target(
    seen: Signals,
    policy: ScalingPolicy,
    state: ScalingState,
    asked: tuple[tuple[str, Wish] | None, tuple[str, Wish] | None],
    wishes: tuple[tuple[float, int], ...],
) -> tuple[int, str, str]:
    """Replicas to have, the rule that says so, and its reason."""
    now = state.target_count
    allowed = min(max(now, policy.min_count), policy.max_count)
    if allowed != now:
        return allowed, "bounds", f"{now} asked for, {policy.min_count} to {policy.max_count} are allowed"
    if now == 0 and (seen.arrived_count or 0) > 0:
        return 1, "arrivals", f"{seen.arrived_count} requests arrived and no replica is there"
    up, down = asked
    if up is not None and up[1].count > now:
        return _more(seen, policy, state, *up)
    if down is None or max(count for _, count in wishes) >= now or now == policy.min_count:
        return now, "hold", up[1].reason if up is not None else "nothing is known"
    return _fewer(seen, policy, state, down, max(count for _, count in wishes))


def _more(seen: Signals, policy: ScalingPolicy, state: ScalingState, rule: str, wish: Wish) -> tuple[int, str, str]:
    now = state.target_count
    most = policy.max_count if policy.up_step_count is None else min(policy.max_count, now + policy.up_step_count)
    target = min(wish.count, most)
    if target <= now:
        return now, "hold", f"{wish.reason}: {wish.count} would be needed, {policy.max_count} are allowed"
    if seen.time_s - state.changed_s < policy.up_cool_down_s:
        return now, "hold", f"{wish.reason}: {wish.count} would be needed, cooling down"
    return target, rule, f"{wish.reason}: {wish.count} needed"


def _fewer(
    seen: Signals, policy: ScalingPolicy, state: ScalingState, down: tuple[str, Wish], fewest: int
) -> tuple[int, str, str]:
    now = state.target_count
    rule, wish = down
    target = max(fewest, policy.min_count, now - policy.down_step_count)
    if state.since_s is None or seen.time_s - state.since_s < policy.stable_s:
        return now, "hold", f"{wish.reason}: {fewest} would do, not for long enough yet"
    if seen.time_s - state.changed_s < policy.down_cool_down_s:
        return now, "hold", f"{wish.reason}: {fewest} would do, cooling down"
    crowded = _survivors_are_crowded(seen, policy, state.learned, target)
    if crowded:
        return now, "hold", f"{wish.reason}: {fewest} would do, but {crowded}"
    return target, rule, f"{wish.reason}: {fewest} would do"


def _survivors_are_crowded(seen: Signals, policy: ScalingPolicy, learned: Learned, target: int) -> str:
    """Why those who stay would not hold what is there, by demand and by KV memory; empty when they would."""
    demand = learned.arrival_per_s or 0.0
    if target == 0:
        return f"{demand:.3g} requests/s arrive" if demand > 0.0 and seen.arrived_count else ""
    capacity = policy.capacity_per_s or learned.capacity_per_s
    if capacity is not None and demand > policy.survivors_fraction * capacity * target:
        return f"{target} would carry {policy.survivors_fraction * capacity * target:.3g} of {demand:.3g} requests/s"
    kv = max(seen.kv_used_fraction or (), default=0.0) * seen.ready_count / target
    return f"KV memory of {target} would be {kv:.0%} full" if kv > policy.survivors_fraction else ""


def _bounds(policy: ScalingPolicy, where: str) -> list[Problem]:
    problems = []
    if not policy.rules:
        problems.append(Problem(f"{where}.policy", "names no rule", "give at least one, such as queue"))
    if not 0 <= policy.min_count <= policy.max_count or policy.max_count < 1:
        what = f"{policy.min_count} to {policy.max_count} replicas is no range"
        problems.append(Problem(f"{where}.min", what, "min from 0 on, max from 1 on, min not above max"))
    if not 0.0 < policy.relax_fraction < 1.0:
        what = f"{policy.relax_fraction:g} leaves no band between those who must come and those who may go"
        problems.append(Problem(f"{where}.relax", what, "a share between 0 and 1, such as 60%"))
    return problems


def _out_of_reach(rule: Rule, where: str, slot_count: int | None, queue_limit_count: int | None) -> list[Problem]:
    """A limit at or above what its signal can ever show never asks for anybody."""
    inside = None if slot_count is None or queue_limit_count is None else slot_count + queue_limit_count
    limit, most = _limit_and_most(rule, inside, queue_limit_count)
    if limit <= 0.0:
        return [Problem(f"{where}.{rule.name}", f"{limit:g} is no limit", "write a positive number")]
    if most is None or limit < most:
        return []
    what = f"the signal never exceeds {most:g}, so a limit of {limit:g} asks for nobody, however long the queue"
    if isinstance(rule, FreeKvRule):
        what = f"a replica has KV memory for {most:,.0f} tokens in all, so {limit:,.0f} are never free"
    other = "raise queue_limit" if isinstance(rule, QueueRule) else "scale by the queue"
    return [Problem(f"{where}.{rule.name}", what, f"write less than {most:g}, or {other}")]


def _limit_and_most(rule: Rule, inside: int | None, queue_limit_count: int | None) -> tuple[float, float | None]:
    """The limit of a rule, and the most that its signal can show where that is known."""
    match rule:
        case QueueRule():
            return rule.limit_count, queue_limit_count
        case ActiveRule():
            return rule.limit_count, inside
        case KvRule():
            return rule.limit_fraction, 1.0
        case ActiveTokensRule():
            return rule.limit_tokens, None
        case FreeKvRule():
            return rule.limit_tokens, rule.capacity_tokens
        case TtftRule() | DrainRule():
            return rule.limit_s, None
        case WaitRule():
            return min(rule.limits_s.values(), default=0.0), None
    return 1.0, None


def _schedule(rule: ScheduleRule, policy: ScalingPolicy, where: str) -> list[Problem]:
    starts_s = [start_s for start_s, _ in rule.entries]
    outside = [start_s for start_s in starts_s if not 0.0 <= start_s < rule.period_s]
    if not starts_s or outside or sorted(set(starts_s)) != starts_s:
        what = f"{len(starts_s)} entries, and they do not rise from 0 to less than {rule.period_s:g} s"
        return [Problem(f"{where}.schedule", what, "one line for each time of day, in order")]
    most = max(count for _, count in rule.entries)
    if most > policy.max_count:
        return [Problem(f"{where}.schedule", f"asks for {most} replicas, max is {policy.max_count}", "raise max")]
    return []
