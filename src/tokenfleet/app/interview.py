"""What a plan must start from, as questions; and the answers as a commented scenario."""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

from tokenfleet import catalog, workload
from tokenfleet.app.quantities import (
    Unreadable,
    parse_duration_s,
    parse_fraction,
    parse_positive,
    parse_rate_per_s,
    parse_tokens,
    quoted,
)
from tokenfleet.app.redundancy_types import SPARE_REPLICAS
from tokenfleet.app.scenario_types import NAME
from tokenfleet.app.service_kinds import ServiceKind
from tokenfleet.app.slo_types import SLO_KEY
from tokenfleet.app.writing import plain
from tokenfleet.domain.records import dataclass

_NUMERIC: Final = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
Check = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing to ask. An empty answer takes the default."""

    key: str
    text: str
    help: str = ""
    default: str = ""
    check: Check | None = None
    """Raises :class:`Unreadable` or :class:`BadInput` for an answer that cannot be used."""


@dataclass(slots=True, kw_only=True)
class Answers:
    """A scenario to be, as a person would write it."""

    kind: str
    name: str
    model: str
    peak_rate: str
    duration: str
    slo: dict[str, str]
    gpus: list[str]
    precision: list[str]
    kv_dtype: list[str]
    spare: str
    term: str
    router: str
    growth: str = "1"
    trace: str = ""
    input: str = ""
    output: str = ""
    context_limit: int | None = None
    changed_slo: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def lengths_given(self) -> bool:
        """Whether the person knows token lengths."""
        return bool(self.input and self.output)


def default_answers(kind: ServiceKind) -> Answers:
    """Everything as usual for this kind of service."""
    return Answers(
        kind=kind.name,
        name=kind.name,
        model=kind.model,
        peak_rate=kind.peak_rate,
        duration=kind.duration,
        slo=dict(kind.slo),
        gpus=list(kind.gpus),
        precision=list(kind.precision),
        kv_dtype=list(kind.kv_dtype),
        spare=kind.spare,
        term=kind.term,
        router=kind.router,
    )


def questions(kind: ServiceKind) -> tuple[Question, ...]:
    """What to ask for this kind, in the order a person thinks."""
    return (*_demand_questions(kind), *_promise_questions(kind), *_fleet_questions(kind))


def _demand_questions(kind: ServiceKind) -> tuple[Question, ...]:
    peak, tokens = "20/s or 1200/min", "MEDIAN:P95 such as 700:1500; empty for the usual of this kind"
    return (
        Question(key="name", text="A name for this plan", default=kind.name, check=_name),
        Question(
            key="model", text="Model", help="catalog name, or path of a config.json", default=kind.model, check=_model
        ),
        Question(key="trace", text="A request log to plan from", help="CSV, JSON lines, Parquet; empty for none"),
        Question(
            key="peak_rate",
            text="Requests in the busiest minute",
            help=peak,
            default=kind.peak_rate,
            check=parse_rate_per_s,
        ),
        Question(key="input", text="Prompt tokens", help=tokens, check=workload.Lengths.parse),
        Question(key="output", text="Generated tokens", help=tokens, check=workload.Lengths.parse),
        Question(key="growth", text="Growth to plan for", help="1.3 is 30 % more", default="1", check=parse_positive),
        Question(key="tools", text="Do prompts carry passages, tool calls or images?", help="in a word; empty for no"),
    )


def _promise_questions(kind: ServiceKind) -> tuple[Question, ...]:
    slo, none = kind.slo, "empty for no promise"
    streaming = "yes" if any(key.startswith(("ttft", "itl")) for key in slo) else "no"
    return (
        Question(key="streaming", text="Are tokens streamed to whoever waits?", default=streaming, check=_yes_or_no),
        Question(
            key="quantile", text="Share of requests that keep it", help="p50, p95, p99", default="p99", check=_quantile
        ),
        _time_question(slo, "ttft", f"Time to first token ({none})"),
        _time_question(slo, "itl", f"Time between two tokens ({none})"),
        _time_question(slo, "e2e", f"Time to the whole answer ({none})"),
        Question(key="error_rate", text="Requests that may fail", default=slo["error_rate"], check=parse_fraction),
        Question(
            key="context_limit",
            text="Longest prompt plus output to accept, in tokens",
            help="empty for the model's own",
            check=parse_tokens,
        ),
        Question(key="full", text="When everything is full, queue or reject?", default="queue"),
    )


def _time_question(slo: Mapping[str, str], metric: str, text: str) -> Question:
    usual = next((limit for key, limit in slo.items() if key.startswith(f"{metric}_")), "")
    return Question(key=metric, text=text, default=usual, check=parse_duration_s)


def _fleet_questions(kind: ServiceKind) -> tuple[Question, ...]:
    return (
        Question(key="gpus", text="GPUs you can get", help="by commas", default=", ".join(kind.gpus), check=_gpus),
        Question(
            key="spare",
            text="Replicas that may fail at the busiest minute",
            help="none, n+1, n+2",
            default=kind.spare,
            check=_spare,
        ),
        Question(key="regions", text="Regions or zones that must survive", help="empty for one region"),
    )


def _name(text: str) -> object:
    if NAME.fullmatch(text) is None:
        raise Unreadable(f"{quoted(text)} cannot name a folder", "use letters, digits, . _ and -")
    return text


def _model(name: str) -> object:
    return catalog.model(name)


def _gpus(names: str) -> object:
    return [catalog.gpu(name.strip()) for name in names.split(",")]


def _yes_or_no(text: str) -> object:
    if text.lower() not in {"yes", "no", "y", "n"}:
        raise Unreadable(f"{quoted(text)} is neither", "write yes or no")
    return text


def _quantile(text: str) -> object:
    if SLO_KEY.fullmatch(f"ttft_{text}") is None:
        raise Unreadable(f"{quoted(text)} is not a percentile", "write p50, p95 or p99")
    return text


def _spare(text: str) -> object:
    if text not in SPARE_REPLICAS:
        raise Unreadable(f"{quoted(text)} is not a redundancy", f"write {', '.join(SPARE_REPLICAS)}")
    return text


def answers_from(kind: ServiceKind, given: Mapping[str, str]) -> Answers:
    """The scenario that ``given`` describes; what is missing stays as usual for the kind."""
    answers = default_answers(kind)
    said = {key: value.strip() for key, value in given.items() if value.strip()}
    for key in ("name", "model", "trace", "peak_rate", "input", "output", "growth", "spare"):
        if key in said:
            setattr(answers, key, said[key])
    if "gpus" in said:
        answers.gpus = [part.strip() for part in said["gpus"].split(",") if part.strip()]
    if "context_limit" in said:
        answers.context_limit = parse_tokens(said["context_limit"])
    answers.slo = _slo(kind, given)
    answers.changed_slo = answers.slo != kind.slo
    if any(SLO_KEY.fullmatch(key) for key in answers.slo):
        # Spot is for work with deadlines alone.
        answers.term = "on_demand" if answers.term == "spot" else answers.term
    answers.notes = _notes(said)
    return answers


def _slo(kind: ServiceKind, given: Mapping[str, str]) -> dict[str, str]:
    if not any(key in given for key in ("ttft", "itl", "e2e", "error_rate", "streaming", "quantile")):
        return dict(kind.slo)
    quantile = given.get("quantile", "").strip() or "p99"
    streamed = given.get("streaming", "yes").strip().lower() not in {"no", "n"}
    metrics = ("ttft", "itl", "e2e") if streamed else ("e2e",)
    slo = {f"{metric}_{quantile}": given[metric].strip() for metric in metrics if given.get(metric, "").strip()}
    deadlines = {key: limit for key, limit in kind.slo.items() if key.startswith("done_")}
    return deadlines | slo | {"error_rate": given.get("error_rate", "").strip() or kind.slo["error_rate"]}


_NOTED: Final = {
    "tools": "prompts carry",
    "full": "when everything is full",
    "regions": "must survive",
}


def _notes(said: Mapping[str, str]) -> list[str]:
    return [f"{text}: {said[key]}" for key, text in _NOTED.items() if key in said and said[key] not in {"no", "queue"}]


def scenario_text(kind: ServiceKind, answers: Answers, *, file_name: str) -> str:
    """The answers as a scenario file with comments."""
    import yaml
    from jinja2 import Environment, StrictUndefined

    def text(value: object) -> str:
        # Text that looks like a number (1e3) is quoted: YAML versions disagree on what is one.
        quote = '"' if isinstance(value, str) and _NUMERIC.fullmatch(value) else None
        written = yaml.safe_dump(value, default_style=quote, default_flow_style=True, allow_unicode=True, width=10_000)
        return written.removesuffix("...\n").strip()

    def scalar(value: object) -> str:
        return text(plain(value))

    def flow(values: list[str]) -> str:
        return f"[{', '.join(scalar(value) for value in values)}]"

    # The text is YAML, not HTML, and every value passes through the YAML writer: HTML escaping would corrupt it.
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False)
    environment.filters |= {"text": text, "scalar": scalar, "flow": flow}
    source = Path(__file__).with_name("templates").joinpath("scenario.yaml.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(kind=kind, a=answers, file_name=file_name).rstrip() + "\n"
