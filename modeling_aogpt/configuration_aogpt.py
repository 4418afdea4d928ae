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

# Sizes are integers from 1 to these: far above any model, but a damaged or malicious file of settings is refused before
# it asks for modules and memory without end.
LARGEST = {
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

# GPT-2's vocabulary and the size to which it is padded in the released checkpoints.
GPT2_VOCAB_SIZE, GPT2_PADDED_VOCAB_SIZE = 50257, 50304


class AOGPTConfig(PreTrainedConfig):
    r"""
    Configuration of an AO-GPT (any-order GPT, arXiv 2506.19935) or of a sigma-GPT, the paper's baseline. The defaults
    are AO-GPT small; sigma-GPT is `norm="layernorm", qk_norm=False, target_injection="input",
    tie_word_embeddings=True, lm_head_bias=False`.

    Args:
        vocab_size (`int`): Rows of the token table.
        hidden_size (`int`): Width of the residual stream.
        num_hidden_layers (`int`): Number of blocks.
        num_attention_heads (`int`): Heads of each attention; divides `hidden_size`.
        intermediate_size (`int`, *optional*): Width of the MLP, four times `hidden_size` unless given.
        max_position_embeddings (`int`): Longest sequence, in tokens.
        target_injection (`str`): How a row learns which position it predicts (paper, appendix B and Figure 7).
            `"adaln"`: a target embedding modulates every norm and gates every residual branch (AO-GPT);
            `"input"`: an embedding added to the input (sigma-GPT); `"shared"`: the same embedding added at the input of
            every block; `"per_layer"`: as `"shared"` with a table for each block.
        target_embedding_size (`int`): Width of the target embedding under `"adaln"`; the others use `hidden_size`.
        position_encoding (`str`): `"learned"`: a table of absolute positions, as released. `"rotary"`: no table;
            queries are rotated by the target position and keys by the token's own position.
        rope_theta (`float`): Base of the rotary angles.
        norm (`str`): `"rmsnorm"` or `"layernorm"`.
        norm_eps (`float`): Epsilon of every norm.
        qk_norm (`bool`): Whether queries and keys pass an RMS norm over each head.
        use_bias (`bool`): Biases in the attention and MLP projections and in layer norms.
        lm_head_bias (`bool`): A bias in the output head.
        tie_word_embeddings (`bool`): Whether the head is the token table.
        hidden_act (`str`): Activation of the MLP; `"gelu"` is the exact one.
        initializer_range (`float`): Standard deviation of the initial weights (normal, cut at three sigma).
        num_valid_tokens (`int`, *optional*): Ids from there on pad the table and are never sampled. 50257 for a
            table of 50304 (GPT-2), otherwise all of them.
        mask_token_id (`int`, *optional*): The id that marks a position to be filled, `num_valid_tokens` unless given.
            The decoder never embeds it, so it may lie outside the token table.

    Raises:
        ValueError: If a value is not allowed, or values contradict each other.
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
        # One checkpoint serves every Auto class. Set after the rest, so that a file read from the Hub, where
        # transformers prefixes these names with the repository, is written back with names of the files beside it.
        self.auto_map = dict(AUTO_MAP)
        self.validate()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def validate(self) -> None:
        """
        Raises a `ValueError` if a value is not allowed. It replaces the checks of transformers, which runs it before
        saving, because these warn of a mask outside the token table, where it belongs.
        """
        if self.model_type != type(self).model_type:
            raise ValueError(
                f"A configuration of type {self.model_type!r} is given, but {type(self).__name__} is of type "
                f"{type(self).model_type!r}: load the model with the class that its config.json names."
            )
        for name, allowed in self.choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(map(repr, allowed))}.")
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1.")
            if value > largest:
                raise ValueError(f"{name}={value} is more than any model has: at most {largest} is allowed.")
        for name in POSITIVE_NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ValueError(f"{name}={value!r} must be a finite number above 0.")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False.")
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r} is none of transformers' activations.")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and 0 <= value < self.vocab_size):
                raise ValueError(f"{name}={value!r} is no id of the token table: 0 to {self.vocab_size - 1}, or None.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} cannot be split over num_attention_heads={self.num_attention_heads}; "
                "choose a number of heads that divides it."
            )
        if self.position_encoding == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"Rotary positions turn pairs of dimensions, but hidden_size / num_attention_heads = {self.head_dim} "
                "is odd; change either, or use position_encoding='learned'."
            )
        if self.num_valid_tokens > self.vocab_size:
            raise ValueError(
                f"num_valid_tokens={self.num_valid_tokens} exceeds the token table, vocab_size={self.vocab_size}."
            )
        if not isinstance(self.mask_token_id, int) or self.mask_token_id < self.num_valid_tokens:
            raise ValueError(
                f"mask_token_id={self.mask_token_id!r} is a real token: ids below num_valid_tokens="
                f"{self.num_valid_tokens} can occur in text. Use {self.num_valid_tokens} or above."
            )
        if self.tie_word_embeddings and self.lm_head_bias:
            raise ValueError("A head tied to the token table has no bias: set lm_head_bias=False.")


__all__ = ["AOGPTConfig"]
