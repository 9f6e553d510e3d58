"""From a plan for one k-th of the demand to the plan for all of it.

The whole is k such parts side by side, each with its share of the traffic and its own replicas. That is a fleet one
could build, and a shared one does no worse: over more replicas bursts even out. The spare replicas come on top once.
"""

from dataclasses import replace

from tokenfleet.domain.plan import Bill, FrontierPoint, Plan, PlanQuestion, SensitivityCase, Sized


def spare_of_a_part(question: PlanQuestion) -> int:
    """Spare replicas to plan with: those of the question, or none where the demand is a part."""
    return 0 if question.stands_for_count > 1 else question.spare_replica_count


def whole_of(sized: Sized, question: PlanQuestion) -> Sized:
    """The fleet for the whole demand."""
    if question.stands_for_count == 1:
        return sized
    return replace(
        sized,
        carrying_count=sized.carrying_count * question.stands_for_count,
        spare_count=question.spare_replica_count,
    )


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
        sustained_rate_per_s=None if plan.sustained_rate_per_s is None else plan.sustained_rate_per_s * factor,
        frontier=tuple(_point(point, question) for point in plan.frontier),
        outpriced=tuple(replace(one, failed_count=one.failed_count * factor) for one in plan.outpriced),
        sensitivity=tuple(_case(case, question) for case in plan.sensitivity),
    )


def _bill(bill: Bill, part: Sized, question: PlanQuestion) -> Bill:
    factor = question.stands_for_count
    spare = question.spare_replica_count * part.price_usd_per_hour / part.replica_count
    whole = bill.total_usd_per_hour * factor
    dearer = (whole + spare) / whole
    loaded, request = bill.usd_per_million_output_tokens_loaded, bill.usd_per_request
    return replace(
        bill,
        total_usd_per_hour=whole + spare,
        input_usd_per_hour=bill.input_usd_per_hour * factor,
        cached_usd_per_hour=bill.cached_usd_per_hour * factor,
        output_usd_per_hour=bill.output_usd_per_hour * factor,
        idle_usd_per_hour=bill.idle_usd_per_hour * factor,
        spare_usd_per_hour=spare,
        usd_per_million_output_tokens_loaded=None if loaded is None else loaded * dearer,
        usd_per_request=None if request is None else request * dearer,
    )


def _point(point: FrontierPoint, question: PlanQuestion) -> FrontierPoint:
    count = point.replica_count * question.stands_for_count + question.spare_replica_count
    price = point.price_usd_per_hour / point.replica_count * count
    return replace(point, replica_count=count, price_usd_per_hour=price)


def _case(case: SensitivityCase, question: PlanQuestion) -> SensitivityCase:
    if case.replica_count is None or case.price_usd_per_hour is None:
        return case
    count = case.replica_count * question.stands_for_count + question.spare_replica_count
    return replace(case, replica_count=count, price_usd_per_hour=case.price_usd_per_hour / case.replica_count * count)
