"""From the events of a scenario to what becomes of replicas, where several strike the same ones, too."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.standing import nodes_of, struck
from tokenfleet.app.world_types import EventSpec
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.world import Happening


@dataclass(frozen=True, slots=True)
class _Spell:
    """An event and the replicas that it strikes, up to its end."""

    event: EventSpec
    who: tuple[int, ...]

    @property
    def end_s(self) -> float:
        return math.inf if self.event.back_after is None else self.event.at + self.event.back_after

    def covers(self, replica: int, time_s: float) -> bool:
        return replica in self.who and self.event.at <= time_s < self.end_s


def happenings_of(
    asked: Scenario,
    fleet: Fleet,
    pool: str | None = None,
    others: Sequence[Happening] = (),
    *,
    replaces: bool = False,
) -> tuple[Happening, ...]:
    """The events of a scenario, each with its end, and what else becomes of its fleet, in order of time.

    A replica serves again when the last of the events that took it away has ended, and not before it was ready.

    Args:
        asked: The scenario.
        fleet: With as many replicas as there may ever be.
        pool: Those of this pool alone; ``None``: the scenario has one fleet.
        others: What becomes of replicas besides.
        replaces: An autoscaler brings what is lost for good, so that it is there for later events.

    Raises:
        BadInput: an event at a replica, a node or a zone that the fleet does not have; all of them at once.
    """
    spells = sorted(_spells(asked, fleet, pool), key=lambda each: each.event.at)
    away = [each for each in spells if each.event.what != "slow"]
    slow = [each for each in spells if each.event.what == "slow"]
    found = [_begin(spell) for spell in spells]
    for spell in away:
        keeping = [each for each in away if not replaces or each.end_s < math.inf or each.event.at >= spell.event.at]
        found += _ends(spell, keeping, others)
    found += [usual for spell in slow for usual in _speeds(spell, slow)]
    found += [late for each in others for late in _put_off(each, away)]
    return tuple(sorted(found, key=lambda each: each.time_s))


def kept_away(asked: Scenario, fleet: Fleet, pool: str | None) -> Callable[[int, float], float]:
    """When a replica may serve from a moment on, for what the events of a scenario do to it; ``inf``: never.

    Args:
        asked: The scenario.
        fleet: With as many replicas as there may ever be.
        pool: Whose replicas these are; ``None``: the scenario has one fleet.

    Raises:
        BadInput: as :func:`happenings_of`.
    """
    spells = sorted(_spells(asked, fleet, pool), key=lambda each: each.event.at)
    away = [each for each in spells if each.event.what != "slow"]
    return lambda replica, time_s: _free_s(replica, time_s, away)


def _spells(asked: Scenario, fleet: Fleet, pool: str | None) -> list[_Spell]:
    own = [(f"events[{index}]", event) for index, event in enumerate(asked.events) if event.pool == pool]
    numbered = [(where, event) for where, event in own if event.what != "rollout"]
    nodes = nodes_of(asked, fleet) if numbered else ()
    found = [(event, struck(event, where, nodes)) for where, event in numbered]
    wrong = [who for _, who in found if isinstance(who, Problem)]
    if wrong:
        raise BadInput(wrong)
    return [_Spell(event, who) for event, who in found if not isinstance(who, Problem)]


def _begin(spell: _Spell) -> Happening:
    event = spell.event
    if event.what == "rollout":
        raise ValueError("a rollout changes all replicas of a pool")
    return Happening(
        time_s=event.at,
        kind=event.what,
        replicas=spell.who,
        step_time_factor=event.factor,
        reason=f"{event.place}as the scenario says",
    )


def _ends(spell: _Spell, away: Sequence[_Spell], others: Sequence[Happening]) -> Iterator[Happening]:
    """Who is back at the end of an event: those that nothing else keeps away."""
    back = tuple(
        replica
        for replica in spell.who
        if spell.end_s < math.inf
        and _free_s(replica, spell.end_s, away) == spell.end_s
        and not any(_takes_away(each, replica, spell) for each in others)
    )
    if back:
        yield Happening(time_s=spell.end_s, kind="back", replicas=back, reason=_said(spell))


def _takes_away(other: Happening, replica: int, spell: _Spell) -> bool:
    """Whether a replica fails for another reason during an event, or is not ready for the first time by its end."""
    if replica not in other.replicas:
        return False
    if other.kind == "ready":
        return spell.end_s < other.time_s
    return other.kind == "fail" and spell.event.at <= other.time_s <= spell.end_s


def _speeds(spell: _Spell, slow: Sequence[_Spell]) -> Iterator[Happening]:
    """What a replica is slowed by when an event ends: by the last of those that go on, or by none."""
    if spell.end_s == math.inf:
        return
    for replica in spell.who:
        factors = [each.event.factor for each in slow if each.covers(replica, spell.end_s)]
        yield Happening(
            time_s=spell.end_s,
            kind="slow",
            replicas=(replica,),
            step_time_factor=factors[-1] if factors else 1.0,
            reason=_said(spell),
        )


def _put_off(other: Happening, away: Sequence[_Spell]) -> Iterator[Happening]:
    """What else becomes of replicas; who would be ready while an event keeps it away is so when that ends."""
    if other.kind != "ready":
        yield other
        return
    for replica in other.replicas:
        time_s = _free_s(replica, other.time_s, away)
        if time_s < math.inf:
            yield replace(other, time_s=time_s, replicas=(replica,))


def _free_s(replica: int, time_s: float, away: Sequence[_Spell]) -> float:
    """When a replica may serve from a moment on: once none of the events in order of time keeps it away."""
    for spell in away:
        if spell.covers(replica, time_s):
            time_s = spell.end_s
    return time_s


def _said(spell: _Spell) -> str:
    return f"{spell.event.place}back, as the scenario says"
