"""What a changed number changed in a plan: the answer now beside the one before, only where a person reads another."""

from collections.abc import Callable, Iterator, Mapping

from tokenfleet.app.full_words import rate_at
from tokenfleet.app.outlook_words import chance
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.slo_words import spoken, value_of_limit
from tokenfleet.app.summary import LIMIT_NAMES, replica_name, run_with, verdict
from tokenfleet.domain.plan import Plan, Sized

NOTHING = "no figure of the answer"


def changed(before: Plan, now: Plan) -> list[str]:
    """Lines such as ``5 replicas of l40s (fp8), was 4 replicas of l40s (fp8)``; what stayed is not said."""
    if not now.fleets and not before.fleets:
        lines = list(_others(before, now, _reasons))
    elif not now.fleets:
        lines = [f"no fleet keeps the promise any more: {now.reasons[0].text}" if now.reasons else "no fleet any more"]
    elif not before.fleets:
        lines = ["a fleet keeps the promise, before none did"]
    else:
        lines = [line for told in (_fleets, _settings) for line in _others(before, now, told)]
        lines += _price(before, now)
        lines += [line for told in (_promise, _binding, _likely) for line in _others(before, now, told)]
    return lines or [NOTHING]


def _others(before: Plan, now: Plan, told: Callable[[Plan], Mapping[str, str]]) -> Iterator[str]:
    """What is told otherwise, is new or is gone, by the name of what it is about."""
    was, is_now = told(before), told(now)
    for name, text in is_now.items():
        about = f"{name}: " if name else ""
        if name not in was:
            yield f"{about}{text}, new"
        elif was[name] != text:
            yield f"{about}{text}, was {was[name]}"
    yield from (f"{name}: gone, was {text}" for name, text in was.items() if name not in is_now)


def _sized(plan: Plan) -> Iterator[tuple[str, Sized]]:
    """Each fleet by the name of its pool; one without a name."""
    names = [pool.name for pool in plan.pools] or [""]
    return zip(names, plan.fleets, strict=True)


def _fleets(plan: Plan) -> dict[str, str]:
    return {
        name: f"{sized.replica_count} {'replica' if sized.replica_count == 1 else 'replicas'} of {replica_name(sized)}"
        for name, sized in _sized(plan)
    }


def _settings(plan: Plan) -> dict[str, str]:
    return {f"{name} runs".strip(): run_with(sized)[0] for name, sized in _sized(plan)}


def _price(before: Plan, now: Plan) -> Iterator[str]:
    was, usd = before.price_usd_per_hour, now.price_usd_per_hour
    if was is None or usd is None or shown_usd(was) == shown_usd(usd):
        return
    by = f" ({usd / was - 1.0:+.0%})" if was else ""
    yield f"{shown_usd(usd)}/h, was {shown_usd(was)}/h{by}"


def _promise(plan: Plan) -> dict[str, str]:
    return {spoken(each.name): f"{value_of_limit(each)} {verdict(each)}" for each in plan.slo_degraded}


def _binding(plan: Plan) -> dict[str, str]:
    limits = {pool.name: pool.plan.limits for pool in plan.pools} or {"": plan.limits}
    return {
        f"{name} binds".strip(): f"{LIMIT_NAMES[uses[0].limit]} at {rate_at(uses[0])} requests/s"
        for name, uses in limits.items()
        if uses
    }


def _likely(plan: Plan) -> dict[str, str]:
    said = chance(plan)
    return {} if said is None else {"likely to hold": said}


def _reasons(plan: Plan) -> dict[str, str]:
    return {"": plan.reasons[0].text} if plan.reasons else {}
