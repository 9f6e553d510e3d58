"""Architectures, parts and engines written by hand, so that these tests stand without the catalog."""

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import Attention, CheckpointQuantization, FeedForward, ModelArchitecture
from tokenfleet.domain.replica import Deployment, EngineSettings, Layout

GIB = 2**30


def heads(kind="full", *, layers, hidden, query, kv, size, **more):
    weights = hidden * size * (2 * query + 2 * kv)
    return Attention(
        kind=kind,
        layer_count=layers,
        query_head_count=query,
        kv_head_count=kv,
        head_size=size,
        value_head_size=size,
        weight_count=weights,
        **more,
    )


def model(name, attention, feed_forward, *, hidden, vocab, context=131072, tied=False, **more):
    return ModelArchitecture(
        name=name,
        source="written by hand",
        model_type="test",
        layer_count=sum(entry.layer_count for entry in attention),
        hidden_size=hidden,
        vocab_size=vocab,
        max_context_tokens=context,
        tied_embeddings=tied,
        attention=tuple(attention),
        feed_forward=tuple(feed_forward),
        **more,
    )


def dense(name, layers, hidden, query, kv, size, ffn, vocab, **more):
    attention = heads(layers=layers, hidden=hidden, query=query, kv=kv, size=size)
    block = FeedForward(layer_count=layers, intermediate_size=ffn, every_token_weight_count=3 * hidden * ffn)
    return model(name, [attention], [block], hidden=hidden, vocab=vocab, **more)


def experts(*, layers, hidden, width, count, per_token, shared=0):
    return FeedForward(
        layer_count=layers,
        intermediate_size=width,
        expert_count=count,
        experts_per_token_count=per_token,
        shared_intermediate_size=shared,
        every_token_weight_count=3 * hidden * shared + count * hidden,
        expert_weight_count=3 * hidden * width,
    )


