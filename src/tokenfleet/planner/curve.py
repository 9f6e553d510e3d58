"""Latency against load, and latency against money."""

from collections.abc import Callable, Mapping, Sequence

from tokenfleet.domain.outlook import CurvePoint, FrontierPoint
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.planner import words
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.redundancy import spare_like
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.search import Answer
from tokenfleet.planner.traffic import Traffic, at_load, demand
from tokenfleet.planner.verdict import Verdict

_LOADS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
_MORE = (1.25, 1.5, 2.0)


def load_curve(replays: Replays, traffic: Traffic, answer: Answer, reporter: Reporter) -> tuple[CurvePoint, ...]:
    """The carrying replicas of the chosen fleet at a quarter to one and a half of the peak, judged in its window.

    Loads at which so small a trace has no request left are missing.
    """
    replica, count = answer.sized.replica, answer.sized.carrying_count
    loads = {load: at_load(traffic, load) for load in _LOADS}
    for denser in loads.values():
        if denser is not None:
            replays.ahead(denser, replica, count, quick=False)

    def at(loaded: Traffic, load: float) -> Verdict:
        done = 0.9 + 0.07 * _LOADS.index(load) / len(_LOADS)
        reporter.say("curve", f"{words.fleet(replica, count)} at {load:g} x the peak", done)
        return replays.verdict(loaded, replica, count)

    return curve_of(traffic, at, loads)


def curve_of(
    traffic: Traffic, judged: Callable[[Traffic, float], Verdict], loads: Mapping[float, Traffic | None] | None = None
) -> tuple[CurvePoint, ...]:
    """What somebody makes of each load of ``traffic``, judged in its window; without those that have no request left.

    Args:
        traffic: At the peak.
        judged: Replays a load, and judges it.
        loads: The same traffic at each load, where it was made already.
    """
    rate_per_s = demand(traffic, caching=False).rate_per_s
    points = []
    for load, loaded in (loads or {load: at_load(traffic, load) for load in _LOADS}).items():
        if loaded is None:
            continue
        verdict = judged(loaded, load)
        points.append(
            CurvePoint(
                load_fraction=load,
                rate_per_s=rate_per_s * load,
                ttft_p50_s=verdict.seen.ttft_p50_s,
                ttft_p99_s=verdict.seen.ttft_p99_s,
                itl_p50_s=verdict.seen.itl_p50_s,
                itl_p99_s=verdict.seen.itl_p99_s,
                promised_s=verdict.promised_s,
                kept=verdict.kept,
            )
        )
    return tuple(points)


def odd_loads(curve: Sequence[CurvePoint]) -> tuple[str, ...]:
    """A sentence for each load at which the promise is broken although it is kept at a higher one."""
    highest = max((point.load_fraction for point in curve if point.kept), default=0.0)
    return tuple(
        f"At {point.load_fraction:g} times the peak the promise is broken, at {highest:g} times it is kept: which "
        "requests meet hangs on chance where few of them decide a quantile."
        for point in curve
        if not point.kept and point.load_fraction < highest
    )


def frontier(
    replays: Replays, traffic: Traffic, question: PlanQuestion, answers: Sequence[Answer], reporter: Reporter
) -> tuple[FrontierPoint, ...]:
    """Price against latency: every sized fleet, and the chosen one (the first) with more replicas."""
    points = [_point(answer, answer.sized.replica_count, answer.verdict) for answer in answers]
    chosen = answers[0]
    carrying = chosen.sized.carrying_count
    more_of_it = {max(carrying + step, round(carrying * more)) for step, more in enumerate(_MORE, start=1)}
    for count in sorted(more_of_it):
        if count > replays.most(traffic, chosen.sized.replica):
            break
        spare = spare_like(question, chosen.sized, count)
        if spare is None:
            break
        reporter.say("curve", words.fleet(chosen.sized.replica, count), 0.98)
        points.append(_point(chosen, count + spare, replays.verdict(traffic, chosen.sized.replica, count)))
    return marked(points)


def marked(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Points in order of price, those that no other beats marked."""
    ordered = sorted(
        points, key=lambda point: (point.price_usd_per_hour, point.gpu, point.precision, point.tensor_parallel)
    )
    return tuple(_marked(point, ordered) for point in ordered)


def _point(answer: Answer, replica_count: int, verdict: Verdict) -> FrontierPoint:
    deployment = answer.sized.replica.deployment
    return FrontierPoint(
        gpu=deployment.gpu,
        precision=deployment.precision,
        tensor_parallel=deployment.layout.tensor_parallel,
        replica_count=replica_count,
        price_usd_per_hour=answer.candidate.usd_per_replica_hour * replica_count,
        ttft_p99_s=verdict.seen.ttft_p99_s,
        itl_p99_s=verdict.seen.itl_p99_s,
        promised_s=verdict.promised_s,
        efficient=False,
    )


def _marked(point: FrontierPoint, points: Sequence[FrontierPoint]) -> FrontierPoint:
    from dataclasses import replace

    mine = _coordinates(point)
    beaten = any(
        _coordinates(other) != mine and all(a <= b for a, b in zip(_coordinates(other), mine, strict=True))
        for other in points
    )
    return replace(point, efficient=not beaten)


def _coordinates(point: FrontierPoint) -> tuple[float, float, float]:
    worst = float("inf")
    return (
        point.price_usd_per_hour,
        worst if point.ttft_p99_s is None else point.ttft_p99_s,
        worst if point.itl_p99_s is None else point.itl_p99_s,
    )
