"""``scaling`` on the pools of a plan: ways to scale each of them, and the best of each together."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tokenfleet import simulator
from tokenfleet.app.compose import Teller
from tokenfleet.app.planned_pools import PlannedPools, pools_of_plan
from tokenfleet.app.scaling_compare import ways_of
from tokenfleet.app.scaling_question import cold_start_of
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scaling_words import advice, broken_words, comparison_document, comparison_rows, minutes_document
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_words import fleet_name
from tokenfleet.app.summary import Block
from tokenfleet.app.world_question import clients_of, door_of, usual_door
from tokenfleet.contract import Minutes, judge_minutes
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.planner.scaling import (
    ScalingComparison,
    ScalingSetting,
    compare_scaling,
    gpu_hours,
    scaler_of,
    world_of,
)

_WHOLE_FLEET = ("events", "ladder")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPool:
    """The ways to scale one pool, the others as they are planned."""

    name: str
    found: ScalingComparison
    setting: ScalingSetting
    cold_start: str
    """Where the cold start comes from, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPools:
    """All pools, and what their best ways come to when all of them scale at once."""

    pools: tuple[ScaledPool, ...]
    minutes: Minutes
    """Of all users, through all pools."""
    gpu_hours: float
    notes: tuple[str, ...]


def compared_pools(asked: Scenario, model: ModelArchitecture, plan: Path, trace: Trace, teller: Teller) -> ScaledPools:
    """Compares ways to scale each pool of a plan within the counts of ``autoscaling``, then replays the best together.

    Raises:
        BadInput: the scenario does not say within which counts to scale, or it has something around one fleet.
    """
    spec = asked.autoscaling
    if spec is None:
        what = "the scenario does not say how many replicas each pool may have"
        raise BadInput.at("autoscaling", what, "write autoscaling: {max: 8}")
    around = [key for key in _WHOLE_FLEET if getattr(asked, key)]
    if around:
        mend = "leave it out, or name the pools in the scenario and simulate it"
        raise BadInput(Problem(key, f"is about one fleet, and {plan} has pools", mend) for key in around)
    planned = pools_of_plan(asked, model, plan)
    pools = tuple(_compared(asked, spec, planned, name, trace, teller) for name in planned.fleets)
    teller.say("replaying: all pools together")
    minutes, hours = _together(asked, planned, pools, trace)
    return ScaledPools(pools=pools, minutes=minutes, gpu_hours=hours, notes=tuple(usual_door(asked)))


def _compared(
    asked: Scenario, spec: AutoscalingSpec, planned: PlannedPools, name: str, trace: Trace, teller: Teller
) -> ScaledPool:
    fleet, mine = planned.fleets[name], planned.trace_of(name, trace)
    setting, ways = ways_of(asked, spec, fleet, mine)
    found = compare_scaling(
        mine,
        setting,
        ways,
        capacity_per_s=spec.capacity,
        told=lambda way: teller.say(f"replaying: {name}, {way}"),
        replay=planned.replay_of(name, simulator.replay),
    )
    return ScaledPool(name=name, found=found, setting=setting, cold_start=cold_start_of(asked, spec, fleet)[1])


def _together(
    asked: Scenario, planned: PlannedPools, pools: tuple[ScaledPool, ...], trace: Trace
) -> tuple[Minutes, float]:
    """Every pool scaled in its best way, all at once."""
    fleets = {pool.name: most_of(pool) for pool in pools}
    by_name = {pool.name: pool for pool in pools}
    still = World(clients=clients_of(asked), admission=door_of(asked))

    def world(name: str, _calls: Trace) -> World:
        best, setting = by_name[name].found.best, by_name[name].setting
        return still if best.policy is None else world_of(setting, scaler_of(setting, best.policy))

    stages = replace(planned, fleets=fleets).stages(trace)
    run = simulator.replay_stages(trace, stages, worlds=world)
    hours = sum(gpu_hours(run.pools[name].record, fleet) for name, fleet in fleets.items())
    return judge_minutes(run.record, asked.slo.targets()), hours


def most_of(pool: ScaledPool) -> Fleet:
    """As many replicas as its best way may have."""
    best, fleet = pool.found.best, pool.setting.fleet
    count = best.most_count if best.policy is None else fleet.groups[0].replica_count
    return replace(fleet, groups=(replace(fleet.groups[0], replica_count=count),))


def scaled_pools_document(found: ScaledPools) -> dict[str, object]:
    """For machines."""
    return {
        "pools": [{"pool": pool.name, **comparison_document(pool.found, pool.setting)} for pool in found.pools],
        "together": {"gpu_hours": found.gpu_hours, **minutes_document(found.minutes)},
    }


def scaled_pools_blocks(found: ScaledPools) -> Iterator[Block]:
    """For a person."""
    for pool in found.pools:
        fleet = fleet_name(pool.setting.fleet.groups[0])
        yield "Pool", [f"{pool.name}: up to {fleet}", pool.cold_start]
        yield "Ways", comparison_rows(pool.found)
        yield "Best", advice(pool.found, pool.setting)
    yield "All", together_lines(found)


def together_lines(found: ScaledPools) -> list[str]:
    """What the best way of every pool comes to when all of them scale at once."""
    ways = " and ".join(f"{pool.name} by {pool.found.best.name}" for pool in found.pools)
    return [f"{ways}: {found.gpu_hours:.3g} GPU-hours", broken_words(found.minutes), *found.notes]
