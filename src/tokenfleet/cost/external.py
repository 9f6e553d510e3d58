"""External APIs: what a request costs there, and whether hosting the model oneself would be cheaper."""

from collections.abc import Iterable

from tokenfleet.catalog import ApiPrice
from tokenfleet.cost.purchase import HOURS_PER_MONTH
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass

_SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600.0
_HIGHEST_USD_PER_TOKEN = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of a request as a provider bills them. Each token is in one class only."""

    input_tokens: int = 0
    """Input that was neither read from a cache nor written to one."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    visible_output_tokens: int = 0
    reasoning_tokens: int = 0
    """Output the user does not see, and pays for."""

    @property
    def billed_output_tokens(self) -> int:
        """All output, seen or not."""
        return self.visible_output_tokens + self.reasoning_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMix:
    """Of all tokens of a service, the shares of each kind; they add up to 1."""

    input_fraction: float
    cached_fraction: float
    output_fraction: float

    def __post_init__(self) -> None:
        shares = (self.input_fraction, self.cached_fraction, self.output_fraction)
        if min(shares) < 0.0 or abs(sum(shares) - 1.0) > 1e-9:
            raise ValueError(f"shares {shares} do not add up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrBuy:
    """One external model against hosting: both bills of a month, and where they meet."""

    provider: str
    model: str
    api_usd_per_million_tokens: float | None
    """At the mix of the service; ``None`` where a price it needs is not published."""
    api_usd_per_month: float | None
    hosted_usd_per_month: float
    break_even_tokens_per_month: float | None
    break_even_utilization_fraction: float | None
    """Share of what the fleet could produce at which both cost the same; above 1 hosting on this fleet never wins."""
    as_of: str

    @property
    def hosting_is_cheaper(self) -> bool | None:
        """At the demand given; ``None`` where the API's price is unknown."""
        return None if self.api_usd_per_month is None else self.hosted_usd_per_month < self.api_usd_per_month


def api_charge_usd(usage: TokenUsage, price: ApiPrice) -> float | None:
    """What a request costs at an API: each class of tokens once, at its own price.

    Returns:
        Dollars, or ``None`` when the price of a class that was used is not published. An unknown price is not 0 and no
        other model's price stands in for it.
    """
    return _total(
        (usage.input_tokens, price.input_usd_per_million_tokens),
        (usage.cache_read_tokens, price.cached_input_usd_per_million_tokens),
        (usage.cache_write_tokens, price.cache_write_usd_per_million_tokens),
        (usage.billed_output_tokens, price.output_usd_per_million_tokens),
    )


def blended_usd_per_million_tokens(price: ApiPrice, mix: TokenMix) -> float | None:
    """Price of a million tokens of a service's own mix; ``None`` where a price it needs is not published."""
    total = _total(
        (mix.input_fraction, price.input_usd_per_million_tokens),
        (mix.cached_fraction, price.cached_input_usd_per_million_tokens),
        (mix.output_fraction, price.output_usd_per_million_tokens),
    )
    return None if total is None else total * 1e6


def _total(*parts: tuple[float, float | None]) -> float | None:
    """Dollars of (tokens, dollars per million) pairs; a class without tokens needs no price."""
    dollars = 0.0
    for tokens, usd_per_million in parts:
        if tokens and usd_per_million is None:
            return None
        dollars += tokens * (usd_per_million or 0.0) / 1e6
    return dollars


def price_of(prices: Iterable[ApiPrice], model: str, *, provider: str | None = None) -> ApiPrice | None:
    """The price of a model by its exact name; ``None`` when it has none. No default price exists."""
    found = (price for price in prices if price.model == model and provider in (None, price.provider))
    return next(found, None)


def usd_per_million_of_token_price(usd_per_token: float, *, where: str) -> float:
    """Turns a price per token into one per million, and refuses one that was meant per million.

    Raises:
        BadInput: below 0, or above 0.001 dollars a token, which is 1,000 dollars per million.
    """
    if usd_per_token < 0.0:
        raise BadInput.at(where, f"a price of {usd_per_token:g} dollars", "give 0 or more")
    if usd_per_token > _HIGHEST_USD_PER_TOKEN:
        raise BadInput.at(
            where,
            f"{usd_per_token:g} dollars per token is {usd_per_token * 1e6:,.0f} per million",
            f"if {usd_per_token:g} is the price per million tokens, write {usd_per_token / 1e6:g}",
        )
    return usd_per_token * 1e6


def host_or_buy(
    prices: Iterable[ApiPrice],
    *,
    mix: TokenMix,
    demand_tokens_per_month: float,
    hosted_usd_per_hour: float,
    capacity_tokens_per_s: float,
) -> tuple[HostOrBuy, ...]:
    """Each external model against a fleet of one's own, for one demand.

    A fleet is paid for by the hour, busy or not, so its whole bill counts, not the share of time it works. Break-even
    is where the API's bill reaches it: ``hosted / API price`` tokens, and that over what the fleet could produce.
    Quality is not compared: take only models that would do the job.

    Args:
        prices: of the models that would do.
        mix: kinds of tokens of the service, of all its tokens.
        demand_tokens_per_month: all kinds together, >= 0.
        hosted_usd_per_hour: the whole bill of the fleet, spare replicas and people included.
        capacity_tokens_per_s: what the fleet sustains within its promise, in the same mix, > 0.

    Returns:
        One row per price: the cheapest API first, those of unknown price last.

    Raises:
        ValueError: a capacity of 0 or less, or a negative demand or bill.
    """
    if capacity_tokens_per_s <= 0.0 or demand_tokens_per_month < 0.0 or hosted_usd_per_hour < 0.0:
        raise ValueError(
            f"capacity {capacity_tokens_per_s}, demand {demand_tokens_per_month}, bill {hosted_usd_per_hour}"
        )
    hosted = hosted_usd_per_hour * HOURS_PER_MONTH
    rows = []
    for price in prices:
        blended = blended_usd_per_million_tokens(price, mix)
        even = hosted / blended * 1e6 if blended else None
        rows.append(
            HostOrBuy(
                provider=price.provider,
                model=price.model,
                api_usd_per_million_tokens=blended,
                api_usd_per_month=None if blended is None else blended * demand_tokens_per_month / 1e6,
                hosted_usd_per_month=hosted,
                break_even_tokens_per_month=even,
                break_even_utilization_fraction=(
                    None if even is None else even / (capacity_tokens_per_s * _SECONDS_PER_MONTH)
                ),
                as_of=price.as_of,
            )
        )
    unknown = float("inf")
    rows.sort(key=lambda row: unknown if row.api_usd_per_month is None else row.api_usd_per_month)
    return tuple(rows)
