"""A known event on the pools of a plan: what it takes of each, and what becomes of it on all of them together."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tokenfleet.domain.plan import PlanQuestion, Reason, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.stages import Call
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Happening, World
from tokenfleet.planner.answer import cheapest
from tokenfleet.planner.letting_go import LetGo, let_go, without_added
from tokenfleet.planner.lodging import crowded, housed
from tokenfleet.planner.pools_outlook import PoolsOutlook
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spike import (
    SAMPLE_S,
    Endured,
    Event,
    all_through,
    around_with_rows,
    ended_s,
    endured,
    event_with_rows,
)
from tokenfleet.planner.splits import question_to
from tokenfleet.planner.systems import SizedPool, System, in_place, requests_of_pool, seen_of
from tokenfleet.planner.traffic import FOLLOWING_REQUESTS, Traffic
from tokenfleet.planner.warming import Warmed, warmed

_MARGIN = 4
"""Where pools depend on each other, at most so many times the planned ones times the event's factor are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeeds:
    """What an event takes of one pool."""

    name: str
    who: str
    """Whom it serves, in words."""
    usual: Sized
    request_count: int
    """Requests that come to it in the event."""
    usual_request_count: int
    input_tokens: int
    output_tokens: int
    needed: Sized | None
    """So many of the same replicas keep the promise through it; ``None`` where no number does."""
    reasons: tuple[Reason, ...]
    """Why there is none."""
    warm: Warmed | None
    """See :func:`tokenfleet.planner.warming.warmed`."""
    warming_is_asked: bool = True
    """Whether warming was tried; it is not in pools that somebody named."""

    @property
    def added_replica_count(self) -> int:
        """Replicas on top of the usual ones."""
        return 0 if self.needed is None else max(0, self.needed.replica_count - self.usual.replica_count)

    @property
    def added_gpu_count(self) -> int:
        """Their GPUs; those that they share count where they belong."""
        each = 0 if self.usual.beside is not None else self.usual.replica.deployment.layout.gpu_count
        return self.added_replica_count * each


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSpike:
    """What an event takes of pools. Times and promises are those of the whole, through all pools."""

    event: Event
    usual: Endured
    """All pools as they are planned, with all their replicas."""
    pools: tuple[PoolNeeds, ...]
    endured: Endured | None
    """The carrying replicas of every pool's needed fleet; ``None`` where one has none."""
    late: Endured | None
    """All replicas of the needed fleets, those that were added asked for only when it begins."""
    let_go: LetGo | None
    """When those who carry what the usual ones cannot may go; ``None`` where there are none, or nobody knows when."""
    utilization_cap_fraction: float | None = None
    """The cap of all pools that the needed ones keep at the peak of the event; ``None``: none, or not one of all."""


def spike_of_pools(
    question: PlanQuestion,
    trace: Trace,
    usual: System,
    who: Mapping[str, str],
    event: Event,
    *,
    ready_after_s: Mapping[str, float],
    progress: Progress | None = None,
) -> PoolsSpike:
    """Sizes every pool of a plan for an event, and says what the usual ones would make of it.

    Pools side by side are sized like the pools of a plan, each by the promise to its own requests; where one prefills
    and one decodes, and where somebody named the pools, counts of all are sought together.

    Args:
        question: The promise, what may be lost.
        trace: The usual demand.
        usual: The pools that are planned for it.
        who: Whom each serves, in words.
        event: When, how long, how much.
        ready_after_s: How long a start takes in each pool, to see what asking too late does.
        progress: Told what is being tried.

    Raises:
        BadInput: an event outside of the trace.
    """
    surged, rows = event_with_rows(trace, event)
    usual_traffic, usual_part = around_with_rows(trace, event)
    traffic, part = around_with_rows(surged, event)
    longer, longer_part = around_with_rows(surged, event, following_count=FOLLOWING_REQUESTS)
    way = usual.way
    if way is not None:
        everybody = np.arange(trace.request_count)
        for made, copied in (
            (usual_traffic, everybody[usual_part]),
            (traffic, rows[part]),
            (longer, rows[longer_part]),
        ):
            way = way.of_copies(trace, made.trace, copied)
    asked = replace(question, splits=(), apart=None)
    work = _Work(asked, traffic, longer, event, replace(usual, way=way), Reporter(progress), progress)
    work.reporter.say("verifying", f"the event on {len(usual.parts)} pools", 0.1)
    as_is = work.endured(work.system, spare=True)
    found = work.sized_together(as_is) if work.depend else work.sized()
    needed = None if any(sized is None for sized, _ in found) else work.with_fleets([sized for sized, _ in found])
    carried = None if needed is None else work.endured(needed, spare=False)
    return PoolsSpike(
        event=event,
        usual=as_is,
        pools=tuple(
            _needs(work, who[part.name], part, usual_traffic, each, needed)
            for part, each in zip(work.system.parts, found, strict=True)
        ),
        endured=carried,
        late=None if needed is None else work.asked_late(needed, ready_after_s),
        let_go=None if needed is None or carried is None else work.let_go(needed, carried),
        utilization_cap_fraction=question.utilization_cap_fraction,
    )


