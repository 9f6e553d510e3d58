"""Whether the GPUs of a plan can be had: zones and gpu models, the most against quotas, the start-up budget."""

from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.app.readiness import ready
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.domain.obtainable import Obtainable
from tokenfleet.domain.plan import Plan, Sized
from tokenfleet.domain.survival import Redundancy


def obtainable(plan: Plan, scaling: AutoscalingSpec | None) -> Obtainable | None:
    """What a plan asks of whoever rents out GPUs.

    Args:
        plan: With its chosen fleet, runners-up and placement.
        scaling: How the fleet may grow, with its quota.

    Returns:
        ``None`` for a first look, and without a fleet.
    """
    chosen = plan.chosen
    if chosen is None or plan.question.first_look:
        return None
    instead = _instead(chosen, plan.runners_up)
    zone_count = 1 if plan.placement is None else max(1, len(plan.placement.by_zone))
    start = ready(plan.question.rollout.ready_after_s, chosen.replica)
    most, most_why = _most(plan, chosen, scaling)
    return Obtainable(
        assured=zone_count > 1 or bool(instead),
        why=_why(chosen.replica.deployment.gpu, zone_count, bool(instead)),
        instead=instead,
        most_gpu_count=most,
        most_why=most_why,
        allowed_gpu_count=_allowed(plan.question.redundancy, scaling),
        startup_budget_s=start.startup_budget_s,
        startup_why=f"1.5 times {start.startup_source}",
    )


def _why(gpu: str, zone_count: int, has_other: bool) -> str:
    if zone_count > 1:
        return f"the replicas stand in {zone_count} zones"
    if has_other:
        return f"one zone, and a fleet of another gpu model keeps the promise where there is no {gpu}"
    return (
        f"one zone and one gpu model: on the day the zone has no {gpu} nothing else is planned; name zones or more "
        "gpus, and let the scaler give up waiting"
    )


def _instead(chosen: Sized, others: tuple[Sized, ...]) -> tuple[str, ...]:
    """The cheapest fleet of each other gpu model."""
    cheapest: dict[str, Sized] = {}
    for each in sorted(others, key=lambda sized: sized.price_usd_per_hour):
        cheapest.setdefault(each.replica.deployment.gpu, each)
    cheapest.pop(chosen.replica.deployment.gpu, None)
    return tuple(
        f"{sized.gpu_count} x {gpu}, {shown_usd(sized.price_usd_per_hour)}/h" for gpu, sized in cheapest.items()
    )


def _most(plan: Plan, chosen: Sized, scaling: AutoscalingSpec | None) -> tuple[int, str]:
    """GPUs held at the worst, and what they are."""
    size, surge = chosen.replica.deployment.layout.gpu_count, plan.question.rollout.max_surge_count
    grown = scaling is not None and scaling.max > chosen.replica_count
    running = scaling.max if grown and scaling is not None else chosen.replica_count
    what = f"{running} replicas that autoscaling may start" if grown else f"{chosen.replica_count} planned"
    each = "1 GPU" if size == 1 else f"{size} GPUs"
    return (running + surge) * size, f"{what} and {surge} more while a version is replaced, {each} each"


def _allowed(room: Redundancy, scaling: AutoscalingSpec | None) -> int | None:
    """The least of the quota and of what all zones together hold; ``None``: neither is said."""
    quotas = room.gpu_quota_count, None if scaling is None else scaling.gpu_quota
    known = [quota for quota in quotas if quota is not None]
    limits = [zone.gpu_limit_count for zone in room.zones]
    if limits and None not in limits:
        known.append(sum(limit for limit in limits if limit is not None))
    return min(known, default=None)


def obtainable_lines(found: Obtainable) -> list[str]:
    """The same for a person."""
    capacity = "assured" if found.assured else "not assured"
    lines = [f"capacity {capacity}: {found.why}"]
    if found.instead:
        lines.append(f"instead: {'; '.join(found.instead)}")
    allowed = "nobody says how many are allowed" if found.allowed_gpu_count is None else f"of {found.allowed_gpu_count}"
    refused = "" if found.is_allowed is not False else ": more than is allowed, the last to start are refused"
    lines.append(f"at most {found.most_gpu_count} GPUs ({found.most_why}), {allowed}{refused}")
    budget = shown_duration(found.startup_budget_s)
    return [*lines, f"a start-up probe must allow {budget} ({found.startup_why}): a shorter one kills every start"]
