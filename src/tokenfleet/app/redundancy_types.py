"""Keys of a scenario about what may be lost, and about the places that hold replicas."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tokenfleet.app.scenario_words import Count, Strict, one_as_list, problem

SPARE_REPLICAS: Final = {"none": 0, "n+1": 1, "n+2": 2}


class Redundancy(Strict):
    """What may fail while the promise holds."""

    replicas: Literal["none", "n+1", "n+2"] = "n+1"
    """Spare replicas on top of those that carry the peak minute."""
    nodes: Literal["none", "n+1", "n+2"] = "none"
    """Nodes that may be lost, each with all of its replicas."""
    zones: Literal["none", "n+1", "n+2"] = "none"
    """Zones that may be lost; name them under ``zones``."""
    replicas_per_node: Annotated[Count, Field(ge=1)] | None = None
    """At most so many replicas on one node; left out, as many as fit, fewer where a lost node takes too many."""
    ride_through: bool = False
    """The promise must hold in the window after each loss too, while the requests that were lost come back."""


class ZoneSpec(Strict):
    """A place whose power, network and ingress fail together."""

    name: Annotated[str, Field(min_length=1)]
    """What you call it."""
    region: str | None = None
    """Region it lies in; where ``data_region`` is given, zones elsewhere hold no replica."""
    weights: bool = True
    """The weights lie there too. Without them the zone does not count as a survivor."""
    ingress: bool = True
    """Users reach it without another zone. Without that the zone does not count as a survivor."""
    gpu_limit: Annotated[Count, Field(ge=1)] | None = None
    """GPUs to be had there; left out, as many as are wanted."""


def _listed(zones: object) -> object:
    if isinstance(zones, dict) and "name" not in zones:
        names = ", ".join(f"{{name: {name}{', ...' if has else ''}}}" for name, has in zones.items())
        raise problem("is a list of zones, each with its name", f"write [{names or '{name: a}'}]")
    return one_as_list(zones)


def _told_apart(zones: list[ZoneSpec]) -> list[ZoneSpec]:
    names = [zone.name for zone in zones]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise problem(f"has {', '.join(twice)} twice", "name each zone once")
    return zones


Zone = Annotated[ZoneSpec, BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)]
Zones = Annotated[list[Zone], BeforeValidator(_listed), AfterValidator(_told_apart)]
"""Names, or what each of them has."""