_Found = tuple[Sized | None, tuple[Reason, ...]]


@dataclass(frozen=True, slots=True)
class _Work:
    question: PlanQuestion
    traffic: Traffic
    longer: Traffic
    """With more of what follows the event, to see when it is over."""
    event: Event
    system: System
    reporter: Reporter
    progress: Progress | None

    @property
    def replays(self) -> Replays:
        """The door to the simulator."""
        return Replays.of(self.question)

    @property
    def depend(self) -> bool:
        """Whether what one pool needs hangs on the others."""
        return self.system.handover is not None or self.system.way is not None

    def sized(self) -> list[_Found]:
        """Each pool side by side for its own part of the event; all of them at once."""
        found = [self._sized(part) for part in self.system.parts]
        fleets = [sized for sized, _ in found if sized is not None]
        if len(fleets) < len(found):
            return found
        here = housed(fleets, self.question)
        if here is None:
            text = f"The pools have no room at once: {crowded(fleets, self.question)}."
            return [(None, (Reason(kind="redundancy", text=text),))] * len(found)
        return [(sized, ()) for sized, _ in here]

    def _sized(self, part: SizedPool) -> _Found:
        mine = requests_of_pool(self.traffic.trace, part.takes)
        if not mine.request_count:
            return part.sized, ()
        asked = replace(
            question_to(self.question, mine),
            candidates=(part.sized.replica,),
            rejected=(),
            vary_step_tokens=False,
            router=part.router,
            routers=(),
        )
        found = cheapest(asked, mine, progress=self.progress)
        if found.sized is None:
            return None, found.reasons
        own = Traffic(mine, self.traffic.window_s)
        return all_through(Replays.of(asked), own, asked, found.sized), ()

    def sized_together(self, as_is: Endured) -> list[_Found]:
        """Pools that depend on each other."""
        outlook = PoolsOutlook(self.system, self.replays, self.question, self.traffic, self.reporter)
        most = int(_MARGIN * self.event.factor)
        kept = as_is.kept and self.system.judged(self.replays, self.traffic).kept
        counts = outlook.needed(self.traffic, self.system, kept=kept, most_times=most)
        if counts is None:
            text = f"Not even {most} times the planned replicas of all pools keep the promise through it."
            return [(None, (Reason(kind="capacity", text=text),))] * len(self.system.parts)
        bought = outlook.bought(counts)
        if bought is None:
            carry = ", ".join(f"{count} of {part.name}" for count, part in zip(counts, self.system.own, strict=True))
            text = (
                f"Replicas that would carry it ({carry}) have no room with their spare ones: {outlook.no_room(counts)}."
            )
            return [(None, (Reason(kind="redundancy", text=text),))] * len(self.system.parts)
        return [(sized, ()) for sized in bought]

    def with_fleets(self, fleets: list[Sized | None]) -> System:
        """The pools with other numbers of their replicas."""
        parts = zip(self.system.parts, fleets, strict=True)
        return replace(self.system, parts=tuple(replace(part, sized=sized) for part, sized in parts if sized))

    def endured(self, system: System, *, spare: bool, worlds: Mapping[str, World] | None = None) -> Endured:
        """The event on these pools."""
        replays, traffic = self.replays, self.traffic
        run = system.replayed(replays, traffic, spare=spare, telemetry_interval_s=SAMPLE_S, worlds=worlds)
        gauges = [pool.record.telemetry for pool in run.pools.values()]
        waiting = [gauge.waiting.sum(axis=1) for gauge in gauges if gauge is not None]
        # Every pool is looked at in the same seconds, from the first on.
        together = np.zeros(max((len(each) for each in waiting), default=0), dtype=np.int64)
        for each in waiting:
            together[: len(each)] += each
        count = sum(pool.record.replica_count for pool in run.pools.values())
        return endured(
            system.verdict(replays, traffic, run),
            replays.slo,
            traffic,
            self.event,
            replace(seen_of(system.way, traffic, run), replica_count=count),
            int(together.max(initial=0)),
            longer=lambda: self.followed(system, spare=spare, worlds=worlds),
        )

    def followed(self, system: System, *, spare: bool, worlds: Mapping[str, World] | None) -> RunRecord:
        """The event with more of what follows it, as those see it who wait."""
        run = system.replayed(self.replays, self.longer, spare=spare, worlds=worlds)
        return seen_of(system.way, self.longer, run)

    def asked_late(self, needed: System, ready_after_s: Mapping[str, float]) -> Endured | None:
        """The needed pools, what was added to each asked for only when the event begins."""
        begins_s = self.traffic.window_s[0]
        worlds = {}
        for usual, part in zip(self.system.parts, needed.parts, strict=True):
            added = tuple(range(usual.sized.replica_count, part.sized.replica_count))
            if added:
                # Those that share GPUs are ready together.
                after_s = max(ready_after_s[each.name] for each in needed.parts if each.host == part.host)
                time_s = begins_s + after_s
                ready = Happening(time_s=time_s, kind="ready", replicas=added, reason="asked for late")
                worlds[part.name] = World(happenings=(ready,), absent=added)
        return self.endured(needed, spare=True, worlds=worlds) if worlds else None

    def let_go(self, needed: System, carried: Endured) -> LetGo | None:
        """When the carrying replicas that were added may go, those of all pools together."""
        parts = zip(self.system.parts, needed.parts, strict=True)
        counts = {part.name: (usual.sized.carrying_count, part.sized.carrying_count) for usual, part in parts}
        grown = {name: each for name, each in counts.items() if each[0] < each[1]}
        if not grown:
            return None

        def replay(at_s: float | None) -> RunRecord:
            made = {name: without_added(None, at_s, *each) for name, each in grown.items()}
            worlds = {name: world for name, world in made.items() if world is not None}
            return self.followed(needed, spare=False, worlds=worlds)

        end_s = ended_s(self.longer, self.event)
        return let_go(replay, self.replays.slo, ended_s=end_s, settled_after_s=carried.settled.after_s)


