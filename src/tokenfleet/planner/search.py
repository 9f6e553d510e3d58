"""The loop over candidates: size the promising ones by replay, show the others too dear."""

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace

from tokenfleet.domain.plan import Outpriced, PlanQuestion, Reason, Rejected, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import SloResult
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Candidate, Failure, Family, family
from tokenfleet.planner.capped import UTILIZATION_CAP, at_cap, keeps_cap
from tokenfleet.planner.counting import CLEARLY, below_near_misses, smallest_enough, wider_count
from tokenfleet.planner.outdone import Outdone
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.redundancy import asked, largest, over_quota, quota_full, spare_of_a_part, spare_surviving
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.room import ROOM_BYTES
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.verdict import Verdict

_NEAR_BEST = 1.1
_CURIOUS = 2.0
_RUNNERS_UP = 3
_SECONDS = 6
"""So many candidates are sized at any price where nobody else was."""
_CAP_OVER_ESTIMATE = 16
_HAIR = 1e-9
_PRICE_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Answer:
    """A sized candidate and the replay it rests on."""

    candidate: Candidate
    sized: Sized
    verdict: Verdict
    spare_share: float = 0.0
    """Spare replicas that a part of the demand pays for, where it is sized without any."""

    @property
    def rank(self) -> tuple[float, float, float, str]:
        """Cheaper first, then fewer gpus, then more margin to the tightest clause, then by name."""
        sized = self.sized
        gpus = sized.replica.deployment.layout.gpu_count * (sized.replica_count + self.spare_share)
        price = self.candidate.usd_per_replica_hour * (sized.replica_count + self.spare_share)
        # Of prices that differ by rounding none is cheaper.
        return round(price, _PRICE_DIGITS), gpus, self.verdict.tightness, self.candidate.name


def capacity_reasons(replica: ReplicaPhysics, count: int, verdict: Verdict) -> tuple[Reason, ...]:
    """What breaks although there are ``count`` of a replica, clause by clause."""
    fleet = words.fleet(replica, count)
    return tuple(Reason(kind="capacity", text=f"Even {fleet}: {verdict.said(result)}.") for result in verdict.broken)


def _wider(candidate: Candidate, count: int, most: int) -> int:
    """A round number a little above ``count``; ``count`` where it is one, or where that would be more than ``most``.

    Of a candidate that the formula doubts, far above: more of it will hardly do, and another price, spare replica or
    context asks for no more than was shown already.
    """
    wider = 1 << (2 * count - 1).bit_length() if candidate.doubtful else wider_count(count)
    return wider if wider <= most else count


def _wanted(candidate: Candidate, start: int) -> int:
    return max(start, _CAP_OVER_ESTIMATE * candidate.estimate + _CAP_OVER_ESTIMATE)


@dataclass(slots=True)
class Found:
    """What became of each candidate."""

    answers: list[Answer] = field(default_factory=list)
    """Cheapest first."""
    tried: list[Outpriced] = field(default_factory=list)
    """Those that broke the promise at the largest count worth asking."""
    failures: list[Failure] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)
    _sorted: list[Answer] = field(default_factory=list)
    _best: tuple[Answer, ...] = ()
    """Of the families among ``_sorted``."""

    def best_of_families(self) -> tuple[Answer, ...]:
        """Answers, cheapest first, each the best of all that differ only in the size of their steps."""
        # By number: equal answers are as good as one, and to tell whether they are, whole tables would be compared.
        if [*map(id, self._sorted)] != [*map(id, self.answers)]:
            best: dict[Family, Answer] = {}
            for answer in self.answers:
                best.setdefault(answer.candidate.family, answer)
            self._sorted, self._best = list(self.answers), tuple(best.values())
        return self._best

    @property
    def outpriced(self) -> tuple[Outpriced, ...]:
        """One for each family without an answer of which some candidate was too dear to size."""
        first: dict[Family, Outpriced] = {}
        for one in self.tried:
            first.setdefault(family(one.replica), one)
        answered = {family(answer.sized.replica) for answer in self.answers}
        return tuple(one for name, one in first.items() if name not in answered)

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """One for each family that keeps the promise at no count."""
        first: dict[Family, Failure] = {}
        for one in self.failures:
            first.setdefault(family(one.replica), one)
        known = {family(answer.sized.replica) for answer in self.answers}
        known |= {family(one.replica) for one in self.tried}
        return tuple(
            Rejected(
                gpu=failure.replica.deployment.gpu,
                precision=failure.replica.deployment.precision,
                tensor_parallel=failure.replica.deployment.layout.tensor_parallel,
                reasons=failure.reasons,
            )
            for name, failure in first.items()
            if name not in known
        )


