"""What redundancy asks for on top of the replicas that carry the peak, and whether it is enough."""

from collections.abc import Callable
from dataclasses import replace

from tokenfleet.domain.plan import PlanQuestion, Reason, Sized
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.survival import Redundancy
from tokenfleet.planner import words
from tokenfleet.planner.placement import LOSSES, fewest_replicas, placed, survivors, usable_zones, within_quota


def asked(question: PlanQuestion) -> Redundancy:
    """Every loss the question wants survived, that of replicas included."""
    return replace(question.redundancy, replica_count=question.spare_replica_count)


def spare_replicas(question: PlanQuestion, replica: ReplicaPhysics, carrying_count: int) -> int | None:
    """Replicas to pay for beside ``carrying_count``; ``None`` when no number survives what is asked for."""
    return spare_surviving(asked(question), replica, carrying_count)


def spare_surviving(losses: Redundancy, replica: ReplicaPhysics, carrying_count: int) -> int | None:
    """Spare replicas with which ``carrying_count`` are left after each of the losses; ``None`` when no number does."""
    if not losses.zones and not losses.node_count and not losses.zone_count:
        spare = losses.replica_count
        return spare if within_quota(carrying_count + spare, replica, losses) else None
    total = fewest_replicas(carrying_count, replica, losses)
    return None if total is None else total - carrying_count


def spare_of_a_part(question: PlanQuestion, replica: ReplicaPhysics, carrying_count: int) -> int | None:
    """The same for the stretch that is replayed: none where it is a part of the demand, which pays for them once."""
    return 0 if question.stands_for_count > 1 else spare_replicas(question, replica, carrying_count)


def spare_like(question: PlanQuestion, chosen: Sized, carrying_count: int) -> int | None:
    """Spare replicas beside another count of the chosen kind: those asked for, and as many more as the chosen has."""
    needed = spare_of_a_part(question, chosen.replica, carrying_count)
    usual = spare_of_a_part(question, chosen.replica, chosen.carrying_count)
    return None if needed is None or usual is None else needed + chosen.spare_count - usual


def largest(possible: Callable[[int], bool], most: int) -> int:
    """The largest count from 0 to ``most`` that is possible, where every smaller one is; 0 always is."""
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high + 1) // 2
        if possible(middle):
            low = middle
        else:
            high = middle - 1
    return low


def over_quota(question: PlanQuestion, replica: ReplicaPhysics, carrying_count: int) -> bool:
    """Whether the quota alone stands in the way of ``carrying_count`` replicas and their spare ones."""
    beyond = question.redundancy
    free = replace(question, redundancy=replace(beyond, gpu_quota_count=None))
    refused = spare_replicas(question, replica, carrying_count) is None
    return beyond.gpu_quota_count is not None and refused and spare_replicas(free, replica, carrying_count) is not None


def quota_full(question: PlanQuestion, fleet: str) -> Reason:
    """Why no more than ``fleet`` can be had, in a sentence."""
    held = words.gpus(question.redundancy.gpu_quota_count or 0)
    return Reason(
        kind="redundancy",
        text=f"The quota of {held} holds no more than {fleet} beside the spare ones.",
        relax="a higher gpu_quota, or less redundancy",
    )


def cannot_survive(question: PlanQuestion, replica: ReplicaPhysics) -> Reason | None:
    """Why not even one carrying replica can be made to survive what is asked for; ``None`` when it can."""
    if spare_replicas(question, replica, 1) is not None:
        return None
    if over_quota(question, replica, 1):
        held = words.gpus(question.redundancy.gpu_quota_count or 0)
        return Reason(
            kind="redundancy",
            text=f"The quota of {held} does not hold one replica of {words.layout(replica.deployment)} and its spare.",
            relax="a higher gpu_quota, or less redundancy",
        )
    return too_few_zones(asked(question)) or Reason(
        kind="redundancy",
        text=f"The zones have too few GPUs for {words.layout(replica.deployment)} to survive what may be lost.",
        relax="a higher gpu_limit, or less redundancy",
    )


