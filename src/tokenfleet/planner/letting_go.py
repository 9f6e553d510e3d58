"""When the replicas that an event took may go again: what follows it, replayed without them."""

from collections.abc import Callable
from typing import Final

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.survival import Recovery
from tokenfleet.domain.world import Happening, World
from tokenfleet.planner.recovery import recovery

JUDGED_S: Final = 60.0
"""Arrivals after an event that are judged together."""
_LATER_S: Final = (0.0, 60.0, 180.0, 420.0, 900.0)
"""How long one may wait until they can go, once the queue is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """The first moment at which they can go, or the first that was tried where at none of them they can."""

    after_s: float
    """Since the last request of the event."""
    without: Recovery
    """What becomes of those who arrive from then on: kept from the start where ``after_s`` of it is 0."""


def let_go(
    replay: Callable[[float | None], RunRecord], slo: Slo, *, ended_s: float, settled_after_s: float | None
) -> LetGo | None:
    """Lets the added replicas go once the event is over, or later where those who arrive then would not be served.

    Args:
        replay: The event and what follows it; the added replicas go at a second of it, or stay.
        slo: The promise.
        ended_s: Second of its last request.
        settled_after_s: How much later the promise holds again; ``None``: not within the demand.
    """
    if settled_after_s is None:
        return None
    stayed, tried = replay(None), []
    for later_s in _LATER_S:
        after_s = settled_after_s + later_s
        gone = replay(ended_s + after_s)
        without = recovery(gone, slo, ended_s + after_s, window_s=JUDGED_S, usual=stayed)
        tried.append(LetGo(after_s=after_s, without=without))
        if without.after_s == 0.0:
            return tried[-1]
        if without.too_soon:
            break
    return tried[0]


def without_added(world: World | None, at_s: float | None, usual_count: int, count: int) -> World | None:
    """A world in which all replicas but the usual ones finish what they hold from a second on, and go."""
    if at_s is None:
        return world
    added = tuple(range(usual_count, count))
    gone = Happening(time_s=at_s, kind="stop", replicas=added, reason="the event is over")
    quiet = world or World()
    return World(happenings=(gone,), admission=quiet.admission, clients=quiet.clients)
