# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Configuration of AO-GPT."""

from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

AUTO_MAP = {
    "AutoConfig": "configuration_aogpt.AOGPTConfig",
    "AutoModel": "modeling_aogpt.AOGPTForAnyOrderLM",
    "AutoModelForMaskedLM": "modeling_aogpt.AOGPTForMaskedLM",
    "AutoModelForCausalLM": "modeling_aogpt.AOGPTForCausalLM",
}

CHOICES = {
    "target_injection": ("adaln", "input", "shared", "per_layer", "none"),
    "position_encoding": ("learned", "rotary"),
    "norm": ("rmsnorm", "layernorm"),
}

# Upper limits of sizes, far above any model. They stop a damaged or malicious config.json from allocating without
# bound.
MAX_SIZES = {
    "vocab_size": 2**22,
    "hidden_size": 2**16,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**10,
    "num_key_value_heads": 2**10,
    "head_dim": 2**12,
    "intermediate_size": 2**19,
    "max_position_embeddings": 2**22,
    "target_embedding_size": 2**16,
    "num_valid_tokens": 2**22,
}
POSITIVE_NUMBERS = ("norm_eps", "initializer_range")
FLAGS = (
    "gated_mlp",
    "qk_norm",
    "attention_bias",
    "attention_output_bias",
    "mlp_bias",
    "norm_weight",
    "norm_bias",
    "lm_head_bias",
    "tie_word_embeddings",
)
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")

# Size of GPT-2's vocabulary, and the size it is padded to in the released checkpoints.
GPT2_VOCAB_SIZE, GPT2_PADDED_VOCAB_SIZE = 50257, 50304


