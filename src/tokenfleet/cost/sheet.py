"""The whole bill of a month: gpus and everything beside them, as named lines that add up."""

import math
from collections.abc import Sequence
from fractions import Fraction

from tokenfleet.cost.rounding import in_cents
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

USUAL_LINES = (
    "gpus",
    "cpu",
    "storage",
    "network",
    "vector_store",
    "embedding",
    "rerank",
    "tools",
    "logs",
    "external_api",
    "engineers",
    "support",
)
"""What a service usually pays for: a sheet that lacks one should say that it is not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One thing paid for in a month: how much of it, at what price."""

    name: str
    quantity: float
    unit: str
    usd_per_unit: float | None
    """``None`` is a price nobody knows yet: the line is then unknown, and so is the total."""

    @property
    def usd(self) -> float | None:
        """The line; ``None`` where its price is unknown. Nothing used costs nothing at any price."""
        if self.quantity == 0.0:
            return 0.0
        return None if self.usd_per_unit is None else self.quantity * self.usd_per_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSheet:
    """A month of a service, line by line."""

    lines: tuple[CostLine, ...]

    @property
    def known_usd(self) -> float:
        """The lines whose price is known."""
        return math.fsum(line.usd for line in self.lines if line.usd is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the lines whose price is not known."""
        return tuple(line.name for line in self.lines if line.usd is None)

    @property
    def total_usd(self) -> float | None:
        """The whole month; ``None`` while a price is unknown, for a sum with a hole in it is no total."""
        return None if self.unknown else self.known_usd

    def share_fraction(self, name: str) -> float | None:
        """Share of one line in the total; ``None`` while there is no total, or a line of that name."""
        amounts = [line.usd for line in self.lines if line.name == name]
        if not self.total_usd or not amounts or amounts[0] is None:
            return None
        return amounts[0] / self.total_usd

    def cents(self) -> dict[str, int] | None:
        """Each line in whole cents that add up to the total; ``None`` while there is no total."""
        if self.unknown:
            return None
        return in_cents({line.name: Fraction(line.usd or 0.0) for line in self.lines})


def cost_sheet(lines: Sequence[CostLine]) -> CostSheet:
    """Puts lines together.

    Raises:
        BadInput: two lines of one name, a negative quantity or price; all of them at once.
    """
    names = [line.name for line in lines]
    problems = [
        Problem(name, f"{names.count(name)} lines of this name", "join them, or name them apart")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    problems += [
        Problem(line.name, f"{line.quantity:g} {line.unit} at {line.usd_per_unit}", "give 0 or more")
        for line in lines
        if not 0.0 <= line.quantity < math.inf
        or (line.usd_per_unit is not None and not 0.0 <= line.usd_per_unit < math.inf)
    ]
    if problems:
        raise BadInput(problems)
    return CostSheet(lines=tuple(lines))


def rerank_line(
    query_count: float,
    *,
    documents_per_query_count: float,
    tokens_per_document: float,
    query_tokens: float = 0.0,
    usd_per_million_tokens: float | None,
) -> CostLine:
    """Reranking priced by tokens: each document is read together with the query.

    ``queries * documents * (document + query tokens)``. A service that prices by the query is a plain line instead.
    """
    tokens = query_count * documents_per_query_count * (tokens_per_document + query_tokens)
    return CostLine(name="rerank", quantity=tokens / 1e6, unit="million tokens", usd_per_unit=usd_per_million_tokens)
