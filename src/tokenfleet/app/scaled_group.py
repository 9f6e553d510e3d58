"""Which replica group of a fleet a policy scales."""

from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.control import ScalingPolicy, ScheduleRule
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.planner.scaling import ScalingSetting

_APART: Final = ("by_length", "by_tier")
"""Routers that give each group requests of its own."""
_OF_ALL: Final = ("ttft", "drain", "forecast", "seasonal")
"""Signals that the router has of the fleet as a whole."""


def scaled_group(asked: Scenario, spec: AutoscalingSpec, fleet: Fleet) -> int:
    """The place of the group that is scaled.

    Raises:
        BadInput: several groups and nobody says which, no group of that name, or a signal that its group does not have.
    """
    names = list(asked.groups or {})
    if spec.group is None and len(fleet.groups) == 1:
        return 0
    if spec.group is None:
        what = f"the fleet has {len(fleet.groups)} replica groups, and one policy scales one"
        mend = f"write group: {names[0]}" if names else "name a fleet of equal replicas, or write groups"
        raise BadInput.at("autoscaling.group", what, mend)
    if spec.group not in names:
        near = get_close_matches(spec.group, names, n=1, cutoff=0.0)
        mend = f"nearest: {near[0]}" if near else "write groups, or leave it out"
        raise BadInput.at("autoscaling.group", f'no group is called "{spec.group}"', mend)
    if (asked.groups or {})[spec.group].replicas is not None:
        what = f"says how many there are, and autoscaling scales {spec.group}"
        raise BadInput.at(f"groups.{spec.group}.replicas", what, "set autoscaling.min, start and max")
    if not sees_all(fleet):
        _check_apart(spec, fleet)
    return names.index(spec.group)


def _check_apart(spec: AutoscalingSpec, fleet: Fleet) -> None:
    """Refuse a policy that cannot go by the group alone."""
    problems = [
        Problem(
            "autoscaling.policy", f"{name} is of the whole fleet, and {fleet.router} gives each group its own", mend
        )
        for name in spec.policy
        if name in _OF_ALL
        for mend in ("go by queue, kv, active, active_tokens, free_kv, wait or schedule, or give each kind a pool",)
    ]
    if spec.min < 1:
        what = f"{fleet.router} gives the group requests of its own, and nobody sees them without a replica"
        problems.append(Problem("autoscaling.min", what, "keep 1 at least"))
    if problems:
        raise BadInput(problems)


def sees_all(fleet: Fleet) -> bool:
    """Whether a policy goes by all replicas: those of one group do the work of any other."""
    return len(fleet.groups) == 1 or fleet.router not in _APART


def counting(policy: ScalingPolicy, staying_count: int) -> ScalingPolicy:
    """The policy of a group, counting the replicas that stay with those that come and go."""
    rules = tuple(
        replace(rule, entries=tuple((time_s, staying_count + count) for time_s, count in rule.entries))
        if isinstance(rule, ScheduleRule)
        else rule
        for rule in policy.rules
    )
    most, least = staying_count + policy.max_count, staying_count + policy.min_count
    return replace(policy, rules=rules, max_count=most, min_count=least)


def with_count(fleet: Fleet, index: int, count: int) -> Fleet:
    """The fleet with another number of replicas in one group."""
    groups = list(fleet.groups)
    groups[index] = replace(groups[index], replica_count=count)
    return replace(fleet, groups=tuple(groups))


def check_quota(spec: AutoscalingSpec, setting: ScalingSetting) -> None:
    """Refuse a fleet that may come to hold more GPUs than there are.

    Raises:
        BadInput: it may.
    """
    worst, each = setting.fleet.gpu_count, setting.scaled.replica.deployment.layout.gpu_count
    if spec.gpu_quota is None or worst <= spec.gpu_quota:
        return
    most = max(spec.gpu_quota - (worst - spec.max * each), 0) // each
    what = f"{spec.max} replicas may come to {worst} gpus, and the quota is {spec.gpu_quota}"
    raise BadInput.at("autoscaling.max", what, f"at most {most}")
