"""What surrounds a plan of pools: other loads, wrong assumptions, how sure. All of it by replay of all pools at once.

An assumption is wrong in all pools at once, and the promise is judged on all requests, in the peak window of the whole:
a pool that keeps it in the peak of its own may break it there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from tokenfleet.domain.outlook import Confidence, CurvePoint, FrontierPoint, FrontierPool, SensitivityCase
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.planner.capped import at_cap
from tokenfleet.planner.curve import curve_of
from tokenfleet.planner.lodging import crowded
from tokenfleet.planner.pool_counts import Counts, cheapest_between, least_counts, plenty_of
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.sensitivity import (
    FURTHEST_BANDS,
    LOADS,
    PRECISION,
    by_chance,
    longer,
    probability,
    without_cache,
)
from tokenfleet.planner.systems import System, housed_in
from tokenfleet.planner.traffic import Traffic, at_load
from tokenfleet.planner.verdict import Verdict

_MOST_TIMES = 4
"""More than so many times the planned replicas are not asked for: then the answer is another system."""

_MORE = (1.25, 1.5, 2.0)
"""Times the planned replicas that are shown too."""

Change = Callable[[Sized], Sized]


@dataclass(frozen=True, slots=True)
class _Case:
    assumption: str
    change: str
    traffic: Traffic
    system: System
    easier: bool = False


_Value = TypeVar("_Value")


def frontier_point(kinds: Sequence[Sized], names: tuple[str, ...], verdict: Verdict) -> FrontierPoint:
    """Several pools in the plane of price against latency."""
    pools = tuple(map(_frontier_pool, names, kinds))
    return FrontierPoint(
        gpu=_only(pool.gpu for pool in pools),
        precision=_only(pool.precision for pool in pools),
        tensor_parallel=_only(pool.tensor_parallel for pool in pools),
        replica_count=sum(sized.replica_count for sized in kinds),
        price_usd_per_hour=sum(sized.price_usd_per_hour for sized in kinds),
        ttft_p99_s=verdict.seen.ttft_p99_s,
        itl_p99_s=verdict.seen.itl_p99_s,
        promised_s=verdict.promised_s,
        efficient=False,
        pools=pools,
    )


def _frontier_pool(name: str, kind: Sized) -> FrontierPool:
    deployment = kind.replica.deployment
    return FrontierPool(
        name=name,
        gpu=deployment.gpu,
        precision=deployment.precision,
        tensor_parallel=deployment.layout.tensor_parallel,
        replica_count=kind.replica_count,
    )


def _only(values: Iterable[_Value]) -> _Value | None:
    """What all of them are; ``None`` where they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


