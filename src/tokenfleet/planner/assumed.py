"""What a plan rests on, in sentences for a person."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tokenfleet.domain.outlook import CurvePoint
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.replica import EngineSettings
from tokenfleet.planner import words
from tokenfleet.planner.counting import MOST_TIMES
from tokenfleet.planner.curve import odd_loads
from tokenfleet.planner.multiples import whole_of
from tokenfleet.planner.placement import fewest_replicas, node_room, placed
from tokenfleet.planner.promises import unbounded_wait
from tokenfleet.planner.redundancy import asked, zones_without_replicas
from tokenfleet.planner.search import Found
from tokenfleet.planner.traffic import Traffic
from tokenfleet.simulator import rule_set_note

FEW_REQUESTS = 100
"""With fewer there is nothing to tell a p99 from."""
FIRST_TOKEN_UNSURE: Final = (
    "the promise of a first token may break all the same, however many there are: load-test before you promise it"
)
_IF_SLOW: Final = "If steps take"
_EVEN_IF_SLOW: Final = "Even if steps take"


def assumptions(question: PlanQuestion, traffic: Traffic, searched: Traffic, chosen: Sized) -> tuple[str, ...]:
    """Everything the answer hangs on that is not in the question."""
    engine = chosen.replica.deployment.engine
    spare = whole_of(chosen, question).spare_count
    count = traffic.trace.request_count
    lines = [
        f"The promise is judged by replay over all {words.requests(count)} and over those that arrive in the "
        f"{words.seconds(traffic.window_length_s)} with most tokens (from {words.seconds(traffic.window_s[0])}); the "
        "demand to come is taken to be the trace again.",
    ]
    part = question.stands_for_count
    if part > 1:
        lines.append(thinned(part))
    if spare:
        carrying = chosen.carrying_count * part
        lines.append(
            f"{words.replicas(carrying)} {_carry(carrying)} the whole trace alone; {spare} spare "
            f"{_are(spare)} gone from its first second."
        )
    else:
        lines.append("No replica is spare: when one fails, the promise is not examined.")
    lines += zones_without_replicas(asked(question))
    lines += _thin_nodes(question, whole_of(chosen, question))
    lines += _from_midnight(question, traffic)
    few = few_requests(traffic)
    wait = unbounded_wait(question.slo, traffic.trace)
    lines += [
        *([few] if few else []),
        *([wait] if wait else []),
        f"Step times may be wrong by a factor of {chosen.replica.band.step_time_factor:.3g} either way "
        f"({chosen.replica.band.evidence}); the range of each prediction is replayed with that factor. "
        "For TTFT it covers step times only, not what else TTFT is unsure about.",
        f"Engine rules: {engine.name}, at most {engine.max_batched_tokens:,} tokens and {engine.max_sequence_count:,} "
        f"sequences per step, prefix cache {'on' if engine.prefix_caching else 'off'}. Router: {question.router}. "
        + rule_set_note(engine.name),
        *_about_drafts(engine),
        "ITL quantiles come from a histogram: they are at most 2.2 % too high, never too low.",
        "TTFT starts when the request reaches the router: the network between user and router is not in it.",
        "Work in the bill is priced as on replicas that are full, headroom is what the promise keeps free beside it, "
        "idle what a load below the peak has no use for.",
        _price_line(chosen),
    ]
    if searched is not traffic:
        lines.append(
            f"Candidates were sized on the busiest stretch ({searched.trace.request_count:,} requests around the "
            "peak); the chosen fleet was then verified on the whole trace, the runners-up were not."
        )
    return tuple(lines)


def _from_midnight(question: PlanQuestion, traffic: Traffic) -> list[str]:
    """A demand without dates has no clock of its own to go by."""
    clocks = [each.name for each in question.slo.deadlines if each.at_s is not None]
    if not clocks or traffic.trace.start_utc is not None or traffic.trace.time_of_day_s:
        return []
    return [
        f"The demand has no dates: its second 0 is taken for midnight, where {' and '.join(clocks)} goes by the clock."
    ]


def _thin_nodes(question: PlanQuestion, whole: Sized) -> list[str]:
    """What it means that nodes are not filled, so that a lost one takes less."""
    wanted = asked(question)
    room = node_room(whole.replica)
    placement = placed(whole.replica_count, whole.replica, wanted)
    if placement is None or wanted.replicas_per_node_count or placement.replicas_per_node_count == room:
        return []
    full = replace(wanted, replicas_per_node_count=room)
    total = fewest_replicas(whole.carrying_count, whole.replica, full)
    each = placement.replicas_per_node_count
    on_full = "none can survive" if total is None else f"it takes {words.replicas(total)}"
    return [
        f"Nodes are rented in part: {len(placement.nodes)} nodes hold at most {words.replicas(each)} each, of the "
        f"{room} that fit, so that a lost node takes no more. Where only whole nodes can be had, {on_full}: "
        f"redundancy: {{replicas_per_node: {room}}}."
    ]


def thinned(part: int) -> str:
    """What it means that a part of the demand was replayed."""
    return (
        f"Demand replayed in part: one request in {part:,}, on as small a part of the fleet, and multiplied again. "
        "The part is as bursty as the whole; a larger fleet evens bursts out better, so this errs towards too many "
        "replicas."
    )


def sure_note(chosen: Sized, slow: Sized | None, *, is_sure: bool) -> str:
    """What it would take to be sure of the promise, in a sentence.

    Args:
        chosen: The plan.
        slow: Who keeps it with steps at the slow end of their band.
        is_sure: Whether a first token keeps its promise there at the end of its own interval.
    """
    factor = f"{chosen.replica.band.step_time_factor:.3g} times as long"
    if slow is None:
        most = f"no fleet of such replicas at up to {MOST_TIMES} times the price keeps the promise"
        return f"{_IF_SLOW} {factor}, {most}: load-test before you promise it."
    unsure = "" if is_sure else f"; {FIRST_TOKEN_UNSURE}"
    if slow.price_usd_per_hour <= chosen.price_usd_per_hour and slow.replica == chosen.replica:
        return f"{_EVEN_IF_SLOW} {factor}, the plan keeps the promise{unsure}."
    fleet = words.fleet(slow.replica, slow.replica_count)
    return f"{_IF_SLOW} {factor}, {fleet} keep the promise, for ${slow.price_usd_per_hour:.2f}/h{unsure}."


def is_about_sure(line: str) -> bool:
    """Whether a line is one of :func:`sure_note`."""
    return line.startswith((_IF_SLOW, _EVEN_IF_SLOW))


def search_notes(found: Found, curve: Sequence[CurvePoint] = ()) -> tuple[str, ...]:
    """What the search did not do, or what it or the load curve found odd."""
    lines = [*found.anomalies, *odd_loads(curve)]
    if found.outpriced:
        lines.append(
            f"{len(found.outpriced)} candidates were tried only at the best price and broke the promise there; "
            "more replicas of them cost more, so their exact count was not sought."
        )
    return tuple(lines)


def _carry(count: int) -> str:
    return "carries" if count == 1 else "carry"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _price_line(chosen: Sized) -> str:
    price = chosen.price
    dated = f" of {price.as_of}" if price.as_of else ""
    low, high = chosen.price_low_usd_per_gpu_hour, chosen.price_high_usd_per_gpu_hour
    outside = ""
    if price.evidence == "reference" and not low <= price.price_usd_per_gpu_hour <= high:
        side = "below" if price.price_usd_per_gpu_hour < low else "above"
        outside = (
            f" The reference is {side} every offer found: it is what this gpu would cost at the provider in the "
            "middle of the market, and those who sell it are not."
        )
    return (
        f"{price.gpu} costs ${price.price_usd_per_gpu_hour:.4g} per gpu-hour ({price.provider}, {price.term}{dated}); "
        f"prices known run from ${low:.4g} to ${high:.4g}.{outside}"
    )


def few_requests(traffic: Traffic) -> str | None:
    """A sentence when the trace is too small to speak of a p99 or of loads below its own; ``None`` when it is not."""
    count = traffic.trace.request_count
    if count >= FEW_REQUESTS:
        return None
    return (
        f"The trace has only {words.requests(count)}: a p99 is the slowest of them, and loads below the trace's own "
        "are left out where no request would remain. This shows that the fleet can serve, not that it keeps a promise."
    )


def _about_drafts(engine: EngineSettings) -> tuple[str, ...]:
    asked = engine.speculation
    if asked is None:
        return ()
    return (
        f"Speculative decoding: {asked.draft_token_count} tokens drafted for each sequence in each step, each kept in "
        f"{asked.acceptance_fraction:.0%} of cases where those before it are. Your own text decides: measure it.",
    )
