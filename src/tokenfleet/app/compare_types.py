"""What a plan is held against, as strict types: owning, APIs, tasks, users."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tokenfleet import catalog
from tokenfleet.app.quantities import MOST_USD, quoted
from tokenfleet.app.scenario_words import Count, Dollars, Fraction, Positive, Strict, one_as_list, problem

if TYPE_CHECKING:
    from tokenfleet.cost import OwnedPool


class OwnedSpec(Strict):
    """One purchase of gpu servers and what keeps them running; the plan's fleet takes as many as it needs."""

    gpus: Count
    """GPUs of one purchase, such as the 8 of a server."""
    capital: Dollars
    """Dollars: servers, network, storage, spares, installation."""
    life_years: Annotated[Positive, Field(le=50.0)] = 4.0
    """Years until they are sold."""
    residual: Fraction = 0.0
    """Share of the capital that the sale brings."""
    cost_of_capital: Fraction = 0.0
    """What money costs in a year."""
    power_kw: Positive | None = None
    """Average power of the equipment, without cooling."""
    pue: Annotated[Positive, Field(ge=1.0)] = 1.4
    """Power of the building over power of the equipment."""
    usd_per_kwh: Dollars | None = None
    """Electricity; left out where colocation includes it."""
    colocation_kw: Positive | None = None
    """Power that colocation is paid for."""
    colocation_usd_per_kw_month: Dollars | None = None
    """Price of colocation."""
    network_usd_per_year: Dollars | None = None
    """Links out of the building."""
    staff_usd_per_year: Dollars | None = None
    """People who keep it running."""
    support: Fraction = 0.0
    """Maintenance contracts in a year, as a share of the capital."""
    software_usd_per_year: Dollars | None = None
    """Licences."""
    available: Annotated[Fraction, Field(gt=0.0)] = 1.0
    """Share of the hours in which a gpu works."""

    @model_validator(mode="after")
    def _what_is_used_has_a_price(self) -> "OwnedSpec":
        if (self.colocation_kw is None) != (self.colocation_usd_per_kw_month is None):
            raise problem(
                "colocation is paid for by its power and its price, and one of them is missing",
                "give colocation_kw and colocation_usd_per_kw_month, or neither",
            )
        if self.power_kw is not None and self.usd_per_kwh is None and self.colocation_kw is None:
            raise problem(
                "power_kw is given, and nobody says what power costs",
                "give usd_per_kwh, or colocation_kw and colocation_usd_per_kw_month where that includes it",
            )
        if self.usd_per_kwh is not None and self.power_kw is None:
            raise problem("usd_per_kwh is given, and nobody says how much power is used", "give power_kw")
        return self

    def pool(self) -> "OwnedPool":
        """As :mod:`tokenfleet.cost` reckons with it."""
        from tokenfleet.cost import OwnedPool

        return OwnedPool(
            gpu_count=self.gpus,
            capital_usd=self.capital,
            life_years=self.life_years,
            residual_fraction=self.residual,
            cost_of_capital_fraction=self.cost_of_capital,
            average_power_kw=self.power_kw or 0.0,
            pue=self.pue,
            tariff_usd_per_kwh=self.usd_per_kwh or 0.0,
            colocation_kw=self.colocation_kw or 0.0,
            colocation_usd_per_kw_month=self.colocation_usd_per_kw_month or 0.0,
            network_usd_per_year=self.network_usd_per_year or 0.0,
            staff_usd_per_year=self.staff_usd_per_year or 0.0,
            support_fraction_per_year=self.support,
            software_usd_per_year=self.software_usd_per_year or 0.0,
            available_fraction=self.available,
        )


class TasksSpec(Strict):
    """What a task is to the people who pay for it."""

    requests_per_task: Annotated[Positive, Field(le=1e6)] = 1.0
    """Requests that one try of a task takes, tool calls that work included."""
    success: Annotated[Fraction, Field(gt=0.0)] = 1.0
    """Share of tries that succeed."""
    tries: Annotated[Count, Field(ge=1)] = 1
    """Tries of one task at most; what none of them solves is done by hand."""
    failed_tool_calls: Annotated[Fraction, Field(lt=1.0)] = 0.0
    """Share of requests that are sent again, until they succeed, because the tool that they called failed."""
    usd_by_hand: Annotated[float, Field(ge=0.0)] = 0.0
    """Hand work for each task that no try solved, in dollars."""


class BesideSpec(Strict):
    """One thing that the service pays for beside its gpus, in a month."""

    usd: Annotated[float, Field(ge=0.0)] | None = None
    """Dollars for one unit; left out, nobody knows its price, and the total says so."""
    quantity: Annotated[float, Field(ge=0.0)] = 1.0
    """Units of a month."""
    unit: str = "month"
    """What is counted: GB, people, million tokens."""
    stays_with_api: bool | None = None
    """It is paid even where an API serves the model. Left out: all but cpu, storage, network, engineers, support."""

    @model_validator(mode="after")
    def _is_an_amount(self) -> "BesideSpec":
        if self.usd is not None and self.usd * self.quantity > MOST_USD:
            raise problem(
                f"{self.quantity:g} at {self.usd:g} dollars are more than anybody pays", "give dollars for one unit"
            )
        return self


Beside = Annotated[
    BesideSpec,
    BeforeValidator(lambda value: value if isinstance(value, dict) else {"usd": value}),
]

ALL_USERS = ""
"""The name of everybody among users."""


def _of_all(value: object) -> object:
    return value if isinstance(value, dict) or value is None else {ALL_USERS: value}


class CompareSpec(Strict):
    """Other ways to serve the same demand, and what a unit of work is."""

    owned: OwnedSpec | None = None
    """Owning the gpus."""
    apis: Annotated[list[str], BeforeValidator(one_as_list)] = Field(default=[])
    """External models that would do the job, by their names in the catalog."""
    tasks: TasksSpec | None = None
    """For the cost of a successful task."""
    users: Annotated[dict[str, Count], BeforeValidator(_of_all)] | None = None
    """For the cost of a user and month: how many there are, or how many of each tenant, label, model or class."""

    beside: dict[str, Beside] = Field(default_factory=dict)
    """What a month of the service costs beside its gpus: dollars by name, or quantity and price. Usual names: cpu,
    storage, network, vector_store, embedding, rerank, tools, logs, external_api, engineers, support."""

    @field_validator("beside")
    @classmethod
    def _gpus_are_planned(cls, value: dict[str, BesideSpec]) -> dict[str, BesideSpec]:
        if any(not name.strip() for name in value):
            raise problem("a line has no name", "say what is paid for, such as storage: 400")
        if "gpus" in value:
            raise problem("gpus are what is planned", "leave them out of beside; their price stands under prices")
        return value

    @field_validator("apis")
    @classmethod
    def _apis_have_prices(cls, value: list[str]) -> list[str]:
        known = {price.model for price in catalog.api_prices()}
        unknown = [name for name in value if name not in known]
        if unknown:
            near = get_close_matches(unknown[0], known, n=3, cutoff=0.4)
            mend = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
            raise problem(f"no price of an API model {quoted(unknown[0])}", mend)
        return value
