"""What is around each pool of a simulation: events, scaling, and a bound of the queue, made anew for each replay."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from tokenfleet.app.events import happenings_of
from tokenfleet.app.pools_doors import queue_limit_of
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_lanes import with_lane
from tokenfleet.app.pools_rollout import NUMBERED, change_of, ready_after, rollout_in
from tokenfleet.app.scaling_question import cold_start_of, policy_of, setting_of
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.standing import in_its_zones
from tokenfleet.app.world_question import admission_of, clients_of, gives_up
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, World
from tokenfleet.planner.scaling import scaler_of, world_of
from tokenfleet.simulator.autoscaling import Autoscaler


@dataclass(slots=True)
class PoolWorlds:
    """The world around each pool; called by a replay, pool by pool. Every replay needs its own, for it remembers."""

    asked: Scenario
    named: tuple[NamedPool, ...]
    scalers: dict[str, Autoscaler] = field(default_factory=dict)
    """Who scaled each pool that is scaled."""

    def __call__(self, name: str, calls: Trace) -> World | None:
        """The world around a pool with these calls; ``None`` where all is quiet.

        Raises:
            BadInput: a policy that cannot work, or an event at a replica that there is not.
        """
        pool = next(each for each in self.named if each.name == name)
        try:
            return with_lane(self.asked, pool, calls, self._around(pool, calls))
        except BadInput as error:
            raise BadInput(in_pool(problem, pool) for problem in error.problems) from None

    @property
    def _here(self) -> Mapping[str, Scenario]:
        """The scenario as each pool has it."""
        if any(event.what != "rollout" for event in self.asked.events):
            return in_its_zones(self.asked, self.named)
        return {each.name: self.asked for each in self.named}

    def _around(self, pool: NamedPool, calls: Trace) -> World | None:
        asked, name = self._here[pool.name], pool.name
        if pool.scaling is not None:
            setting = setting_of(asked, pool.scaling, pool.fleet, calls, name)
            setting = replace(setting, admission=admission_before(asked, pool))
            self.scalers[name] = scaler_of(setting, policy_of(pool.scaling, setting, calls))
            return world_of(setting, self.scalers[name])
        change, absent = change_of(asked, pool.fleet, name)
        happenings = happenings_of(asked, pool.fleet, name, change)
        admission, clients = admission_before(asked, pool), clients_of(asked)
        if not happenings and admission.queue_limit_count is None and not gives_up(clients):
            return None
        return World(happenings=happenings, absent=absent, clients=clients, admission=admission)


def admission_before(asked: Scenario, pool: NamedPool) -> Admission:
    """The bound of the queues of a pool; doors of ladders stand before the pools."""
    limit = queue_limit_of(asked, pool.behind)
    return admission_of(asked) if limit is None else Admission(queue_limit_count=limit)


def in_pool(problem: Problem, pool: NamedPool) -> Problem:
    """A problem of a policy, at the key of its pool; events name their pool themselves."""
    if not problem.where.startswith("autoscaling"):
        return problem
    part = "" if pool.name == pool.behind else f".{pool.name.removeprefix(f'{pool.behind}-')}"
    return replace(problem, where=f"pools.{pool.behind}{part}.{problem.where}")


def check_pool_events(asked: Scenario, named: tuple[NamedPool, ...]) -> None:
    """Refuse events in pools that there are not.

    Raises:
        BadInput: all of them at once.
    """
    names = [each.name for each in named]
    problems = []
    for index, event in enumerate(asked.events):
        if event.pool not in names:
            near = get_close_matches(event.pool or "", names, n=1, cutoff=0.0)[0]
            problems.append(Problem(f"events[{index}].pool", f'no pool is called "{event.pool}"', f"nearest: {near}"))
    if problems:
        raise BadInput(problems)


def scaling_notes(asked: Scenario, named: tuple[NamedPool, ...]) -> tuple[str, ...]:
    """Where the cold starts of pools come from, and what a loss means to KV that was handed over."""
    notes = [
        f"{each.name}: {cold_start_of(asked, each.scaling, each.fleet)[1]}"
        for each in named
        if each.scaling is not None
    ]
    notes += [
        f"{each.name}: {ready_after(asked, each.fleet)[1]} {NUMBERED}"
        for each in named
        if rollout_in(asked, each.name) is not None
    ]
    decoding = {each.name for each in named if each.does == "decodes"}
    if any(event.pool in decoding for event in asked.events):
        notes.append("KV that was handed over is lost with its replica: who comes back computes the prompt there.")
    return tuple(notes)
