"""What a plan must answer, from a scenario whose names were looked up."""

from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.world_question import admission_of, clients_of
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import PlanQuestion, Rejected
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.survival import Rollout


def question_of(
    scenario: Scenario,
    model: ModelArchitecture,
    *,
    candidates: tuple[ReplicaPhysics, ...],
    rejected: tuple[Rejected, ...] = (),
    prices: tuple[GpuPrice, ...],
) -> PlanQuestion:
    """The question of one fleet, or of one pool of a scenario that names some.

    Args:
        scenario: What is promised, what may be lost, how it is bought.
        model: What is served.
        candidates: Replicas that can run.
        rejected: Those that cannot, with their reasons.
        prices: Every quote that counts.
    """
    return PlanQuestion(
        name=scenario.name,
        model=model,
        slo=scenario.slo.targets(),
        candidates=candidates,
        rejected=rejected,
        prices=prices,
        spare_replica_count=scenario.spare_replica_count,
        router=scenario.router,
        seed=scenario.seed,
        redundancy=scenario.losses,
        clients=None if scenario.clients is None else clients_of(scenario),
        admission=admission_of(scenario),
        rollout=Rollout(
            max_surge_count=scenario.rollout.max_surge,
            max_unavailable_count=scenario.rollout.max_unavailable,
            ready_after_s=scenario.cold_start,
        ),
        buying=scenario.buy.facts(scenario.prices.provider),
        utilization_cap_fraction=scenario.utilization_cap,
    )
