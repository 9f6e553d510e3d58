"""When no fleet keeps the promise: why, and the smallest change after which one does, found by replay."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenfleet.domain.plan import Reason, Rejected
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner import words
from tokenfleet.planner.replays import Replays, Verdict
from tokenfleet.planner.traffic import Traffic, with_inputs_capped

_GENEROUS = 4
_MOST_TRIED = 8
_SMALLEST_CAP_TOKENS = 64
_CAP_STEP = 1.05


@dataclass(frozen=True, slots=True)
class Offer:
    """What the best replica of a kind does when there are more than enough of it."""

    replica: ReplicaPhysics
    count: int
    verdict: Verdict


def relaxations(
    replays: Replays, traffic: Traffic, candidates: Sequence[tuple[ReplicaPhysics, int]]
) -> tuple[str, ...]:
    """Changes that make the question answerable, each replayed.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        candidates: Replicas with prices, each with the count the formula suggests; the most promising first.

    Returns:
        ``ttft_p99 >= 0.62 s``: what the best of them reaches with four times the replicas it would need, and
        ``cap input at 1,400 tokens`` when cutting prompts alone is enough. Empty when neither was found.
    """
    offers = [
        Offer(replica, count * _GENEROUS, replays.verdict(traffic, replica, count * _GENEROUS))
        for replica, count in candidates[:_MOST_TRIED]
    ]
    offers = [offer for offer in offers if math.isfinite(offer.verdict.excess)]
    if not offers:
        return ()
    best = min(offers, key=lambda offer: (offer.verdict.excess, words.layout(offer.replica.deployment)))
    if not best.verdict.broken:
        return ()
    changes = [_looser(best)]
    cap = _input_cap(replays, traffic, best)
    if cap is not None:
        changes.append(f"cap input at {words.tokens(cap)} ({words.fleet(best.replica, best.count)})")
    return tuple(changes)


def _looser(offer: Offer) -> str:
    clauses = [
        f"{result.name} >= {_rounded_up(result.predicted or 0.0, result.unit)}" for result in offer.verdict.broken
    ]
    return f"{' and '.join(clauses)} ({words.fleet(offer.replica, offer.count)})"


def _rounded_up(value: float, unit: str) -> str:
    """Two digits, never below the value, so that the relaxed promise is the one replay kept."""
    digits = 1 - math.floor(math.log10(value)) if value > 0.0 else 0
    scale = 10.0**digits
    rounded = math.ceil(value * scale - 1e-9) / scale
    return f"{rounded:g} s" if unit == "s" else f"{rounded * 100:g} %"


def _input_cap(replays: Replays, traffic: Traffic, offer: Offer) -> int | None:
    """Longest prompt, to 5 %, with which the same fleet keeps everything; ``None`` when short ones do not help."""

    def keeps(cap_tokens: int) -> bool:
        return replays.verdict(with_inputs_capped(traffic, cap_tokens), offer.replica, offer.count).kept

    low, high = _SMALLEST_CAP_TOKENS, int(traffic.trace.input_tokens.max())
    if high <= low or not keeps(low):
        return None
    while high / low > _CAP_STEP:
        middle = int(math.sqrt(low * high))
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low


def reasons(rejected: Sequence[Rejected], changes: Sequence[str], nearest: Sequence[Reason]) -> tuple[Reason, ...]:
    """Why nobody can, for a person.

    Args:
        rejected: Every candidate, with its reasons.
        changes: What would help, from :func:`relaxations`.
        nearest: Reasons of the candidate that came closest; empty when none ever reached a floor or a replay.

    Returns:
        The nearest miss with the changes that help; without one, the first reason of each kind.
    """
    if nearest:
        relax = "   or   ".join(changes)
        return tuple(replace(reason, relax=relax or reason.relax) for reason in nearest)
    first: dict[str, Reason] = {}
    for candidate in rejected:
        for reason in candidate.reasons:
            first.setdefault(reason.kind, reason)
    return tuple(first.values())