def is_positive(value: object) -> bool:
    """Return whether `value` is a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class AOGPTConfig(PreTrainedConfig):
    r"""
    Configuration of an AO-GPT (arXiv 2506.19935), or of a sigma-GPT, the paper's baseline.

    The defaults are those of AO-GPT small. A sigma-GPT has `norm="layernorm", qk_norm=False, target_injection="input",
    tie_word_embeddings=True, lm_head_bias=False`.

    Args:
        vocab_size (`int`, defaults to 50304): Number of rows of the token table.
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        num_hidden_layers (`int`, defaults to 12): Number of blocks.
        num_attention_heads (`int`, defaults to 12): Number of attention heads.
        num_key_value_heads (`int`, *optional*): Number of key-value heads (grouped-query attention). It must divide
            `num_attention_heads`, which is the default.
        head_dim (`int`, *optional*): Width of a head; defaults to `hidden_size` / `num_attention_heads`.
        intermediate_size (`int`, *optional*): Width of the MLP; defaults to four times `hidden_size`.
        gated_mlp (`bool`, defaults to `False`): Whether the MLP is act(gate(x)) * up(x), as in Llama.
        max_position_embeddings (`int`, defaults to 1024): Length of the longest sequence, in tokens.
        target_injection (`str`, defaults to `"adaln"`): How a row gets the position it predicts (appendix B and
            Figure 7 of the paper). `"adaln"`: a target embedding modulates every norm and gates every residual branch
            (AO-GPT). `"input"`: an embedding is added to the input (sigma-GPT). `"shared"`: the same embedding is added
            to the input of every block. `"per_layer"`: as `"shared"`, with a table for each block. `"none"`: only the
            rotary positions tell the target.
        target_embedding_size (`int`, defaults to 128): Width of the target embedding of `"adaln"`; the other kinds use
            `hidden_size`.
        position_encoding (`str`, defaults to `"learned"`): `"learned"`: a table of absolute positions, as released.
            `"rotary"`: no table; queries are rotated by the position before the target and keys by the token's own
            position, so that left to right a layer equals that of a Llama. This is the single-stream form of a known
            idea (ARPG, arXiv 2503.10568; A3, arXiv 2601.13228).
        rope_parameters (`dict`, *optional*): Rotary frequencies as in Transformers: `rope_type` (`"default"`,
            `"linear"`, `"dynamic"`, `"yarn"` or `"llama3"`), `rope_theta` (defaults to 10000.0) and the parameters of
            the type. `"dynamic"` scales nothing up to `max_position_embeddings`, beyond which no sequence may go.
        no_rope_layers (`list[int]`, *optional*): Indices of layers without rotary positions, as in SmolLM3.
        norm (`str`, defaults to `"rmsnorm"`): `"rmsnorm"` or `"layernorm"`.
        norm_eps (`float`, defaults to 1e-5): Epsilon of all norms.
        qk_norm (`bool`, defaults to `True`): Whether to apply an RMS norm to queries and keys of each head.
        attention_bias (`bool`, defaults to `True`): Whether the projections of queries, keys and values have biases.
        attention_output_bias (`bool`, defaults to `True`): Whether the output projection of attention has a bias.
        mlp_bias (`bool`, defaults to `True`): Whether the MLP has biases.
        norm_weight (`bool`, defaults to `True`): Whether norms over `hidden_size` have weights.
        norm_bias (`bool`, defaults to `True`): Whether layer norms have biases.
        lm_head_bias (`bool`, defaults to `True`): Whether the output head has a bias.
        tie_word_embeddings (`bool`, defaults to `False`): Whether the output head shares the token table.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the MLP; `"gelu"` is the exact one.
        initializer_range (`float`, defaults to 0.02): Standard deviation of initial weights, truncated at three sigma.
        num_valid_tokens (`int`, *optional*): Number of ids of text. Ids from there on pad the table and are never
            sampled. Defaults to 50257 for a table of 50304 (GPT-2), otherwise to `vocab_size`.
        mask_token_id (`int`, *optional*): Id of positions to fill in; defaults to `num_valid_tokens`. The decoder never
            embeds it, so it may lie outside the token table.
        start_token_id (`int`, *optional*): Token whose embedding begins every sequence; by default a start embedding is
            learned.
        source_config (`dict`, *optional*): Configuration of the causal language model that this model was converted
            from, to export it again, with its Hub name (`_name_or_path`) and its `license`, if they are known.

    Raises:
        ValueError: If a value is not allowed, or values contradict each other.

    Examples:
        >>> config = AOGPTConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
        >>> config.head_dim, config.mask_token_id
        (64, 50257)
    """

    model_type = "aogpt"
    keys_to_ignore_at_inference = ["past_key_values"]
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
        "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    choices = CHOICES

    vocab_size: int = GPT2_PADDED_VOCAB_SIZE
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    gated_mlp: bool = False
    max_position_embeddings: int = 1024
    target_injection: str = "adaln"
    target_embedding_size: int = 128
    position_encoding: str = "learned"
    rope_parameters: dict[str, Any] | None = None
    no_rope_layers: list[int] | None = None
    norm: str = "rmsnorm"
    norm_eps: float = 1e-5
    qk_norm: bool = True
    attention_bias: bool = True
    attention_output_bias: bool = True
    mlp_bias: bool = True
    norm_weight: bool = True
    norm_bias: bool = True
    lm_head_bias: bool = True
    tie_word_embeddings: bool = False
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    num_valid_tokens: int | None = None
    mask_token_id: int | None = None
    start_token_id: int | None = None
    source_config: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_version(kwargs)
        if self.rope_parameters is not None and self.position_encoding == "learned":
            raise ValueError(
                "`rope_parameters` has no effect without `position_encoding='rotary'`. Set it, or remove them."
            )
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and is_positive(self.hidden_size) and is_positive(self.num_attention_heads):
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_attention_heads` "
                    f"({self.num_attention_heads}). Change one, or set `head_dim`."
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_valid_tokens is None:
            padded = self.vocab_size == GPT2_PADDED_VOCAB_SIZE
            self.num_valid_tokens = GPT2_VOCAB_SIZE if padded else self.vocab_size
        if self.mask_token_id is None:
            self.mask_token_id = self.num_valid_tokens
        super().__post_init__(**kwargs)
        if self.position_encoding == "learned":
            self.rope_parameters = None
        # One checkpoint serves every Auto class. Set here, because Transformers prefixes the names that it reads from
        # the Hub with the repository; they must be saved without the prefix.
        self.auto_map = dict(AUTO_MAP)
        self.validate()

    def _check_version(self, kwargs: dict[str, Any]) -> None:
        """Raise a `ValueError` for a config.json of an earlier version that would load as another model."""
        for name in ("use_bias", "rope_theta"):
            if name in kwargs:
                raise ValueError(
                    f"`{name}` belongs to an earlier version of this package, whose rotary positions and names of "
                    "weights differ. Load the model with the code in its own folder (`trust_remote_code=True` in a "
                    "program that does not import modeling_aogpt), or train or convert it again. In a new "
                    "configuration, set "
                    + ("`rope_parameters`." if name == "rope_theta" else "`attention_bias`, `mlp_bias` etc.")
                )

    def validate(self) -> None:
        """
        Raise a `ValueError` if a value is not allowed.

        Transformers runs it before saving. It replaces Transformers' own checks, which warn of a mask outside the token
        table.
        """
        if self.model_type != type(self).model_type:
            raise ValueError(
                f"The configuration has model_type {self.model_type!r}, but {type(self).__name__} needs "
                f"{type(self).model_type!r}. Load the model with the class that its config.json names."
            )
        for name, allowed in self.choices.items():
            if getattr(self, name) not in allowed:
                choices = ", ".join(map(repr, allowed))
                raise ValueError(f"`{name}` must be one of {choices}, but is {getattr(self, name)!r}.")
        for name, largest in MAX_SIZES.items():
            value = getattr(self, name)
            if not is_positive(value) or value > largest:
                raise ValueError(f"`{name}` must be an integer from 1 to {largest}, but is {value!r}.")
        for name in POSITIVE_NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ValueError(f"`{name}` must be a positive finite number, but is {value!r}.")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False, but is {getattr(self, name)!r}.")
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"`hidden_act` must be an activation of Transformers, but is {self.hidden_act!r}.")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "start_token_id"):
            value = getattr(self, name)
            values = value if name == "eos_token_id" and isinstance(value, list) else [value]
            if not all(token is None or (isinstance(token, int) and 0 <= token < self.vocab_size) for token in values):
                raise ValueError(
                    f"`{name}` must be an id of the vocabulary, 0 to {self.vocab_size - 1}, or None, but is {value!r}."
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"`num_attention_heads` ({self.num_attention_heads}) must be a multiple of `num_key_value_heads` "
                f"({self.num_key_value_heads}). Change one."
            )
        self._validate_rotary()
        if self.num_valid_tokens > self.vocab_size:
            raise ValueError(
                f"`num_valid_tokens` ({self.num_valid_tokens}) exceeds `vocab_size` ({self.vocab_size}). Change one."
            )
        if not isinstance(self.mask_token_id, int) or self.mask_token_id < self.num_valid_tokens:
            raise ValueError(
                f"`mask_token_id` must be at least `num_valid_tokens` ({self.num_valid_tokens}), since lower ids are "
                f"text, but is {self.mask_token_id!r}."
            )
        if self.tie_word_embeddings and self.lm_head_bias:
            raise ValueError("`tie_word_embeddings` needs a head without a bias. Set `lm_head_bias=False`.")

    def _validate_rotary(self) -> None:
        if self.position_encoding == "learned":
            if self.no_rope_layers is not None or (self.target_injection == "none" and self.model_type == "aogpt"):
                raise ValueError(
                    "`no_rope_layers` and `target_injection='none'` need `position_encoding='rotary'`, but it is "
                    "'learned'."
                )
            return
        if self.head_dim % 2:
            raise ValueError(
                f"`position_encoding='rotary'` needs an even `head_dim`, but it is {self.head_dim}. Change `head_dim`, "
                "or `hidden_size` and `num_attention_heads`, or use 'learned'."
            )
        parameters = self.rope_parameters
        theta = parameters.get("rope_theta")
        if not isinstance(theta, (int, float)) or isinstance(theta, bool) or not 0 < theta < float("inf"):
            raise ValueError(f"`rope_theta` in `rope_parameters` must be a positive finite number, but is {theta!r}.")
        if parameters.get("rope_type") not in ROPE_TYPES or parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(
                f"`rope_parameters` must have a `rope_type` of {', '.join(map(repr, ROPE_TYPES))}, and no "
                f"`partial_rotary_factor`, but is {parameters!r}."
            )
        layers = self.no_rope_layers or []
        if not all(isinstance(layer, int) and 0 <= layer < self.num_hidden_layers for layer in layers):
            raise ValueError(
                f"`no_rope_layers` must be indices of layers, 0 to {self.num_hidden_layers - 1}, but is {layers!r}."
            )


__all__ = ["AOGPTConfig"]
