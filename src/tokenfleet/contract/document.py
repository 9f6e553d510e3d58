"""From a plan to the contract it gives."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date, timedelta
from typing import Any

import numpy as np

from tokenfleet.contract.schema import (
    FORMAT,
    ClauseResult,
    Contract,
    Cost,
    Demand,
    Drilled,
    Evidence,
    FleetSize,
    Handover,
    Hardware,
    Limits,
    Loss,
    Model,
    Pool,
    Promise,
    ReplayEvidence,
    Runtime,
    ScaleOut,
    Survives,
    Taken,
    Validity,
)
from tokenfleet.domain.plan import Bill, Plan, PlannedPool, Sized
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.stages import Handover as KvHandover
from tokenfleet.domain.survival import Drill, LossCase, LossKind
from tokenfleet.domain.trace import Workload

VALID_DAYS = 28


def contract_document(
    plan: Plan,
    workload: Workload,
    resolved: Mapping[str, object],
    *,
    made_on: date,
    valid_days: int = VALID_DAYS,
    scale_out_s: float | None = None,
    scale_out_source: str = "",
    degrade: Sequence[str] = (),
) -> dict[str, object]:
    """Writes down what a feasible plan promises, with the evidence there is.

    Args:
        plan: A plan with a chosen fleet.
        workload: Profile of the planned demand.
        resolved: What the plan was made from: ``scenario``, ``seed``, ``versions`` with ``tokenfleet``, and ``sha256``
            by what it covers (``demand`` and ``model`` among them).
        made_on: Day of the replay; the contract starts then.
        valid_days: Days until it expires.
        scale_out_s: Seconds from the decision to a ready replica; ``None`` is unknown.
        scale_out_source: Where that figure comes from.
        degrade: Steps taken above the promised load, mildest first.

    Returns:
        A document for :func:`write_contract`; keys as in :class:`tokenfleet.contract.schema.Contract`.

    Raises:
        ValueError: an infeasible plan, which has nothing to promise.
    """
    bill, degraded = plan.bill, plan.degraded
    if not plan.fleets or bill is None or degraded is None:
        raise ValueError("an infeasible plan gives no contract")
    digests = _digests(resolved)
    contract = Contract(
        contract=FORMAT,
        name=plan.question.name,
        model=Model(name=plan.question.model.name, sha256=digests["model"]),
        **(_one_fleet(plan, plan.chosen) if plan.chosen else {}),
        pools=tuple(_pool(pool, is_named=bool(plan.stages)) for pool in plan.pools),
        handover=_handover(plan.handover) if plan.handover else None,
        workload=_demand(plan, workload, degraded, digests["demand"]),
        promise=_promise(plan),
        evidence=_evidence(plan, resolved, made_on),
        survives=_survives(plan),
        scale_out=_scale_out(plan, scale_out_s, scale_out_source),
        degrade=tuple(degrade),
        cost=_cost(plan.fleets, bill),
        valid=Validity(
            since=made_on,
            until=made_on + timedelta(days=valid_days),
            void_if_changed={**digests, "scenario": digest(resolved["scenario"])},
        ),
        assumptions=plan.assumptions,
    )
    return contract.model_dump(mode="python")


def _scale_out(plan: Plan, ready_after_s: float | None, source: str) -> ScaleOut:
    """Of several pools: the slowest start, the GPUs of all of them, and whether those of each can be had."""
    asked = (plan, *(pool.plan for pool in plan.pools))
    found = [each.obtainable for each in asked if each.obtainable is not None]
    allowed = {each.allowed_gpu_count for each in found}
    return ScaleOut(
        ready_after_s=ready_after_s,
        source="unknown" if ready_after_s is None else source,
        startup_budget_s=max((each.startup_budget_s for each in found), default=None),
        most_gpu_count=sum(each.most_gpu_count for each in found) if found else None,
        # Pools share one quota and the same zones; where they do not, no one figure is that of all.
        allowed_gpu_count=next(iter(allowed)) if len(allowed) == 1 else None,
        capacity_assured=all(each.assured for each in found) if found else None,
    )


def with_drills(document: Mapping[str, object], drills: Sequence[Drill], *, made_on: date) -> dict[str, object]:
    """The contract with what drills found; a drill of the same name is replaced.

    Args:
        document: From :func:`tokenfleet.contract.read_contract`.
        drills: Results, for the fleet of the contract.
        made_on: Their day.
    """
    contract = Contract.model_validate(document)
    fresh = {
        name: Drilled(
            name=name,
            what=drill.what,
            passed=drill.passed,
            how=drill.how,
            made_on=made_on,
            clauses=_results(drill.slo),
        )
        for name, drill in ((f"{each.pool}: {each.name}" if each.pool else each.name, each) for each in drills)
    }
    kept = [drill for drill in contract.drills if drill.name not in fresh]
    return contract.model_copy(update={"drills": (*kept, *fresh.values())}).model_dump(mode="python")


def fleets_of(document: Mapping[str, object]) -> dict[str | None, tuple[str, int, int]]:
    """GPU, GPUs per replica and replicas that a contract is about, by pool; ``None``: its one fleet."""
    contract = Contract.model_validate(document)
    return {name: (gpu.name, gpu.per_replica_count, size.replica_count) for name, gpu, size in contract.fleets}


def digest(value: object) -> str:
    """SHA-256 of plain data, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _digests(resolved: Mapping[str, object]) -> dict[str, str]:
    found = resolved["sha256"]
    if not isinstance(found, Mapping):
        raise TypeError("resolved['sha256'] holds digests by name")
    return {str(name): str(value) for name, value in found.items()}


