"""Ways to serve a scenario on nodes: one fleet on each of its gpus, the pools of its plan, or pools that it names."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenfleet import catalog, planner
from tokenfleet.app.compose import Composition, Teller, compose
from tokenfleet.app.pool_sizes import count_pools, refuse_unsizable
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Equal replicas that serve a scenario, or one pool of it."""

    name: str
    """``chat``; of several pools ``helpdesk.rerank``, of those on the same GPUs ``helpdesk.main+embed``."""
    scenario: str
    deployment: Deployment
    carrying_count: int
    spare_count: int
    price: GpuPrice
    alone_count: int | None
    """Replicas that a plan of the scenario alone buys; ``None`` where its zones have no room for them."""
    more_left_count: int = 0
    """Replicas beyond those that carry which a loss must leave, to ride through it."""

    @property
    def alone_usd_per_hour(self) -> float | None:
        """What they cost for one hour."""
        if self.alone_count is None:
            return None
        return self.alone_count * self.deployment.layout.gpu_count * self.price.price_usd_per_gpu_hour

    def pool(self, asked: Scenario, isolated: frozenset[str]) -> planner.Pool:
        """What has to stand on nodes."""
        alone = self.name in isolated
        quota = asked.losses.gpu_quota_count
        return planner.Pool(
            name=self.name,
            owner=self.name if alone else self.scenario,
            gpu_count=self.deployment.layout.gpu_count,
            carrying_count=self.carrying_count,
            spare_count=self.spare_count,
            node_count=asked.losses.node_count,
            more_left_count=self.more_left_count,
            most_per_node_count=asked.redundancy.replicas_per_node,
            zone_count=asked.losses.zone_count,
            zones=asked.losses.zones,
            quota=None if quota is None else planner.Quota(scenario=self.scenario, gpu_count=quota),
            isolated=alone or self.scenario in isolated,
        )

    def option(self, asked: Scenario, isolated: frozenset[str]) -> planner.Option:
        """What it costs there."""
        gpu = self.deployment.gpu
        return planner.Option(
            gpu=gpu,
            gpus_per_node_count=catalog.gpu(gpu).gpus_per_node_count,
            usd_per_gpu_hour=self.price.price_usd_per_gpu_hour,
            pool=self.pool(asked, isolated),
        )


Way = tuple[Part, ...]
"""All that serves a scenario."""


def alone_usd_per_hour(way: Way) -> float:
    """What the replicas of all its parts cost for one hour where nobody stands beside them; those that are known."""
    return sum(part.alone_usd_per_hour or 0.0 for part in way)


def ways_of(asked: Scenario, teller: Teller, replay: planner.Replay | None) -> tuple[list[Way], tuple[str, ...]]:
    """Everything that serves a scenario, the cheapest first; why nothing does where nothing does.

    Raises:
        BadInput: as for a plan, or for the sizes of pools.
    """
    found, reasons = _sized(asked, teller) if asked.pools is not None else _planned(asked, teller, replay)
    # A replica that spans nodes takes whole ones and shares none; it is there where nothing else is.
    inside = [way for way in found if all(map(_fits_a_node, way))] or found
    return sorted(inside, key=lambda way: (alone_usd_per_hour(way), [part.deployment.gpu for part in way])), reasons


def refuse_unpackable(scenarios: Sequence[Scenario]) -> None:
    """Refuses zones of which two scenarios say different things.

    Raises:
        BadInput: a scenario contradicts another.
    """
    problems = list(_contradictions(scenarios))
    if problems:
        raise BadInput(problems)


def _contradictions(scenarios: Sequence[Scenario]) -> Iterator[Problem]:
    """A zone is one place for everybody; weights and ingress may be there for one model alone."""
    for key, shown in (("gpu_limit", "a gpu_limit of {}"), ("region", "the region {}")):
        said: dict[str, tuple[str, object]] = {}
        for asked in scenarios:
            for zone in asked.zones:
                value = getattr(zone, key)
                if value is None:
                    continue
                first, other = said.setdefault(zone.name, (asked.name, value))
                if other != value:
                    what = f"{first} gives zone {zone.name} {shown.format(other)}, {asked.name} {shown.format(value)}"
                    yield Problem("zones", what, f"say the same {key} in both, or name different zones")