def too_few_zones(wanted: Redundancy) -> Reason | None:
    """Why no number of replicas survives the loss of zones that is asked for; ``None`` where some number may."""
    usable = usable_zones(wanted)
    if wanted.zone_count < len(usable):
        return None
    lame = [zone.name for zone in wanted.zones if not zone.stands_alone]
    apart = [f"{', '.join(lame)} without weights or ingress of its own does not count"] if lame else []
    if wanted.elsewhere:
        do = "does" if len(wanted.elsewhere) == 1 else "do"
        apart.append(f"{', '.join(wanted.elsewhere)} outside of {wanted.data_region} {do} not")
    without = f" ({'; '.join(apart)})" if apart else ""
    return Reason(
        kind="redundancy",
        text=(
            f"{words.zones(wanted.zone_count)} may be lost, and {words.zones(len(usable))} can serve without the "
            f"others{without}: nothing would be left."
        ),
        relax=f"{zones_wanted(wanted)}, or redundancy: {{zones: none}}",
    )


def zones_wanted(wanted: Redundancy) -> str:
    """Zones that would do, for a person: one more than may be lost, where the data may be."""
    where = f" of {wanted.data_region}" if wanted.data_region is not None else ""
    return f"weights and ingress in {words.zones(wanted.zone_count + 1)}{where}"


def zones_without_replicas(wanted: Redundancy) -> tuple[str, ...]:
    """Why zones that are named hold no replica: a sentence for each reason."""
    used = {zone.name for zone in usable_zones(wanted)}
    lame = [zone.name for zone in wanted.zones if zone.name not in used]
    reasons = (
        (wanted.elsewhere, f"the data must not leave {wanted.data_region}"),
        (lame, "without weights and ingress of its own none serves when the others are gone"),
    )
    return tuple(
        f"{'Zone' if len(names) == 1 else 'Zones'} {', '.join(names)}: no replica stands there, as {why}."
        for names, why in reasons
        if names
    )


def more_left(question: PlanQuestion, sized: Sized) -> int:
    """Replicas beyond those that carry which a loss must leave: what the worst one leaves where it is ridden through.

    None where the spare replicas that survive the losses ride through them as they are.
    """
    usual = spare_replicas(question, sized.replica, sized.carrying_count) or 0
    more = sized.spare_count - usual
    wanted = asked(question)
    placement = placed(sized.replica_count, sized.replica, wanted)
    if more <= 0 or placement is None:
        return max(0, more)
    lost = [kind for kind in LOSSES if wanted.count_of(kind)]
    left = [survivors(placement, kind, wanted.count_of(kind), wanted.zones) for kind in lost]
    return max(0, min(left) - sized.carrying_count) if left else more


def limits_wanted(question: PlanQuestion, replica: ReplicaPhysics, carrying_count: int) -> dict[str, int]:
    """GPUs that zones, and the quota, would have to allow for ``carrying_count`` replicas to be left.

    Returns:
        By the name of each zone that holds too few, and under ``""`` where the quota does.
    """
    wanted = asked(question)
    endless = replace(
        wanted, zones=tuple(replace(zone, gpu_limit_count=None) for zone in wanted.zones), gpu_quota_count=None
    )
    total = fewest_replicas(carrying_count, replica, endless)
    spread = None if total is None else placed(total, replica, endless)
    if total is None or spread is None:
        raise ValueError(f"zones without limits have no room for {carrying_count} replicas")
    size = replica.deployment.layout.gpu_count
    needed = {name: count * size for name, count in spread.by_zone.items()}
    limits = {
        zone.name: needed[zone.name]
        for zone in wanted.zones
        if zone.gpu_limit_count is not None and needed.get(zone.name, 0) > zone.gpu_limit_count
    }
    return limits if within_quota(total, replica, wanted) else {**limits, "": total * size}


def spare_lines(question: PlanQuestion, replica: ReplicaPhysics, carrying_count: int) -> dict[str, int]:
    """Spare replicas by the loss that asks for them: each on top of those before it; they add up to all of them."""
    wanted = asked(question)
    lines: dict[str, int] = {}
    before = 0
    for index, kind in enumerate(LOSSES):
        later = LOSSES[index + 1 :]
        so_far = replace(
            wanted,
            node_count=0 if "node" in later else wanted.node_count,
            zone_count=0 if "zone" in later else wanted.zone_count,
        )
        total = fewest_replicas(carrying_count, replica, so_far)
        if total is None:
            raise ValueError(f"{carrying_count} replicas cannot be made to survive {so_far}")
        lines[kind] = total - carrying_count - before
        before = total - carrying_count
    return lines
