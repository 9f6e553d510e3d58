"""Six kinds of service a newcomer recognises, with answers that make a good first plan."""

from typing import Final

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKind:
    """What ``init`` takes for granted until a person says otherwise, written as a scenario writes it."""

    name: str
    """Also the preset of its traffic."""
    title: str
    about: str
    """What shapes such traffic, for somebody who has never sized it."""
    model: str
    peak_rate: str
    duration: str
    slo: dict[str, str]
    why_slo: str
    gpus: tuple[str, ...]
    precision: tuple[str, ...]
    kv_dtype: tuple[str, ...] = ("bf16",)
    spare: str = "n+1"
    term: str = "on_demand"
    router: str = "least_in_flight"


SERVICE_KINDS: Final = (
    ServiceKind(
        name="chat",
        title="Online chat",
        about="Support and assistant chat: about 800 tokens in and 200 out per turn. Turns of one conversation share\n"
        "their history, so a prefix cache saves prefill when the router finds the right replica.",
        model="meta-llama/Llama-3.3-70B-Instruct",
        peak_rate="20/s",
        duration="20min",
        slo={"ttft_p99": "2s", "itl_p99": "100ms", "error_rate": "0.1%"},
        why_slo="People read about 5 words a second: 100 ms between tokens feels fluent, 2 s to the first is patience.",
        gpus=("h100_sxm", "h200_sxm", "a100_sxm_80gb"),
        precision=("bf16", "fp8"),
    ),
    ServiceKind(
        name="rag",
        title="Enterprise RAG",
        about="Questions over retrieved passages: prompts of thousands of tokens, short answers. Prefill is most of\n"
        "the work, so time to first token is the promise that costs money. Retrieval itself is not counted here.",
        model="meta-llama/Llama-3.1-8B-Instruct",
        peak_rate="15/s",
        duration="20min",
        slo={"ttft_p95": "1500ms", "itl_p99": "80ms", "error_rate": "0.1%"},
        why_slo="The answer starts after retrieval, which has its own half second: 1.5 s leaves 2 s in all.",
        gpus=("l40s", "h100_sxm", "a100_sxm_80gb"),
        precision=("bf16", "fp8"),
    ),
    ServiceKind(
        name="summarize",
        title="Long-document summarisation",
        about="Documents of about 50,000 tokens in, a page out. One prompt fills many steps of prefill, and the KV\n"
        "cache of a few of them fills a GPU: sequences, not tokens per second, are what you run out of.",
        model="meta-llama/Llama-3.1-8B-Instruct",
        peak_rate="30/min",
        duration="1h",
        slo={"ttft_p95": "30s", "e2e_p95": "90s", "error_rate": "0.5%"},
        why_slo="A summary is waited for the way a report is: a minute and a half is fine, ten are not.",
        gpus=("h100_sxm", "h200_sxm", "l40s"),
        precision=("bf16", "fp8"),
        kv_dtype=("bf16", "fp8"),
    ),
    ServiceKind(
        name="agents",
        title="Agentic coding",
        about="One task is a session of about ten calls whose context grows with every tool result. Most of each\n"
        "prompt was sent before: without a prefix cache you pay for it again, ten times.",
        model="openai/gpt-oss-120b",
        peak_rate="6/s",
        duration="20min",
        slo={"ttft_p95": "4s", "itl_p99": "120ms", "error_rate": "0.1%"},
        why_slo="An agent waits at every step, so delays add up: ten calls at 4 s are 40 s of a task.",
        gpus=("h100_sxm", "h200_sxm"),
        precision=("checkpoint",),
        router="prefix_affinity",
    ),
    ServiceKind(
        name="multitenant",
        title="Multi-tenant API",
        about="Many customers on one endpoint, a few of them most of the load. Bursts of one are the queue of all:\n"
        "the busiest minute decides, not the average.",
        model="meta-llama/Llama-3.1-8B-Instruct",
        peak_rate="60/s",
        duration="15min",
        slo={"ttft_p99": "1500ms", "itl_p99": "60ms", "error_rate": "0.1%"},
        why_slo="An API is measured by its customers' dashboards, and those show p99.",
        gpus=("l40s", "h100_sxm", "a100_sxm_80gb"),
        precision=("bf16", "fp8"),
    ),
    ServiceKind(
        name="batch",
        title="Offline batch",
        about="Work that must be done by a deadline, with nobody watching tokens appear. Throughput and price are all\n"
        "that count, and a lost replica costs time, not a promise: no spare is needed, spot prices are fair.",
        model="Qwen/Qwen3-32B",
        peak_rate="10/s",
        duration="30min",
        slo={"done_within": "15min", "error_rate": "1%"},
        why_slo="Each request may wait in the queue for minutes, which lets the engine run full batches.",
        gpus=("h100_sxm", "h200_sxm"),
        precision=("bf16", "fp8"),
        spare="none",
        term="spot",
    ),
)


def service_kind(name: str) -> ServiceKind | None:
    """The kind of this name, or ``None``."""
    return next((kind for kind in SERVICE_KINDS if kind.name == name), None)
