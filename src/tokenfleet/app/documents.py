"""A plan as a document for machines. The names here are a promise: they do not change."""

from tokenfleet.domain.plan import Bill, CurvePoint, LimitUse, Plan, Reason, Rejected, Sized
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import LengthSummary, Workload


def plan_document(plan: Plan, workload: Workload, resolved: dict[str, object]) -> dict[str, object]:
    """Everything a plan found, ready for JSON. ``null`` is unknown, never 0.

    ``slo`` is the promise at the peak with the spare replicas gone, ``slo_whole`` with all replicas there.
    Prices per million tokens are the attributed ones: each times its tokens, plus idle and spare, is the bill.
    """
    chosen, bill, limits = plan.chosen, plan.bill, plan.limits
    return {
        "name": plan.question.name,
        "feasible": chosen is not None,
        "fleet": [_group(chosen)] if chosen else [],
        "price_usd_per_hour": chosen.price_usd_per_hour if chosen else None,
        "price_low_usd_per_hour": chosen.price_low_usd_per_gpu_hour * chosen.gpu_count if chosen else None,
        "price_high_usd_per_hour": chosen.price_high_usd_per_gpu_hour * chosen.gpu_count if chosen else None,
        "price_usd_per_million_input_tokens": bill.usd_per_million_input_tokens if bill else None,
        "price_usd_per_million_cached_tokens": bill.usd_per_million_cached_tokens if bill else None,
        "price_usd_per_million_output_tokens": bill.usd_per_million_output_tokens if bill else None,
        "price_usd_per_request": bill.usd_per_request if bill else None,
        "binding_limit": limits[0].limit if limits else None,
        "next_limit": limits[1].limit if len(limits) > 1 else None,
        "limits": [_limit(limit) for limit in limits],
        "slo": [_promise(result) for result in plan.slo_degraded],
        "slo_whole": [_promise(result) for result in plan.slo_whole],
        "reasons": [_reason(reason) for reason in plan.reasons],
        "assumptions": list(plan.assumptions),
        "cost": _cost(bill) if bill else None,
        "runner_up": _runner_up(plan.runners_up[0]) if plan.runners_up else None,
        "runners_up": [_runner_up(sized) for sized in plan.runners_up],
        "rejected": [_rejected(candidate) for candidate in plan.rejected],
        "curve": [_point(point) for point in plan.curve],
        "peak_start_s": plan.peak_start_s,
        "peak_end_s": plan.peak_end_s,
        "workload": _workload(workload),
        "search": {
            "candidate_count": len(plan.question.candidates) + len(plan.question.rejected),
            "replayed_count": plan.replayed_count,
        },
        "resolved": resolved,
    }


def _group(sized: Sized) -> dict[str, object]:
    deployment = sized.replica.deployment
    return {
        "gpu": deployment.gpu,
        "gpu_count": sized.gpu_count,
        "replica_count": sized.replica_count,
        "spare_replica_count": sized.spare_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "engine": deployment.engine.name,
        "price_usd_per_gpu_hour": sized.price.price_usd_per_gpu_hour,
        "price_source": f"{sized.price.provider} {sized.price.term} {sized.price.as_of}".strip(),
        "kv_capacity_tokens_per_replica": sized.replica.memory.kv_capacity_tokens,
    }


def _runner_up(sized: Sized) -> dict[str, object]:
    return {
        "fleet": [_group(sized)],
        "price_usd_per_hour": sized.price_usd_per_hour,
        "slo": [_promise(result) for result in sized.slo],
    }


def _promise(result: SloResult) -> dict[str, object]:
    return {
        "name": result.name,
        "unit": result.unit,
        "promised": result.promised,
        "predicted": result.predicted,
        "predicted_low": result.predicted_low,
        "predicted_high": result.predicted_high,
        "kept": result.kept,
        "sample_count": result.sample_count,
    }


def _limit(limit: LimitUse) -> dict[str, object]:
    return {
        "limit": limit.limit,
        "used_fraction": limit.used_fraction,
        "rate_at_limit_per_s": limit.rate_at_limit_per_s,
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


def _point(point: CurvePoint) -> dict[str, object]:
    return {
        "load_fraction": point.load_fraction,
        "rate_per_s": point.rate_per_s,
        "ttft_p50_s": point.ttft_p50_s,
        "ttft_p99_s": point.ttft_p99_s,
        "itl_p50_s": point.itl_p50_s,
        "itl_p99_s": point.itl_p99_s,
        "kept": point.kept,
    }


def _cost(bill: Bill) -> dict[str, object]:
    return {
        "total_usd_per_hour": bill.total_usd_per_hour,
        "input_usd_per_hour": bill.input_usd_per_hour,
        "cached_usd_per_hour": bill.cached_usd_per_hour,
        "output_usd_per_hour": bill.output_usd_per_hour,
        "idle_usd_per_hour": bill.idle_usd_per_hour,
        "spare_usd_per_hour": bill.spare_usd_per_hour,
        "usd_per_million_input_tokens": bill.usd_per_million_input_tokens,
        "usd_per_million_cached_tokens": bill.usd_per_million_cached_tokens,
        "usd_per_million_output_tokens": bill.usd_per_million_output_tokens,
        "usd_per_million_output_tokens_loaded": bill.usd_per_million_output_tokens_loaded,
        "usd_per_request": bill.usd_per_request,
    }


def _lengths(summary: LengthSummary) -> dict[str, float]:
    return {
        "p50": summary.p50,
        "p90": summary.p90,
        "p95": summary.p95,
        "p99": summary.p99,
        "max": summary.max,
        "mean": summary.mean,
    }


def _workload(workload: Workload) -> dict[str, object]:
    return {
        "request_count": workload.request_count,
        "duration_s": workload.duration_s,
        "mean_rate_per_s": workload.mean_rate_per_s,
        "peak_minute_rate_per_s": workload.peak_minute_rate_per_s,
        "peak_to_mean_minute_requests": workload.peak_to_mean_minute_requests,
        "peak_to_mean_minute_tokens": workload.peak_to_mean_minute_tokens,
        "interarrival_cv": workload.interarrival_cv,
        "input_tokens": _lengths(workload.input_tokens),
        "output_tokens": _lengths(workload.output_tokens),
        "shareable_input_fraction": workload.shareable_input_fraction,
        "rows_dropped": dict(workload.quality.rows_dropped),
        "warnings": list(workload.quality.warnings),
    }
