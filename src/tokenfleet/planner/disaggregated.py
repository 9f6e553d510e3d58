"""Prefill and decode in pools of their own: which replicas for each, and the counts that keep the promise."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tokenfleet import simulator
from tokenfleet.domain.apart import Apart, ApartAnswer, ApartPool, ApartQuestion
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.stages import Handover, StagedRun
from tokenfleet.planner import words
from tokenfleet.planner.estimate import keeps_pace
from tokenfleet.planner.floors import (
    Shapes,
    decode_token_s,
    latency_floor_s,
    prefill_alone_s,
    prefill_profile,
    sequences_in_step,
    shapes,
)
from tokenfleet.planner.pool_counts import Counts, even_fewer, in_order_of_price, least_counts, plenty_of
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.traffic import Demand, Traffic, demand
from tokenfleet.planner.verdict import Verdict

_CHOICES = 5
"""Replicas tried for each pool, by the price of as many as its own phase needs, spare ones included."""
_OF_ONE_GPU = 2
_PAIRS = 10
"""Pairs of replicas that are sized whatever they are estimated at, the cheapest first."""
_CAP_OVER_ESTIMATE = 8
_FAR_OFF = 2.0
"""A pair whose estimate costs this many times the best pair known is not sized."""
_UTILIZATION_FRACTION = 0.85


@dataclass(frozen=True, slots=True)
class Phase:
    """A replica as one of the two pools, with the count a formula suggests."""

    replica: ReplicaPhysics
    price: GpuPrice
    busy_count: float
    """Replicas that the peak window keeps busy with this phase alone."""
    spare_count: int
    """Spare ones beside as many as the formula suggests."""

    @property
    def usd_per_replica_hour(self) -> float:
        """Price of one replica for one hour."""
        return self.replica.deployment.layout.gpu_count * self.price.price_usd_per_gpu_hour

    @property
    def estimate(self) -> int:
        """Replicas that the peak window needs by the formula."""
        return max(1, math.ceil(self.busy_count / _UTILIZATION_FRACTION))

    @property
    def usd_per_hour(self) -> float:
        """Price of the whole pool by the formula: half a large replica cannot be bought."""
        return (self.estimate + self.spare_count) * self.usd_per_replica_hour


def sought_apart(
    question: PlanQuestion, traffic: Traffic, searched: Traffic, replays: Replays, reporter: Reporter
) -> ApartAnswer | None:
    """The cheapest pair of pools tried that keeps the promise, on the whole traffic.

    Args:
        question: With ``apart`` where it is to be tried.
        traffic: The demand.
        searched: The part of it that is searched on.
        replays: Counts and judges.
        reporter: Told what is being tried.

    Returns:
        What came of it; ``None`` when nobody asked.
    """
    asked = question.apart
    if asked is None:
        return None
    before = replays.count
    best: Apart | None = None
    sized_count = 0

    def size(prefill: Phase, decode: Phase) -> None:
        nonlocal best, sized_count
        layouts = (words.layout(each.replica.deployment) for each in (prefill, decode))
        reporter.say("apart", " > ".join(layouts), 1.0)
        trial = _Trial(question, asked, prefill, decode, replays)
        found = trial.cheapest(searched, traffic, None if best is None else best.price_usd_per_hour)
        best, sized_count = found or best, sized_count + 1

    pairs = _pairs(question, asked, searched)
    others = pairs[_PAIRS:]
    for pair in pairs[:_PAIRS]:
        size(*pair)
    if best is None and others:
        size(*others.pop(others.index(min(others, key=_takes_s))))
    for pair in others:
        # Estimates know no queues: what was found may cost more than what others are estimated at.
        if best is not None and _estimated_usd(*pair) < best.price_usd_per_hour:
            size(*pair)
    return ApartAnswer(
        found=best,
        reason="" if best else _why_none(sized_count),
        pair_count=sized_count,
        replayed_count=replays.count - before,
    )


def _caches(question: PlanQuestion) -> bool:
    return any(replica.deployment.engine.prefix_caching for replica in question.candidates)


def _why_none(pair_count: int) -> str:
    if not pair_count:
        return "no replica prefills fast enough beside one that decodes fast enough, at a known price and over the link"
    cap = f"{_CAP_OVER_ESTIMATE} times the estimated counts"
    return f"none of the {pair_count} pairs tried keeps the promise at up to {cap}"


# ---- which replicas


def _pairs(question: PlanQuestion, asked: ApartQuestion, searched: Traffic) -> list[tuple[Phase, Phase]]:
    """Pairs worth sizing, the cheapest by estimate first; both keep KV in the same precision."""
    caching = _caches(question)
    wanted, lengths = demand(searched, caching=caching), shapes(searched.trace, question.slo, caching=caching)
    prefills: list[Phase] = []
    decodes: list[Phase] = []
    for replica in question.candidates:
        price = quote(question.prices, replica.deployment.gpu)
        if price is None:
            continue
        if replica.deployment.gpu in asked.links and is_soon(replica, lengths, question.slo):
            prefills += _phase(question, replica, price.price, prefill_busy(replica, wanted))
        if (busy := decode_busy(replica, wanted, question.slo)) is not None:
            decodes += _phase(question, replica, price.price, busy)
    pairs = [
        (prefill, decode)
        for kv in dict.fromkeys(replica.deployment.kv_precision for replica in question.candidates)
        for prefill in _best(prefills, kv)
        for decode in _best(decodes, kv)
    ]
    pairs.sort(key=lambda pair: (_estimated_usd(*pair), words.layout(pair[0].replica.deployment)))
    return pairs


def _phase(question: PlanQuestion, replica: ReplicaPhysics, price: GpuPrice, busy_count: float) -> Iterator[Phase]:
    """A replica as a pool; nothing where no spare would save it."""
    alone = Phase(replica, price, busy_count, 0)
    spare = spare_replicas(question, replica, alone.estimate)
    if spare is not None:
        yield replace(alone, spare_count=spare)


def _best(phases: list[Phase], kv_precision: str) -> list[Phase]:
    """The cheapest replicas for a phase, a small and a large one of each gpu at most."""
    fitting = [each for each in phases if each.replica.deployment.kv_precision == kv_precision]
    fitting.sort(key=lambda each: (each.usd_per_hour, words.layout(each.replica.deployment)))
    taken: list[Phase] = []
    sizes: dict[str, set[int]] = {}
    for each in fitting:
        deployment = each.replica.deployment
        known = sizes.setdefault(deployment.gpu, set())
        if len(known) < _OF_ONE_GPU and deployment.layout.gpu_count not in known:
            known.add(deployment.layout.gpu_count)
            taken.append(each)
    return taken[:_CHOICES]


def _estimated_usd(prefill: Phase, decode: Phase) -> float:
    return prefill.usd_per_hour + decode.usd_per_hour


def _takes_s(pair: tuple[Phase, Phase]) -> float:
    """What a long prompt and a hundred tokens take on a pair that has nothing else to do."""
    prefill, decode = pair
    return prefill_profile(prefill.replica)[0] + 100 * decode_token_s(decode.replica, 1, 0.0)


def is_soon(replica: ReplicaPhysics, lengths: Shapes, slo: Slo) -> bool:
    """Whether a replica with nothing else to do computes the prompt at each quantile promised within its TTFT."""
    first = [target for target in slo.latency if target.metric == "ttft"]
    return all((latency_floor_s(replica, lengths, target) or 0.0) <= target.limit_s for target in first)


def prefill_busy(replica: ReplicaPhysics, wanted: Demand) -> float:
    """Replicas that prompts keep busy: rate times the time of a mean prompt alone."""
    mean_s = prefill_alone_s(replica, max(1, round(float(wanted.input_tokens.mean()))))
    return wanted.rate_per_s * (mean_s - replica.step_time.request_ps * 1e-12)


def decode_busy(replica: ReplicaPhysics, wanted: Demand, slo: Slo) -> float | None:
    """Replicas that output keeps busy at the largest batch within memory and the ITL or TPOT promise.

    Returns:
        Rate times output tokens times the step time of that batch per sequence; ``None`` where one sequence alone is
        too slow or does not fit.
    """
    outputs = wanted.mean_output_tokens
    context = wanted.mean_context_tokens + outputs / 2
    most = min(replica.kv_block_count // max(1, replica.sequence_blocks(context)), sequences_in_step(replica))
    if most < 1 or not keeps_pace(replica, 1, context, slo):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps_pace(replica, middle, context, slo) else (low, middle)
    return wanted.rate_per_s * max(outputs - 1.0, 0.0) * decode_token_s(replica, low, context) / low


def handover_of(question: PlanQuestion, asked: ApartQuestion, prefill: ReplicaPhysics) -> Handover:
    """How KV gets from the replicas that prefill to those that decode."""
    return Handover(
        link=asked.links[prefill.deployment.gpu],
        first_token=asked.first_token,
        overlapped_layer_count=question.model.layer_count if asked.overlap else None,
    )


# ---- how many


def _with_band(replica: ReplicaPhysics, power: int) -> ReplicaPhysics:
    return with_step_factor(replica, replica.band.step_time_factor**power) if power else replica


class _Trial:
    """One pair of replicas: counts of both, by replay."""

    def __init__(
        self, question: PlanQuestion, asked: ApartQuestion, prefill: Phase, decode: Phase, replays: Replays
    ) -> None:
        self.question = question
        self.prefill = prefill
        self.decode = decode
        self.replays = replays
        self.handover = handover_of(question, asked, prefill.replica)
        self.seen: dict[tuple[int, int, int], tuple[StagedRun, Verdict]] = {}

    def verdict(self, traffic: Traffic, counts: tuple[int, int]) -> tuple[StagedRun, Verdict]:
        """Replay both pools and judge what users see."""
        key = (*counts, id(traffic))
        if key not in self.seen:
            run = self._run(traffic, counts, 0)
            self.seen[key] = run, self.replays.judged(traffic, run.record)
        return self.seen[key]

    def banded(self, traffic: Traffic, counts: tuple[int, int]) -> Verdict:
        """The same with all steps of both pools at either end of their error bands."""
        low, high = (self._run(traffic, counts, power).record for power in (-1, 1))
        factor = max(pool.replica.band.first_token_factor for pool in (self.prefill, self.decode))
        record = self.verdict(traffic, counts)[0].record
        return self.replays.judged(traffic, record, low=low, high=high, first_token_factor=factor)

    def _run(self, traffic: Traffic, counts: tuple[int, int], power: int) -> StagedRun:
        """Both pools with steps as long as their band to this power makes them."""
        self.replays.count += 1
        prefill, decode = (
            self.replays.fleet(_with_band(phase.replica, power), count)
            for phase, count in zip((self.prefill, self.decode), counts, strict=True)
        )
        pools = simulator.apart(traffic.trace, prefill, decode, self.handover)
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        interval_s = max(1.0, traffic.trace.duration_s) if self.replays.slo.gaps_apart else None
        return simulator.replay_stages(
            traffic.trace,
            pools,
            peak_window_s=traffic.window_s,
            telemetry_interval_s=interval_s,
            run=self.replays.replay,
        )

    def kept(self, traffic: Traffic, counts: tuple[int, ...]) -> bool:
        """Whether the promise is kept."""
        return self.verdict(traffic, (counts[0], counts[1]))[1].kept

    def cheapest(self, searched: Traffic, whole: Traffic, below_usd: float | None) -> Apart | None:
        """The first pair of counts in order of price that keeps the promise on the whole traffic."""
        most_usd = math.inf if below_usd is None else below_usd
        if _estimated_usd(self.prefill, self.decode) > _FAR_OFF * most_usd:
            return None
        start = (self.prefill.estimate, self.decode.estimate)
        usd = (self.prefill.usd_per_replica_hour, self.decode.usd_per_replica_hour)
        plenty = plenty_of(partial(self.kept, searched), start, _CAP_OVER_ESTIMATE)
        if plenty is None:
            return None
        for first, second in in_order_of_price(self._least(searched, plenty, start, most_usd), usd):
            pools = self.pools((first, second))
            if pools is None or sum(each.price_usd_per_hour for each in pools) >= most_usd:
                return None
            if self.kept(searched, (first, second)) and self.kept(whole, (first, second)):
                run = self.verdict(whole, (first, second))[0]
                return Apart(
                    prefill=pools[0],
                    decode=pools[1],
                    link=self.handover.link.name,
                    transfer_mean_s=float(run.transfer_s.mean()),
                    slo=self.banded(whole, (first, second)).peak,
                )
        return None

    def _least(self, searched: Traffic, plenty: Counts, start: Counts, most_usd: float) -> Counts:
        """The fewest of each pool with plenty of the other; fewer, where those feed each other less and it suffices."""
        kept = partial(self.kept, searched)
        first, second = least_counts(kept, plenty, start)
        pools = self.pools((first, second))
        saved_usd = max(self.prefill.usd_per_replica_hour, self.decode.usd_per_replica_hour)
        if pools is None or sum(each.price_usd_per_hour for each in pools) - saved_usd >= most_usd:
            return first, second
        return even_fewer(kept, (first, second))

    def pools(self, counts: tuple[int, int]) -> tuple[ApartPool, ApartPool] | None:
        """Both pools with their spare replicas, for the whole demand; ``None`` where no spare saves them."""
        made = []
        for phase, count in zip((self.prefill, self.decode), counts, strict=True):
            carrying = count * self.question.stands_for_count
            spare = spare_replicas(self.question, phase.replica, carrying)
            if spare is None:
                return None
            made.append(ApartPool(replica=phase.replica, carrying_count=carrying, spare_count=spare, price=phase.price))
        return made[0], made[1]
