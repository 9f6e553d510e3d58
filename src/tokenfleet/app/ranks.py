"""From the settings that an engine states of one rank to those of a whole replica."""

from dataclasses import replace

from tokenfleet.domain.replica import EngineSettings, Layout


def sized(engine: EngineSettings, layout: Layout) -> EngineSettings:
    """Settings of a whole replica: an engine states step budget and slots of one rank and one batch in flight.

    SGLang divides its budget among data-parallel ranks by itself. A step has the tokens of each slot at most.
    """
    ranks = layout.attention_data_parallel
    budgets = 1 if engine.name.startswith("sglang") else ranks
    tokens = engine.max_batched_tokens * budgets * layout.pipeline_parallel
    slots = min(engine.max_sequence_count * ranks, tokens // engine.step_token_count)
    return replace(engine, max_batched_tokens=tokens, max_sequence_count=slots)
