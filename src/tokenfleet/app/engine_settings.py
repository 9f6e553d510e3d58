"""Settings of an engine: its own defaults, and what a scenario says instead."""

from dataclasses import replace

from tokenfleet.app.scenario_types import EngineChoice, speculation_of
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import EngineSettings


def with_overrides(defaults: EngineSettings, choice: EngineChoice, model: ModelArchitecture) -> EngineSettings:
    """The engine's defaults for a model with the scenario's own settings on top."""
    renamed = {
        "memory_utilization": "memory_utilization_fraction",
        "context_limit": "context_limit_tokens",
        "prefill_decode_interval": "prefill_decode_interval_count",
        "swap_space": "swap_bytes",
    }
    plain = choice.model_dump(exclude_none=True, exclude={"name", "speculation"})
    given = {renamed.get(key, key): value for key, value in plain.items()}
    chosen = replace(defaults, **given, speculation=speculation_of(choice.speculation))
    return chosen if choice.max_batched_tokens is not None else with_whole_prompts(chosen, model)


def with_whole_prompts(engine: EngineSettings, model: ModelArchitecture) -> EngineSettings:
    """The default step budget of vLLM, which is the longest request where prompts are not cut."""
    if engine.chunked_prefill or not engine.name.startswith("vllm"):
        return engine
    longest = engine.context_limit_tokens or model.max_context_tokens or 0
    return replace(engine, max_batched_tokens=max(engine.max_batched_tokens, longest))
