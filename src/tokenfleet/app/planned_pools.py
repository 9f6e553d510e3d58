"""The pools that a plan bought, out of its document: for whoever replays or drills them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict

from tokenfleet import catalog, planner
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_lanes import check_lanes, in_lanes
from tokenfleet.app.pools_question import PoolSystem, about_handover
from tokenfleet.app.scenario import checked
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import plan_of, planned_fleet
from tokenfleet.app.yaml_lines import KeyPath, dotted
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import Does, Plan
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Handover, Pools
from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.ways import Takes
from tokenfleet.planner.housing import rooms_at, rooms_of

_ONE_FLEET_ONLY: Final = ("autoscaling", "ladder", "events")


_Kind = TypeVar("_Kind", bound=BaseModel)


class _Taken(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    input_over_tokens: int | None
    input_up_to_tokens: int | None
    label: str | None
    priority: int | None


class _Node(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    zone: str
    replica_count: int


class _Placement(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    nodes: list[_Node]


class _Pool(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str
    does: Does
    takes: _Taken | None
    fleet: list[dict[str, object]]
    placement: _Placement | None = None


class _Handover(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    link: str
    first_token: str
    overlap: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPools:
    """Every pool of a plan with its replicas, and how requests go through them."""

    fleets: dict[str, Fleet]
    does: dict[str, Does]
    takes: dict[str, Takes | None]
    handover: Handover | None
    carrying: dict[str, int]
    """Replicas that the plan counts on whatever is lost."""
    stand: dict[str, dict[str, int]]
    """Replicas of each pool in each zone, by its name; none where the plan does not say."""

    def zones_of(self, losses: Redundancy) -> dict[str, tuple[Zone, ...]]:
        """The zones as each pool has them while all stand there, as in their plan; else each has them to itself."""
        groups = [fleet.groups[0] for fleet in self.fleets.values()]
        counts = tuple(group.replica_count for group in groups)
        left = [self.carrying[name] for name in self.fleets]
        replicas = [group.replica for group in groups]
        # The plan may have been left with more than carry, and dealt the zones accordingly.
        there = rooms_at(replicas, [self.stand[name] for name in self.fleets], losses)
        rooms = there or rooms_of(replicas, counts, losses, left)
        known = [losses.zones] * len(groups) if rooms is None else [room.zones for room in rooms]
        return dict(zip(self.fleets, known, strict=True))

    def stages(self, trace: Trace) -> Pools:
        """All pools, for these requests."""
        return planner.pools_of(trace, self.takes, self.fleets, self.handover)

    def trace_of(self, name: str, trace: Trace) -> Trace:
        """The requests that a pool is planned for: its own, or all where every request goes through all pools."""
        return planner.requests_of_pool(trace, self.takes[name])

    def replay_of(self, name: str, replay: planner.Replay) -> planner.Replay:
        """Replays of one pool: alone where it stands beside the others, in its place where it depends on them."""
        if self.handover is None:
            return replay
        return planner.in_place(name, self.takes, self.fleets, self.handover, replay)


def has_pools(path: Path, model: ModelArchitecture) -> bool:
    """Whether a plan bought several pools.

    Raises:
        BadInput: as for :func:`tokenfleet.app.simulate_question.plan_of`.
    """
    return bool(plan_of(path, model).get("pools"))


def pools_of_plan(scenario: Scenario, model: ModelArchitecture, path: Path) -> PlannedPools:
    """The pools that ``plan.json`` bought.

    Raises:
        BadInput: the file is no plan, is for another model, holds no pools, or a replica cannot run.
    """
    document = plan_of(path, model)
    listed = document.get("pools")
    if not isinstance(listed, list) or not listed:
        raise BadInput.at(str(path), "is of one fleet", "give a plan of several pools")
    if document.get("stages"):
        what = "is of pools that a scenario names, which says who goes to which"
        raise BadInput.at(str(path), what, "give that scenario, to simulate")
    places = [f"{path}: pools[{index}]" for index in range(len(listed))]
    pools = [_checked(_Pool, each, where) for each, where in zip(listed, places, strict=True)]
    fleets = {
        pool.name: planned_fleet(scenario, model, pool.fleet[0], f"{where}.fleet[0]")
        for pool, where in zip(pools, places, strict=True)
    }
    return PlannedPools(
        fleets=fleets,
        does={pool.name: pool.does for pool in pools},
        takes={pool.name: None if pool.takes is None else Takes(**dict(pool.takes)) for pool in pools},
        carrying={pool.name: _carrying(pool, where) for pool, where in zip(pools, places, strict=True)},
        stand={pool.name: {} if pool.placement is None else _by_zone(pool.placement.nodes) for pool in pools},
        handover=_handover(document.get("handover"), fleets[pools[0].name], model, f"{path}: handover"),
    )


def pools_bought(plan: Plan) -> PlannedPools:
    """The pools of a plan that was made just now."""
    fleets = {pool.name: pool.plan.fleet for pool in plan.pools}
    return PlannedPools(
        fleets={name: fleet for name, fleet in fleets.items() if fleet is not None},
        does={pool.name: pool.does for pool in plan.pools},
        takes={pool.name: pool.takes for pool in plan.pools},
        handover=plan.handover,
        stand={pool.name: {} if pool.plan.placement is None else pool.plan.placement.by_zone for pool in plan.pools},
        carrying={pool.name: sum(sized.carrying_count for sized in pool.plan.fleets) for pool in plan.pools},
    )


def planned_system(asked: Scenario, trace: Trace, path: Path) -> PoolSystem:
    """The pools of a plan as a simulation takes them.

    Raises:
        BadInput: as for :func:`pools_of_plan`; something around one fleet that pools do not have.
    """
    watched = [key for key in _ONE_FLEET_ONLY if getattr(asked, key)]
    if watched:
        mend = "leave it out, or name the pools in the scenario"
        raise BadInput(Problem(key, f"is about one fleet, and {path} has pools", mend) for key in watched)
    model = catalog.model(asked.model)
    found = pools_of_plan(asked, model, path)
    named = tuple(
        NamedPool(
            name=name,
            model=model,
            fleet=fleet,
            does=found.does[name],
            behind=name,
            left_count=found.carrying[name],
            stands=found.stand[name],
        )
        for name, fleet in found.fleets.items()
    )
    notes = () if found.handover is None else (about_handover(named[0].name, found.handover),)
    check_lanes(asked, named)
    lanes, batch = in_lanes(asked, trace)
    return PoolSystem(trace=lanes, pools=found.stages(trace), named=named, notes=notes, windows={}, batch=batch)


def _carrying(pool: _Pool, where: str) -> int:
    count = pool.fleet[0].get("carrying_replica_count")
    if not isinstance(count, int):
        what = "does not say how many replicas carry the demand"
        raise BadInput.at(f"{where}.fleet[0].carrying_replica_count", what, "give a plan.json of tokenfleet plan")
    return count


def _by_zone(nodes: Sequence[_Node]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        found[node.zone] = found.get(node.zone, 0) + node.replica_count
    return found


def _checked(model: type[_Kind], values: object, where: str) -> _Kind:
    def place(path: KeyPath) -> str:
        return f"{where}.{dotted(path)}"

    if not isinstance(values, Mapping):
        raise BadInput.at(where, "is no pool", "give a plan.json of tokenfleet plan")
    return checked(model, values, place)


def _handover(values: object, sender: Fleet, model: ModelArchitecture, where: str) -> Handover | None:
    if values is None:
        return None
    found = _checked(_Handover, values, where)
    gpu = catalog.gpu(sender.groups[0].replica.deployment.gpu)
    return Handover(
        link=catalog.link(found.link, gpu=gpu, where=f"{where}.link"),
        first_token="prefill" if found.first_token == "prefill" else "decode",
        overlapped_layer_count=model.layer_count if found.overlap else None,
    )
