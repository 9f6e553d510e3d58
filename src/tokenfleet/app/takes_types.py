"""Which requests something is about, as strict types."""

from typing import Annotated

from pydantic import BeforeValidator, model_validator

from tokenfleet.app.quantities import Unreadable, quoted
from tokenfleet.app.scenario_words import Fraction, Strict, Tokens, one_as_list, problem, read_by


def _clock_s(value: object) -> float:
    """Seconds since midnight of ``22:30``."""
    # YAML 1.1 reads 22:30 without quotes as a number of base 60; a person means a time of day either way.
    text = f"{value // 60:02d}:{value % 60:02d}" if isinstance(value, int) and not isinstance(value, bool) else value
    hours, _, minutes = str(text).partition(":")
    if not (hours.isdigit() and len(minutes) == 2 and minutes.isdigit() and int(hours) < 24 and int(minutes) < 60):
        raise Unreadable(f"{quoted(value)} is no time of day", "write it as 22:30")
    return 3600.0 * int(hours) + 60.0 * int(minutes)


ClockTime = Annotated[float, read_by(_clock_s)]


class TakesSpec(Strict):
    """Which requests; all that is given must hold."""

    models: Annotated[list[str], BeforeValidator(one_as_list)] | None = None
    """Models that the log names."""
    labels: Annotated[list[str], BeforeValidator(one_as_list)] | None = None
    """Tasks, tiers or log types that the log names."""
    tenants: Annotated[list[str], BeforeValidator(one_as_list)] | None = None
    """Tenants that the log names."""
    input_up_to: Tokens | None = None
    """Prompts of so many tokens at most."""
    input_over: Tokens | None = None
    """Prompts of more tokens."""
    output_up_to: Tokens | None = None
    """Answers of so many tokens at most."""
    output_over: Tokens | None = None
    """Answers of more tokens."""
    arrives_from: ClockTime | None = None
    """Arrivals from this time of day on, such as ``"22:00"``, up to ``arrives_until``."""
    arrives_until: ClockTime | None = None
    """The end of that time; midnight when left out."""
    share: Fraction | None = None
    """A share of these, drawn at random with the scenario's seed."""


class WindowSpec(Strict):
    """A daily window, by the clock of the trace; one without dates starts at midnight."""

    opens: ClockTime
    """When waiting requests are sent, such as ``"22:00"``."""
    closes: ClockTime
    """From when on requests wait for the next opening."""

    @model_validator(mode="after")
    def _lasts(self) -> "WindowSpec":
        if self.opens == self.closes:
            raise problem("opens and closes at one time", "leave the window out where it is always open")
        return self
