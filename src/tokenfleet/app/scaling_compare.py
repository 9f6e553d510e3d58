"""The ways to scale a scenario's fleet: the usual ones, and the scenario's own."""

from tokenfleet.app.compose import Teller
from tokenfleet.app.fleet_notes import one_fleet_alone
from tokenfleet.app.scaling_question import cold_start_of, policy_of, promised_ttft_s, setting_of
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import time_of_day_s
from tokenfleet.app.world_question import usual_door
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.scaling import ScalingComparison, ScalingSetting, compare_scaling, own_way, usual_ways


def compared(
    asked: Scenario, fleet: Fleet, trace: Trace, teller: Teller
) -> tuple[ScalingComparison, ScalingSetting, str]:
    """Compare the usual ways to scale, and the scenario's own.

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
    setting = setting_of(asked, spec, fleet, trace)
    own = own_way("as written", policy_of(spec, setting, trace))
    ways = usual_ways(
        trace,
        min_count=spec.min,
        max_count=spec.max,
        ttft_limit_s=promised_ttft_s(setting.slo),
        cold_start_s=spec.ahead or setting.cold_start_s,
        offset_s=time_of_day_s(trace),
    )
    found = compare_scaling(
        trace,
        setting,
        [own, *ways],
        capacity_per_s=spec.capacity,
        told=lambda name: teller.say(f"replaying: {name}"),
    )
    notes = (cold_start_of(asked, spec, fleet)[1], *usual_door(asked), one_fleet_alone(asked))
    return found, setting, " ".join(note for note in notes if note)