def _fits_a_node(part: Part) -> bool:
    return part.deployment.layout.gpu_count <= catalog.gpu(part.deployment.gpu).gpus_per_node_count


def _sized(asked: Scenario, teller: Teller) -> tuple[list[Way], tuple[str, ...]]:
    """The pools that a scenario names, as ``size`` sizes them."""
    refuse_unsizable(asked)
    nowhere = planner.too_few_zones(asked.losses)
    if nowhere is not None:
        return [], (nowhere.text,)
    found = count_pools(asked, teller)
    if found.counts is None:
        broken = dict.fromkeys(each.name for results in found.judged for each in results if not each.kept)
        return [], (f"no counts of its pools that were tried keep {', '.join(broken)}",)
    named = found.trials.system.named
    parts = []
    for pool, count, price in zip(named, found.counts, found.prices, strict=True):
        if pool.beside is not None:
            continue
        deployment = pool.replica.deployment
        if price is None:
            return [], (f"nobody's price of {deployment.gpu} is known, which its pool {pool.name} runs on",)
        spare = planner.spare_surviving(asked.losses, pool.replica, count)
        parts.append(
            Part(
                name=f"{asked.name}.{_unit(pool, named)}",
                scenario=asked.name,
                deployment=deployment,
                carrying_count=count,
                spare_count=asked.spare_replica_count,
                price=price,
                alone_count=None if spare is None else count + spare,
            )
        )
    return [tuple(parts)], ()


def _unit(host: NamedPool, pools: Sequence[NamedPool]) -> str:
    """What stands on the same GPUs, and on nodes as one: ``main+embed``."""
    return "+".join([host.name, *(pool.name for pool in pools if pool.beside == host.name)])


def _planned(asked: Scenario, teller: Teller, replay: planner.Replay | None) -> tuple[list[Way], tuple[str, ...]]:
    """The cheapest fleet on each gpu of the scenario, and the pools of its plan where that is cheaper."""
    composition = compose(asked, teller)
    question = composition.question
    found: list[Way] = []
    reasons: tuple[str, ...] = tuple(reason.text for each in question.rejected for reason in each.reasons)
    for gpu in dict.fromkeys(candidate.deployment.gpu for candidate in question.candidates):
        mine = tuple(candidate for candidate in question.candidates if candidate.deployment.gpu == gpu)
        on_gpu = replace(question, candidates=mine, rejected=())
        made = planner.cheapest(on_gpu, composition.trace, progress=teller.step, replay=replay)
        if made.sized is not None:
            found.append((_part(question, asked.name, asked.name, made.sized),))
        else:
            reasons = tuple(reason.text for reason in made.reasons)
    pools = _pools(asked, composition, teller, replay)
    return [*found, *([pools] if pools else [])], reasons


def _pools(asked: Scenario, composition: Composition, teller: Teller, replay: planner.Replay | None) -> Way:
    """The pools that a plan buys; none where it buys one fleet, or nobody asked for pools."""
    question = composition.question
    if not question.splits and question.apart is None:
        return ()
    plan = planner.plan(question, composition.trace, progress=teller.step, replay=replay)
    return tuple(
        _part(question, asked.name, f"{asked.name}.{pool.name}", sized)
        for pool in plan.pools
        for sized in pool.plan.fleets
    )


def _part(question: PlanQuestion, scenario: str, name: str, sized: Sized) -> Part:
    return Part(
        name=name,
        scenario=scenario,
        deployment=sized.replica.deployment,
        carrying_count=sized.carrying_count,
        # What a lost node or zone takes is for the packing to say: it knows who stands beside whom. What has to be left
        # to ride through the moment of a loss is known.
        spare_count=question.spare_replica_count,
        more_left_count=planner.more_left(question, sized),
        price=sized.price,
        alone_count=sized.replica_count,
    )
