"""When no fleet keeps the promise: why, and the smallest change after which one does, found by replay."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tokenfleet.domain.plan import Reason, Rejected
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner import words
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.screen import Floored
from tokenfleet.planner.search import Failure
from tokenfleet.planner.traffic import Traffic, with_inputs_capped

_GENEROUS = 4
_MOST_TRIED = 8
_SMALLEST_CAP_TOKENS = 64
_CAP_STEP = 1.05


def nearest_failure(
    replays: Replays, traffic: Traffic, failures: Sequence[Failure], floored: Sequence[Floored]
) -> Failure | None:
    """Who comes closest to the promise when there are more than enough replicas.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        failures: Candidates that were replayed up to their largest count.
        floored: Candidates whose floor breaks the promise, the nearest first; the first few are replayed.

    Returns:
        The failure with the smallest ratio of what happens to what is promised; ``None`` without candidates, or when
        none of them has a value for every clause.
    """
    tried = list(failures)
    for one in floored[:_MOST_TRIED]:
        count = min(one.estimate * _GENEROUS, replays.most(traffic, one.replica))
        tried.append(Failure(one.replica, count, replays.verdict(traffic, one.replica, count), one.reasons))
    known = [failure for failure in tried if math.isfinite(failure.verdict.excess) and failure.verdict.broken]
    return min(known, key=lambda one: (one.verdict.excess, words.settled(one.replica.deployment)), default=None)


def relaxations(replays: Replays, traffic: Traffic, nearest: Failure, *, stands_for: int = 1) -> tuple[str, ...]:
    """Changes that make the question answerable, each replayed.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        nearest: Who comes closest, with more than enough replicas.
        stands_for: Replicas that each replayed one stands for.

    Returns:
        ``ttft_p99 >= 0.62 s``: what the nearest failure reaches, rounded up; and ``cap input at 1,400 tokens`` when
        cutting prompts alone is enough for it. Each with the smallest fleet of that kind that replay finds enough.
    """
    replica = nearest.replica

    def with_fleet(change: str, slo: Slo, changed: Traffic) -> str:
        count = _smallest(replays, slo, changed, replica, nearest.count)
        return change if count is None else f"{change} ({words.fleet(replica, count * stands_for)})"

    text, looser = _looser(replays.slo, nearest)
    changes = [with_fleet(text, looser, traffic)]
    cap = _input_cap(replays, traffic, nearest)
    if cap is not None:
        shorter = with_inputs_capped(traffic, cap)
        changes.append(with_fleet(f"cap input at {words.tokens(cap)}", replays.slo, shorter))
    return tuple(changes)


def _smallest(replays: Replays, slo: Slo, traffic: Traffic, replica: ReplicaPhysics, most: int) -> int | None:
    """The smallest count up to ``most`` that keeps ``slo``; ``None`` when replay finds none."""
    judged = Replays(slo, replays.router)
    start = max(1, most // _GENEROUS)
    found = smallest_enough(lambda count: judged.verdict(traffic, replica, count).kept, start, most)
    replays.count += judged.count
    return found


def _looser(slo: Slo, offer: Failure) -> tuple[str, Slo]:
    """The promise that the offer keeps, in words and as one."""
    reached: dict[str, tuple[float, str]] = {}
    broken = {result.name for result in offer.verdict.broken}
    for result in (*offer.verdict.peak, *offer.verdict.overall):
        if result.name in broken and result.predicted is not None:
            worst = max(result.predicted, reached.get(result.name, (0.0, ""))[0])
            reached[result.name] = _rounded_up(worst), result.unit
    clauses = [
        f"{name} >= {value:g} s" if unit == "s" else f"{name} >= {value * 100:g} %"
        for name, (value, unit) in reached.items()
    ]
    latency = tuple(
        replace(target, limit_s=reached[target.name][0]) if target.name in reached else target for target in slo.latency
    )
    errors = reached.get("error_rate", (slo.error_rate_fraction, ""))[0]
    return " and ".join(clauses), replace(slo, latency=latency, error_rate_fraction=errors)


def _rounded_up(value: float) -> float:
    """Two digits, never below the value, so that the relaxed promise is the one replay kept."""
    digits = 1 - math.floor(math.log10(value)) if value > 0.0 else 0
    scale = 10.0**digits
    return math.ceil(value * scale - 1e-9) / scale


def _input_cap(replays: Replays, traffic: Traffic, offer: Failure) -> int | None:
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
