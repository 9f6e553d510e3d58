"""How to buy the chosen fleet, if its carrying replicas follow the demand hour by hour."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tokenfleet import cost
from tokenfleet.domain.buying import Buying, Purchase, PurchaseLine, TermPrice
from tokenfleet.domain.gpu import RESERVED_H
from tokenfleet.domain.plan import Plan, PlanQuestion, Sized
from tokenfleet.domain.trace import Trace, of_class
from tokenfleet.planner.money import HOUR_S, LEAST_SLOTS, Counts, carrying_by_slot, slots_of, spare_beside

_TO_GIVE = "describe it with buy: {busy_hours: 10, quiet: 30%}, or buy: {day: [24 shares of the busiest hour]}"
_ROUNDING = 1e-9
_RENT = "give prices: {term: on_demand}"


def purchase(plan: Plan, trace: Trace) -> Purchase | None:
    """The cheapest mix of commitments, rent and spot for the demand of a day or a week.

    The replicas of an hour are those of the peak times its demand over that of the peak, rounded up, and on top the
    spare ones that so many need: a formula, not a replay. What the question says of the hours counts, and their busiest
    is the peak planned for; where it says nothing, the busiest minute of each hour of the trace does. Spot takes the
    work that may be interrupted, never other traffic and no spare replica.

    Returns:
        ``None`` where :func:`purchase_missing` says why. Where nobody publishes a price to commit at, everything is
        rented, and ``unknown_terms`` says so.
    """
    chosen, facts = plan.chosen, plan.question.buying
    if chosen is None or purchase_missing(plan, trace):
        return None
    described = described_hours(chosen, facts)
    carrying = carrying_by_slot(chosen, trace, HOUR_S) if described is None else described
    size = chosen.replica.deployment.layout.gpu_count
    market, rent = _terms(chosen, facts)
    waiting = np.floor(carrying * facts.interruptible_fraction + 1e-9).astype(np.int64)
    horizon_h = None if facts.believed_s is None else facts.believed_s / HOUR_S
    mix = cost.purchase_mix(
        (carrying - waiting + spare_beside(plan.question, chosen, carrying)) * size,
        rent=rent,
        commitments=market.commitments,
        interruptible_gpu_count=waiting * size,
        horizon_h=horizon_h,
        step_gpu_count=size,
    )
    counted = [cost.counted_usd_per_gpu_hour(each, horizon_h) for each in market.commitments]
    shares = [usd / rent.expected_usd_per_gpu_hour for usd in counted]
    return Purchase(
        hour_count=len(carrying),
        described=described is not None,
        lines=tuple(
            PurchaseLine(name=line.name, mean_gpu_count=line.mean_gpu_count, usd_per_hour=line.usd_per_hour)
            for line in mix.lines
        ),
        total_usd_per_hour=mix.total_usd_per_hour,
        all_on_demand_usd_per_hour=mix.all_rented_usd_per_hour,
        committed_gpu_count=mix.committed_gpu_count,
        commit_from_fraction=min((share for share in shares if share <= 1.0), default=None),
        unknown_terms=tuple(market.unknown),
        terms=tuple(_priced(chosen, facts, market)),
        dearer_terms=tuple(
            each.name for each in market.commitments if each.usd_per_gpu_hour > rent.on_demand_usd_per_gpu_hour
        ),
        spot_promised=_promised_on_spot(plan.question, trace) if mix.usd_per_hour("spot") else (),
    )


def _promised_on_spot(question: PlanQuestion, trace: Trace) -> tuple[str, ...]:
    """Latency clauses that more of the demand has than what may be interrupted leaves, by tokens.

    Lanes and tiers behind the first count as free of them: a lane of offline work is, and nobody says here which it is.
    """
    tokens = trace.input_tokens.astype(np.float64) + trace.output_tokens
    waited_for = np.zeros(trace.request_count, dtype=np.bool_)
    targets = question.slo.latency
    for target in targets:
        waited_for |= of_class(trace, target.traffic_class)
    if trace.priority is not None:
        waited_for &= trace.priority == trace.priority.min()
    share = float(tokens[waited_for].sum() / tokens.sum()) if waited_for.any() else 0.0
    if share <= 1.0 - question.buying.interruptible_fraction + _ROUNDING:
        return ()
    return tuple(dict.fromkeys(target.name for target in targets))


def purchase_missing(plan: Plan, trace: Trace) -> str:
    """Why nobody can say how to buy, and what to give; empty where somebody can, or where there is no fleet."""
    chosen = plan.chosen
    if chosen is None:
        return ""
    if chosen.price.term != "on_demand":
        return (
            f"the price of a gpu-hour is one of {chosen.price.term}, and commitments are weighed against rent: {_RENT}"
        )
    if not plan.question.buying.hour_fraction and slots_of(trace, HOUR_S) < LEAST_SLOTS:
        return f"the trace shows no whole day, so nobody knows how much of the fleet is needed at night: {_TO_GIVE}"
    return ""


def described_gpus(question: PlanQuestion, chosen: Sized) -> Counts | None:
    """GPUs of each hour that somebody described, spare ones included; ``None`` where nobody did."""
    carrying = described_hours(chosen, question.buying)
    if carrying is None:
        return None
    return (carrying + spare_beside(question, chosen, carrying)) * chosen.replica.deployment.layout.gpu_count


def described_hours(chosen: Sized, facts: Buying) -> Counts | None:
    """Carrying replicas in each hour that somebody described; ``None`` where nobody did."""
    if not facts.hour_fraction:
        return None
    needed: Counts = np.ceil(chosen.carrying_count * np.array(facts.hour_fraction) - 1e-9).astype(np.int64)
    return needed


def _priced(chosen: Sized, facts: Buying, market: cost.Market) -> Iterator[TermPrice]:
    """On demand as planned with, then each term that was weighed."""
    gpu = chosen.replica.deployment.gpu
    yield TermPrice(
        term="on_demand",
        gpu=gpu,
        usd_per_gpu_hour=chosen.price.price_usd_per_gpu_hour,
        low_usd_per_gpu_hour=chosen.price_low_usd_per_gpu_hour,
        high_usd_per_gpu_hour=chosen.price_high_usd_per_gpu_hour,
        as_of=chosen.price.as_of,
        source=chosen.price.source,
    )
    for term in (*RESERVED_H, *(("spot",) if facts.interruptible_fraction else ())):
        own, quoted = facts.usd_per_gpu_hour.get(term, {}).get(gpu), market.quotes.get(term)
        if own is not None:
            yield TermPrice(
                term=term,
                gpu=gpu,
                usd_per_gpu_hour=own,
                low_usd_per_gpu_hour=None,
                high_usd_per_gpu_hour=None,
                as_of="",
                source="scenario",
            )
        elif quoted is not None:
            yield TermPrice(
                term=term,
                gpu=gpu,
                usd_per_gpu_hour=quoted.price.price_usd_per_gpu_hour,
                low_usd_per_gpu_hour=quoted.low_usd_per_gpu_hour,
                high_usd_per_gpu_hour=quoted.high_usd_per_gpu_hour,
                as_of=quoted.price.as_of,
                source=quoted.price.source,
            )


def _terms(chosen: Sized, facts: Buying) -> tuple[cost.Market, cost.Rent]:
    """Each term's price: somebody's own, else the market's or the provider's; rent at the price planned with."""
    gpu = chosen.replica.deployment.gpu
    market = cost.market(gpu, provider=facts.provider)
    own = {term: prices[gpu] for term, prices in facts.usd_per_gpu_hour.items() if gpu in prices}
    found = {each.name: each.usd_per_gpu_hour for each in market.commitments} | own
    commitments = tuple(
        cost.Commitment(name=term, usd_per_gpu_hour=found[term], term_h=RESERVED_H[term])
        for term in RESERVED_H
        if term in found
    )
    spot = own.get("spot", None if market.rent is None else market.rent.spot_usd_per_gpu_hour)
    rent = cost.Rent(
        on_demand_usd_per_gpu_hour=chosen.price.price_usd_per_gpu_hour,
        obtainable_fraction=facts.obtainable_fraction,
        shortage_usd_per_gpu_hour=facts.shortage_usd_per_gpu_hour,
        spot_usd_per_gpu_hour=spot if facts.interruptible_fraction else None,
        spot_lost_fraction=facts.spot_lost_fraction,
    )
    needed = {*RESERVED_H, *(("spot",) if facts.interruptible_fraction else ())}
    unknown = tuple(term for term in market.unknown if term in needed and term not in own)
    return replace(market, commitments=commitments, unknown=unknown), rent