def _over(cap_fraction: float) -> SloResult:
    """More than the cap is taken; how much more, nobody asked."""
    return SloResult(
        name=UTILIZATION_CAP,
        unit="fraction",
        promised=cap_fraction,
        predicted=None,
        predicted_low=None,
        predicted_high=None,
        sample_count=1,
        kept=False,
    )


class Search:
    """One search over one stretch of traffic."""

    def __init__(
        self,
        replays: Replays,
        traffic: Traffic,
        question: PlanQuestion,
        reporter: Reporter,
        *,
        ceiling_usd_per_hour: float = math.inf,
    ) -> None:
        self._replays = replays
        self._traffic = traffic
        self._question = question
        self._stands_for = question.stands_for_count
        self._losses = asked(question)
        self._reporter = reporter
        self._ceiling_usd_per_hour = ceiling_usd_per_hour
        self._done_fraction = 0.0
        self._outdone = Outdone()
        self._kin: Family | None = None
        # Traffic is kept beside its number, so that nobody else gets its id.
        self._denser: dict[int, tuple[Traffic, Traffic | None]] = {}
        self.found = Found()

    def over(self, candidates: Sequence[Candidate], *, with_second: bool = False) -> Found:
        """Sizes candidates in order of their estimated price, and proves the others too dear.

        A candidate is sized when its estimate is within a tenth of the best fleet known, or within twice while there
        are few runners-up or when it is the first of its gpu, and the formula does not doubt it. Any other is tried
        once, at the largest count that costs no more than the best fleet; of a family that has an answer, at that
        answer's count. When that breaks the promise, fewer replicas would too. ``with_second``: where that leaves the
        best fleet alone, the next best is sized whatever it costs.
        """
        seen_gpus: set[str] = set()
        # Of equal prices the one that is best at anything comes first: what it breaks, the others need not be asked.
        waiting = sorted(
            candidates,
            key=lambda one: (
                one.doubtful,
                self._price(one, one.estimate),
                one.prefill_s,
                one.decode_s,
                -one.kv_tokens,
                one.name,
            ),
        )
        while waiting:
            waiting = self._kin_first(waiting)
            self._done_fraction = 0.05 + 0.5 * (1.0 - len(waiting) / len(candidates))
            candidate = waiting.pop(self._next(waiting))
            first = candidate.replica.deployment.gpu not in seen_gpus
            seen_gpus.add(candidate.replica.deployment.gpu)
            self._look_ahead(candidate, first, waiting)
            self._try(candidate, first)
        if with_second and len(self.found.best_of_families()) == 1:
            self._find_second(candidates)
        return self.found

    def _find_second(self, candidates: Sequence[Candidate]) -> None:
        """Sizes the most promising of other families at any price, then those that may be cheaper than it."""
        best = self.found.answers[0].candidate.family
        others = [one for one in candidates if one.family != best and self._outdone.by_failure(one) is None]
        others.sort(key=lambda one: (one.doubtful, self._price(one, one.estimate), one.name))
        for candidate in others[:_SECONDS]:
            known = self.found.best_of_families()[1:]
            affordable = self._affordable(candidate, known[0].rank[0]) if known else None
            if affordable != 0:
                self.size(candidate, candidate.estimate, affordable)

    def _look_ahead(self, candidate: Candidate, first_of_its_gpu: bool, waiting: Sequence[Candidate]) -> None:
        """Foresees the first replay of this candidate and of the next few, as far as the best fleet stays the best.

        Where the last question was answered by an earlier plan, so will be the next.
        """
        if not self.found.answers or not self._replays.width or self._replays.remembers:
            return
        for one in (candidate, *waiting[: self._replays.width]):
            sizing, count = self._worth(one, first_of_its_gpu and one is candidate)
            most = self._most(one, one.estimate, self._traffic)
            asked = min(count, most) if sizing else count
            if count >= 1 and not self._outdone.fails(one) and self._outdone.by_count(one, asked) is None:
                self._replays.ahead(self._traffic, one.replica, _wider(one, asked, most), quick=True)

    def _kin_first(self, waiting: list[Candidate]) -> list[Candidate]:
        """Brings the kin of a new best fleet forward.

        Another size of step often needs far fewer of the same replica, and what the best fleet costs is what all others
        are held against.
        """
        if not self.found.answers or self.found.answers[0].candidate.family == self._kin:
            return waiting
        self._kin = self.found.answers[0].candidate.family
        return sorted(waiting, key=lambda one: one.family != self._kin)

    def _next(self, waiting: Sequence[Candidate]) -> int:
        """The first; while nobody keeps the promise, whoever prefills fastest: it rules out most."""
        if self.found.answers or not self.found.failures:
            return 0
        return min(range(len(waiting)), key=lambda index: waiting[index].prefill_s)

    def _try(self, candidate: Candidate, first_of_its_gpu: bool) -> None:
        beaten = self._outdone.by_failure(candidate)
        if beaten is not None:
            self.found.failures.append(beaten)
            return
        if not self.found.answers:
            self._size_first(candidate)
            return
        sizing, count = self._worth(candidate, first_of_its_gpu)
        if sizing:
            self.size(candidate, candidate.estimate, count)
            return
        if count < 1:
            self._note_outpriced(candidate, 0, ())
        elif not self._too_few(candidate, count):
            self.size(candidate, candidate.estimate, count)

    def _size_first(self, candidate: Candidate) -> None:
        """Sizes a candidate while nobody keeps the promise, up to the price beyond which nobody is asked."""
        if math.isinf(self._ceiling_usd_per_hour):
            self.size(candidate, candidate.estimate)
        elif (affordable := self._affordable(candidate, self._ceiling_usd_per_hour)) >= 1:
            self.size(candidate, candidate.estimate, affordable)
        else:
            self._note_outpriced(candidate, 0, ())

    def _worth(self, candidate: Candidate, first_of_its_gpu: bool) -> tuple[bool, int]:
        """Whether to size a candidate beside the best fleet known, and the largest count worth asking."""
        families = self.found.best_of_families()
        best = families[0].rank[0]
        kin = [answer.sized for answer in families if answer.candidate.family == candidate.family]
        reach = (_CURIOUS if first_of_its_gpu or len(families) < _RUNNERS_UP else _NEAR_BEST) * best
        if not kin and not candidate.doubtful and self._price(candidate, candidate.estimate) <= reach:
            return True, self._affordable(candidate, reach)
        return False, kin[0].carrying_count if kin else self._affordable(candidate, best)

    def _most(self, candidate: Candidate, start: int, traffic: Traffic) -> int:
        """The largest count to ask of a candidate: far beyond its estimate, within memory and what zones can hold."""
        most = min(_wanted(candidate, start), self._replays.most(traffic, candidate.replica))
        # Mostly nothing stands in the way, and asking about every half takes long where nodes are filled.
        if self._paid(candidate, most) is None:
            most = largest(lambda count: self._paid(candidate, count) is not None, most)
        return max(1, most)

    def size(
        self,
        candidate: Candidate,
        start: int,
        affordable: int | None = None,
        whole: Traffic | None = None,
    ) -> Answer | None:
        """Finds the smallest carrying count by replay; keeps the answer, or the reason there is none.

        Args:
            candidate: What to size.
            start: Count to begin with.
            affordable: Largest count worth asking; ``None`` when nothing is known to be cheaper.
            whole: Traffic to replay instead of the stretch searched.
        """
        verdicts: dict[int, Verdict] = {}
        traffic = whole or self._traffic

        def verdict(count: int) -> Verdict:
            if count not in verdicts:
                verdicts[count] = self.replay(candidate, count, whole)
            return verdicts[count]

        most = self._most(candidate, start, traffic)
        cap = most if affordable is None else min(most, max(1, affordable))
        if cap < most and whole is None and self._shown_too_few(candidate, cap):
            return None
        if cap < most and whole is None and self._wider_breaks(candidate, cap, most, verdict):
            return None
        # Where the most that is worth paying breaks the promise, fewer would too.
        border = None
        if affordable is None or self._may_keep(verdict(cap)):
            border = self._border(verdict, start, cap)
        if border is None and cap < most:
            self._note_broken(candidate, cap, cap, verdict(cap))
            return None
        if border is None:
            self._note_failure(candidate, cap, verdict(cap), _wanted(candidate, start))
            return None
        count = below_near_misses(lambda count: verdict(count).excess, border)
        self._note_anomalies(candidate, count, verdicts)
        return self.answered(candidate, count, verdicts[count])

    def answered(self, candidate: Candidate, count: int, verdict: Verdict) -> Answer:
        """Keeps the answer that so many carry."""
        sized = self._sized(candidate, count, verdict)
        answer = Answer(candidate, sized, verdict, self._spare_share(candidate, count))
        self.found.answers.append(answer)
        self.found.answers.sort(key=lambda one: one.rank)
        best = self.found.answers[0].sized
        price = f"${best.price_usd_per_hour:.2f}/h"
        self._reporter.best = f"{words.fleet(best.replica, best.replica_count)}, {price}"
        return answer

    def replay(self, candidate: Candidate, count: int, whole: Traffic | None = None) -> Verdict:
        """Replays the stretch searched, or ``whole``, as far as the decision needs."""
        phase = ("sizing", self._done_fraction) if whole is None else ("verifying", 0.58)
        self._reporter.say(phase[0], words.fleet(candidate.replica, count), phase[1])
        traffic = whole or self._traffic
        verdict = self._replays.quick(traffic, candidate.replica, count)
        cap = self._question.utilization_cap_fraction
        if cap is None or not verdict.kept or keeps_cap(self._replays, self._at_cap(traffic), candidate.replica, count):
            return verdict
        return replace(verdict, peak=(*verdict.peak, _over(cap)), overall=(*verdict.overall, _over(cap)))

    def _at_cap(self, traffic: Traffic) -> Traffic | None:
        if id(traffic) not in self._denser:
            self._denser[id(traffic)] = traffic, at_cap(traffic, self._question)
        return self._denser[id(traffic)][1]

    def _paid(self, candidate: Candidate, carrying_count: int) -> float | None:
        """Spare replicas that so many carrying ones make one pay for, a share of them where the demand is a part."""
        spare = spare_surviving(self._losses, candidate.replica, carrying_count * self._stands_for)
        return None if spare is None else spare / self._stands_for

    def _spare_count(self, candidate: Candidate, carrying_count: int) -> int:
        """Whole spare replicas of this stretch: none where the demand is a part."""
        return spare_of_a_part(self._question, candidate.replica, carrying_count) or 0

    def _spare_share(self, candidate: Candidate, carrying_count: int) -> float:
        return (self._paid(candidate, carrying_count) or 0.0) - self._spare_count(candidate, carrying_count)

    def _price(self, candidate: Candidate, carrying_count: int) -> float:
        paid = self._paid(candidate, carrying_count)
        return math.inf if paid is None else candidate.usd_per_replica_hour * (carrying_count + paid)

    def _affordable(self, candidate: Candidate, price: float) -> int:
        """Largest carrying count that costs at most ``price`` with the spare; 0 when there is none."""
        # The hair keeps a count whose price equals the limit but for rounding: ties are broken later.
        limit = price * (1 + 1e-12)
        most = int(limit / candidate.usd_per_replica_hour) if math.isfinite(limit) else 0
        return largest(lambda count: self._price(candidate, count) <= limit, most)

    def cheaper_than_best(self) -> "tuple[tuple[Answer, int], ...]":
        """The answer of each family, the best first, and the most of its replicas that would cost less than the best.

        0 where one already costs as much.
        """
        families = self.found.best_of_families()
        limit = families[0].rank[0] * (1 - _HAIR)
        return tuple((answer, self._affordable(answer.candidate, limit)) for answer in families)

    def _too_few(self, candidate: Candidate, count: int) -> bool:
        """Whether so many replicas break the promise, by a replay of them or of some that are no worse; it is noted."""
        if self._shown_too_few(candidate, count):
            return True
        most = self._most(candidate, candidate.estimate, self._traffic)
        if self._wider_breaks(candidate, count, most, lambda asked: self.replay(candidate, asked)):
            return True
        verdict = self.replay(candidate, count)
        if verdict.kept:
            return False
        self._note_broken(candidate, count, count, verdict)
        return True

    def _wider_breaks(self, candidate: Candidate, count: int, most: int, verdict: Callable[[int], Verdict]) -> bool:
        """Whether a round number of replicas, a few more than ``count``, breaks the promise; it is noted.

        A price or a spare replica more moves the largest count worth asking a little, and seldom the round one.
        """
        wider = _wider(candidate, count, most)
        if wider <= count or self._may_keep(verdict(wider)):
            return False
        self._note_broken(candidate, count, wider, verdict(wider))
        return True

    def _border(self, verdict: Callable[[int], Verdict], start: int, cap: int) -> int | None:
        """A count that keeps the promise where one fewer does not, ``None`` where none up to ``cap`` is found."""
        found = smallest_enough(lambda count: verdict(count).kept, start, cap)
        if found is None and self._may_keep(verdict(cap)):
            below = below_near_misses(lambda count: verdict(count).excess, cap + 1)
            return below if below <= cap else None
        return found

    def _may_keep(self, most: Verdict) -> bool:
        """Whether the most that is worth asking leaves hope for fewer, where larger counts may be worse by a hair.

        What is dearer than a known fleet is given up for a hair; below a ceiling there is no other fleet.
        """
        alone = math.isfinite(self._ceiling_usd_per_hour) and not self.found.answers
        return most.kept or (alone and most.excess <= CLEARLY)

    def _shown_too_few(self, candidate: Candidate, count: int) -> bool:
        """Whether a replay of replicas that are no worse shows it; it is noted."""
        known = self._outdone.by_count(candidate, count)
        if known is None:
            return False
        self._note_outpriced(candidate, count, tuple(each.name for each in known.clauses), known.candidate.name)
        return True

    def _note_broken(self, candidate: Candidate, count: int, asked: int, verdict: Verdict) -> None:
        """``count`` replicas are too few, as ``asked``, as many or more, are."""
        self._outdone.note_broken(candidate, asked, verdict.broken)
        self._note_outpriced(candidate, count, tuple(result.name for result in verdict.broken))

    def _note_outpriced(self, candidate: Candidate, count: int, broken: tuple[str, ...], shown_by: str = "") -> None:
        self.found.tried.append(
            Outpriced(
                replica=candidate.replica,
                failed_count=count,
                broken=broken,
                price=candidate.price.price,
                shown_by=shown_by,
            )
        )

    def _sized(self, candidate: Candidate, count: int, verdict: Verdict) -> Sized:
        return Sized(
            replica=candidate.replica,
            carrying_count=count,
            spare_count=self._spare_count(candidate, count),
            price=candidate.price.price,
            price_low_usd_per_gpu_hour=candidate.price.low_usd_per_gpu_hour,
            price_high_usd_per_gpu_hour=candidate.price.high_usd_per_gpu_hour,
            slo=verdict.peak,
        )

    def _note_failure(self, candidate: Candidate, cap: int, verdict: Verdict, wanted: int) -> None:
        reasons = capacity_reasons(candidate.replica, cap * self._stands_for, verdict)
        zones_full = cap < wanted and self._paid(candidate, cap + 1) is None
        if cap < wanted:
            reasons = (self._no_more(candidate, cap, zones_full), *reasons)
        failure = Failure(candidate.replica, cap, verdict, reasons, untried=cap < wanted, zones_full=zones_full)
        self.found.failures.append(failure)
        self._outdone.note_failure(candidate, failure)

    def _no_more(self, candidate: Candidate, cap: int, zones_full: bool) -> Reason:
        """Why more than ``cap`` were not tried."""
        fleet = self._fleet(candidate, cap)
        if zones_full and over_quota(self._question, candidate.replica, (cap + 1) * self._stands_for):
            return quota_full(self._question, fleet)
        if zones_full:
            text = f"The zones have no room for more than {fleet} beside the spare ones for what may be lost."
            return Reason(kind="redundancy", text=text, relax="a higher gpu_limit, or less redundancy")
        memory = f"{ROOM_BYTES / 2**30:g} GiB"
        return Reason(
            kind="capacity",
            text=f"More than {fleet} exceed what this machine can replay ({memory}).",
            relax="plan for a part of this demand, such as a tenth of its rate, and multiply the fleet",
        )

    def _fleet(self, candidate: Candidate, count: int) -> str:
        return words.fleet(candidate.replica, count * self._stands_for)

    def _note_anomalies(self, candidate: Candidate, count: int, verdicts: dict[int, Verdict]) -> None:
        for other in sorted(verdicts):
            if other > count and not verdicts[other].kept:
                names = ", ".join(result.name for result in verdicts[other].broken)
                self.found.anomalies.append(
                    f"{self._fleet(candidate, other)} broke {names} although {count * self._stands_for} keep the "
                    "promise."
                )
