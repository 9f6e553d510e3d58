"""Counts of every pool of a scenario, replayed once each."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tokenfleet import contract, planner, simulator, workload
from tokenfleet.app.pools_doors import without_gates
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_lanes import lanes_alone
from tokenfleet.app.pools_question import PoolSystem, pool_system
from tokenfleet.app.pools_run import judged
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_run import Window
from tokenfleet.app.world_question import clients_of
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.stages import Pools, StagedRun
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import Replay
from tokenfleet.planner.giving_up import given_up

Counts = tuple[int, ...]


@dataclass(slots=True)
class Tally:
    """How many counts were replayed, whatever the settings."""

    replayed_count: int = 0


_SAYS_NOTHING: Final = frozenset(
    {"name", "slo", "prices", "buy", "compare", "valid_days", "redundancy", "zones", "data_region"}
)
"""Keys of a scenario that change nothing of how requests go through its pools."""


def way_text(asked: Scenario) -> str:
    """All that the way of requests through pools hangs on, but for the demand."""
    return asked.model_dump_json(exclude=set(_SAYS_NOTHING))


class Trials:
    """One scenario with pools; counts of them are replayed once each."""

    def __init__(
        self, asked: Scenario, text: Trace, window_s: Window, tally: Tally, replay: Replay = simulator.replay
    ) -> None:
        """Look every name up.

        Args:
            asked: A scenario with ``pools``.
            text: Its demand, text alone.
            window_s: The peak.
            tally: Counts replays.
            replay: Runs the replay of one pool.

        Raises:
            BadInput: the pools do not serve the demand.
        """
        found = pool_system(asked, text)
        # Sizes keep the promise with nothing given up.
        self.system: PoolSystem = replace(found, pools=without_gates(found.pools))
        self.asked, self.text, self.window_s, self.tally = asked, text, window_s, tally
        self.replay = replay
        self._recall = planner.recall_of(replay)
        self._way = way_text(asked)
        self._slo = asked.slo.targets()
        self._clients = None if asked.clients is None else clients_of(asked)
        self._hosts = _hosts(self.system.named)
        self._seen: dict[Counts, tuple[tuple[SloResult, ...], tuple[SloResult, ...]]] = {}

    def tied(self, counts: Counts) -> Counts:
        """As many replicas of each pool beside another as that one has: one stands on the GPUs of each."""
        return tuple(counts[host] for host in self._hosts)

    def judged(self, counts: Counts) -> tuple[tuple[SloResult, ...], tuple[SloResult, ...]]:
        """The promise at the peak and over the whole run."""
        counts = self.tied(counts)
        if counts not in self._seen:
            self.tally.replayed_count += 1
            asked = self._way, counts, self.text, self.window_s, contract.without_limits(self._slo)
            peak, whole = self._recall("counts of pools", asked, partial(self._measured, counts))
            self._seen[counts] = contract.judged_again(self._slo, peak), contract.judged_again(self._slo, whole)
        return self._seen[counts]

    def _measured(self, counts: Counts) -> tuple[tuple[contract.Found, ...], tuple[contract.Found, ...]]:
        run = self.run(counts)
        peak = judged(self.system, run, self._slo, window_s=self.window_s)
        return contract.measured(peak), contract.measured(judged(self.system, run, self._slo))

    @property
    def largest(self) -> Counts:
        """The most replicas that were tried."""
        return max(self._seen, key=sum)

    def run(self, counts: Counts) -> StagedRun:
        """Replays pools of so many replicas."""
        pools = with_counts(self.system.pools, self.system.named, self.tied(counts))
        trace = self.system.trace
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        apart = self._slo.gaps_apart_in(has_lane=self.system.batch is not None)
        interval_s = max(1.0, trace.duration_s) if apart else None
        run = simulator.replay_stages(
            trace,
            pools,
            peak_window_s=self.window_s,
            telemetry_interval_s=interval_s,
            worlds=lanes_alone(self.asked, self.system.named),
            run=planner.unkept(self.replay),
        )
        return replace(run, record=given_up(run.record, self._clients))

    def broken(self, counts: Counts) -> tuple[SloResult, ...]:
        """Clauses that are not kept, over all requests and in the peak window where it has samples."""
        peak, whole = self.judged(counts)
        over_all = (each for each in whole if not each.kept and not each.says_nothing)
        return (*over_all, *(each for each in peak if not each.kept and each.sample_count))

    def enough(self, counts: Counts) -> bool:
        """Every clause is kept."""
        return not self.broken(counts)

    def with_asked(self, asked: Scenario) -> "Trials":
        """The same demand on pools of other settings."""
        return Trials(asked, self.text, self.window_s, self.tally, self.replay)


@dataclass(frozen=True, slots=True)
class Capped:
    """What a cap on the utilization of one pool asks for: demand denser by as much, the other pools in nobody's way."""

    trials: Trials
    index: int
    plenty: Counts

    def broken(self, count: int) -> tuple[SloResult, ...]:
        """Clauses that so many replicas of the pool break."""
        return self.trials.broken((*self.plenty[: self.index], count, *self.plenty[self.index + 1 :]))

    def least_count(self, start: Counts) -> int:
        """The fewest replicas that take no more of what they sustain than the cap allows."""
        return planner.least_count(self.trials.enough, self.plenty, start, self.index)


