"""Settings of an engine: its own defaults, and what a scenario says instead."""

from dataclasses import replace

from tokenfleet import performance
from tokenfleet.app.ranks import with_fitting_slots
from tokenfleet.app.scenario_types import EngineChoice, speculation_of
from tokenfleet.app.scenario_words import said
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import EngineSettings

SGLANG_PREFILL_TOKENS = 16_384
"""Prompt tokens of one round where prompts are not cut: SGLang's default of ``max_prefill_tokens``."""


def with_overrides(defaults: EngineSettings, choice: EngineChoice, model: ModelArchitecture) -> EngineSettings:
    """The engine's defaults for a model with the scenario's own settings on top.

    A small step budget, or drafts, leave the default of the sequences at once as many as fit into a step.

    Raises:
        BadInput: the scenario asks for more sequences than fit into a step.
    """
    renamed = {
        "memory_utilization": "memory_utilization_fraction",
        "context_limit": "context_limit_tokens",
        "prefill_decode_interval": "prefill_decode_interval_count",
        "receive_interval": "receive_interval_count",
        "swap_space": "swap_bytes",
    }
    plain = {key: value for key, value in said(choice).items() if key not in ("name", "speculation")}
    given = {renamed.get(key, key): value for key, value in plain.items()}
    chosen = replace(defaults, **given, speculation=speculation_of(choice.speculation))
    if choice.max_batched_tokens is None:
        chosen = with_whole_prompts(chosen, model)
    fitting = with_fitting_slots(chosen)
    if choice.max_sequence_count is not None and fitting != chosen:
        tokens = choice.max_sequence_count * chosen.step_token_count
        what = f"{choice.max_sequence_count} sequences take {tokens} tokens of a step, and its budget is "
        what += str(chosen.max_batched_tokens)
        mend = f"at most {fitting.max_sequence_count}, or a larger engine.max_batched_tokens"
        raise BadInput.at("engine.max_sequence_count", what, mend)
    return fitting


def with_whole_prompts(engine: EngineSettings, model: ModelArchitecture) -> EngineSettings:
    """The default step budget where prompts are not cut: the longest request in vLLM, a limit of its own in SGLang."""
    if not engine.chunked_prefill and engine.name.startswith("sglang"):
        return replace(engine, max_batched_tokens=SGLANG_PREFILL_TOKENS)
    if engine.chunked_prefill or not engine.name.startswith("vllm"):
        return engine
    longest = engine.context_limit_tokens or model.max_context_tokens or 0
    return replace(engine, max_batched_tokens=max(engine.max_batched_tokens, longest))


def refuse_short_steps(engine: EngineSettings, model: ModelArchitecture, own: str) -> None:
    """No gpu helps where steps are too short for prompts that may not be cut.

    Args:
        engine: Its settings.
        model: What it serves.
        own: The key nearer by that says how long its steps are; empty where that of the engine does.

    Raises:
        BadInput: they are.
    """
    reasons = performance.short_steps(model, engine)
    if reasons:
        raise BadInput(Problem(own or "engine.max_batched_tokens", reason.text, reason.relax) for reason in reasons)
