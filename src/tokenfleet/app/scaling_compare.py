"""The ways to scale a scenario's fleet: the usual ones, and the scenario's own."""

from dataclasses import replace

from tokenfleet.app.compose import Teller
from tokenfleet.app.fleet_notes import one_fleet_alone
from tokenfleet.app.scaling_question import cold_start_of, policy_of, promised_ttft_s, setting_of
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import time_of_day_s
from tokenfleet.app.world_question import usual_door
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.trace import Trace, of_class
from tokenfleet.planner.scaling import ScalingComparison, ScalingSetting, Way, compare_scaling, own_way, usual_ways


def compared(
    asked: Scenario, fleet: Fleet, trace: Trace, teller: Teller, *, planned: bool = False
) -> tuple[ScalingComparison, ScalingSetting, str]:
    """Compare the usual ways to scale, and the scenario's own.

    Args:
        asked: The scenario.
        fleet: What is scaled.
        trace: Its traffic.
        teller: Told what is being done.
        planned: The fleet is that of a plan, which has weighed pools already.

    Returns:
        The comparison, what all ways have in common, and sentences on the cold start and on a bound of the
        queue that nobody wrote.

    Raises:
        BadInput: the scenario does not say within which counts to scale, or its policy cannot work.
    """
    spec = asked.autoscaling
    if spec is None:
        what = "the scenario does not say how many replicas there may be"
        raise BadInput.at("autoscaling", what, "write autoscaling: {max: 8}")
    if len(fleet.groups) > 1:
        what = f"the fleet has {len(fleet.groups)} replica groups, and ways to scale are compared on equal replicas"
        raise BadInput.at("groups", what, "name one fleet; tokenfleet simulate scales a group among others")
    setting, ways = ways_of(asked, spec, fleet, trace)
    found = compare_scaling(
        trace,
        setting,
        ways,
        capacity_per_s=spec.capacity,
        told=lambda name: teller.say(f"replaying: {name}"),
    )
    notes = (cold_start_of(asked, spec, fleet)[1], *usual_door(asked), "" if planned else one_fleet_alone(asked))
    return found, setting, " ".join(note for note in notes if note)


def ways_of(
    asked: Scenario,
    spec: AutoscalingSpec,
    fleet: Fleet,
    trace: Trace,
    *,
    pool: str | None = None,
    keeps_kv: bool = True,
    answers: bool = True,
) -> tuple[ScalingSetting, list[Way]]:
    """What all ways have in common, and the ways: the scenario's own first.

    Args:
        asked: The scenario.
        spec: Its scaling, or that of a pool.
        fleet: What is scaled.
        trace: What comes to it.
        pool: The pool that it is, where the scenario names several.
        keeps_kv: Whether KV memory is a signal there.
        answers: Whether users see its first tokens.

    Raises:
        BadInput: its policy cannot work.
    """
    setting = setting_of(asked, spec, fleet, trace, pool)
    setting = replace(setting, slo=present_slo(setting.slo, trace))
    own = own_way("as written", policy_of(spec, setting, trace))
    ways = usual_ways(
        trace,
        min_count=spec.min,
        max_count=spec.max,
        ttft_limit_s=promised_ttft_s(setting.slo) if answers else None,
        cold_start_s=spec.ahead or setting.cold_start_s,
        offset_s=time_of_day_s(trace),
        keeps_kv=keeps_kv,
    )
    return setting, [own, *ways]


def present_slo(slo: Slo, trace: Trace) -> Slo:
    """What is promised to requests that come: what is promised to others says nothing of a fleet."""
    return slo.to({each for each in trace.classes if of_class(trace, each).any()})
