"""A month of the whole service: the fleet and everything beside it, line by line."""

from tokenfleet import cost
from tokenfleet.app.compare_types import BesideSpec
from tokenfleet.domain.alternatives import Service, ServiceLine
from tokenfleet.domain.plan import Bill

HOURS_PER_MONTH = 730.0
_GPUS = "gpus"
FLEET_LINES = frozenset({"cpu", "storage", "network", "engineers", "support"})
"""What an API would save along with the gpus. The others are paid whoever generates the tokens."""


def service(bill: Bill, beside: dict[str, BesideSpec], *, gpu_count: int) -> Service | None:
    """The sheet of a month of 730 hours.

    Returns:
        ``None`` where nothing beside the fleet is named. A line without a known price leaves the total unknown.
    """
    if not beside:
        return None
    gpus = cost.CostLine(
        name=_GPUS,
        quantity=gpu_count * HOURS_PER_MONTH,
        unit="gpu-hours",
        usd_per_unit=bill.total_usd_per_hour / gpu_count,
    )
    others = (
        cost.CostLine(name=name, quantity=each.quantity, unit=each.unit, usd_per_unit=each.usd)
        for name, each in beside.items()
    )
    sheet = cost.cost_sheet([gpus, *others])
    cents = sheet.cents() or {}
    total = sum(cents.values()) / 100 if cents else None
    # A request takes the same part of everything as of the gpus.
    part = bill.usd_per_request and bill.usd_per_request / (bill.total_usd_per_hour * HOURS_PER_MONTH)
    return Service(
        lines=tuple(
            ServiceLine(
                name=line.name,
                usd_per_month=cents[line.name] / 100 if cents else line.usd,
                share_fraction=sheet.share_fraction(line.name),
                stays_with_an_api=line.name != _GPUS and not _goes(line.name, beside),
            )
            for line in sheet.lines
        ),
        total_usd_per_month=total,
        known_usd_per_month=sheet.known_usd,
        unknown=sheet.unknown,
        unsaid=tuple(name for name in cost.USUAL_LINES if name not in {line.name for line in sheet.lines}),
        usd_per_request=None if total is None or not part else total * part,
    )


def hosted_usd_per_hour(bill: Bill, found: Service | None) -> float | None:
    """What an hour of hosting costs that an API would save; ``None`` where a line of it has no known price."""
    if found is None:
        return bill.total_usd_per_hour
    saved = [line.usd_per_month for line in found.lines if not line.stays_with_an_api]
    known = [usd for usd in saved if usd is not None]
    return sum(known) / HOURS_PER_MONTH if len(known) == len(saved) else None


def _goes(name: str, beside: dict[str, BesideSpec]) -> bool:
    said = beside[name].stays_with_api
    return name in FLEET_LINES if said is None else not said