class PoolsOutlook:
    """The outlook of one system of pools, its spare replicas gone."""

    def __init__(
        self, system: System, replays: Replays, question: PlanQuestion, searched: Traffic, reporter: Reporter
    ) -> None:
        """Look at a system.

        Args:
            system: The pools as they are planned.
            replays: Judges.
            question: What was asked.
            searched: The stretch of the demand to replay.
            reporter: Told what is tried.
        """
        self._system, self._replays, self._question = system, replays, question
        self._searched, self._reporter = searched, reporter
        self._kinds = tuple(part.sized for part in system.parts)
        self._own = tuple(part.sized for part in system.own)
        self._planned = tuple(sized.carrying_count for sized in self._own)

    def curve(self, detail: Traffic) -> tuple[CurvePoint, ...]:
        """All pools at a quarter to one and a half of the peak."""

        def at(loaded: Traffic, load: float) -> Verdict:
            self._reporter.say("curve", f"all pools at {load:g} x the peak", 1.0)
            return self._system.judged(self._replays, loaded)

        return curve_of(detail, at)

    def frontier(self) -> tuple[FrontierPoint, ...]:
        """More carrying replicas of every pool: what faster answers cost."""
        points = []
        wanted = (tuple(max(count + 1, round(count * more)) for count in self._planned) for more in _MORE)
        for counts in dict.fromkeys(wanted):
            bought = self.bought(counts)
            if bought is not None:
                self._reporter.say("curve", f"{' and '.join(map(str, counts))} replicas of the pools", 1.0)
                verdict = self._system.with_counts(counts).judged(self._replays, self._searched)
                points.append(frontier_point(bought, tuple(part.name for part in self._system.parts), verdict))
        return tuple(points)

    def confidence(self) -> Confidence | None:
        """How likely the promise holds, if step times are all that may be wrong, in all pools alike.

        Returns:
            ``None`` when no band is wider than a point, or the pools do not keep the promise as predicted.
        """
        band = max(sized.replica.band.step_time_factor for sized in self._kinds)
        if band <= 1.0 or not self._keeps(self._at_band(0.0)):
            return None
        good, bad = 0.0, FURTHEST_BANDS
        at_least = self._keeps(self._at_band(bad))
        if at_least:
            good = bad
        while band ** (bad - good) > PRECISION:
            middle = (good + bad) / 2.0
            good, bad = (middle, bad) if self._keeps(self._at_band(middle)) else (good, middle)
        return Confidence(
            probability_fraction=probability(band**good, band),
            breaking_step_factor=band**good,
            band_factor=band,
            at_least=at_least,
        )

    def sensitivity(self) -> tuple[SensitivityCase, ...]:
        """Each assumption wrong in all pools at once: whether they keep the promise, and how many of each would."""
        found = []
        for case in self._cases():
            self._reporter.say("sensitivity", f"{case.assumption} {case.change}", 1.0)
            found.append(self._measured(case))
        return (*found, *self._prices())

    def sure(self, alone: tuple[Sized, ...] | None = None) -> tuple[Sized, ...] | None:
        """As many of each as keep the promise with steps at the slow end of their bands.

        Args:
            alone: Fleets that each keep it to their own requests, maybe in steps of other sizes: they are taken where
                they keep it together.

        Returns:
            ``None`` where no counts tried do, or where a first token that waits for nobody may break its promise.
        """
        if alone is not None and self._keeps(_at_band(self._system.with_fleets(alone), 1.0)):
            return alone
        slow = self._at_band(1.0)
        counts = self.needed(self._searched, slow, kept=self._keeps(slow), fewer=not self._each_keeps)
        bought = None if counts is None else self.bought(counts)
        if counts is None or bought is None or not self._first_token_is_sure(counts):
            return None
        return bought

    # ---- the cases

    def _cases(self) -> Iterator[_Case]:
        for load in reversed(LOADS):
            changed = at_load(self._searched, load)
            if changed is not None:
                yield _Case("demand", f"{load - 1:+.0%}", changed, self._system, easier=load < 1.0)
        yield _Case("input tokens", "+25%", longer(self._searched), self._system)
        caches = any(sized.replica.deployment.engine.prefix_caching for sized in self._kinds)
        if caches and self._searched.trace.prefix_node is not None:
            yield _Case("prefix cache", "off", self._searched, self._changed(_without_cache))
        bands = dict.fromkeys(f"{sized.replica.band.step_time_factor:.3g}" for sized in self._kinds)
        said = " and ".join(bands)
        yield _Case("step time", f"/ {said}", self._searched, self._at_band(-1.0), easier=True)
        yield _Case("step time", f"x {said}", self._searched, self._at_band(1.0))

    def _measured(self, case: _Case) -> SensitivityCase:
        planned = case.system.judged(self._replays, case.traffic)
        note = by_chance(planned, self._replays.slo) if case.easier and not planned.kept else ""
        fewer = case.easier or not self._each_keeps
        counts = self._planned if note else self.needed(case.traffic, case.system, kept=planned.kept, fewer=fewer)
        if not note and self._question.redundancy.ride_through:
            note = "counts that survive each loss; the moment of it was not replayed with them"
        bought = None if counts is None else self.bought(counts)
        return SensitivityCase(
            assumption=case.assumption,
            change=case.change,
            kept=planned.kept,
            broken=tuple(result.name for result in planned.broken),
            replica_count=None if bought is None else sum(sized.replica_count for sized in bought),
            price_usd_per_hour=None if bought is None else sum(sized.price_usd_per_hour for sized in bought),
            note=note,
            pool_replica_count=() if bought is None else tuple(sized.replica_count for sized in bought),
        )

    @property
    def _each_keeps(self) -> bool:
        """Whether each pool was counted to keep the promise to its own requests, which may take more than all ask for.

        Where the demand is no easier than planned for, none of them does with fewer.
        """
        return self._system.way is None and self._system.handover is None

    def needed(
        self, traffic: Traffic, system: System, *, kept: bool, most_times: int = _MOST_TIMES, fewer: bool = True
    ) -> Counts | None:
        """The cheapest carrying counts that keep the promise, and the cap; ``None`` where none asked do.

        Args:
            traffic: What they serve.
            system: The pools, whose counts are sought.
            kept: Whether the planned counts keep the promise.
            most_times: More than so many times the planned ones are not asked for.
            fewer: Whether a pool may come out with fewer than planned.
        """
        denser = at_cap(traffic, self._question)

        @cache
        def enough(counts: Counts) -> bool:
            some = system.with_counts(counts)
            found = kept if counts == self._planned else some.judged(self._replays, traffic).kept
            return found and (denser is None or some.judged(self._replays, denser).kept)

        plenty = self._planned if enough(self._planned) else plenty_of(enough, self._planned, most_times)
        if plenty is None:
            return None
        usd = tuple(sized.price_usd_per_hour / sized.replica_count for sized in self._own)
        least = least_counts(enough, plenty, self._planned)
        if not fewer:
            least = tuple(map(max, least, self._planned))
        return cheapest_between(enough, least, plenty, usd)

    def _prices(self) -> Iterator[SensitivityCase]:
        planned = tuple(sized.replica_count for sized in self._kinds)
        ends = (
            ("lowest", [sized.price_low_usd_per_gpu_hour for sized in self._kinds]),
            ("highest", [sized.price_high_usd_per_gpu_hour for sized in self._kinds]),
        )
        if ends[0][1] == ends[1][1]:
            return
        for name, prices in ends:
            offers = " and ".join(dict.fromkeys(f"${usd:.2f}" for usd in prices))
            yield SensitivityCase(
                assumption="price",
                change=f"{name} offer, {offers} per gpu-hour",
                kept=True,
                broken=(),
                replica_count=sum(planned),
                price_usd_per_hour=sum(usd * sized.gpu_count for usd, sized in zip(prices, self._kinds, strict=True)),
                pool_replica_count=planned,
            )

    # ---- other replicas, other counts

    def _changed(self, change: Change) -> System:
        return self._system.with_kinds(change)

    def _at_band(self, power: float) -> System:
        """Steps of all pools as long as a power of their own bands makes them."""
        return _at_band(self._system, power)

    def _keeps(self, system: System) -> bool:
        return system.judged(self._replays, self._searched).kept

    def bought(self, counts: Counts) -> tuple[Sized, ...] | None:
        """So many of each with their spare ones.

        Returns:
            ``None`` where no spare survives what is asked for, or zones or quota have no room for all at once.
        """
        found = housed_in(self._bare(counts), self._question)
        return None if found is None else tuple(part.sized for part in found[0].parts)

    def no_room(self, counts: Counts) -> str:
        """Why nobody can buy so many of each."""
        for part, count in zip(self._system.own, counts, strict=True):
            if spare_replicas(self._question, part.sized.replica, count) is None:
                return f"no number of replicas of {part.name} leaves {count} of them after what may be lost"
        return crowded((part.sized for part in self._bare(counts).own), self._question)

    def _bare(self, counts: Counts) -> System:
        """So many of each, none of them spare."""
        return self._system.with_counts(counts).with_kinds(lambda sized: replace(sized, spare_count=0))

    def _first_token_is_sure(self, counts: Counts) -> bool:
        """Whether first tokens keep their promise at the end of their own interval, which replicas do not narrow."""
        verdict = self._system.with_counts(counts).judged(self._replays, self._searched)
        wide = max(sized.replica.band.first_token_factor for sized in self._kinds)
        late = (
            result.predicted is not None and result.predicted * wide > result.promised
            for result, target in zip(verdict.peak, self._replays.slo.latency, strict=False)
            if target.metric == "ttft"
        )
        return not any(late)


def _at_band(system: System, power: float) -> System:
    def slower(sized: Sized) -> Sized:
        band = sized.replica.band.step_time_factor
        return replace(sized, replica=with_step_factor(sized.replica, band**power))

    return system.with_kinds(slower)


def _without_cache(sized: Sized) -> Sized:
    return replace(sized, replica=without_cache(sized.replica))