def _one_fleet(plan: Plan, chosen: Sized) -> dict[str, Any]:
    """The sections that say what runs, how many and where it ends."""
    return {
        "runtime": _runtime(chosen),
        "gpu": _hardware(chosen),
        "fleet": _fleet(chosen, plan.question.router),
        "limits": _limits(plan, chosen),
    }


def _pool(pool: PlannedPool, *, is_named: bool) -> Pool:
    (sized,) = pool.plan.fleets
    return Pool(
        name=pool.name,
        does=pool.does,
        takes=Taken(**asdict(pool.takes)) if pool.takes else None,
        serves=f"{pool.plan.question.model.name}: {pool.who}" if is_named else None,
        beside=sized.beside,
        **_one_fleet(pool.plan, sized),
        survives=_survives(pool.plan),
        usd_per_hour=sized.price_usd_per_hour,
    )


def _handover(handover: KvHandover) -> Handover:
    return Handover(
        link=handover.link.name,
        first_token=handover.first_token,
        overlap=handover.overlapped_layer_count is not None,
    )


def _runtime(chosen: Sized) -> Runtime:
    settings = asdict(chosen.replica.deployment.engine)
    name = settings.pop("name")
    speculation = settings.pop("speculation")
    # What an engine is not set to do has no lines.
    settings |= {f"speculation_{key}": value for key, value in (speculation or {}).items()}
    return Runtime(engine=name, settings=settings, sha256=digest(settings))


def _hardware(chosen: Sized) -> Hardware:
    deployment = chosen.replica.deployment
    layout = deployment.layout
    return Hardware(
        name=deployment.gpu,
        per_replica_count=layout.gpu_count,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        attention_data_parallel=layout.attention_data_parallel,
        precision=deployment.precision,
        kv_precision=deployment.kv_precision,
    )


def _fleet(chosen: Sized, router: str) -> FleetSize:
    return FleetSize(
        replica_count=chosen.replica_count,
        carrying_count=chosen.carrying_count,
        spare_count=chosen.spare_count,
        gpu_count=chosen.gpu_count,
        router=router,
    )


def _demand(plan: Plan, workload: Workload, record: RunRecord, sha256: str) -> Demand:
    inside = (record.arrival_s >= plan.peak_start_s) & (record.arrival_s < plan.peak_end_s)
    length_s = plan.peak_end_s - plan.peak_start_s
    return Demand(
        name=plan.question.name,
        sha256=sha256,
        request_count=workload.request_count,
        peak_start_s=plan.peak_start_s,
        peak_end_s=plan.peak_end_s,
        peak_rate_per_s=plan.peak_rate_per_s,
        peak_input_tokens_per_s=int(record.input_tokens[inside].sum(dtype=np.int64)) / length_s,
        peak_output_tokens_per_s=int(record.output_tokens[inside].sum(dtype=np.int64)) / length_s,
        input_tokens_p50=workload.input_tokens.p50,
        input_tokens_p95=workload.input_tokens.p95,
        input_tokens_max=workload.input_tokens.max,
        output_tokens_p50=workload.output_tokens.p50,
        output_tokens_p95=workload.output_tokens.p95,
        output_tokens_max=workload.output_tokens.max,
    )


def _promise(plan: Plan) -> Promise:
    asked = asdict(plan.question.slo)
    # Only a promise that was relaxed stretches the time to a deadline, and none such is planned.
    asked["deadlines"] = [{key: each[key] for key in each if key != "stretch_factor"} for each in asked["deadlines"]]
    return Promise.model_validate(asked)


