"""A plan of several pools in the report: one row for each, and why some are emptier than others."""

from tokenfleet.app.full_words import rate_at
from tokenfleet.app.pooled_words import fullness, only, whom
from tokenfleet.app.report.charts import Table
from tokenfleet.app.report.naming import LIMITS, fleet_name
from tokenfleet.app.report.words import exact, percent, plural, usd
from tokenfleet.domain.plan import LimitUse, Plan, PlannedPool


def title_of(plan: Plan) -> str:
    """What to buy: ``3 replicas of l40s (fp8) for short and 2 of h100_sxm (fp8) for long``."""
    if plan.stages:
        gpus = sum(sized.gpu_count for sized in plan.fleets)
        return f"{plural(gpus, 'GPU')} for {plural(len(plan.pools), 'pool')}"
    return " and ".join(f"{fleet_name(only(pool))} for {pool.name}" for pool in plan.pools)


def pools_table(plan: Plan) -> Table | None:
    """Whom each pool serves, with what, what binds it and how full it is; nothing for a plan of one fleet."""
    if not plan.pools:
        return None
    whose = "the whole demand" if plan.stages else "each pool"
    return Table(
        head=("Pool", "Serves", "Fleet", "Carrying + spare", "Price", "Binds first", "Next", "Full at the peak"),
        rows=tuple(_row(plan, pool) for pool in plan.pools),
        numeric=frozenset({3, 4, 7}),
        caption=f"Rates are those of {whose}; full: of what all its replicas could do with a queue that never empties",
    )


def _row(plan: Plan, pool: PlannedPool) -> tuple[str, ...]:
    sized, full = only(pool), fullness(pool)
    part = pool.takes is not None or pool.request_fraction < 1.0
    share = f", {percent(pool.request_fraction)} of requests" if part else ""
    binding, following = (*map(_limit, pool.plan.limits[:2]), "not found", "not found")[:2]
    return (
        pool.name,
        f"{', '.join(whom(plan, pool)) or pool.name}{share}",
        fleet_name(sized),
        f"{exact(sized.carrying_count)} + {exact(sized.spare_count)}",
        f"{usd(sized.price_usd_per_hour)}/h",
        binding,
        following,
        "not known" if full is None else percent(full.peak_fraction),
    )


def _limit(use: LimitUse) -> str:
    return f"{LIMITS[use.limit][0]} at {rate_at(use)}/s"
