"""The nearest name to one that is not known."""

from collections.abc import Iterable


def nearest(name: str, choices: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the nearest choice, or nothing when none is near."""
    import difflib

    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else ""
