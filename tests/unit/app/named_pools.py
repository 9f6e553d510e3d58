"""Scenarios whose pools have names, for the tests of all that takes such pools."""

LENGTHS = "lengths: {input: 900:2500, output: 60:120}"
STEPS = """\
chain:
  takes: {share: 40%}
  steps: [{pool: rank, input: 200:400, calls: 4}, {wait: 20ms}]
"""


def chain(
    *,
    traffic: str = "mean_rate: 6, duration: 90s",
    slo: str = "{ttft_p95: 900ms, itl_p99: 60ms}",
    precision: str = "fp8",
    more: str = "",
    rank: str = "",
    small: str = "",
    main: str = "{}",
) -> str:
    """Four in ten requests are ranked by four calls first; short prompts go to a small model."""
    return f"""\
name: named
workload: {{{LENGTHS}, {traffic}}}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {slo}
gpus: l40s
precision: {precision}
{more}pools:
  rank: {{model: BAAI/bge-reranker-v2-m3, gpu: l4, precision: bf16{rank}}}
  small: {{model: Qwen/Qwen3-0.6B, gpu: l4, precision: bf16{small}, takes: {{input_up_to: 500}}}}
  main: {main}
{STEPS}"""


def shared(traffic: str, more: str = "") -> str:
    """A model that embeds stands on the gpus of the one that answers."""
    return f"""\
name: one-gpu
workload: {{{LENGTHS}, {traffic}}}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {{ttft_p95: 2s}}
gpus: h100_sxm
{more}pools:
  embed: {{model: Qwen/Qwen3-Embedding-0.6B, beside: main, memory_share: 10%}}
  main: {{memory_share: 80%}}
chain: {{steps: [{{pool: embed, input: 200:500}}]}}
"""
