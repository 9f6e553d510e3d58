"""From a plan for one k-th of the demand to the plan for all of it.

The whole is k such parts side by side, each with its share of the traffic and its own replicas. That is a fleet one
could build, and a shared one does no worse: over more replicas bursts even out. The spare replicas come on top once.
"""

from dataclasses import replace

from tokenfleet.domain.outlook import FrontierPoint, SensitivityCase
from tokenfleet.domain.plan import Bill, Plan, PlanQuestion, Sized
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner.redundancy import spare_replicas


def whole_of(sized: Sized, question: PlanQuestion) -> Sized:
    """The fleet for the whole demand."""
    factor = question.stands_for_count
    if factor == 1:
        return sized
    carrying = sized.carrying_count * factor
    return replace(sized, carrying_count=carrying, spare_count=_spare(question, sized.replica, carrying))


def _spare(question: PlanQuestion, replica: ReplicaPhysics, carrying_count: int) -> int:
    spare = spare_replicas(question, replica, carrying_count)
    if spare is None:
        raise ValueError(f"{carrying_count} replicas were planned that cannot survive what is asked for")
    return spare


def multiplied(plan: Plan) -> Plan:
    """Every count, rate and price of ``plan`` for the whole demand; times, shares and records stay those of a part."""
    question, chosen = plan.question, plan.chosen
    factor = question.stands_for_count
    if factor == 1:
        return plan
    limits = tuple(replace(use, rate_at_limit_per_s=use.rate_at_limit_per_s * factor) for use in plan.limits)
    return replace(
        plan,
        chosen=None if chosen is None else whole_of(chosen, question),
        runners_up=tuple(whole_of(sized, question) for sized in plan.runners_up),
        sure=None if plan.sure is None else whole_of(plan.sure, question),
        limits=limits,
        curve=tuple(replace(point, rate_per_s=point.rate_per_s * factor) for point in plan.curve),
        bill=None if plan.bill is None or chosen is None else _bill(plan.bill, chosen, question),
        peak_rate_per_s=plan.peak_rate_per_s * factor,
        saturated_rate_per_s=None if plan.saturated_rate_per_s is None else plan.saturated_rate_per_s * factor,
        mean_rate_per_s=plan.mean_rate_per_s * factor,
        sustained_rate_per_s=None if plan.sustained_rate_per_s is None else plan.sustained_rate_per_s * factor,
        frontier=tuple(_point(point, plan) for point in plan.frontier),
        outpriced=tuple(replace(one, failed_count=one.failed_count * factor) for one in plan.outpriced),
        sensitivity=tuple(_case(case, question, chosen) for case in plan.sensitivity),
    )


def _bill(bill: Bill, part: Sized, question: PlanQuestion) -> Bill:
    factor = question.stands_for_count
    spare = whole_of(part, question).spare_count * part.price_usd_per_hour / part.replica_count
    whole = bill.total_usd_per_hour * factor
    dearer = (whole + spare) / whole
    loaded, request = bill.usd_per_million_output_tokens_loaded, bill.usd_per_request
    return replace(
        bill,
        total_usd_per_hour=whole + spare,
        input_usd_per_hour=bill.input_usd_per_hour * factor,
        cached_usd_per_hour=bill.cached_usd_per_hour * factor,
        output_usd_per_hour=bill.output_usd_per_hour * factor,
        headroom_usd_per_hour=bill.headroom_usd_per_hour * factor,
        idle_usd_per_hour=bill.idle_usd_per_hour * factor,
        spare_usd_per_hour=spare,
        usd_per_million_output_tokens_loaded=None if loaded is None else loaded * dearer,
        usd_per_request=None if request is None else request * dearer,
    )


def _point(point: FrontierPoint, plan: Plan) -> FrontierPoint:
    """A part is sized without spare replicas; all of them come on top of the whole."""
    question = plan.question
    sized = (plan.chosen, *plan.runners_up)
    replica = next(each.replica for each in sized if each is not None and _is_of(point, each.replica))
    carrying = point.replica_count * question.stands_for_count
    count = carrying + _spare(question, replica, carrying)
    price = point.price_usd_per_hour / point.replica_count * count
    return replace(point, replica_count=count, price_usd_per_hour=price)


def _is_of(point: FrontierPoint, replica: ReplicaPhysics) -> bool:
    deployment = replica.deployment
    found = deployment.gpu, deployment.precision, deployment.layout.tensor_parallel
    return found == (point.gpu, point.precision, point.tensor_parallel)


def _case(case: SensitivityCase, question: PlanQuestion, chosen: Sized | None) -> SensitivityCase:
    if case.replica_count is None or case.price_usd_per_hour is None or chosen is None:
        return case
    carrying = case.replica_count * question.stands_for_count
    spare = spare_replicas(question, chosen.replica, carrying)
    if spare is None:
        return replace(case, replica_count=None, price_usd_per_hour=None)
    count = carrying + spare
    return replace(case, replica_count=count, price_usd_per_hour=case.price_usd_per_hour / case.replica_count * count)
