"""Demand as it was at this time of the day and of the week: what a controller has counted itself, and nothing else.

Arrivals are added up in slots of five minutes. The forecast is seasonal naive: what came a week before, or a day before
while no week has been seen, times how the last slots compare with theirs then.
"""

from dataclasses import replace

from tokenfleet.domain.records import dataclass

SLOT_S = 300.0
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
_KEPT_COUNT = round(WEEK_S / SLOT_S) + round(DAY_S / SLOT_S)
_RECENT_COUNT = 3
"""Slots by which now is compared with then: a quarter of an hour."""
_ERROR_COUNT = 12
_LARGEST_RATIO = 2.0
"""Now counts as twice as busy as then at most, or half as busy at least: more is no season but news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seasons:
    """Arrivals so far, slot by slot."""

    first_slot: int = 0
    """Number of the first slot that is kept; slot 0 begins at second 0."""
    rates_per_s: tuple[float | None, ...] = ()
    """Arrivals per second in each finished slot; ``None`` where a part of it was not seen."""
    slot: int | None = None
    """The slot under way; ``None`` before the first tick."""
    arrived_count: int | None = 0
    """Arrivals in it so far."""

    def rate_at(self, time_s: float) -> float | None:
        """Arrivals per second in the slot of a time, if it is over and was seen whole."""
        place = int(time_s // SLOT_S) - self.first_slot
        return self.rates_per_s[place] if 0 <= place < len(self.rates_per_s) else None


def counted(time_s: float, arrived_count: int | None, before: Seasons) -> Seasons:
    """What is known after one more tick.

    Args:
        time_s: The tick.
        arrived_count: Arrivals since the tick before; they count in the slot in which the tick before lies. ``None``:
            nobody knows.
        before: What was known.
    """
    slot = int(time_s // SLOT_S)
    if before.slot is None:
        return Seasons(first_slot=slot + 1, slot=slot, arrived_count=None)
    known = before.arrived_count
    total = None if known is None or arrived_count is None else known + arrived_count
    if slot == before.slot:
        return replace(before, arrived_count=total)
    ended = None if total is None else total / SLOT_S
    rates = before.rates_per_s
    if before.slot >= before.first_slot:
        rates = (*rates, ended, *(None,) * (slot - before.slot - 1))
    dropped = max(len(rates) - _KEPT_COUNT, 0)
    return Seasons(first_slot=before.first_slot + dropped, rates_per_s=rates[dropped:], slot=slot, arrived_count=0)


def seasonal_per_s(seasons: Seasons, now_s: float, then_s: float) -> tuple[float, float] | None:
    """Arrivals per second at a time to come, and the mean size of the error of such forecasts lately.

    Args:
        seasons: What has been counted.
        now_s: Now.
        then_s: The time to come, less than a day ahead.

    Returns:
        ``None`` before a day has been seen.
    """
    for period_s in (WEEK_S, DAY_S):
        past = seasons.rate_at(then_s - period_s)
        pairs = _pairs(seasons, now_s, period_s)
        if past is not None and len(pairs) >= _RECENT_COUNT:
            recent = pairs[:_RECENT_COUNT]
            was = sum(before for _, before in recent)
            ratio = sum(now for now, _ in recent) / was if was > 0.0 else 1.0
            held = min(max(ratio, 1.0 / _LARGEST_RATIO), _LARGEST_RATIO)
            return past * held, sum(abs(now - before * held) for now, before in pairs) / len(pairs)
    return None


def _pairs(seasons: Seasons, now_s: float, period_s: float) -> list[tuple[float, float]]:
    """The last slots that are over, the latest first, each with its own a period before."""
    found = []
    for back in range(1, _ERROR_COUNT + 1):
        now = seasons.rate_at(now_s - back * SLOT_S)
        before = seasons.rate_at(now_s - back * SLOT_S - period_s)
        if now is not None and before is not None:
            found.append((now, before))
    return found
