"""From the settings that an engine states of one rank to those of a whole replica."""

from dataclasses import replace

from tokenfleet.domain.replica import EngineSettings, Layout


def sized(engine: EngineSettings, layout: Layout) -> EngineSettings:
    """Settings of a whole replica: an engine states step budget and slots of one rank and one batch in flight.

    SGLang divides its budget among data-parallel ranks by itself.
    """
    ranks = layout.attention_data_parallel
    budgets = 1 if engine.name.startswith("sglang") else ranks
    tokens = engine.max_batched_tokens * budgets * layout.pipeline_parallel
    slots = engine.max_sequence_count * ranks
    return with_fitting_slots(replace(engine, max_batched_tokens=tokens, max_sequence_count=slots))


def with_fitting_slots(engine: EngineSettings) -> EngineSettings:
    """Not more slots than the budget of a step has tokens for, drafts included; SGLang's decodes take none of it."""
    if engine.name.startswith("sglang"):
        return engine
    most = max(engine.max_batched_tokens // engine.step_token_count, 1)
    return replace(engine, max_sequence_count=min(engine.max_sequence_count, most))