def caps_of(trials: Trials, start: Counts, cap_factor: int) -> Iterator[Capped]:
    """One for each pool with a cap that some number of replicas keeps.

    Pools on the same GPUs have the lowest of theirs: all are asked for more at once, so what their GPUs sustain is what
    they sustain together.
    """
    for index, cap_fraction in _lowest_caps(trials.system.named).items():
        denser_text = workload.grow(trials.text, 1.0 / cap_fraction)
        denser = Trials(trials.asked, denser_text, trials.window_s, trials.tally, trials.replay)
        plenty = planner.plenty_of(denser.enough, start, cap_factor)
        if plenty is not None:
            yield Capped(denser, index, plenty)


def _lowest_caps(named: Sequence[NamedPool]) -> dict[int, float]:
    """The cap of each pool with GPUs of its own, by its number: the lowest of those on them."""
    found: dict[int, float] = {}
    for host, each in zip(_hosts(named), named, strict=True):
        if each.cap_fraction is not None:
            found[host] = min(found.get(host, each.cap_fraction), each.cap_fraction)
    return found


def cap_notes(named: Sequence[NamedPool], kept: Collection[int] | None) -> Iterator[str]:
    """What a cap means on GPUs that several pools share, and caps that no number of replicas keeps, a sentence each.

    Args:
        named: The pools.
        kept: Those whose caps some number keeps; ``None``: no numbers keep the promise itself.
    """
    for index, cap_fraction in _lowest_caps(named).items():
        if kept is not None and index not in kept:
            yield (
                f"No number of replicas tried keeps {named[index].name} below its utilization_cap of "
                f"{cap_fraction:.0%}; as many are counted as keep the promise."
            )
        beside = [each.name for each in named if each.beside == named[index].name]
        if beside:
            names = ", ".join([named[index].name, *beside])
            yield f"{names} may take {cap_fraction:.0%} of what their GPUs sustain of all of them within the promise."


def with_counts(pools: Pools, named: Sequence[NamedPool], counts: Sequence[int]) -> Pools:
    """The same pools with other numbers of replicas, those that share GPUs on as many of them."""
    fleets: dict[str, Fleet] = {}
    first = 0
    for index, host in enumerate(named):
        fleets.setdefault(host.name, of_count(host.fleet, counts[index]))
        if host.beside is None and host.fleet.groups[0].berth is not None:
            fleets.update(
                {
                    each.name: _at(of_count(each.fleet, count), first)
                    for each, count in zip(named, counts, strict=True)
                    if host.name in (each.name, each.beside)
                }
            )
            first += counts[index]
    return replace(pools, fleets=fleets)


def _at(fleet: Fleet, berth: int) -> Fleet:
    return replace(fleet, groups=tuple(replace(group, berth=berth) for group in fleet.groups))


def _hosts(named: Sequence[NamedPool]) -> Counts:
    """The pool on whose GPUs each stands, by its number: itself for most."""
    numbers = {each.name: index for index, each in enumerate(named)}
    return tuple(numbers[each.beside or each.name] for each in named)


def of_count(fleet: Fleet, count: int) -> Fleet:
    """The same fleet with another number of replicas."""
    return replace(fleet, groups=tuple(replace(group, replica_count=count) for group in fleet.groups))
