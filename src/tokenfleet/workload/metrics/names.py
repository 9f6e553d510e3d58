"""What engines call the same thing, over their versions. The first name that a page holds is read."""

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """A metric of one engine."""

    metric: str
    """As exposed; counters with ``_total``, histograms without ``_bucket``."""
    labels: tuple[tuple[str, str], ...] = ()
    """Only series with these labels."""
    scale: float = 1.0
    """Factor to SI units or fractions."""
    old: bool = False
    """Renamed since: read, and said."""


ENGINES: dict[str, tuple[str, ...]] = {
    "vLLM": ("vllm:",),
    "SGLang": ("sglang:",),
    "TGI": ("tgi_",),
    "TensorRT-LLM serve": ("trtllm_",),
    "Triton TensorRT-LLM": ("nv_trt_llm_", "nv_inference_"),
    "llama.cpp": ("llamacpp:",),
    "Dynamo": ("dynamo_frontend_", "dynamo_component_"),
    "OpenTelemetry GenAI": ("gen_ai.", "gen_ai_"),
}
"""Engine -> prefixes of its metric names."""

GAUGES: dict[str, tuple[Name, ...]] = {
    "running_count": (
        Name("vllm:num_requests_running"),
        Name("sglang:num_running_reqs"),
        Name("tgi_batch_current_size"),
        Name("nv_trt_llm_request_metrics", (("request_type", "scheduled"),)),
        Name("llamacpp:requests_processing"),
        Name("dynamo_frontend_inflight_requests"),
    ),
    "waiting_count": (
        Name("vllm:num_requests_waiting"),
        Name("sglang:num_queue_reqs"),
        Name("tgi_queue_size"),
        Name("nv_trt_llm_request_metrics", (("request_type", "waiting"),)),
        Name("llamacpp:requests_deferred"),
        Name("dynamo_frontend_queued_requests"),
    ),
    "kv_use_fraction": (
        Name("vllm:kv_cache_usage_perc"),
        Name("vllm:gpu_cache_usage_perc", old=True),
        Name("sglang:token_usage"),
        Name("trtllm_kv_cache_utilization"),
        Name("nv_trt_llm_kv_cache_block_metrics", (("kv_cache_block_type", "fraction"),)),
        Name("llamacpp:kv_cache_usage_ratio", old=True),
        Name("dynamo_component_kvstats_gpu_cache_usage_percent"),
    ),
    "prefix_hit_fraction": (
        Name("vllm:gpu_prefix_cache_hit_rate", old=True),
        Name("sglang:cache_hit_rate"),
        Name("trtllm_kv_cache_hit_rate"),
    ),
}

COUNTERS: dict[str, tuple[Name, ...]] = {
    "prompt_tokens": (
        Name("vllm:prompt_tokens_total"),
        Name("sglang:prompt_tokens_total"),
        Name("gen_ai.client.token.usage_sum", (("gen_ai.token.type", "input"),)),
        Name("gen_ai_client_token_usage_sum", (("gen_ai_token_type", "input"),)),
    ),
    "computed_prompt_tokens": (
        Name("vllm:prompt_tokens_by_source_total", (("source", "local_compute"),)),
        Name("llamacpp:prompt_tokens_total"),
    ),
    "generation_tokens": (
        Name("vllm:generation_tokens_total"),
        Name("sglang:generation_tokens_total"),
        Name("llamacpp:tokens_predicted_total"),
        Name("dynamo_frontend_output_tokens_total"),
        Name("gen_ai.client.token.usage_sum", (("gen_ai.token.type", "output"),)),
        Name("gen_ai_client_token_usage_sum", (("gen_ai_token_type", "output"),)),
    ),
    "cached_tokens": (Name("vllm:prompt_tokens_cached_total"), Name("sglang:cached_tokens_total")),
    "prefix_queries_tokens": (
        Name("vllm:prefix_cache_queries_total"),
        Name("vllm:gpu_prefix_cache_queries_total", old=True),
    ),
    "prefix_hits_tokens": (Name("vllm:prefix_cache_hits_total"), Name("vllm:gpu_prefix_cache_hits_total", old=True)),
    "finished_count": (
        Name("vllm:request_success_total"),
        Name("sglang:num_requests_total"),
        Name("tgi_request_success"),
        Name("trtllm_request_success_total"),
        Name("nv_inference_request_success"),
        Name("dynamo_frontend_requests_total", (("status", "success"),)),
        Name("gen_ai.client.operation.duration_count"),
        Name("gen_ai_client_operation_duration_seconds_count"),
    ),
    "aborted_count": (
        Name("vllm:request_success_total", (("finished_reason", "abort"),)),
        Name("sglang:num_aborted_requests_total"),
        Name("dynamo_frontend_disconnected_clients"),
    ),
    "failed_count": (
        Name("vllm:request_success_total", (("finished_reason", "error"),)),
        Name("tgi_request_failure"),
        Name("dynamo_frontend_requests_total", (("status", "error"),)),
    ),
    "preemption_count": (Name("vllm:num_preemptions_total"), Name("sglang:num_retracted_reqs")),
}

HISTOGRAMS: dict[str, tuple[Name, ...]] = {
    "input_tokens": (
        Name("vllm:request_prompt_tokens"),
        Name("tgi_request_input_length"),
        Name("dynamo_frontend_input_sequence_tokens"),
        Name("gen_ai.client.token.usage", (("gen_ai.token.type", "input"),)),
        Name("gen_ai_client_token_usage", (("gen_ai_token_type", "input"),)),
    ),
    "output_tokens": (
        Name("vllm:request_generation_tokens"),
        Name("tgi_request_generated_tokens"),
        Name("dynamo_frontend_output_sequence_tokens"),
        Name("gen_ai.client.token.usage", (("gen_ai.token.type", "output"),)),
        Name("gen_ai_client_token_usage", (("gen_ai_token_type", "output"),)),
    ),
    "cached_tokens": (Name("dynamo_frontend_cached_tokens"),),
    "ttft_s": (
        Name("vllm:time_to_first_token_seconds"),
        Name("sglang:time_to_first_token_seconds"),
        Name("trtllm_time_to_first_token_seconds"),
        Name("dynamo_frontend_time_to_first_token_seconds"),
        Name("gen_ai.server.time_to_first_token"),
        Name("gen_ai_server_time_to_first_token_seconds"),
    ),
    "itl_s": (
        Name("vllm:inter_token_latency_seconds"),
        Name("vllm:time_per_output_token_seconds", old=True),
        Name("sglang:inter_token_latency_seconds"),
        Name("dynamo_frontend_inter_token_latency_seconds"),
    ),
    "tpot_s": (
        Name("vllm:request_time_per_output_token_seconds"),
        Name("tgi_request_mean_time_per_token_duration"),
        Name("trtllm_time_per_output_token_seconds"),
        Name("gen_ai.server.time_per_output_token"),
        Name("gen_ai_server_time_per_output_token_seconds"),
    ),
    "e2e_s": (
        Name("vllm:e2e_request_latency_seconds"),
        Name("sglang:e2e_request_latency_seconds"),
        Name("tgi_request_duration"),
        Name("trtllm_e2e_request_latency_seconds"),
        Name("dynamo_frontend_request_duration_seconds"),
        Name("gen_ai.client.operation.duration"),
        Name("gen_ai_client_operation_duration_seconds"),
    ),
    "queue_s": (
        Name("vllm:request_queue_time_seconds"),
        Name("sglang:queue_time_seconds"),
        Name("tgi_request_queue_duration"),
        Name("trtllm_request_queue_time_seconds"),
    ),
}
