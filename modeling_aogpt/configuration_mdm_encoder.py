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
    Configuration of an encoder-only masked diffusion model, which has full attention over tokens and masks.

    The defaults are the blocks and the target embeddings of AO-GPT small, so that an encoder and a decoder that differ
    only in attention can be compared. The published encoders have these settings:

    * RADD (arXiv 2406.03736): `target_injection="none", position_encoding="rotary", norm="layernorm", qk_norm=False,
      attention_bias=False, attention_output_bias=False, hidden_act="gelu_pytorch_tanh"`;
    * SEDD (arXiv 2310.16834): the same with `target_injection="sigma", norm_bias=False`.

    Args:
        target_injection (`str`, defaults to `"adaln"`): Input of a row besides its token. The values of [`AOGPTConfig`]
            are allowed, with the row's own position as target. `"none"`: no such input (RADD). `"sigma"`: the noise
            level of the sequence modulates every norm and gates every residual branch (SEDD).
        target_embedding_size (`int`, defaults to 128): Width of the target embedding of `"adaln"`, or of the embedding
            of the noise level of `"sigma"`.
        num_valid_tokens (`int`, *optional*): Number of ids of text. Defaults to 50257 for a table of 50304 (GPT-2),
            otherwise to `vocab_size` - 1. The last id is then the mask id.
        mask_token_id (`int`, *optional*): Id of positions to fill in; defaults to `num_valid_tokens`. The encoder
            embeds the mask id, so it must lie inside the token table.
        kwargs: Other arguments of [`AOGPTConfig`].

    Raises:
        ValueError: If a value is not allowed, or values contradict each other.

    Examples:
        >>> config = MDMEncoderConfig(vocab_size=101)
        >>> config.num_valid_tokens, config.mask_token_id
        (100, 100)
    """

    model_type = "mdm_encoder"
    choices = AOGPTConfig.choices | {"target_injection": (*AOGPTConfig.choices["target_injection"], "sigma")}

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_valid_tokens is None and self.vocab_size != GPT2_PADDED_VOCAB_SIZE:
            self.num_valid_tokens = self.vocab_size - 1
        super().__post_init__(**kwargs)
        self.auto_map = dict(AUTO_MAP)

    def validate(self) -> None:
        """Raise a `ValueError` if a value is not allowed."""
        super().validate()
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(
                f"`mask_token_id` ({self.mask_token_id}) must be in the token table of an encoder, from "
                f"`num_valid_tokens` ({self.num_valid_tokens}) to `vocab_size` - 1 ({self.vocab_size - 1})."
            )


__all__ = ["MDMEncoderConfig"]
