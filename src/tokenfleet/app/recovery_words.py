"""How soon a shock is over, in words."""

from tokenfleet.app.quantities import shown_duration
from tokenfleet.domain.survival import Recovery


def over(found: Recovery, after: str) -> str:
    """``over 6 min 1 s after the event``, or why no time can be named; ``after`` as in ``the event``."""
    if found.too_soon:
        return f"over at a time nobody can tell: {_too_soon(found)}"
    if found.after_s is None:
        return f"not over {_within(found)}"
    if not found.after_s:
        return f"over with {after}"
    return f"over {shown_duration(found.after_s)} after {after}{_so_far(found)}"


def holds_again(found: Recovery) -> str:
    """``the promise holds again after 6.00 s``, or why no time can be named; empty where it never broke."""
    if found.too_soon:
        return f"whether the promise holds again nobody can tell: {_too_soon(found)}"
    if found.after_s is None:
        return f"the promise does not hold again {_within(found)}"
    return f"the promise holds again after {shown_duration(found.after_s)}{_so_far(found)}" if found.after_s else ""


def later_windows(found: Recovery) -> str:
    """What windows that begin later show, where the first one keeps the promise: none breaks it, but for some."""
    each = f"windows of {shown_duration(found.window_s)} that begin later"
    if found.after_s is None:
        return f"{each} break it now and then {_within(found)}"
    return f"of {each} none breaks it from {shown_duration(found.after_s)} on{_so_far(found)}"


def _too_soon(found: Recovery) -> str:
    follows = f"{shown_duration(found.demand_left_s)} of demand follow" if found.demand_left_s else "no demand follows"
    return f"{follows}, and {shown_duration(found.window_s)} are judged together"


def _within(found: Recovery) -> str:
    return f"within the {shown_duration(found.demand_left_s)} of demand that follow; a longer one may show when"


def _so_far(found: Recovery) -> str:
    """Said where the demand ends before it is sure to last."""
    if found.lasts:
        return ""
    return f", as far as the {shown_duration(found.demand_left_s)} of demand that follow show"
