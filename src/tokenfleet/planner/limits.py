"""What binds, and what binds next, found by lifting one limit after the other and replaying.

The traffic is made denser until the carrying replicas break the promise: the largest load they keep is where the
binding limit binds. Which one that is, is asked by experiment: each limit is lifted sixteenfold on its own; the one
whose absence lets the fleet carry the most is the binding one. It stays lifted and the question is asked again: the
load that is then reached is where the next limit binds; the others bind there or later. A resource that is full but
does not cost a promise does not bind; one that is half used and breaks ITL does.
"""

import math
from collections.abc import Callable
from functools import partial

from tokenfleet import catalog, performance
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import Does, Limit, LimitUse
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics, StepShares
from tokenfleet.domain.run import RunRecord
from tokenfleet.planner import words
from tokenfleet.planner.lifting import SharesOfStep, applicable, lifted, share_s
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Demand, Traffic, at_load, demand

_PS = 1e-12
_ROUNDS = 2
_LOWEST_LOAD = 1.0 / 4.0
_STRIDE = 1.25
_CLEARLY_MORE = 1.04
_PLAINLY_MORE = 1.5
"""Without which limit a fleet carries so much more is known: it is not asked how much more still."""
_TELEMETRY_SAMPLES_IN_WINDOW = 50