LLAMA_70B = dense("llama-3.3-70b", 80, 8192, 64, 8, 128, 28672, 128256)
LLAMA_8B = dense("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_405B_FP8 = dense(
    "llama-3.1-405b-fp8",
    126,
    16384,
    128,
    8,
    128,
    53248,
    128256,
    quantization=CheckpointQuantization(
        method="fbgemm_fp8",
        bits_per_weight=8.0,
        number_format="fp8",
        weight_only=False,
        quantized_parts=("feed_forward",),
    ),
)
QWEN_7B = dense("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064)
QWEN3_32B = dense("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936)
QWEN_14B = dense("qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064)
YI_34B = dense("yi-1.5-34b", 60, 7168, 56, 8, 128, 20480, 64000)
LLAMA2_70B = dense("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, context=4096)
QWEN3_CODER_30B = model(
    "qwen3-coder-30b-a3b",
    [heads(layers=48, hidden=2048, query=32, kv=4, size=128)],
    [experts(layers=48, hidden=2048, width=768, count=128, per_token=8)],
    hidden=2048,
    vocab=151936,
    context=262144,
)
MIXTRAL = model(
    "mixtral-8x7b",
    [heads(layers=32, hidden=4096, query=32, kv=8, size=128)],
    [experts(layers=32, hidden=4096, width=14336, count=8, per_token=2)],
    hidden=4096,
    vocab=32000,
    context=32768,
)
STARCODER2_3B = model(
    "starcoder2-3b",
    [heads("sliding", layers=30, hidden=3072, query=24, kv=2, size=128, window_tokens=4096)],
    [FeedForward(layer_count=30, intermediate_size=12288, matrix_count=2, every_token_weight_count=2 * 3072 * 12288)],
    hidden=3072,
    vocab=49152,
    context=16384,
    tied=True,
)
GPT_OSS_120B = model(
    "gpt-oss-120b",
    [
        heads("sliding", layers=18, hidden=2880, query=64, kv=8, size=64, window_tokens=128),
        heads(layers=18, hidden=2880, query=64, kv=8, size=64),
    ],
    [experts(layers=36, hidden=2880, width=2880, count=128, per_token=4)],
    hidden=2880,
    vocab=201088,
    quantization=CheckpointQuantization(
        method="mxfp4", bits_per_weight=4.25, number_format="mxfp4", weight_only=True, quantized_parts=("experts",)
    ),
)


def latent(layers, hidden=7168, query=128, **more):
    """DeepSeek-V3's attention: queries through 1,536, keys and values through a latent of 512 + 64."""
    weights = hidden * 1536 + 1536 * query * 192 + hidden * 576 + 512 * query * (128 + 128) + query * 128 * hidden
    return Attention(
        kind="latent",
        layer_count=layers,
        query_head_count=query,
        kv_head_count=1,
        head_size=192,
        value_head_size=128,
        weight_count=weights,
        latent_size=576,
        **more,
    )


DEEPSEEK_V3 = model(
    "deepseek-v3",
    [latent(61)],
    [
        FeedForward(layer_count=3, intermediate_size=18432, every_token_weight_count=3 * 7168 * 18432),
        experts(layers=58, hidden=7168, width=2048, count=256, per_token=8, shared=2048),
    ],
    hidden=7168,
    vocab=129280,
    context=163840,
    quantization=CheckpointQuantization(
        method="fp8",
        bits_per_weight=8 + 32 / 128**2,
        group_size=128,
        number_format="fp8",
        weight_only=False,
    ),
)


def compressed(layers, ratio):
    """DeepSeek-V4-Flash's attention, about 60 million parameters a layer."""
    return Attention(
        kind="compressed",
        layer_count=layers,
        query_head_count=64,
        kv_head_count=1,
        head_size=512,
        value_head_size=512,
        weight_count=60_000_000,
        latent_size=512,
        compress_ratio=ratio,
        window_tokens=128,
    )


DEEPSEEK_V4_FLASH = model(
    "deepseek-v4-flash",
    [compressed(21, 4), compressed(22, 128)],
    [experts(layers=43, hidden=4096, width=2048, count=256, per_token=6, shared=2048)],
    hidden=4096,
    vocab=129280,
    context=1048576,
    quantization=CheckpointQuantization(
        method="fp8",
        bits_per_weight=8.0,
        number_format="fp8",
        weight_only=False,
        expert_bits_per_weight=4.25,
    ),
)
QWEN_HYBRID_27B = model(
    "qwen3.8-27b",
    [
        heads(layers=16, hidden=5120, query=24, kv=4, size=256),
        Attention(
            kind="recurrent",
            layer_count=48,
            query_head_count=48,
            kv_head_count=16,
            head_size=128,
            value_head_size=128,
            weight_count=5120 * (2 * 16 * 128 + 3 * 48 * 128),
            state_bytes_per_sequence=48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2,
        ),
    ],
    [FeedForward(layer_count=64, intermediate_size=17408, every_token_weight_count=3 * 5120 * 17408)],
    hidden=5120,
    vocab=248320,
    context=262144,
)
ENCODER = model(
    "bge-large",
    [heads("none", layers=24, hidden=1024, query=16, kv=16, size=64)],
    [FeedForward(layer_count=24, intermediate_size=4096, matrix_count=2, every_token_weight_count=2 * 1024 * 4096)],
    hidden=1024,
    vocab=250002,
    context=8192,
    tied=True,
    encoder_only=True,
)


def part(name, gib, bandwidth, bf16, fp8=None, int8=None, fp4=None, link=None, pcie=64e9, **more):
    facts = {
        "vendor": "NVIDIA",
        "title": name.upper(),
        "link_name": "NVLink" if link else "none",
        "tdp_w": None,
        "gpus_per_node_count": 8,
        "partition_count": 1,
        "confidence": "high",
        "source": "written by hand",
        "note": "",
    }
    facts.update(more)
    return Gpu(
        name=name,
        memory_bytes=round(gib * GIB),
        memory_bandwidth_bytes_per_s=bandwidth,
        bf16_flop_per_s=bf16,
        fp8_flop_per_s=fp8,
        int8_flop_per_s=int8,
        fp4_flop_per_s=fp4,
        link_bytes_per_s=link,
        pcie_bytes_per_s=pcie,
        **facts,
    )


H100 = part("h100_sxm", 79.2, 3.35e12, 989e12, 1978e12, 1978e12, link=450e9)
H200 = part("h200_sxm", 139.8, 4.8e12, 989e12, 1978e12, 1978e12, link=450e9)
B200 = part("b200_sxm", 178.4, 7.7e12, 2250e12, 4500e12, 4500e12, 9000e12, link=900e9)
A100 = part("a100_sxm_80gb", 79.2, 2.039e12, 312e12, None, 624e12, link=300e9, pcie=32e9)
A100_40 = part("a100_sxm_40gb", 39.4, 1.555e12, 312e12, None, 624e12, link=300e9, pcie=32e9)
L40S = part("l40s", 44.4, 864e9, 362e12, 733e12, 733e12, pcie=32e9)
RTX3090 = part("rtx_3090", 23.58, 936e9, 71e12, None, 284e12, pcie=32e9)
RTX4090 = part("rtx_4090", 23.99, 1008e9, 165e12, 330e12, 660e12, pcie=32e9)
T4 = part("t4", 14.6, 320e9, 65e12, None, 130e12, pcie=16e9, note="fp16 65 TFLOPS; no bf16 tensor cores")
MI300X = part("mi300x", 191.5, 5.3e12, 1307e12, 2615e12, 2615e12, link=448e9, vendor="AMD")


def engine(name="vllm-0.32", **settings):
    values = {
        "max_batched_tokens": 8192,
        "max_sequence_count": 1024,
        "block_tokens": 16,
        "memory_utilization_fraction": 0.92,
        "prefix_caching": True,
        "chunked_prefill": True,
        "full_prompt_gate": False,
        "async_scheduling": True,
    }
    values.update(settings)
    return EngineSettings(name=name, **values)


def deployment(architecture, gpu, *, tp=1, pp=1, dp=1, ep=1, precision="bf16", kv="bf16", settings=None):
    return Deployment(
        model=architecture.name,
        gpu=gpu.name,
        layout=Layout(tensor_parallel=tp, pipeline_parallel=pp, attention_data_parallel=dp, expert_parallel=ep),
        precision=precision,
        kv_precision=kv,
        engine=settings or engine(),
    )
