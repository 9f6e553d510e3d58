"""What a ``model_type`` says beyond the keys of its config."""

ENCODERS = frozenset(
    ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "modernbert", "distilbert", "electra", "nomic_bert", "new")
)

PLAIN_FEED_FORWARD = frozenset(
    (
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "mpnet",
        "distilbert",
        "electra",
        "opt",
        "gptj",
        "gpt2",
        "gpt_neox",
        "gpt_bigcode",
        "bloom",
        "falcon",
        "phi",
        "starcoder2",
        "mpt",
        "nemotron",
        "nemotron_h",
        "cohere_asr",
        "apertus",
    )
)
"""Two matrices per feed-forward block, all others three (gate, up, down)."""

FOUR_TIMES_WIDE = frozenset(("gpt2", "gptj", "bloom", "falcon", "gpt_bigcode", "mpt"))
"""Width of the feed-forward block is four times the hidden size unless the config says otherwise."""

LEARNED_POSITIONS = frozenset(
    ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "electra", "opt", "gpt2", "gpt_bigcode")
)

TIED = frozenset(
    (
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "cohere",
        "cohere2",
        "opt",
        "bloom",
        "gpt2",
        "gpt_bigcode",
        "mpt",
        "falcon",
        "starcoder2",
        "granitemoehybrid",
    )
)
"""The output matrix is the embedding unless the config says otherwise."""

UNTIED = frozenset(
    (
        "llama",
        "llama4",
        "mistral",
        "mixtral",
        "qwen",
        "qwen2",
        "qwen2_moe",
        "qwen2_5_vl",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "glm4_moe",
        "glm_moe_dsa",
        "gpt_oss",
        "phi",
        "phi3",
        "phimoe",
        "olmo2",
        "gptj",
        "gpt_neox",
        "internlm2",
        "kimi_k2",
        "minimax_m2",
        "nemotron_h",
    )
)

ALL_LAYERS_WINDOWED = frozenset(("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral", "mistral3"))
"""Every layer has the window when ``sliding_window`` is set."""

WINDOW_OFF_UNLESS_ASKED = frozenset(
    ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "mimo")
)
"""``sliding_window`` is set in every config and means nothing unless ``use_sliding_window`` is true."""

FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "cohere2": 4}
"""One full-attention layer closes each group of this many, the others have the window."""

DECODERS = (
    UNTIED
    | TIED
    | ALL_LAYERS_WINDOWED
    | WINDOW_OFF_UNLESS_ASKED
    | frozenset(
        (
            "chatglm",
            "exaone",
            "exaone4",
            "glm",
            "glm4",
            "granite",
            "granitemoe",
            "bamba",
            "jamba",
            "internlm",
            "internlm3",
            "kimi_k25",
            "kimi_k3",
            "kimi_linear",
            "mimo_v2_flash",
            "minimax_m3",
            "ministral3",
            "mistral4",
            "mistral_large3",
            "nemotron",
            "nemotron-nas",
            "olmo",
            "olmo3",
            "olmoe",
            "smollm3",
            "stablelm",
            "step3p5",
            "step3p7",
            "ernie4_5",
            "ernie4_5_moe",
            "hunyuan_v1_dense",
            "seed_oss",
            "baichuan",
            "apertus",
        )
    )
)


def family(model_type: str) -> str:
    """``model_type`` without the ending of a nested language part: ``gemma3_text`` is ``gemma3``."""
    return model_type.removesuffix("_text")