def _evidence(plan: Plan, resolved: Mapping[str, object], made_on: date) -> Evidence:
    versions = resolved["versions"]
    if not isinstance(versions, Mapping):
        raise TypeError("resolved['versions'] holds versions by package")
    replay = ReplayEvidence(
        made_on=made_on,
        package_version=str(versions["tokenfleet"]),
        seed=plan.question.seed,
        peak_spare_gone=_results(plan.slo_degraded),
        peak_all_present=_results(plan.slo_whole),
    )
    return Evidence(status="UNPROVEN", replay=replay, load_test=None)


def _results(results: Sequence[SloResult]) -> tuple[ClauseResult, ...]:
    return tuple(ClauseResult(**asdict(result)) for result in results)


def _survives(plan: Plan) -> Survives:
    def of(kind: LossKind) -> Loss:
        found = [case for case in plan.losses if case.kind == kind]
        return _together(found) if found else Loss(count=1, kept=None, how="not examined")

    return Survives(replica=of("replica"), node=of("node"), zone=of("zone"), rollout=of("rollout"))


def _together(cases: Sequence[LossCase]) -> Loss:
    """One loss, or the same loss of every pool: kept where all keep it, unknown where one is not examined."""
    losses = [_loss(case) for case in cases]
    known = [loss.kept for loss in losses]
    said = (f"{case.pool}: {loss.how}" if case.pool else loss.how for case, loss in zip(cases, losses, strict=True))
    kept = False if False in known else None if None in known else True
    return Loss(count=max(loss.count for loss in losses), kept=kept, how="; ".join(said))


def _loss(case: LossCase) -> Loss:
    if case.kept is None:
        return Loss(count=case.count, kept=None, how=f"not examined: {case.why}")
    left = "1 replica" if case.serving_replica_count == 1 else f"{case.serving_replica_count} replicas"
    how = f"replay of the whole demand on {left}" if case.serving_replica_count else case.why
    how += _in_its_moment(case)
    return Loss(count=case.count, kept=case.kept, how=how if case.kind == "replica" else f"{case.lost}: {how}")


def _in_its_moment(case: LossCase) -> str:
    moment = case.moment
    if moment is None:
        return ""
    if moment.kept:
        return "; kept in its moment too"
    if moment.recovery.too_soon:
        return "; broken in its moment, too close to the end of the demand to say for how long"
    if moment.recovery.after_s is None:
        return f"; broken from its moment to the end of the demand, {moment.recovery.demand_left_s:.0f} s later"
    if moment.recovery.after_s:
        return f"; in its moment broken for {moment.recovery.after_s:.0f} s"
    return "; in its moment broken by the requests that were lost"


def _limits(plan: Plan, chosen: Sized) -> Limits:
    replica = chosen.replica
    engine = replica.deployment.engine
    binding = plan.limits[0] if plan.limits else None
    following = plan.limits[1] if len(plan.limits) > 1 else None
    return Limits(
        sequences_per_replica_count=engine.max_sequence_count,
        longest_request_tokens=replica.longest_sequence_tokens,
        sustained_rate_per_s=plan.sustained_rate_per_s,
        binding=binding.limit if binding else None,
        next=following.limit if following else None,
        next_rate_per_s=following.rate_at_limit_per_s if following else None,
        kv_peak_fraction=plan.kv_peak_fraction,
        sequence_peak_count=plan.sequence_peak_count,
    )


def _cost(fleets: Sequence[Sized], bill: Bill) -> Cost:
    prices = dict.fromkeys((sized.price.gpu, sized.price) for sized in fleets)
    sources = [f"{price.provider}, {price.term}, {price.as_of or 'undated'}: {price.source}" for _, price in prices]
    named = (f"{gpu} {source}" for (gpu, _), source in zip(prices, sources, strict=True))
    return Cost(
        total_usd_per_hour=bill.total_usd_per_hour,
        low_usd_per_hour=sum(each.price_low_usd_per_gpu_hour * each.gpu_count for each in fleets),
        high_usd_per_hour=sum(each.price_high_usd_per_gpu_hour * each.gpu_count for each in fleets),
        input_usd_per_hour=bill.input_usd_per_hour,
        cached_usd_per_hour=bill.cached_usd_per_hour,
        output_usd_per_hour=bill.output_usd_per_hour,
        headroom_usd_per_hour=bill.headroom_usd_per_hour,
        idle_usd_per_hour=bill.idle_usd_per_hour,
        spare_usd_per_hour=bill.spare_usd_per_hour,
        price_source=sources[0] if len(sources) == 1 else "; ".join(named),
    )
