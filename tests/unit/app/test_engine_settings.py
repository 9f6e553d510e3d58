"""Limits that an engine takes from its model where nobody sets them."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import catalog, performance, simulator
from tokenfleet.app.engine_settings import with_overrides
from tokenfleet.app.scenario_types import EngineChoice
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.domain.run import Status
from tokenfleet.domain.trace import Trace

GPU = catalog.gpu("h100_sxm")
OLD = catalog.model("meta-llama/Llama-2-13b-hf")  # made for 4,096 tokens


def deployed(choice, model=OLD):
    engine = with_overrides(catalog.engine("vllm", gpu=GPU), EngineChoice.model_validate(choice), model)
    return Deployment(
        model=model.name, gpu=GPU.name, layout=Layout(), precision="bf16", kv_precision="bf16", engine=engine
    )


@pytest.mark.parametrize(("limit", "served"), [(None, 4096), (2048, 2048), (8192, 8192)])
def test_requests_longer_than_the_model_was_made_for_are_refused(limit, served):
    choice = {} if limit is None else {"context_limit": limit}
    physics = performance.replica_physics(OLD, GPU, deployed(choice))
    assert physics.context_limit_tokens == served
    trace = Trace(
        arrival_s=np.array([0.0, 1.0]),
        input_tokens=np.array([served - 10, served - 9], dtype=np.int32),
        output_tokens=np.array([10, 10], dtype=np.int32),
    )
    done = simulator.replay(trace, Fleet(groups=(ReplicaGroup(replica=physics, replica_count=1),)))
    assert done.status.tolist() == [Status.FINISHED, Status.REJECTED_TOO_LONG]


def test_whole_prompts_get_a_step_for_the_longest_request():
    assert deployed({"chunked_prefill": False, "context_limit": 32768}).engine.max_batched_tokens == 32768
    assert deployed({"chunked_prefill": False, "context_limit": 1024}).engine.max_batched_tokens == 8192
    assert deployed({"chunked_prefill": True, "context_limit": 32768}).engine.max_batched_tokens == 8192


def test_vllm_does_not_start_where_a_prompt_may_be_longer_than_a_step():
    found = performance.unsupported(OLD, GPU, deployed({"chunked_prefill": False, "max_batched_tokens": 512}))
    assert found == (
        "without chunked prefill vLLM needs a step for its longest request: max_batched_tokens is 512, the context "
        "limit 4,096; set engine.chunked_prefill: true, raise max_batched_tokens or lower engine.context_limit",
    )
    other = deployed({"chunked_prefill": False, "max_batched_tokens": 512})
    other = replace(other, engine=replace(other.engine, name="trtllm-1.2"))
    assert performance.unsupported(OLD, GPU, other) == ()


def settings_of(engine, **choice):
    return with_overrides(catalog.engine(engine, gpu=GPU), EngineChoice.model_validate({"name": engine, **choice}), OLD)


def test_default_slots_are_no_more_than_fit_into_a_step():
    assert settings_of("vllm-0.32", max_batched_tokens=512).max_sequence_count == 512
    drafts = {"tokens": 8, "acceptance": "50%"}
    assert settings_of("vllm-0.32", speculation=drafts).max_sequence_count == 8192 // 9
    assert settings_of("trtllm-1.2", speculation=drafts | {"tokens": 5}).max_sequence_count == 8192 // 6


def test_decodes_of_sglang_take_nothing_of_the_budget():
    usual = catalog.engine("sglang-0.5", gpu=GPU).max_sequence_count
    assert usual > 512
    assert settings_of("sglang-0.5", max_batched_tokens=512).max_sequence_count == usual


def test_without_chunks_a_round_of_sglang_has_its_prefill_limit():
    assert settings_of("sglang-0.5").max_batched_tokens == 8192
    assert settings_of("sglang-0.5", chunked_prefill=False).max_batched_tokens == 16_384
    assert settings_of("sglang-0.5", chunked_prefill=False, max_batched_tokens=4096).max_batched_tokens == 4096


def test_slots_that_a_person_asks_for_fit_into_a_step_or_are_refused_by_their_key():
    with pytest.raises(BadInput) as refused:
        settings_of("vllm-0.32", max_sequence_count=1000, speculation={"tokens": 8, "acceptance": "50%"})
    (found,) = refused.value.problems
    assert found.where == "engine.max_sequence_count"
    assert found.mend.startswith("at most 910,")
