# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Configuration of encoder-only masked diffusion models."""

from typing import Any

from .configuration_aogpt import GPT2_PADDED_VOCAB_SIZE, AOGPTConfig

AUTO_MAP = {
    "AutoConfig": "configuration_mdm_encoder.MDMEncoderConfig",
    "AutoModel": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
    "AutoModelForMaskedLM": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
}


class MDMEncoderConfig(AOGPTConfig):
    r"""
    Configuration of an encoder-only masked diffusion model: full attention over tokens and masks.

    The defaults are the blocks and the position conditioning of AO-GPT small, so that an encoder and a decoder can be
    compared with nothing between them but who sees whom. The published encoders are

    * RADD (arXiv 2406.03736): `target_injection="none", position_encoding="rotary", norm="layernorm", qk_norm=False,
      attention_bias=False, hidden_act="gelu_pytorch_tanh"`;
    * SEDD (arXiv 2310.16834): the same with `target_injection="sigma", norm_bias=False`.

    Args:
        target_injection (`str`): What a row is told besides its token. One of the decoder's ways of giving a row its
            target position, which in an encoder is the row's own position; `"none"`: nothing (RADD); `"sigma"`: the
            noise level of its sequence modulates every norm and gates every residual branch (SEDD).
        target_embedding_size (`int`): Width of the target embedding under `"adaln"`, and of the embedding of the noise
            level under `"sigma"`.
        attention_bias (`bool`): False takes the biases out of the attention projections, whatever `use_bias` says.
        norm_bias (`bool`): False takes the biases out of the layer norms, whatever `use_bias` says.
        num_valid_tokens (`int`, *optional*): Ids from there on are never sampled. 50257 for a table of 50304 (GPT-2),
            otherwise all but the last, which is then the mask.
        mask_token_id (`int`, *optional*): The id that marks a position to be filled, `num_valid_tokens` unless given.
            The encoder embeds it, so it must lie inside the token table.

    The other arguments are those of [`AOGPTConfig`].

    Raises:
        ValueError: If a value is not allowed, or values contradict each other.
    """

    model_type = "mdm_encoder"
    choices = AOGPTConfig.choices | {"target_injection": (*AOGPTConfig.choices["target_injection"], "none", "sigma")}

    attention_bias: bool = True
    norm_bias: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_valid_tokens is None and self.vocab_size != GPT2_PADDED_VOCAB_SIZE:
            self.num_valid_tokens = self.vocab_size - 1
        super().__post_init__(**kwargs)
        self.auto_map = dict(AUTO_MAP)

    def validate(self) -> None:
        super().validate()
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(
                f"mask_token_id={self.mask_token_id} has no row in the token table, but an encoder embeds its masks: "
                f"use an id from num_valid_tokens={self.num_valid_tokens} to vocab_size - 1={self.vocab_size - 1}, or "
                "a larger table."
            )


__all__ = ["MDMEncoderConfig"]
