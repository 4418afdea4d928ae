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
    "target_injection": ("adaln", "input", "shared", "per_layer"),
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
    "intermediate_size": 2**19,
    "max_position_embeddings": 2**22,
    "target_embedding_size": 2**16,
    "num_valid_tokens": 2**22,
}
POSITIVE_NUMBERS = ("rope_theta", "norm_eps", "initializer_range")
FLAGS = ("qk_norm", "use_bias", "lm_head_bias", "tie_word_embeddings")

# Size of GPT-2's vocabulary, and the size it is padded to in the released checkpoints.
GPT2_VOCAB_SIZE, GPT2_PADDED_VOCAB_SIZE = 50257, 50304


class AOGPTConfig(PreTrainedConfig):
    r"""
    Configuration of an AO-GPT (arXiv 2506.19935), or of a sigma-GPT, the paper's baseline.

    The defaults are those of AO-GPT small. A sigma-GPT has `norm="layernorm", qk_norm=False, target_injection="input",
    tie_word_embeddings=True, lm_head_bias=False`.

    Args:
        vocab_size (`int`, defaults to 50304): Number of rows of the token table.
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        num_hidden_layers (`int`, defaults to 12): Number of blocks.
        num_attention_heads (`int`, defaults to 12): Number of attention heads. It must divide `hidden_size`.
        intermediate_size (`int`, *optional*): Width of the MLP; defaults to four times `hidden_size`.
        max_position_embeddings (`int`, defaults to 1024): Length of the longest sequence, in tokens.
        target_injection (`str`, defaults to `"adaln"`): How a row gets the position it predicts (appendix B and
            Figure 7 of the paper). `"adaln"`: a target embedding modulates every norm and gates every residual branch
            (AO-GPT). `"input"`: an embedding is added to the input (sigma-GPT). `"shared"`: the same embedding is added
            to the input of every block. `"per_layer"`: as `"shared"`, with a table for each block.
        target_embedding_size (`int`, defaults to 128): Width of the target embedding of `"adaln"`; the other kinds use
            `hidden_size`.
        position_encoding (`str`, defaults to `"learned"`): `"learned"`: a table of absolute positions, as released.
            `"rotary"`: queries are rotated by the target position and keys by the token's own position. This is the
            single-stream form of a known idea (ARPG, arXiv 2503.10568; A3, arXiv 2601.13228).
        rope_theta (`float`, defaults to 10000.0): Base of the rotary frequencies.
        norm (`str`, defaults to `"rmsnorm"`): `"rmsnorm"` or `"layernorm"`.
        norm_eps (`float`, defaults to 1e-5): Epsilon of all norms.
        qk_norm (`bool`, defaults to `True`): Whether to apply an RMS norm to queries and keys of each head.
        use_bias (`bool`, defaults to `True`): Whether attention projections, MLP and layer norms have biases.
        lm_head_bias (`bool`, defaults to `True`): Whether the output head has a bias.
        tie_word_embeddings (`bool`, defaults to `False`): Whether the output head shares the token table.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the MLP; `"gelu"` is the exact one.
        initializer_range (`float`, defaults to 0.02): Standard deviation of initial weights, truncated at three sigma.
        num_valid_tokens (`int`, *optional*): Number of ids of text. Ids from there on pad the table and are never
            sampled. Defaults to 50257 for a table of 50304 (GPT-2), otherwise to `vocab_size`.
        mask_token_id (`int`, *optional*): Id of positions to fill in; defaults to `num_valid_tokens`. The decoder never
            embeds it, so it may lie outside the token table.

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
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    choices = CHOICES

    vocab_size: int = GPT2_PADDED_VOCAB_SIZE
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int | None = None
    max_position_embeddings: int = 1024
    target_injection: str = "adaln"
    target_embedding_size: int = 128
    position_encoding: str = "learned"
    rope_theta: float = 10000.0
    norm: str = "rmsnorm"
    norm_eps: float = 1e-5
    qk_norm: bool = True
    use_bias: bool = True
    lm_head_bias: bool = True
    tie_word_embeddings: bool = False
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    num_valid_tokens: int | None = None
    mask_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_valid_tokens is None:
            padded = self.vocab_size == GPT2_PADDED_VOCAB_SIZE
            self.num_valid_tokens = GPT2_VOCAB_SIZE if padded else self.vocab_size
        if self.mask_token_id is None:
            self.mask_token_id = self.num_valid_tokens
        super().__post_init__(**kwargs)
        # One checkpoint serves every Auto class. Set here, because Transformers prefixes the names that it reads from
        # the Hub with the repository; they must be saved without the prefix.
        self.auto_map = dict(AUTO_MAP)
        self.validate()

    @property
    def head_dim(self) -> int:
        """Return the width of an attention head."""
        return self.hidden_size // self.num_attention_heads

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
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
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
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and 0 <= value < self.vocab_size):
                raise ValueError(
                    f"`{name}` must be an id of the vocabulary, 0 to {self.vocab_size - 1}, or None, but is {value!r}."
                )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_attention_heads` "
                f"({self.num_attention_heads}). Change one."
            )
        if self.position_encoding == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"`position_encoding='rotary'` needs an even head size, but `hidden_size` / `num_attention_heads` is "
                f"{self.head_dim}. Change one, or use 'learned'."
            )
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


__all__ = ["AOGPTConfig"]
