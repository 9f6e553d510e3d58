"""What somebody could change about a question that no fleet answers: each change is made, not only named."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from tokenfleet import workload
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import DAY_S, Deadline, Slo, clock
from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.planner import words
from tokenfleet.planner.floors import CUT_PROMPTS, holds_too_few, pool_tokens, shapes, takes_too_few
from tokenfleet.planner.housing import limits_said
from tokenfleet.planner.placement import usable_zones
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.redundancy import asked, limits_wanted, zones_wanted
from tokenfleet.planner.traffic import Traffic, at_load

_PART = 10
"""Of a smaller part than a tenth too few requests are left to speak of a p99."""
_CUT_OFFS_S = (300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0)
"""How long before a deadline by the clock arrivals may cease to count for the same day."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question and what it is asked about."""

    question: PlanQuestion
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to give up, or to provide."""

    said: Callable[[Sized], str]
    """In words, knowing the fleet that keeps the promise then."""
    made: Callable[[Case], Case]
    trying: str
    """In words, as long as no such fleet is known."""
    widens: bool = False
    """It asks for more GPUs than may be had."""


def plain(text: str, made: Callable[[Case], Case]) -> Change:
    """A change whose words hang on no fleet."""
    return Change(lambda _: text, made, text)


@dataclass(frozen=True, slots=True)
class Graded:
    """A change that may be smaller or larger, in steps so small that nobody minds one more."""

    at: Callable[[int], Change]
    """By steps from a change that is likely to do: smaller ones above 0, larger ones below."""
    smaller_count: int
    """Steps above 0, before nothing is changed any more."""
    larger_count: int


Obstacle = tuple[Change, ...]
"""What clears one thing that stands in the way of every fleet: by a little, or else by more."""


def obstacles(case: Case, *, of_losses: bool = True) -> tuple[Obstacle, ...]:
    """What formulas and lists say stands in the way of some candidate, apart from promises that can be looser.

    Args:
        case: A question that no fleet answers.
        of_losses: Whether what is to survive, and the room for it, may be changed.
    """
    found = (
        _unpriced(case.question),
        _unjudged(case),
        *(_unsurvivable(case) if of_losses else ()),
        _too_long(case),
        _uncut(case),
        *_cut_offs(case.question.slo),
    )
    return tuple(one for one in found if one)


def _unpriced(question: PlanQuestion) -> Obstacle:
    gpus = {replica.deployment.gpu for replica in question.candidates}
    missing = sorted(gpu for gpu in gpus if quote(question.prices, gpu) is None)
    if not missing:
        return ()
    prices = (*question.prices, *map(_some_price, missing))
    return (
        Change(
            lambda sized: f"give your own price for {sized.replica.deployment.gpu}",
            lambda case: replace(case, question=replace(case.question, prices=prices)),
            f"a price for {' and '.join(missing)}",
        ),
    )


def _some_price(gpu: str) -> GpuPrice:
    """What it costs does not say whether a promise can be kept: all that have no price are taken to cost the same."""
    return GpuPrice(
        gpu=gpu,
        provider="",
        provider_class="",
        region="",
        term="on_demand",
        price_usd_per_gpu_hour=1.0,
        as_of="",
        source="",
        note="",
        evidence="quote",
    )


def _unjudged(case: Case) -> Obstacle:
    """Clauses without a sample, all of them: as long as one is left, nobody can say that it is kept."""
    slo = case.question.slo
    found = shapes(case.traffic.trace, slo, caching=False)
    names = [
        each.name
        for each in slo.latency
        if (found.context_tokens if each.metric in {"itl", "tpot"} else found.fresh_input_tokens)[each.name] is None
    ]
    if not names:
        return ()

    def made(case: Case) -> Case:
        slo = case.question.slo
        left = replace(slo, latency=tuple(each for each in slo.latency if each.name not in names))
        return replace(case, question=replace(case.question, slo=left))

    return (plain(f"leave {' and '.join(names)} out of the promise", made),)


def _unsurvivable(case: Case) -> list[Obstacle]:
    question, wanted = case.question, asked(case.question)
    made: list[Obstacle] = []
    lame = wanted.zone_count >= len(usable_zones(wanted))
    limits = (wanted.gpu_quota_count, *(zone.gpu_limit_count for zone in wanted.zones))
    is_limited = any(limit is not None for limit in limits)
    if lame:
        needed = wanted.zone_count + 1
        able = _redundancy(zones_wanted(wanted), lambda now: _able(now, needed))
        made.append(_in_room(able, case, is_limited=is_limited))
    elif is_limited:
        made.append((_roomier(question),))
    if wanted.zone_count:
        none = _redundancy("redundancy: {zones: none}", lambda now: replace(now, zone_count=0))
        made.append(_in_room(none, case, is_limited=lame and is_limited))
    if wanted.ride_through:
        quiet = "redundancy: {ride_through: false}"
        made.append((_redundancy(quiet, lambda now: replace(now, ride_through=False)),))
    return made


def _redundancy(text: str, change: Callable[[Redundancy], Redundancy]) -> Change:
    def made(case: Case) -> Case:
        return replace(case, question=replace(case.question, redundancy=change(case.question.redundancy)))

    return plain(text, made)


def _able(redundancy: Redundancy, count: int) -> Redundancy:
    """So many zones that stand alone: those that do, then the first of the others, then new ones."""
    lame = [zone for zone in redundancy.zones if not zone.stands_alone]
    mended = {zone.name for zone in lame[: max(0, count - len(redundancy.zones) + len(lame))]}
    zones = [replace(zone, weights=True, ingress=True) if zone.name in mended else zone for zone in redundancy.zones]
    zones += [Zone(name=f"new {index + 1}") for index in range(count - len(zones))]
    return replace(redundancy, zones=tuple(zones))


def _roomier(question: PlanQuestion) -> Change:
    def endless(now: Redundancy) -> Redundancy:
        zones = tuple(replace(zone, gpu_limit_count=None) for zone in now.zones)
        return replace(now, zones=zones, gpu_quota_count=None)

    return Change(lambda sized: room_for(sized, question), _redundancy("", endless).made, "more room", widens=True)


def _in_room(change: Change, case: Case, *, is_limited: bool) -> Obstacle:
    """A change of what is to survive, and with the room that it takes where that is limited too."""
    return (change, _and_roomier(change, case)) if is_limited else (change,)


def _and_roomier(change: Change, case: Case) -> Change:
    """A change of what is to survive, and the room that it takes then."""
    room = _roomier(change.made(case).question)

    def said(sized: Sized) -> str:
        return " and ".join(each for each in (change.said(sized), room.said(sized)) if each)

    return Change(said, lambda now: room.made(change.made(now)), f"{change.trying} and {room.trying}", widens=True)


def room_for(sized: Sized, question: PlanQuestion) -> str:
    """``gpu_limit: 2 in zone b and gpu_quota: 8``: what zones and quota must hold for the fleet to fit."""
    return limits_said(limits_wanted(question, sized.replica, sized.carrying_count))


def _too_long(case: Case) -> Obstacle:
    """Shorter requests, where some candidate holds too few of them; as long as the roomiest of these holds."""
    question, trace = case.question, case.traffic.trace
    found = shapes(trace, question.slo, caching=False, window_s=case.traffic.window_s)
    rooms = [pool_tokens(each) for each in question.candidates if holds_too_few(each, found, question.slo)]
    room = max(rooms, default=0)
    if room < 2:
        return ()
    return (
        plain(
            f"cap prompt plus output at {words.tokens(room)} (workload.max_request: {room})",
            lambda case: replace(
                case, traffic=replace(case.traffic, trace=workload.cut_requests(case.traffic.trace, room))
            ),
        ),
    )


def _uncut(case: Case) -> Obstacle:
    """Prompts cut into chunks, where too many are longer than a step and nobody cuts them."""
    question = case.question
    found = shapes(case.traffic.trace, question.slo, caching=False, window_s=case.traffic.window_s)
    if not any(takes_too_few(each, found, question.slo) for each in question.candidates):
        return ()
    if any(each.deployment.engine.chunked_prefill for each in question.candidates):
        return ()

    def made(case: Case) -> Case:
        cutting = tuple(map(_with_chunks, case.question.candidates))
        return replace(case, question=replace(case.question, candidates=cutting))

    return (plain(CUT_PROMPTS, made),)


def _with_chunks(replica: ReplicaPhysics) -> ReplicaPhysics:
    engine = replace(replica.deployment.engine, chunked_prefill=True)
    return replace(replica, deployment=replace(replica.deployment, engine=engine))


def _cut_offs(slo: Slo) -> Iterable[Obstacle]:
    for each in slo.deadlines:
        if each.at_s is not None:
            yield tuple(_cut_off(each, before_s) for before_s in _CUT_OFFS_S if before_s > _gap_s(each))


def _gap_s(deadline: Deadline) -> float:
    return 0.0 if deadline.cut_off_s is None else ((deadline.at_s or 0.0) - deadline.cut_off_s) % DAY_S


def _cut_off(deadline: Deadline, before_s: float) -> Change:
    cut_off_s = ((deadline.at_s or 0.0) - before_s) % DAY_S
    of = "" if deadline.traffic_class is None else f" for {deadline.traffic_class}"

    def made(case: Case) -> Case:
        slo = case.question.slo
        earlier = tuple(
            replace(each, cut_off_s=cut_off_s) if each.name == deadline.name else each for each in slo.deadlines
        )
        return replace(case, question=replace(case.question, slo=replace(slo, deadlines=earlier)))

    return plain(f"cut_off: {clock(cut_off_s)}{of}", made)


def in_part() -> Change:
    """A part of the demand planned for instead of all of it, and the fleet multiplied."""

    def made(case: Case) -> Case:
        thin = at_load(case.traffic, 1.0 / _PART)
        question = replace(case.question, stands_for_count=case.question.stands_for_count * _PART)
        # Where no request would be left there is no such part, and nothing is changed.
        return case if thin is None else Case(question, thin)

    return plain("plan for a part of this demand, such as a tenth of its rate, and multiply the fleet", made)
