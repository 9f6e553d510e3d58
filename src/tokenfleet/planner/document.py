"""A plan as a document for machines. The names here are a promise: they do not change."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields

from tokenfleet import cost
from tokenfleet.domain.apart import ApartAnswer, ApartPool
from tokenfleet.domain.obtainable import Obtainable
from tokenfleet.domain.plan import (
    Bill,
    LimitUse,
    Outpriced,
    Plan,
    PlannedPool,
    Reason,
    Rejected,
    Sized,
    SplitTrial,
    TenantInvoice,
)
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.stages import Handover
from tokenfleet.domain.survival import LossCase
from tokenfleet.domain.trace import LengthSummary, Workload
from tokenfleet.planner import words

_SHOWN_RUNNERS_UP = 20
_DIGITS = 12
"""Enough for every sum to add up, too few for the noise of binary fractions."""
_EXACT = {"slo", "redundancy", "resolved"}
"""What replay measured, so that another replay can be held against it, and what was asked: to the last bit."""


def plan_document(plan: Plan, workload: Workload, resolved: Mapping[str, object]) -> dict[str, object]:
    """Everything a plan found, ready for JSON; ``null`` is unknown, never 0, and no number is NaN.

    ``slo`` is judged in the peak window with the spare replicas gone; ``redundancy`` has the other cases. Prices per
    million tokens are the attributed ones: each times its tokens, plus headroom, idle and
    spare, is the bill.
    """
    document: dict[str, object] = {
        "name": plan.question.name,
        "model": plan.question.model.name,
        "feasible": bool(plan.fleets),
        **_answer(plan),
        "stages": plan.stages or None,
        "pools": [_planned_pool(pool) for pool in plan.pools],
        "handover": _handover(plan.handover) if plan.handover else None,
        "reasons": [_reason(reason) for reason in plan.reasons],
        "warnings": [_reason(reason) for reason in plan.warnings],
        "assumptions": list(plan.assumptions),
        "tenants": asdict(plan.invoice) if plan.invoice else None,
        "runners_up": [_runner_up(sized, plan.fleets) for sized in plan.runners_up[:_SHOWN_RUNNERS_UP]],
        "disaggregated": _apart(plan.apart, plan.one_fleet) if plan.apart else None,
        "routers": [asdict(trial) for trial in plan.routers],
        "splits": [_split(trial, plan.one_fleet) for trial in plan.splits],
        "rejected": [_rejected(candidate) for candidate in plan.rejected],
        "outpriced": [_outpriced(candidate) for candidate in plan.outpriced],
        "frontier": [asdict(point) for point in plan.frontier],
        "workload": _workload(workload),
        "search": {
            "candidate_count": plan.tried_count,
            "replayed_count": plan.replayed_count,
            "wall_s": plan.wall_s,
            "anomalies": list(plan.anomalies),
        },
        "resolved": dict(resolved),
    }
    _refuse_nan(document, "plan")
    return {key: value if key in _EXACT else _rounded(value) for key, value in document.items()}


def _answer(plan: Plan) -> dict[str, object]:
    """What is bought, what it promises and what it costs: of a plan, or of one of its pools."""
    fleets = plan.fleets
    low = sum(sized.price_low_usd_per_gpu_hour * sized.gpu_count for sized in fleets)
    high = sum(sized.price_high_usd_per_gpu_hour * sized.gpu_count for sized in fleets)
    return {
        "fleet": list(_groups(plan)),
        "price_usd_per_hour": plan.price_usd_per_hour,
        "price_low_usd_per_hour": low if fleets else None,
        "price_high_usd_per_hour": high if fleets else None,
        **_prices(plan.bill),
        **_limits(plan),
        "slo": [_clause(result) for result in plan.slo_degraded],
        "sure": _sure(plan),
        "redundancy": _redundancy(plan) if fleets else [],
        "placement": asdict(plan.placement) if plan.placement else None,
        "obtainable": _obtainable(plan.obtainable) if plan.obtainable else None,
        "cost": _cost(plan),
        "runner_up": _runner_up(plan.runners_up[0], fleets) if plan.runners_up and fleets else None,
        "rough": asdict(plan.rough) if plan.rough else None,
        "curve": [asdict(point) for point in plan.curve],
        "sensitivity": [asdict(case) for case in plan.sensitivity],
        "confidence": asdict(plan.confidence) if plan.confidence else None,
        "peak": _peak(plan),
    }


def _groups(plan: Plan) -> Iterator[dict[str, object]]:
    """Every fleet that is bought, with the router in front of it and the pool that it is, if any."""
    if plan.chosen is not None:
        yield {**_group(plan.chosen), "router": plan.question.router}
    for pool in plan.pools:
        yield from ({"pool": pool.name, **group} for group in _groups(pool.plan))


def _planned_pool(pool: PlannedPool) -> dict[str, object]:
    return {
        "name": pool.name,
        "who": pool.who,
        "does": pool.does,
        "model": pool.plan.question.model.name,
        "beside": next((sized.beside for sized in pool.plan.fleets), None),
        "takes": asdict(pool.takes) if pool.takes else None,
        "request_fraction": pool.request_fraction,
        **_answer(pool.plan),
    }


def _handover(handover: Handover) -> dict[str, object]:
    return {
        "link": handover.link.name,
        "first_token": handover.first_token,
        "overlap": handover.overlapped_layer_count is not None,
    }


def why_it_lost(loser: Sized, winner: Sequence[Sized]) -> str:
    """One sentence on a runner-up: ``$3.20/h more: 6 gpus at $4.10 where the plan has 8 at $2.68``."""
    extra = loser.price_usd_per_hour - sum(each.price_usd_per_hour for each in winner)
    gpu_count = sum(each.gpu_count for each in winner)
    mine = f"{loser.gpu_count} gpus at ${loser.price.price_usd_per_gpu_hour:.2f}"
    theirs = " and ".join(f"{each.gpu_count} at ${each.price.price_usd_per_gpu_hour:.2f}" for each in winner)
    if extra > 0.0:
        return f"${extra:.2f}/h more: {mine} where the plan has {theirs}"
    if loser.gpu_count != gpu_count:
        return f"the same price with more gpus: {mine} where the plan has {theirs}"
    return "the same price and gpus; the plan keeps more margin"


def _group(sized: Sized) -> dict[str, object]:
    deployment = sized.replica.deployment
    price = sized.price
    return {
        "gpu": deployment.gpu,
        "gpu_count": sized.gpu_count,
        "replica_count": sized.replica_count,
        "carrying_replica_count": sized.carrying_count,
        "spare_replica_count": sized.spare_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "pipeline_parallel": deployment.layout.pipeline_parallel,
        "attention_data_parallel": deployment.layout.attention_data_parallel,
        "expert_parallel": deployment.layout.expert_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "engine": deployment.engine.name,
        "max_batched_tokens": deployment.engine.max_batched_tokens,
        "max_sequence_count": deployment.engine.max_sequence_count,
        "context_limit_tokens": deployment.engine.context_limit_tokens,
        "prefix_caching": deployment.engine.prefix_caching,
        "chunked_prefill": deployment.engine.chunked_prefill,
        "price_usd_per_gpu_hour": price.price_usd_per_gpu_hour,
        "price_source": f"{price.provider} {price.term} {price.as_of}".strip(),
        "kv_capacity_tokens_per_replica": sized.replica.memory.kv_capacity_tokens,
    }


def _sure(plan: Plan) -> dict[str, object] | None:
    """The fleet of the same kind, or one of each pool, that keeps the promise at the slow end of the error band."""
    pools = [{"pool": pool.name, **_group(sized)} for pool, sized in zip(plan.pools, plan.sure_pools, strict=False)]
    fleets = (*plan.sure_pools, *([plan.sure] if plan.sure else []))
    if not fleets:
        return None
    return {
        "fleet": pools or [_group(sized) for sized in fleets],
        "price_usd_per_hour": sum(sized.price_usd_per_hour for sized in fleets),
    }


def _cost(plan: Plan) -> dict[str, object] | None:
    """The bill, whose lines add up, how to buy it, and what else would do the work."""
    if plan.bill is None:
        return None
    return {
        **asdict(plan.bill),
        "purchase": asdict(plan.purchase) if plan.purchase else None,
        "purchase_missing": plan.purchase_missing or None,
        "units": [asdict(unit) for unit in cost.units_of(plan.bill)],
        "attributed": [_attributed(each) for each in plan.invoices],
        "alternatives": asdict(plan.alternatives) if plan.alternatives else None,
    }


def _attributed(invoice: TenantInvoice) -> dict[str, object]:
    """A month by label, model or class: the shares, headroom, idle and spare are the total, to the cent."""
    rows = (asdict(each) for each in invoice.tenants)
    shares = [{"name": row.pop("tenant"), **row} for row in rows]
    return {
        "by": invoice.by,
        "duration_s": invoice.duration_s,
        "total_usd": invoice.total_usd,
        "headroom_usd": invoice.headroom_usd,
        "idle_usd": invoice.idle_usd,
        "spare_usd": invoice.spare_usd,
        "shares": shares,
    }


def _obtainable(found: Obtainable) -> dict[str, object]:
    return {**asdict(found), "is_allowed": found.is_allowed}


def _prices(bill: Bill | None) -> dict[str, object]:
    return {
        "price_usd_per_million_input_tokens": bill.usd_per_million_input_tokens if bill else None,
        "price_usd_per_million_cached_tokens": bill.usd_per_million_cached_tokens if bill else None,
        "price_usd_per_million_output_tokens": bill.usd_per_million_output_tokens if bill else None,
        "price_usd_per_request": bill.usd_per_request if bill else None,
    }


def _limits(plan: Plan) -> dict[str, object]:
    limits: Sequence[LimitUse] = plan.limits
    # No count of replicas helps a request that is too slow alone.
    alone = bool(plan.reasons) and plan.reasons[0].kind in {"ttft_floor", "itl_floor", "e2e_floor", "context"}
    return {
        "binding_limit": limits[0].limit if limits else "single_request" if alone else None,
        "binding_pool": limits[0].pool if limits else None,
        "next_limit": limits[1].limit if len(limits) > 1 else None,
        "limits": [asdict(limit) for limit in limits],
        "sustained_rate_per_s": plan.sustained_rate_per_s,
        "found_within_fraction": plan.found_within_fraction,
    }


def _redundancy(plan: Plan) -> list[dict[str, object]]:
    """Each case with its clauses; ``kept`` over the whole trace and in the peak window."""
    whole = ("all replicas present", 0, plan.slo_whole, plan.slo_whole_overall)
    cases = [whole] if plan.slo_whole else []
    spare = plan.spare_count
    if spare:
        cases.append((f"{spare} spare gone", spare, plan.slo_degraded, plan.slo_degraded_overall))
    present: list[dict[str, object]] = [
        {
            "scenario": name,
            "lost_replica_count": lost,
            "kept": all(_kept(result) for result in (*peak, *overall)),
            "slo_peak": [_clause(result) for result in peak],
            "slo_overall": [_clause(result) for result in overall],
        }
        for name, lost, peak, overall in cases
    ]
    return [*present, *(_loss(case) for case in plan.losses)]


def _gone(case: LossCase) -> str:
    return case.lost if case.kind in {"rollout", "maintenance"} else f"{case.lost} gone"


def _loss(case: LossCase) -> dict[str, object]:
    said = {f.name: getattr(case, f.name) for f in fields(case) if f.name not in {"slo_peak", "slo_overall", "moment"}}
    return {
        "scenario": f"{f'{case.pool}: ' if case.pool else ''}{_gone(case)}",
        **said,
        "slo_peak": [_clause(result) for result in case.slo_peak],
        "slo_overall": [_clause(result) for result in case.slo_overall],
        "moment": asdict(case.moment) if case.moment else None,
    }


def _clause(result: SloResult) -> dict[str, object]:
    """A clause judged; whether it was kept is unknown where no request it falls on arrived."""
    return asdict(result) | ({} if result.sample_count else {"kept": None})


def _kept(result: SloResult) -> bool:
    return result.kept or result.sample_count == 0


def _runner_up(sized: Sized, winner: Sequence[Sized]) -> dict[str, object]:
    return {
        "fleet": [_group(sized)],
        "price_usd_per_hour": sized.price_usd_per_hour,
        "slo": [_clause(result) for result in sized.slo],
        "why_it_lost": why_it_lost(sized, winner),
    }


def _apart(answer: ApartAnswer, chosen: Sized | None) -> dict[str, object]:
    """Prefill and decode apart, beside the fleet that does both."""
    found = answer.found
    tried = {"feasible": found is not None, "reason": answer.reason, "pair_count": answer.pair_count}
    tried |= {"replayed_count": answer.replayed_count}
    if found is None:
        return tried
    together = chosen.price_usd_per_hour if chosen else None
    return {
        **tried,
        "prefill": _pool(found.prefill),
        "decode": _pool(found.decode),
        "gpu_count": found.gpu_count,
        "price_usd_per_hour": found.price_usd_per_hour,
        "price_over_together": found.price_usd_per_hour / together if together else None,
        "link": found.link,
        "transfer_mean_s": found.transfer_mean_s,
        "slo": [_clause(result) for result in found.slo],
    }


def _split(trial: SplitTrial, chosen: Sized | None) -> dict[str, object]:
    """Pools for some of the requests each, beside one pool for all."""
    usd = trial.price_usd_per_hour
    return {
        "by": trial.by,
        "named": trial.named,
        "why": trial.why,
        "estimated_usd_per_hour": trial.estimated_usd_per_hour,
        "price_usd_per_hour": usd,
        "price_over_together": usd / chosen.price_usd_per_hour if chosen and usd is not None else None,
        "pools": [
            {
                "name": pool.name,
                "takes": asdict(pool.takes),
                "request_fraction": pool.request_fraction,
                "fleet": [_group(pool.sized)],
            }
            for pool in trial.pools
        ],
    }


def _pool(pool: ApartPool) -> dict[str, object]:
    deployment = pool.replica.deployment
    return {
        "gpu": deployment.gpu,
        "gpu_count": pool.gpu_count,
        "replica_count": pool.replica_count,
        "carrying_replica_count": pool.carrying_count,
        "spare_replica_count": pool.spare_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "engine": deployment.engine.name,
        "price_usd_per_hour": pool.price_usd_per_hour,
    }


def _reason(reason: Reason) -> dict[str, object]:
    return {"kind": reason.kind, "text": reason.text, "relax": reason.relax or None}


def _rejected(candidate: Rejected) -> dict[str, object]:
    return {
        "gpu": candidate.gpu,
        "precision": candidate.precision,
        "tensor_parallel": candidate.tensor_parallel,
        "reasons": [_reason(reason) for reason in candidate.reasons],
    }


def _outpriced(candidate: Outpriced) -> dict[str, object]:
    deployment = candidate.replica.deployment
    return {
        "replica": words.layout(deployment),
        "gpu": deployment.gpu,
        "precision": deployment.precision,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "failed_count": candidate.failed_count,
        "broken": list(candidate.broken),
        "shown_by": candidate.shown_by or None,
    }


def _peak(plan: Plan) -> dict[str, object]:
    return {
        "start_s": plan.peak_start_s,
        "end_s": plan.peak_end_s,
        "rate_per_s": plan.peak_rate_per_s,
        "utilization_fraction": plan.utilization_fraction,
        "utilization_carrying_fraction": plan.utilization_carrying_fraction,
        "saturated_rate_per_s": plan.saturated_rate_per_s,
        "promise_leaves_fraction": plan.promise_leaves_fraction,
        "peak_to_saturated_ratio": plan.peak_to_saturated_ratio,
        "utilization_mean_fraction": plan.utilization_mean_fraction,
        "utilization_cap_fraction": plan.question.utilization_cap_fraction,
        "kv_used_fraction": plan.kv_peak_fraction,
        "sequence_count": plan.sequence_peak_count,
    }


def _workload(workload: Workload) -> dict[str, object]:
    return {
        "request_count": workload.request_count,
        "duration_s": workload.duration_s,
        "mean_rate_per_s": _known(workload.mean_rate_per_s),
        "peak_minute_rate_per_s": _known(workload.peak_minute_rate_per_s),
        "peak_to_mean_minute_requests": _known(workload.peak_to_mean_minute_requests),
        "peak_to_mean_minute_tokens": _known(workload.peak_to_mean_minute_tokens),
        "interarrival_cv": _known(workload.interarrival_cv),
        "input_tokens": _lengths(workload.input_tokens),
        "output_tokens": _lengths(workload.output_tokens),
        "shareable_input_fraction": workload.shareable_input_fraction,
        "rows_dropped": dict(workload.quality.rows_dropped),
        "warnings": list(workload.quality.warnings),
    }


def _known(value: float) -> float | None:
    """What a trace of one or two requests cannot show is unknown."""
    return value if math.isfinite(value) else None


def _lengths(summary: LengthSummary) -> dict[str, object]:
    return dict(asdict(summary))


def _rounded(value: object) -> object:
    """The same with every float at twelve digits, so that 10.35 is not written 10.350000000000001."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(below) for below in value]
    return value


def _refuse_nan(value: object, where: str) -> None:
    """Walks the document; a NaN or infinity is a bug of ours and must not reach a machine as a number."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    if isinstance(value, Mapping):
        for key, below in value.items():
            _refuse_nan(below, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            _refuse_nan(below, f"{where}[{index}]")
