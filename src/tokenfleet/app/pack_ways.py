"""Ways to serve a scenario on nodes: one fleet on each of its gpus, the pools of its plan, or pools that it names."""

from collections.abc import Sequence
from dataclasses import replace

from tokenfleet import catalog, planner
from tokenfleet.app.compose import Composition, Teller, compose
from tokenfleet.app.pool_sizes import SizedPool, refuse_unsizable, size_pools
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

    @property
    def price_usd_per_hour(self) -> float:
        """What its replicas cost for one hour."""
        gpus = (self.carrying_count + self.spare_count) * self.deployment.layout.gpu_count
        return gpus * self.price.price_usd_per_gpu_hour

    def pool(self, asked: Scenario, isolated: frozenset[str]) -> planner.Pool:
        """What has to stand on nodes."""
        alone = self.name in isolated
        return planner.Pool(
            name=self.name,
            owner=self.name if alone else self.scenario,
            gpu_count=self.deployment.layout.gpu_count,
            carrying_count=self.carrying_count,
            spare_count=self.spare_count,
            survives_node=asked.redundancy.nodes != "none",
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


def usd_per_hour(way: Way) -> float:
    """What all its replicas cost for one hour."""
    return sum(part.price_usd_per_hour for part in way)


def ways_of(asked: Scenario, teller: Teller, replay: planner.Replay | None) -> tuple[list[Way], tuple[str, ...]]:
    """Everything that serves a scenario, the cheapest first; why nothing does where nothing does.

    Raises:
        BadInput: as for a plan, or for the sizes of pools.
    """
    found, reasons = _sized(asked, teller) if asked.pools is not None else _planned(asked, teller, replay)
    # A replica that spans nodes takes whole ones and shares none; it is there where nothing else is.
    inside = [way for way in found if all(map(_fits_a_node, way))] or found
    return sorted(inside, key=lambda way: (usd_per_hour(way), [part.deployment.gpu for part in way])), reasons


def refuse_unpackable(scenarios: Sequence[Scenario]) -> None:
    """Refuses what may be lost where nodes of one place cannot keep it.

    Raises:
        BadInput: a scenario wants to do without a zone, or without several nodes at once.
    """
    problems = []
    for asked in scenarios:
        if asked.losses.zone_count:
            what = f"{asked.name} is to survive the loss of a zone, and pack puts all nodes in one"
            mend = "leave it out, and pack what stands in each zone on its own"
            problems.append(Problem("redundancy.zones", what, mend))
        if asked.losses.node_count > 1:
            what = f"{asked.name} is to survive the loss of {asked.losses.node_count} nodes at once"
            problems.append(Problem("redundancy.nodes", what, "pack knows how to do without one: nodes: n+1"))
    if problems:
        raise BadInput(problems)


def _fits_a_node(part: Part) -> bool:
    return part.deployment.layout.gpu_count <= catalog.gpu(part.deployment.gpu).gpus_per_node_count


def _sized(asked: Scenario, teller: Teller) -> tuple[list[Way], tuple[str, ...]]:
    """The pools that a scenario names, as ``size`` sizes them."""
    refuse_unsizable(asked)
    found = size_pools(asked, teller)
    if not found.pools:
        broken = dict.fromkeys(each.name for each in (*found.peak, *found.whole) if not each.kept)
        return [], (f"no counts of its pools that were tried keep {', '.join(broken)}",)
    parts = []
    for pool in found.pools:
        if pool.named.beside is not None:
            continue
        deployment = pool.named.replica.deployment
        if pool.price is None:
            return [], (f"nobody's price of {deployment.gpu} is known, which its pool {pool.named.name} runs on",)
        parts.append(
            Part(
                name=f"{asked.name}.{_unit(pool, found.pools)}",
                scenario=asked.name,
                deployment=deployment,
                carrying_count=pool.carrying_count,
                spare_count=asked.spare_replica_count,
                price=pool.price,
            )
        )
    return [tuple(parts)], ()


def _unit(host: SizedPool, pools: Sequence[SizedPool]) -> str:
    """What stands on the same GPUs, and on nodes as one: ``main+embed``."""
    beside = [pool.named.name for pool in pools if pool.named.beside == host.named.name]
    return "+".join([host.named.name, *beside])


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
    usual = planner.spare_replicas(question, sized.replica, sized.carrying_count) or 0
    return Part(
        name=name,
        scenario=scenario,
        deployment=sized.replica.deployment,
        carrying_count=sized.carrying_count,
        # What a lost node takes is for the packing to say: it knows who stands beside whom. What riding through the
        # moment of a loss takes on top is known.
        spare_count=question.spare_replica_count + max(0, sized.spare_count - usual),
        price=sized.price,
    )
