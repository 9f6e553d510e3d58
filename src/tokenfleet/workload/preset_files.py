"""Kinds of traffic that come with the package: data with its sources, read from files beside this module."""

import functools
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats
from tokenfleet.workload.spelling import nearest

_EDGE_Z = 4.0
"""Fractions 0 and 1 of a quantile table: the shortest and longest that are ever drawn."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution through published points: log-linear in the normal score between them, cut at both ends."""

    z: tuple[float, ...]
    log_value: tuple[float, ...]

    @classmethod
    def of(cls, table: Mapping[float, float]) -> "Quantiles":
        """From fraction -> value; fraction 0 is the shortest, 1 the longest; values are positive."""
        points = sorted((float(fraction), float(value)) for fraction, value in table.items())
        z = [-_EDGE_Z if part <= 0 else _EDGE_Z if part >= 1 else NormalDist().inv_cdf(part) for part, _ in points]
        return cls(tuple(z), tuple(float(np.log(value)) for _, value in points))

    def draw(self, random: "np.random.Generator", count: int) -> Floats:
        """Real-valued draws."""
        return np.asarray(np.exp(np.interp(random.standard_normal(count), self.z, self.log_value)), dtype=np.float64)

    def draw_tokens(self, random: "np.random.Generator", count: int) -> npt.NDArray[np.int64]:
        """Whole draws of at least 1."""
        return np.maximum(np.rint(self.draw(random, count)), 1).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client of a multi-tenant service; a length is (median, p95), ``None`` where nothing was published."""

    share: float
    cv: float
    gaps: Literal["gamma", "weibull"]
    input_tokens: tuple[float, float] | None
    output_tokens: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallClients:
    """The many that share the rest."""

    count: int
    share: float
    share_spread: float
    """Standard deviation of the logarithm of their shares."""
    cv: Quantiles
    input_median: Quantiles
    input_p95_over_median: float
    output_median: Quantiles
    output_p95_over_median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """Retrieved texts of which the first can repeat: rank ``r`` is used in proportion to ``r ** -zipf``."""

    tokens: int
    count: int
    zipf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A kind of traffic. Every figure names its source in the file it comes from."""

    name: str
    title: str
    about: str
    sources: dict[str, str]
    peak_to_mean_minute: float
    interarrival_cv: float
    turns: Quantiles
    turn_gap_s: Quantiles
    reply_s_per_token: float
    system_prompt_tokens: tuple[int, ...]
    system_prompt_shares: tuple[float, ...]
    passages: Passages | None
    first_input_tokens: Quantiles
    next_input_tokens: Quantiles
    output_tokens: Quantiles
    longest_context_tokens: int
    large_clients: tuple[Client, ...]
    small_clients: SmallClients | None


def preset_names() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    folder = Path(__file__).with_name("presets")
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def presets() -> tuple[Preset, ...]:
    """Every preset."""
    return tuple(preset(name) for name in preset_names())


def preset(name: str, *, where: str = "preset") -> Preset:
    """One preset by name.

    Raises:
        BadInput: no such preset; names the nearest.
    """
    if name not in preset_names():
        mend = nearest(name, list(preset_names())) or f"one of {', '.join(preset_names())}"
        raise BadInput.at(where, f"there is no preset '{name}'", mend)
    return _load(name)


def preset_document(name: str) -> dict[str, Any]:
    """The preset's file as data: every figure with its source, for reports and documentation."""
    text = (Path(__file__).with_name("presets") / f"{name}.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


@functools.cache
def _load(name: str) -> Preset:
    data = preset_document(name)
    prompts = data["system_prompts"]
    passages = data.get("first_passages")
    tenants = data.get("tenants")
    return Preset(
        name=data["name"],
        title=data["title"],
        about=data["about"].strip(),
        sources={key: text.strip() for key, text in data["sources"].items()},
        peak_to_mean_minute=float(data["peak_to_mean_minute"]["value"]),
        interarrival_cv=float(data["interarrival_cv"]["value"]),
        turns=Quantiles.of(data["turns"]["quantiles"]),
        turn_gap_s=Quantiles.of(data["turn_gap_s"]["quantiles"]),
        reply_s_per_token=float(data["reply_s_per_token"]["value"]),
        system_prompt_tokens=tuple(prompts["tokens"]),
        system_prompt_shares=tuple(prompts["shares"]),
        passages=Passages(tokens=passages["tokens"], count=passages["count"], zipf=passages["zipf"])
        if passages
        else None,
        first_input_tokens=Quantiles.of(data["first_input_tokens"]["quantiles"]),
        next_input_tokens=Quantiles.of(data["next_input_tokens"]["quantiles"]),
        output_tokens=Quantiles.of(data["output_tokens"]["quantiles"]),
        longest_context_tokens=int(data["longest_context_tokens"]["value"]),
        large_clients=tuple(_client(entry) for entry in tenants["large"]) if tenants else (),
        small_clients=_small(tenants["small"]) if tenants else None,
    )


def _client(entry: dict[str, Any]) -> Client:
    return Client(
        share=entry["share"],
        cv=entry["cv"],
        gaps=entry["gaps"],
        input_tokens=tuple(entry["input"]) if "input" in entry else None,
        output_tokens=tuple(entry["output"]) if "output" in entry else None,
    )


def _small(entry: dict[str, Any]) -> SmallClients:
    return SmallClients(
        count=entry["count"],
        share=entry["share"],
        share_spread=entry["share_spread"],
        cv=Quantiles.of(entry["cv"]),
        input_median=Quantiles.of(entry["input_median"]),
        input_p95_over_median=entry["input_p95_over_median"],
        output_median=Quantiles.of(entry["output_median"]),
        output_p95_over_median=entry["output_p95_over_median"],
    )
