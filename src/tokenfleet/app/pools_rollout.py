"""A new version in a pool: its replicas beside the old ones, and when which of them serve."""

from dataclasses import replace
from typing import Final

from tokenfleet.app.events import kept_away
from tokenfleet.app.pool_types import ScaledPhaseSpec
from tokenfleet.app.pools_fleet import merged, phase_fleet
from tokenfleet.app.scaling_question import cold_start_of
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.world_types import EventSpec
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.survival import Rollout
from tokenfleet.domain.world import Happening
from tokenfleet.planner.moment import version_change

NUMBERED: Final = (
    "New replicas are numbered behind the old ones; the rollout goes on when all that it has started are ready."
)


def rollout_in(asked: Scenario, pool: str | None) -> tuple[str, EventSpec] | None:
    """The change of version in a pool, or in the only fleet, and its key in the scenario; ``None`` without one.

    Raises:
        BadInput: several of them.
    """
    found = [
        (index, event) for index, event in enumerate(asked.events) if (event.what, event.pool) == ("rollout", pool)
    ]
    if len(found) > 1:
        raise BadInput.at(f"events[{found[1][0]}]", f"a second rollout in {pool or 'the fleet'}", "keep one")
    return (f"events[{found[0][0]}]", found[0][1]) if found else None


def with_new_version(
    asked: Scenario, fleet: Fleet, pool: str, spec: ScaledPhaseSpec, model: ModelArchitecture, *, alike_for: str
) -> Fleet:
    """The fleet of a pool with the replicas of its new version behind those of the old one, where there is one.

    Args:
        asked: The scenario.
        fleet: Equal replicas.
        pool: Its name.
        spec: What the pool says; the new version says the rest.
        model: What it serves.
        alike_for: Why its replicas must be equal; empty where they may differ.

    Raises:
        BadInput: a pool whose replicas come and go anyway, or a version that cannot run.
    """
    found = rollout_in(asked, pool)
    if found is None:
        return fleet
    where, event = found
    if spec.autoscaling is not None:
        raise BadInput.at(where, f"a rollout in {pool}, which is scaled", "give it a fixed count of replicas")
    group = fleet.groups[0]
    check_some_stay(asked, group.replica_count, pool)
    if event.to is None:
        return replace(fleet, groups=(replace(group, replica_count=2 * group.replica_count),))
    if alike_for:
        what = f"{pool} needs replicas of one kind, for {alike_for}"
        raise BadInput.at(f"{where}.to", what, "leave it out: the version changes alone")
    new = phase_fleet(asked, merged(spec, ScaledPhaseSpec(**event.to.model_dump())), model, f"{where}.to").groups[0]
    return replace(fleet, groups=(group, replace(new, replica_count=group.replica_count)))


def check_some_stay(asked: Scenario, count: int, fleet: str) -> None:
    """Refuse a rollout that takes all replicas at once."""
    if asked.rollout.max_unavailable >= count:
        what = f"every replica of {fleet} may be missing at once"
        raise BadInput.at("rollout.max_unavailable", what, "keep some, with max_surge")


def ready_after(asked: Scenario, fleet: Fleet) -> tuple[float, str]:
    """Seconds until a replica of the new version takes requests, and where that comes from."""
    return cold_start_of(asked, AutoscalingSpec(max=1), Fleet(groups=fleet.groups[-1:]))


def change_of(asked: Scenario, fleet: Fleet, pool: str) -> tuple[tuple[Happening, ...], tuple[int, ...]]:
    """What becomes of the replicas of both versions, and those that are not there at first."""
    found = rollout_in(asked, pool)
    if found is None:
        return (), ()
    count = sum(group.replica_count for group in fleet.groups) // 2
    steps = steps_of(asked, fleet, pool, found[1].at, ready_after(asked, fleet)[0])
    return steps, tuple(range(count, 2 * count))


def steps_of(
    asked: Scenario, fleet: Fleet, pool: str | None, start_s: float, ready_after_s: float
) -> tuple[Happening, ...]:
    """What becomes of the old replicas of a fleet and of as many new ones behind them."""
    count = sum(group.replica_count for group in fleet.groups) // 2
    rollout = Rollout(
        max_surge_count=asked.rollout.max_surge,
        max_unavailable_count=asked.rollout.max_unavailable,
        ready_after_s=ready_after_s,
    )
    return tuple(version_change(count, start_s, rollout, kept_away(asked, fleet, pool)))
