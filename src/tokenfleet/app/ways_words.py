"""Other routers and other pools, as a person reads them beside the plan."""

from collections.abc import Iterator

from tokenfleet.app.quantities import shown_usd
from tokenfleet.domain.plan import Plan, SplitPool, SplitTrial


def ways_lines(plan: Plan) -> list[str]:
    """What came of each way that was tried; empty when nobody asked."""
    return [*_routers(plan), *(_split(trial) for trial in plan.splits)]


def _routers(plan: Plan) -> Iterator[str]:
    if not plan.routers:
        return
    first, *others = plan.routers
    yield f"router {first.router}: {first.why}"
    for trial in others:
        yield f"not {trial.router}: {trial.why}"


def _split(trial: SplitTrial) -> str:
    usd = trial.price_usd_per_hour
    if usd is None:
        where = f" ({trial.named})" if trial.named else ""
        return f"pools by {trial.by}{where}: {trial.why}"
    pools = ", ".join(_pool(pool) for pool in trial.pools)
    return f"pools by {trial.by} {trial.why}; {pools}: {shown_usd(usd)}/h"


def _pool(pool: SplitPool) -> str:
    deployment, count = pool.sized.replica.deployment, pool.sized.replica_count
    size = deployment.layout.gpu_count
    gpus = f"{size} x {deployment.gpu}" if size > 1 else deployment.gpu
    replicas = "1 replica" if count == 1 else f"{count} replicas"
    return f"{pool.name} ({pool.request_fraction:.0%} of requests) {replicas} of {gpus} ({deployment.precision})"