@dataclass(frozen=True, slots=True)
class Load:
    """The largest load at which a promise is kept, as a multiple of the peak."""

    factor: float
    at_least: bool
    """Nothing broke up to here, where the search stopped."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak window on the carrying replicas, as their gauges show it. Of the fullest replica."""

    kv_fraction: float
    running_count: int
    mean_running_count: float
    """Mean over the window and the replicas."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All of it."""

    uses: tuple[LimitUse, ...]
    sustained: Load | None
    """``None`` when the promise is not kept at any load tried."""
    peak: Peak

    def sustained_rate_per_s(self, peak_rate_per_s: float) -> float | None:
        """The largest rate that is sustained, where the peak has this one."""
        return None if self.sustained is None else self.sustained.factor * peak_rate_per_s


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads that are asked about: powers of one factor, so that another limit asks about the same ones again."""

    steps_per_stride: int
    """So many of them are a factor of 1.25."""

    @classmethod
    def within(cls, precision: float) -> "Loads":
        """Those that lie at most a factor of ``precision`` apart."""
        return cls(math.ceil(math.log(_STRIDE) / math.log(precision)))

    def factor(self, step: int) -> float:
        """The load of a step, as a multiple of the peak; 1 of step 0."""
        return math.pow(_STRIDE, step / self.steps_per_stride)

    def step_at_least(self, factor: float) -> int:
        """The first step whose load is no less."""
        return math.ceil(math.log(factor) / math.log(_STRIDE) * self.steps_per_stride - 1e-9)

    @property
    def highest(self) -> int:
        """The last step up to the highest load."""
        return -self.lowest

    @property
    def lowest(self) -> int:
        """The first step from the lowest load on."""
        return self.step_at_least(_LOWEST_LOAD)

    def largest_kept(self, keeps: Callable[[float], bool], start: int, highest: int | None = None) -> Load | None:
        """The largest of these loads that ``keeps`` the promise where the next one breaks it.

        Strides by a quarter away from ``start``, which is asked first, then bisects.

        Args:
            keeps: Asked with a load.
            start: The step to begin with.
            highest: The last step to ask; that of all loads unless given.

        Returns:
            ``None`` when even the lowest load breaks it.
        """
        top = self.highest if highest is None else highest
        good, bad = self._upwards(keeps, start, top) if keeps(self.factor(start)) else self._downwards(keeps, start)
        if good is None:
            return None
        if bad is None:
            return Load(self.factor(good), True)
        while bad - good > 1:
            middle = (good + bad) // 2
            if keeps(self.factor(middle)):
                good = middle
            else:
                bad = middle
        return Load(self.factor(good), False)

    def _upwards(self, keeps: Callable[[float], bool], good: int, highest: int) -> tuple[int, int | None]:
        while good < highest:
            probe = min(highest, good + self.steps_per_stride)
            if not keeps(self.factor(probe)):
                return good, probe
            good = probe
        return good, None

    def _downwards(self, keeps: Callable[[float], bool], bad: int) -> tuple[int | None, int]:
        while bad > self.lowest:
            probe = max(self.lowest, bad - self.steps_per_stride)
            if keeps(self.factor(probe)):
                return probe, bad
            bad = probe
        return None, bad


class LimitSearch:
    """Asks one fleet what stops it."""

    def __init__(
        self,
        replays: Replays,
        traffic: Traffic,
        model: ModelArchitecture,
        count: int,
        reporter: Reporter,
        precision: float,
        does: Does = "answers",
        calls: Traffic | None = None,
        known_kept: float = 0.0,
    ) -> None:
        """Nothing is replayed yet; ``known_kept`` is a load that these replicas are known to keep."""
        self._known_kept = known_kept
        self._does = does
        self._calls = calls
        self._replays = replays
        self._traffic = traffic
        self._model = model
        self._count = count
        self._reporter = reporter
        self._loads = Loads.within(precision)
        self._grown: dict[float, Traffic | None] = {}
        # Replicas are kept beside their number, so that nobody else gets their id.
        self._broken: dict[tuple[int, float], tuple[ReplicaPhysics, tuple[str, ...]]] = {}

    def of(self, replica: ReplicaPhysics) -> Limits:
        """Finds the limits of ``count`` replicas of this kind, tightest first."""
        peak, used = self._at_peak(replica)
        sustained = self._loads.largest_kept(partial(self._keeps, replica), 0)
        if sustained is not None and sustained.factor < self._known_kept:
            sustained = Load(self._known_kept, False)
        uses = () if sustained is None else self._chain(replica, sustained, used)
        return Limits(uses, sustained, peak)

    def _chain(self, replica: ReplicaPhysics, load: Load, used: dict[Limit, float]) -> tuple[LimitUse, ...]:
        shares = self._shares_of_step(replica)
        rate_per_s = demand(self._traffic, caching=False).rate_per_s
        waiting = sorted(applicable(replica, self._does), key=lambda limit: (-used[limit], limit))
        uses: list[LimitUse] = []

        def note(limit: Limit, at_least: bool) -> None:
            rate = load.factor * rate_per_s
            broken = () if at_least else self._first_broken(replica, load)
            uses.append(
                LimitUse(
                    limit=limit,
                    used_fraction=used[limit],
                    rate_at_limit_per_s=rate,
                    at_least=at_least,
                    broken=broken,
                )
            )

        while waiting and len(uses) < _ROUNDS and not load.at_least:
            highest = self._loads.highest
            if uses:
                # Where the others bind is not asked, so neither is it how far the second reaches.
                highest = min(highest, self._loads.step_at_least(load.factor * _PLAINLY_MORE))
            binding, beyond = self._binding({limit: lifted(replica, limit, shares) for limit in waiting}, load, highest)
            note(binding, at_least=False)
            waiting.remove(binding)
            replica, load = lifted(replica, binding, shares), beyond
        for limit in waiting:
            note(limit, at_least=True)
        return tuple(uses)

    def _binding(self, without: dict[Limit, ReplicaPhysics], load: Load, highest: int) -> tuple[Limit, Load]:
        """The limit whose absence lets the fleet carry the most, and how much that is, up to the ``highest`` step.

        Whoever does not beat the best so far by 4 % is out after one replay; of equals the fuller resource, which
        comes first, is named.
        """
        binding, best = next(iter(without)), load
        for limit, replica in without.items():
            start = self._loads.step_at_least(best.factor * _CLEARLY_MORE)
            if start <= highest and self._keeps(replica, self._loads.factor(start)):
                found = self._loads.largest_kept(partial(self._keeps, replica), start, highest)
                binding, best = limit, found or best
        return binding, best

    def _keeps(self, replica: ReplicaPhysics, factor: float) -> bool:
        if (id(replica), factor) not in self._broken:
            self._reporter.say("limits", f"{words.fleet(replica, self._count)} at {factor:.2f} x the peak", 0.7)
            if factor not in self._grown:
                self._grown[factor] = at_load(self._traffic, factor)
            denser = self._grown[factor]
            # Of no request at all nothing is shown, so nothing is kept.
            if denser is None:
                return False
            # Stopped where the peak breaks it, else held against all requests too: a queue may grow after the peak.
            verdict = self._replays.quick(denser, replica, self._count, peak_only=True)
            names = tuple(result.name for result in verdict.broken)
            self._broken[id(replica), factor] = replica, names
        return not self._broken[id(replica), factor][1]

    def _first_broken(self, replica: ReplicaPhysics, load: Load) -> tuple[str, ...]:
        """Clauses that break at the lowest load asked beyond the one that is kept."""
        beyond = [asked for number, asked in self._broken if number == id(replica) and asked > load.factor]
        return self._broken[id(replica), min(beyond)][1] if beyond else ()

    def _shares_of_step(self, replica: ReplicaPhysics) -> SharesOfStep:
        known: dict[int, StepShares] = {}

        def shares(token_count: int) -> StepShares:
            if token_count not in known:
                known[token_count] = self._step_shares(replica, token_count, 0, 0, 0)
            return known[token_count]

        return shares

    def _step_shares(
        self, replica: ReplicaPhysics, token_count: int, sequence_count: int, context_tokens: int, pair_count: int
    ) -> StepShares:
        if self._does == "sees":
            step_s = float(replica.step_time.token_ps[token_count]) * _PS
            return StepShares(step_s=step_s, compute_s=step_s, bandwidth_s=0.0, communication_s=0.0, overhead_s=0.0)
        deployment = replica.deployment
        return performance.step_shares(
            self._model,
            catalog.gpu(deployment.gpu),
            deployment,
            token_count=token_count,
            sequence_count=sequence_count,
            context_tokens=context_tokens,
            pair_count=pair_count,
            prefill=pair_count > 0,
        )

    def _at_peak(self, replica: ReplicaPhysics) -> tuple[Peak, dict[Limit, float]]:
        """Gauges and used shares of each resource in the peak window."""
        interval_s = self._traffic.window_length_s / _TELEMETRY_SAMPLES_IN_WINDOW
        record = self._replays.run(self._traffic, replica, self._count, telemetry_interval_s=interval_s)
        peak = peak_gauges(record, self._traffic.window_s)
        used = self._time_used(replica, peak)
        used["kv_memory"] = peak.kv_fraction
        used["sequence_slots"] = peak.running_count / replica.deployment.engine.max_sequence_count
        return peak, used

    def _time_used(self, replica: ReplicaPhysics, peak: Peak) -> dict[Limit, float]:
        """Share of each second that a replica spends on each resource in the window, from its two kinds of steps.

        Decoded tokens per second over mean sequences gives steps per second; as many of them as the prompts that
        arrive meanwhile need carry a chunk, the others only decode.
        """
        wanted = self._wanted(replica)
        rate_per_s = wanted.rate_per_s / self._count
        running = max(1.0, peak.mean_running_count)
        engine = replica.deployment.engine
        steps_per_s = rate_per_s * max(1.0, wanted.mean_output_tokens) / running / engine.mean_step_tokens
        budget = min(engine.max_batched_tokens, len(replica.step_time.token_ps) - 1)
        sequences = max(1, min(round(running), (budget - 1) // engine.step_token_count))
        decoded = sequences * engine.step_token_count
        fresh, prompt = float(wanted.input_tokens.mean()), float(wanted.context_tokens.mean())
        chunk = max(1, min(round(fresh), budget - decoded))
        chunks_per_s = rate_per_s * fresh / chunk
        read = round(sequences * (prompt + wanted.mean_output_tokens / 2))
        pairs = round(chunk * (prompt - fresh / 2))
        mixed = self._step_shares(replica, decoded + chunk, sequences, read, pairs)
        plain = self._step_shares(replica, decoded, sequences, read, 0)
        plain_per_s = max(0.0, steps_per_s - chunks_per_s)
        limits: tuple[Limit, ...] = ("prefill_compute", "decode_bandwidth", "communication", "overhead")
        return {
            limit: min(1.0, chunks_per_s * share_s(mixed, limit) + plain_per_s * share_s(plain, limit))
            for limit in limits
        }

    def _wanted(self, replica: ReplicaPhysics) -> Demand:
        """What the fleet is asked in the peak window, or what its pool is."""
        asked = self._calls or self._traffic
        return demand(asked, caching=replica.deployment.engine.prefix_caching).part_of(self._does)


def peak_gauges(record: RunRecord, window_s: tuple[float, float]) -> Peak:
    """Reads the gauges of the peak window off a record with telemetry.

    Raises:
        ValueError: the record has no telemetry, or none of its samples lies in the window.
    """
    telemetry = record.telemetry
    if telemetry is None:
        raise ValueError("a record without telemetry has no gauges")
    inside = (telemetry.time_s >= window_s[0]) & (telemetry.time_s < window_s[1])
    if not inside.any():
        raise ValueError("no sample in the peak window")
    running = telemetry.running[inside]
    return Peak(
        kv_fraction=float(telemetry.kv_used_fraction[inside].max()),
        running_count=int(running.max()),
        mean_running_count=float(running.mean()),
    )
