"""Whose rules a replica follows: the rule sets by the name of the engine, and the constants of theirs."""

from tokenfleet.domain.replica import EngineSettings
from tokenfleet.simulator.layout import SGLANG, TRTLLM, VLLM

RULE_SETS = {"vllm": VLLM, "trtllm": TRTLLM, "sglang": SGLANG}

RATIO_ONE = 3_000_000
"""SGLang's ratio in integers: a 3,000,000th makes its fall per round a whole number."""
FIRST_RATIO = 2_100_000
"""0.7, at start and whenever the engine is idle."""
LEAST_RATIO = 294_000
"""0.098."""
RATIO_FALL = (FIRST_RATIO - LEAST_RATIO) // 600
"""What each round of decode takes off: least after 600 rounds."""
MOST_EXPECTED_TOKENS = 4096
"""Output of one request that SGLang's estimate counts at most."""
RETRACTION_MARGIN_TOKENS = 20
"""Tokens that each remaining request counts as ahead, when the ratio is set anew after a retraction."""


def rule_set(engine_name: str) -> int:
    """The rule set of an engine such as ``sglang-0.5``; an engine that has none of its own follows vLLM's."""
    return RULE_SETS.get(engine_name.split("-", maxsplit=1)[0], VLLM)


def foreign_settings(engine: EngineSettings) -> dict[str, object]:
    """Settings that only another engine's rules know."""
    rules = rule_set(engine.name)
    own: dict[str, object] = {}
    if rules != VLLM:
        own |= {"long_prefill_tokens": engine.long_prefill_tokens}
        own |= {"preemption": None if engine.preemption == "recompute" else engine.preemption}
        own |= {"scheduling": None if engine.scheduling == "fcfs" else engine.scheduling}
    if rules != SGLANG:
        own |= {"prefill_decode_interval_count": engine.prefill_decode_interval_count or None}
        own |= {"receive_interval_count": None if engine.receive_interval_count == 1 else engine.receive_interval_count}
    return {name: value for name, value in own.items() if value is not None}


def owner_of(setting: str) -> str:
    """The engine whose rules know a setting that others do not."""
    return "sglang" if setting in {"prefill_decode_interval_count", "receive_interval_count"} else "vllm"


def lone_is_free(engine_name: str) -> bool:
    """Whether a limit on long prefills leaves a request alone that is alone: since vLLM 0.32."""
    version = engine_name.partition("-")[2]
    return version not in {"0.11", "0.16", "0.24"}


def frees_unhashed_last(engine_name: str) -> bool:
    """Whether freed blocks without a name are reused behind those freed before: vLLM before 0.24."""
    return engine_name in {"vllm-0.11", "vllm-0.16"}


def rule_set_note(engine_name: str) -> str:
    """One sentence for a person: whose batching rules a replay of this engine follows, and what they leave out.

    Args:
        engine_name: Engine and version, such as ``vllm-0.32``.
    """
    family = engine_name.split("-", maxsplit=1)[0]
    if family == "vllm":
        return "Batching follows the vLLM V1 scheduler."
    if family == "trtllm":
        return (
            "Batching follows TensorRT-LLM's guaranteed-no-evict policy: blocks up to the last output token are set "
            "aside at admission. Its prefix cache is taken to work as vLLM's."
        )
    if family == "sglang":
        return (
            "Batching follows SGLang: prefill first, decodes pause meanwhile, admission by expected output, "
            "retraction of those with the fewest outputs. Two copies of one text are both kept in its prefix cache, "
            "and lengths are not rounded to pages."
        )
    return f"No batching rules of {family!r} are known: the replay follows the vLLM V1 scheduler."