def _needs(work: _Work, who: str, part: SizedPool, usual: Traffic, found: _Found, needed: System | None) -> PoolNeeds:
    sized, reasons = found
    requests, inputs, outputs = _asked(work, work.traffic, part)
    return PoolNeeds(
        name=part.name,
        who=who,
        usual=part.sized,
        request_count=requests,
        usual_request_count=_asked(work, usual, part)[0],
        input_tokens=inputs,
        output_tokens=outputs,
        needed=sized,
        reasons=reasons,
        warm=None if needed is None or sized is None else _warmed(work, part, sized, needed),
        warming_is_asked=work.system.way is None,
    )


def _asked(work: _Work, traffic: Traffic, part: SizedPool) -> tuple[int, int, int]:
    """Requests of a pool, and their tokens, that arrive in the event."""
    if work.system.way is not None:
        return _called(work, traffic, part)
    mine = requests_of_pool(traffic.trace, part.takes)
    inside = (mine.arrival_s >= traffic.window_s[0]) & (mine.arrival_s < traffic.window_s[1])
    inputs, outputs = (int(each[inside].sum(dtype=np.int64)) for each in (mine.input_tokens, mine.output_tokens))
    return int(inside.sum()), inputs, outputs


def _called(work: _Work, traffic: Traffic, part: SizedPool) -> tuple[int, int, int]:
    """Requests that arrive in the event and come to a pool that somebody named, and the tokens of all their calls."""
    sent, pools = work.system.through(traffic.trace, work.system.fleets(spare=True))
    call = next(stage for stage in pools.stages if isinstance(stage, Call) and stage.pool == part.name)
    mine = call.takes & (sent.arrival_s >= traffic.window_s[0]) & (sent.arrival_s < traffic.window_s[1])
    inputs, outputs = (int(each[mine].sum(dtype=np.int64)) for each in (call.input_tokens, call.output_tokens))
    return int(mine.sum()), call.call_count * inputs, call.call_count * outputs


def _warmed(work: _Work, part: SizedPool, sized: Sized, needed: System) -> Warmed | None:
    """What warming does to a pool's own requests; of two that depend on each other only one has prompts to warm.

    Prompts that are sent ahead have no task and no tenant, so nobody knows to which of several named pools they go.
    """
    if needed.way is not None:
        return None
    mine = requests_of_pool(work.traffic.trace, part.takes)
    if not mine.request_count:
        return None
    replays = Replays.of(replace(question_to(work.question, mine), router=part.router))
    if needed.handover is not None:
        if part is not work.system.parts[0]:
            return None
        takes = {each.name: each.takes for each in needed.parts}
        fleets = needed.fleets(spare=False)
        replays = Replays.of(work.question, in_place(part.name, takes, fleets, needed.handover, replays.replay))
    return warmed(replays, Traffic(mine, work.traffic.window_s), sized.replica, sized.carrying_count)
