"""The language part of a Hugging Face ``config.json`` under one set of key names."""

import re
from collections.abc import Iterable, Mapping

from tokenfleet.domain.errors import BadInput, Problem

Config = Mapping[str, object]

_NESTED = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
"""Where multimodal configs keep their language model, outermost first."""

_OUTER_WINS = ("tie_word_embeddings", "quantization_config", "compression_config", "checkpoint_quant", "architectures")
"""Keys that hold for the whole checkpoint, wherever the language model is described."""

_SPELLINGS = {
    "hidden_size": ("n_embd", "d_model", "model_dim", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length", "max_seq_len", "model_max_length"),
    "hidden_act": ("hidden_activation", "activation_function", "activation", "mlp_hidden_act"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token",
        "experts_per_token",
        "top_k_experts",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "num_selected_experts",
    ),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
        "shared_intermediate_size",
        "shared_expert_ffn_hidden_size",
    ),
    "mamba_num_heads": ("mamba_n_heads",),
    "mamba_head_dim": ("mamba_d_head",),
    "ssm_state_size": ("mamba_d_state",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "moe_latent_size": ("routed_expert_hidden_size",),
    "layer_types": ("layers_block_type",),
}

_COUNTS = (
    *_SPELLINGS,
    "v_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "index_head_dim",
    "index_n_heads",
    "index_topk",
    "o_lora_rank",
    "o_groups",
    "sliding_window",
    "attention_chunk_size",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "full_attention_interval",
    "global_head_dim",
    "num_global_key_value_heads",
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "intermediate_size_mlp",
    "dense_intermediate_size",
)
_NOT_COUNTS = frozenset(("hidden_act", "layer_types"))

_FOREIGN = re.compile(
    r"^(mamba|ssm|rwkv|wkv|lightning|linear|conv|attn_type|xlstm|retention|compress|csa|hca|kda|delta|\w+_per_layer$)"
)
"""Keys that speak of a layer shape; one that nobody read means a shape nobody understood."""
_HARMLESS = re.compile(r"(dtype|bias|chunk_size|hidden_act|activation|dropout|norms?|counts|eps|init|_loss_coef)$|rope")

_CLASS_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
}
"""What the Transformers class assumes for a key that a nested language part leaves out, as its files often do."""


class Fields:
    """Typed access to a config, which remembers what was read and what was assumed."""

    def __init__(self, config: Config, *, name: str, source: str) -> None:
        """Find the language part and check the type of every known key.

        Raises:
            BadInput: every known key whose value is not of its kind, at once.
        """
        self.name = name
        self.source = source
        self.notes: list[str] = []
        self._read: set[str] = set()
        self._values = _language_part(config)
        self.model_type = str(self._values.get("model_type") or "")
        self._fill_defaults(nested=any(isinstance(config.get(key), Mapping) for key in _NESTED))
        self._unify()
        self._check_types()

    def _fill_defaults(self, *, nested: bool) -> None:
        for key, value in (_CLASS_DEFAULTS.get(self.model_type, {}) if nested else {}).items():
            if key not in self._values:
                self._values[key] = value
                self.notes.append(f"{key} is not in the file: {value}, the default of {self.model_type}")

    def _unify(self) -> None:
        for key, others in _SPELLINGS.items():
            for other in others:
                if self._values.get(other) is not None and self._values.get(key) is None:
                    self._values[key] = self._values[other]
                    self._read.add(other)

    def _check_types(self) -> None:
        problems = []
        for key in _COUNTS:
            value = self._values.get(key)
            if value is None or key in _NOT_COUNTS:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                problems.append(Problem(self.at(key), f"expected a whole number, found {value!r}", "mend the file"))
        if problems:
            raise BadInput(problems)

    def at(self, key: str) -> str:
        """Where a problem stands: file and key."""
        return f"{self.source}: {key}"

    def refuse(self, key: str, what: str, mend: str = "") -> BadInput:
        """The error for one key."""
        return BadInput.at(self.at(key), f"{self.name}: {what}", mend)

    def expect_entries(self, key: str, found: int, layers: int) -> None:
        """Refuse a list that does not reach every layer; more entries belong to draft layers and are left out."""
        if found < layers:
            raise self.refuse(key, f"{found} entries for {layers} layers", "give one entry for each layer")

    def raw(self, key: str) -> object:
        """Value as written; ``None`` when absent."""
        self._read.add(key)
        return self._values.get(key)

    def count(self, key: str) -> int | None:
        """A whole number; ``None`` when absent or null."""
        value = self.raw(key)
        return value if isinstance(value, int) else None

    def need(self, key: str) -> int:
        """A whole number above 0 that the reading cannot go without."""
        value = self.count(key)
        if not value:
            raise self.refuse(key, "missing, and nothing stands in for it", f"add {key} to the config")
        return value

    def flag(self, key: str) -> bool | None:
        """A truth value; ``None`` when absent or null."""
        value = self.raw(key)
        return value if isinstance(value, bool) else None

    def text(self, key: str) -> str:
        """A word; empty when absent."""
        value = self.raw(key)
        return value if isinstance(value, str) else ""

    def items(self, key: str) -> list[object] | None:
        """A list; ``None`` when absent or null."""
        value = self.raw(key)
        return list(value) if isinstance(value, list | tuple) else None

    def part(self, key: str) -> dict[str, object]:
        """A nested mapping; empty when absent."""
        value = self.raw(key)
        return dict(value) if isinstance(value, Mapping) else {}

    def missing(self, keys: Iterable[str]) -> list[Problem]:
        """A problem for each of ``keys`` that is absent or 0."""
        return [
            Problem(self.at(key), f"{self.name}: missing, and nothing stands in for it", f"add {key} to the config")
            for key in keys
            if not self.count(key)
        ]

    def unread_shapes(self) -> list[Problem]:
        """A problem for each key that speaks of a layer shape and that no rule has read."""
        return [
            Problem(self.at(key), f"{self.name}: a layer shape that cannot be read yet", "this model is refused")
            for key, value in self._values.items()
            if value and key not in self._read and _FOREIGN.match(key) and not _HARMLESS.search(key)
        ]


def _language_part(config: Config) -> dict[str, object]:
    """Outer keys overlaid with those of the nested language model, if there is one."""
    values = dict(config)
    for key in _NESTED:
        nested = values.pop(key, None)
        if isinstance(nested, Mapping):
            outer = {wins: values[wins] for wins in _OUTER_WINS if values.get(wins) is not None}
            values = values | dict(nested) | outer
    return values
