"""Prefill and decode apart as a plan: what each of the two pools is, what it may lose and what binds it."""

from tokenfleet.domain.apart import Apart, ApartPool
from tokenfleet.domain.plan import Does, PlannedPool, PlanQuestion, Sized
from tokenfleet.domain.stages import Handover
from tokenfleet.planner.lodging import in_zones
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import SizedPool, System, housed_in
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.within import Within
from tokenfleet.simulator.splitting import DECODE, PREFILL


def phase_pools(
    question: PlanQuestion, traffic: Traffic, found: Apart, handover: Handover, replay: Replay, reporter: Reporter
) -> tuple[PlannedPool, ...]:
    """Both pools with what a plan says of a fleet, each examined :class:`Within` the two.

    Args:
        question: What was asked.
        traffic: The demand.
        found: Replicas and counts of both.
        handover: The way between them.
        replay: Runs the replay of one pool.
        reporter: Told what is being tried.
    """
    pools = {PREFILL: found.prefill, DECODE: found.decode}
    who = {PREFILL: "every prompt, to its first token", DECODE: "every answer"}
    does: dict[str, Does] = {PREFILL: "prefills", DECODE: "decodes"}
    replays = Replays.of(question, replay)
    parts = (SizedPool(name, None, sized_phase(question, pool), replays.router) for name, pool in pools.items())
    alone = System(tuple(parts), handover)
    # What has no room is not bought.
    system, zones = housed_in(alone, question) or (alone, dict.fromkeys(pools, question.redundancy.zones))
    run = system.replayed(replays, traffic, spare=False)
    verdict = system.verdict(replays, traffic, run)
    return tuple(
        PlannedPool(
            name=name,
            who=who[name],
            does=does[name],
            takes=None,
            request_fraction=1.0,
            plan=Within(in_zones(question, zones[name]), traffic, system, name, replay, run, verdict).planned(
                does[name], reporter
            ),
        )
        for name in pools
    )


def sized_phase(question: PlanQuestion, pool: ApartPool) -> Sized:
    """A pool of two phases as a fleet that was sized; what it promises is said of both."""
    known = quote(question.prices, pool.replica.deployment.gpu)
    if known is None:
        raise ValueError(f"no price of {pool.replica.deployment.gpu} is known, and it was chosen")
    return Sized(
        replica=pool.replica,
        carrying_count=pool.carrying_count,
        spare_count=pool.spare_count,
        price=pool.price,
        price_low_usd_per_gpu_hour=known.low_usd_per_gpu_hour,
        price_high_usd_per_gpu_hour=known.high_usd_per_gpu_hour,
        slo=(),
    )
