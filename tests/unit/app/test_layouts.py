from itertools import product

import pytest

from tokenfleet import catalog
from tokenfleet.app.compose import deployments, sort_out, steps_are_free
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import FleetOptions, fleet_asked, fleet_by_options
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Layout
from tokenfleet.planner import words

DEEPSEEK, LLAMA = "deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.3-70B-Instruct"


def asked(model=LLAMA, gpus=("h200_sxm",), **more):
    return Scenario.model_validate(
        {
            "name": "layouts",
            "workload": {"preset": "chat", "mean_rate": 1.0},
            "model": model,
            "slo": {"ttft_p99": "2s"},
            "gpus": list(gpus),
            **more,
        }
    )


def shapes(scenario):
    gpu = catalog.gpu(scenario.gpus[0])
    return {
        (each.layout.tensor_parallel, each.layout.attention_data_parallel, each.layout.expert_parallel)
        for each in deployments(catalog.model(scenario.model), gpu, scenario)
    }


def test_a_dense_model_is_split_over_ranks_alone():
    assert shapes(asked()) == {(size, 1, 1) for size in (1, 2, 4, 8)}


def test_latent_attention_with_experts_is_also_tried_on_ranks_that_fill_a_node():
    assert shapes(asked(DEEPSEEK)) == {
        *((size, 1, 1) for size in (1, 2, 4, 8)),
        *((size, 8 // size, 8) for size in (1, 2, 4)),
    }


def test_layouts_that_are_named_are_tried_and_no_others():
    named = {"tensor_parallel": [2], "attention_data_parallel": [1, 4], "expert_parallel": [1, 8]}
    assert shapes(asked(DEEPSEEK, **named)) == set(product([2], [1, 4], [1, 8]))


def test_data_parallel_ranks_bring_their_own_budget_and_slots():
    scenario = asked(DEEPSEEK, tensor_parallel=[1], attention_data_parallel=[1, 8])
    one, eight = deployments(catalog.model(DEEPSEEK), catalog.gpu("h200_sxm"), scenario)
    assert eight.engine.max_batched_tokens == 8 * one.engine.max_batched_tokens
    assert eight.engine.max_sequence_count == 8 * one.engine.max_sequence_count


def test_what_cannot_run_is_out_with_a_typed_reason():
    scenario = asked(DEEPSEEK, tensor_parallel=[2, 8], attention_data_parallel=[1], expert_parallel=[1, 3, 8])
    candidates, rejected = sort_out(catalog.model(DEEPSEEK), (catalog.gpu("h200_sxm"),), scenario)
    assert candidates
    kinds = {reason.kind for each in rejected for reason in each.reasons}
    assert kinds <= {"memory", "unsupported"}
    assert all(each.reasons and each.reasons[0].text for each in rejected)
    assert {each.deployment.layout.expert_parallel for each in candidates} <= {1, 8}


def test_pipelines_of_whole_nodes_are_tried_where_nothing_else_fits():
    model, rack = catalog.model(DEEPSEEK), catalog.gpu("gb200")
    candidates, _ = sort_out(model, (rack,), asked(DEEPSEEK, gpus=["gb200"], tensor_parallel=[4], precision=["bf16"]))
    assert {each.deployment.layout.pipeline_parallel for each in candidates} <= {2, 4}
    _, rejected = sort_out(
        model, (catalog.gpu("l40s"),), asked(DEEPSEEK, gpus=["l40s"], tensor_parallel=[8], pipeline_parallel=[1])
    )
    assert {each.reasons[0].kind for each in rejected} <= {"memory", "unsupported"}


@pytest.mark.parametrize("vary", [{"max_batched_tokens": [512, 2048]}, {"max_sequence_count": [64, 128]}])
def test_the_planner_leaves_alone_what_is_varied(vary):
    assert steps_are_free(asked())
    assert not steps_are_free(asked(vary=vary))


def test_engine_settings_are_tried_in_every_combination_and_each_has_its_name():
    vary = {
        "max_sequence_count": [64, 128],
        "prefix_caching": [True, False],
        "chunked_prefill": [True, False],
        "context_limit": [8192, 16_384],
    }
    scenario = asked(tensor_parallel=[2], precision=["fp8"], vary=vary)
    candidates, rejected = sort_out(catalog.model(LLAMA), (catalog.gpu("h200_sxm"),), scenario)
    assert len(candidates) + len(rejected) == 16
    assert len({words.settled(each.deployment) for each in candidates}) == len(candidates) > 1


def replica_of(**more):
    scenario = asked(DEEPSEEK, gpus=["h200_sxm"], precision="fp8", **more)
    return fleet_by_options(scenario, catalog.model(DEEPSEEK), FleetOptions()).groups[0].replica.deployment


def test_a_simulation_has_the_layout_and_the_settings_that_leave_no_choice():
    usual = replica_of()
    assert usual.layout == Layout(tensor_parallel=8), "the smallest that fits"
    data = replica_of(tensor_parallel=1, attention_data_parallel=8)
    assert data.layout == Layout(attention_data_parallel=8, expert_parallel=8)
    assert data.engine.max_batched_tokens == 8 * usual.engine.max_batched_tokens, "an engine states one rank's"
    assert replica_of(pipeline_parallel=2).layout.pipeline_parallel == 2
    assert replica_of(expert_parallel=8).layout == Layout(tensor_parallel=8, expert_parallel=8)
    varied = replica_of(vary={"max_batched_tokens": 512, "max_sequence_count": [128], "prefix_caching": [False]})
    assert (varied.engine.max_batched_tokens, varied.engine.max_sequence_count) == (512, 128)
    assert not varied.engine.prefix_caching


def test_a_simulation_refuses_what_leaves_a_choice_and_names_the_way_out():
    several = {"vary": {"chunked_prefill": [True, False]}, "pipeline_parallel": [1, 2]}
    with pytest.raises(BadInput) as refused:
        replica_of(**several)
    assert [(each.where, each.what) for each in refused.value.problems] == [
        ("pipeline_parallel", "leaves a choice: 1, 2"),
        ("vary.chunked_prefill", "leaves a choice: true, false"),
    ]
    assert all("--plan" in each.mend for each in refused.value.problems)
    scenario = asked(groups={"one": {"gpu": "h200_sxm"}}, **several)
    with pytest.raises(BadInput, match=r"vary\.chunked_prefill") as refused:
        fleet_asked(scenario, catalog.model(LLAMA), None, {})
    assert {each.mend for each in refused.value.problems} == {"leave one value"}, "plan takes no groups"


def test_groups_have_the_layout_of_the_scenario():
    groups = {"two": {"gpu": "h100_sxm", "tensor_parallel": 4}, "one": {"gpu": "h200_sxm", "tensor_parallel": 2}}
    same = {"pipeline_parallel": 2, "vary": {"context_limit": 9000}}
    scenario = asked(gpus=["h200_sxm"], precision="fp8", groups=groups, **same)
    fleet = fleet_asked(scenario, catalog.model(LLAMA), None, {})
    deployments = [group.replica.deployment for group in fleet.groups]
    assert [each.layout for each in deployments] == [
        Layout(tensor_parallel=4, pipeline_parallel=2),
        Layout(tensor_parallel=2, pipeline_parallel=2),
    ]
    assert {each.engine.context_limit_tokens for each in deployments} == {9000}
