"""Pools of a plan in the zones that they share: their spare replicas, and the zones as each of them has them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.survival import Zone
from tokenfleet.planner.housing import Lodger, no_room, rooms_for
from tokenfleet.planner.redundancy import asked, more_left


def housed(fleets: Sequence[Sized], question: PlanQuestion) -> tuple[tuple[Sized, tuple[Zone, ...]], ...] | None:
    """The fleets of all pools with the spare replicas that survive what may be lost, and the zones as each has them.

    Args:
        fleets: Of each pool with GPUs of its own, sized alone.
        question: What may be lost, the zones and the quota.

    Returns:
        ``None`` where zones or quota have no room for all of them.
    """
    rooms = rooms_for(lodgers(fleets, question), asked(question))
    if rooms is None:
        return None
    return tuple(
        (replace(each, spare_count=room.count - each.carrying_count), room.zones)
        for each, room in zip(fleets, rooms, strict=True)
    )


def lodgers(fleets: Iterable[Sized], question: PlanQuestion) -> list[Lodger]:
    """What each of these fleets must be left with, and no fewer replicas than it has."""
    rides = question.redundancy.ride_through
    return [
        Lodger(
            replica=each.replica,
            left_count=each.carrying_count + (more_left(question, each) if rides else 0),
            usd_per_hour=each.price_usd_per_hour / each.replica_count,
            least_count=each.replica_count,
        )
        for each in fleets
    ]


def crowded(fleets: Iterable[Sized], question: PlanQuestion) -> str:
    """Why zones or quota have no room for the fleets of all pools at once, each of which has room alone; or empty."""
    own = lodgers((each for each in fleets if each.beside is None), question)
    return "" if rooms_for(own, asked(question)) is not None else no_room(own, asked(question))[0]


def in_zones(question: PlanQuestion, zones: tuple[Zone, ...]) -> PlanQuestion:
    """The question to a pool that has these zones."""
    return replace(question, redundancy=replace(question.redundancy, zones=zones))
