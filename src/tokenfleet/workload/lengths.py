"""Token lengths as a distribution, never as one number for everybody."""

import math
import re
from statistics import NormalDist
from typing import Literal

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Ints, Workload

CAP_Z = 4.0
"""Log-normal lengths stop at this many standard deviations, which one request in 30,000 would pass."""

_Z95 = NormalDist().inv_cdf(0.95)
_LARGEST_TOKENS = 10_000_000.0
_MOST_TOKENS = 50_000_000
"""Drawn from such lengths no request is longer, as in a log."""
_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([kKmM]?)\s*$")
_FACTOR = {"": 1.0, "k": 1e3, "m": 1e6}


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts or answers are.

    Use :meth:`parse` for what a person types, :meth:`from_profile` for a measured pair. ``mu`` and ``sigma`` are of
    the natural logarithm, in tokens; ``offset`` tokens come on top of the log-normal part.
    """

    text: str
    """As a person would type it."""
    mu: float
    sigma: float
    offset: int = 0
    profile: Workload | None = None
    side: Literal["input", "output"] | None = None

    @classmethod
    def parse(cls, text: str, *, where: str = "lengths") -> "Lengths":
        """Read ``MEAN`` or ``MEDIAN:P95``, in tokens (``1.5k`` is 1,500).

        ``MEAN`` says nothing about spread, so a log-normal with coefficient of variation 1 above the first token is
        assumed and its mean is exactly the one given. ``MEDIAN:P95`` is the log-normal through both points. Both stop
        at 4 standard deviations of the logarithm.

        Args:
            text: What was typed.
            where: Name of the option or key, for the error.

        Raises:
            BadInput: not a number, below 1, a median above the p95 or far below; says how to mend it.
        """
        parts = text.split(":")
        if len(parts) > 2:
            raise BadInput.at(where, f"'{text}' has {len(parts)} parts", "write MEAN (800) or MEDIAN:P95 (700:1500)")
        values = [_tokens(part, text, where) for part in parts]
        if len(values) == 1:
            mu, sigma = _log_normal_with_mean(values[0] - 1.0)
            return cls(text=text.strip(), mu=mu, sigma=sigma, offset=1)
        median, p95 = values
        if median > p95:
            raise BadInput.at(
                where,
                f"the median {median:g} is above the p95 {p95:g}",
                f"write MEDIAN:P95, so '{parts[1]}:{parts[0]}'?",
            )
        made = cls(text=text.strip(), mu=math.log(median), sigma=math.log(p95 / median) / _Z95)
        if made.cap_tokens > _MOST_TOKENS:
            what = f"a p95 {p95 / median:,.0f} times the median makes the longest {made.cap_tokens:.2g} tokens"
            raise BadInput.at(where, what, f"bring them nearer: nothing is longer than {_MOST_TOKENS:,} tokens")
        return made

    @classmethod
    def from_profile(cls, workload: Workload) -> "tuple[Lengths, Lengths]":
        """Input and output lengths of a measured workload; drawn together they keep the joint shape."""
        return (
            cls(text="input of a profile", mu=0.0, sigma=0.0, profile=workload, side="input"),
            cls(text="output of a profile", mu=0.0, sigma=0.0, profile=workload, side="output"),
        )

    @property
    def cap_tokens(self) -> float:
        """The longest length that can be drawn."""
        if self.profile is not None:
            return self._summary_value("max")
        return max(1.0, self.offset + math.exp(self.mu + CAP_Z * self.sigma))

    @property
    def mean_tokens(self) -> float:
        """Mean of the distribution, the cap included."""
        if self.profile is not None:
            return self._summary_value("mean")
        below = NormalDist().cdf(CAP_Z - self.sigma) * math.exp(self.sigma**2 / 2)
        at_cap = math.exp(CAP_Z * self.sigma) * (1 - NormalDist().cdf(CAP_Z))
        return self.offset + math.exp(self.mu) * (below + at_cap)

    def quantile_tokens(self, fraction: float) -> float:
        """Length that ``fraction`` of requests (0 to 1, both excluded) do not exceed."""
        if self.profile is not None:
            raise BadInput.at("lengths", "quantiles of a profile are in the profile", "read its LengthSummary")
        z = min(NormalDist().inv_cdf(fraction), CAP_Z)
        return max(1.0, self.offset + math.exp(self.mu + z * self.sigma))

    def describe(self) -> str:
        """One line that says what was assumed."""
        if self.profile is not None:
            return f"measured {self.side} lengths, mean {self.mean_tokens:.0f}, longest {self.cap_tokens:.0f} tokens"
        spread = "coefficient of variation 1 assumed" if self.offset else "log-normal through median and p95"
        middle = f"p50 {self.quantile_tokens(0.5):.0f}, p95 {self.quantile_tokens(0.95):.0f}"
        return f"mean {self.mean_tokens:.0f}, {middle}, at most {self.cap_tokens:.0f} tokens ({spread})"

    def draw(self, random: "np.random.Generator", count: int) -> Ints:
        """Draw ``count`` lengths of at least one token.

        Raises:
            BadInput: these lengths belong to a profile, whose two sides are only drawn together.
        """
        if self.profile is not None:
            raise BadInput.at("lengths", "one side of a profile cannot be drawn alone", "give both input and output")
        drawn = np.exp(self.mu + self.sigma * np.minimum(random.standard_normal(count), CAP_Z))
        # Random rounding keeps the mean of the real-valued draw; plain rounding would bend short lengths.
        whole = np.floor(drawn + random.random(count)) if self.offset else np.rint(drawn)
        return np.asarray(np.maximum(whole + self.offset, 1), dtype=np.int32)

    def _summary_value(self, name: Literal["max", "mean"]) -> float:
        assert self.profile is not None
        summary = self.profile.input_tokens if self.side == "input" else self.profile.output_tokens
        return summary.max if name == "max" else summary.mean


def _tokens(part: str, text: str, where: str) -> float:
    match = _NUMBER.match(part)
    if match is None:
        raise BadInput.at(where, f"'{text}' is not a length", "write MEAN (800) or MEDIAN:P95 (700:1500), in tokens")
    value = float(match.group(1)) * _FACTOR[match.group(2).lower()]
    if value < 1:
        raise BadInput.at(where, f"'{text}' is below one token", "every request has at least one token")
    if value > _LARGEST_TOKENS:
        raise BadInput.at(where, f"'{text}' is above ten million tokens", "lengths are in tokens, not bytes")
    return value


def _log_normal_with_mean(mean: float) -> tuple[float, float]:
    """``mu`` and ``sigma`` of a log-normal with coefficient of variation 1 whose mean, cut at the cap, is ``mean``."""
    if mean <= 0:
        return -math.inf, 0.0
    sigma = math.sqrt(math.log(2.0))
    unit = Lengths(text="", mu=0.0, sigma=sigma).mean_tokens
    return math.log(mean / unit), sigma
