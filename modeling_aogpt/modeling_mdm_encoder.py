# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Encoder-only masked diffusion models, on the decoder's blocks: RADD, SEDD, and AO-GPT's own blocks with full attention.

A row is (token or mask, its position); its target is its own position, and every row sees every other. So the
prediction at a masked position depends on which tokens are revealed and not on their order, and nothing can be cached.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .configuration_mdm_encoder import MDMEncoderConfig
from .encoder_likelihood import EncoderLikelihoodMixin
from .full_pass_encoder import FullPassEncoder
from .generation_aogpt import AnyOrderGenerationMixin
from .linear import Linear
from .modeling_aogpt import (
    AOGPTAttention,
    AOGPTBlock,
    AOGPTPreTrainedModel,
    ModelWithHead,
    TargetModulation,
    conditions_of,
    has_padding,
    make_norm,
    make_target_embeddings,
    modulate,
    rotation_of,
)
from .orders import token_positions, tokens_of
from .schedule import log_linear_noise

# SEDD: noise levels are embedded by so many sinusoids, of wavelengths up to 2 pi times this period.
NUM_SINUSOIDS, MAX_PERIOD = 256, 10000.0


def without_bias(*modules: nn.Module) -> None:
    for module in modules:
        module.register_parameter("bias", None)


class SigmaEmbedding(nn.Module):
    """Noise levels (batch,) -> conditions (batch, target_embedding_size), by sinusoids and an MLP (SEDD)."""

    def __init__(self, config: MDMEncoderConfig) -> None:
        super().__init__()
        self.up_proj = Linear(NUM_SINUSOIDS, config.target_embedding_size)
        self.down_proj = Linear(config.target_embedding_size, config.target_embedding_size)

    def forward(self, sigma: torch.Tensor) -> torch.Tensor:
        half = NUM_SINUSOIDS // 2
        sigma = sigma.to(torch.promote_types(self.up_proj.weight.dtype, torch.float32))
        exponents = torch.arange(half, device=sigma.device, dtype=sigma.dtype) / half
        angles = sigma[:, None] * MAX_PERIOD**-exponents
        sinusoids = torch.cat((angles.cos(), angles.sin()), dim=-1).to(self.up_proj.weight.dtype)
        return self.down_proj(F.silu(self.up_proj(sinusoids)))


class MDMEncoderBlock(AOGPTBlock):
    """The decoder's block with full attention. Under `"sigma"` the noise level takes the place of the target."""

    def __init__(self, config: MDMEncoderConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.attention.is_causal = False
        if config.target_injection == "sigma":
            self.modulation = TargetModulation(config, 6)
        if not config.attention_bias:
            without_bias(self.attention.qkv_proj, self.attention.o_proj)
        if not config.norm_bias:
            without_bias(self.input_norm, self.post_attention_norm)


class MDMEncoderPreTrainedModel(AOGPTPreTrainedModel):
    config: MDMEncoderConfig
    config_class = MDMEncoderConfig
    _no_split_modules = ["MDMEncoderBlock"]
    _can_record_outputs = {"hidden_states": MDMEncoderBlock, "attentions": AOGPTAttention}


class MDMEncoderModel(MDMEncoderPreTrainedModel):
    """The encoder over rows, without a head."""

    def __init__(self, config: MDMEncoderConfig) -> None:
        super().__init__(config)
        length, width = config.max_position_embeddings, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(length, width) if config.position_encoding == "learned" else None
        self.target_embeddings = make_target_embeddings(config)
        self.sigma_embedding = SigmaEmbedding(config) if config.target_injection == "sigma" else None
        self.layers = nn.ModuleList(MDMEncoderBlock(config, layer_idx) for layer_idx in range(config.num_hidden_layers))
        self.modulation = TargetModulation(config, 2) if config.target_injection in ("adaln", "sigma") else None
        self.norm = make_norm(config)
        if not config.norm_bias:
            without_bias(self.norm)
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor,
        positions: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        sigma: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, rows)`): Token of each row, or the mask.
            positions (`torch.LongTensor` of shape `(batch, rows)`, *optional*): Position of each row; counted from the
                left without padding if not given.
            attention_mask (`torch.Tensor` of shape `(batch, rows)`, *optional*): 0 at padding, which nothing sees.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise level, see [`MDMEncoderForMaskedLM`].

        Returns:
            `BaseModelOutput` with `last_hidden_state` (batch, rows, hidden_size).

        Raises:
            ValueError: If `sigma` has the wrong shape or values, or the model takes none.
        """
        if positions is None:
            positions = token_positions(tokens_of(input_ids, attention_mask))
        hidden_states = self.embed_tokens(input_ids)
        if self.position_embeddings is not None:
            hidden_states = hidden_states + self.position_embeddings(positions)
        rotations = None
        if self.config.position_encoding == "rotary":
            rotations = (rotation_of(positions, self.config, hidden_states.dtype),) * 2

        sigma = self._noise_levels(sigma, input_ids, attention_mask)
        conditions, added, targets = None, None, positions
        if sigma is not None:
            # A row's modulation is looked up by its sequence, as it is by its position under "adaln".
            conditions = F.silu(self.sigma_embedding(sigma))
            targets = torch.arange(len(sigma), device=sigma.device)[:, None].expand_as(input_ids)
        elif self.modulation is not None:
            length = self.config.max_position_embeddings
            conditions = conditions_of(self.target_embeddings, length, input_ids.device)
        elif self.target_embeddings is not None:
            added = self.target_embeddings(positions)

        visible = self._visible(input_ids, attention_mask)
        for layer_idx, layer in enumerate(self.layers):
            if added is not None and (layer_idx == 0 or self.config.target_injection == "shared"):
                hidden_states = hidden_states + added
            hidden_states = layer(hidden_states, conditions, targets, rotations, attention_mask=visible, **kwargs)

        hidden_states = self.norm(hidden_states)
        if self.modulation is not None:
            hidden_states = modulate(hidden_states, *self.modulation(conditions, targets))
        return BaseModelOutput(last_hidden_state=hidden_states.to(input_ids.device))  # as in `AOGPTModel`

    def _noise_levels(
        self, sigma: torch.Tensor | None, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor | None:
        if self.sigma_embedding is None:
            if sigma is not None:
                raise ValueError(
                    f"sigma is given, but this model (target_injection={self.config.target_injection!r}) takes no "
                    "noise level: leave it out."
                )
            return None
        if sigma is None:
            is_token = tokens_of(input_ids, attention_mask)
            num_masked = ((input_ids == self.config.mask_token_id) & is_token).sum(dim=-1)
            share = num_masked.double() / is_token.sum(dim=-1).clamp(min=1)
            return log_linear_noise(share)
        if sigma.shape != input_ids.shape[:1]:
            raise ValueError(
                f"sigma has shape {tuple(sigma.shape)}, but must have one noise level for each sequence of input_ids: "
                f"({len(input_ids)},)."
            )
        if self.may_look_at(sigma) and not ((sigma > 0) & sigma.isfinite()).all():
            raise ValueError(f"sigma={sigma.tolist()} must be above 0 and finite: it is -log of the share unmasked.")
        return sigma

    def _visible(self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None) -> torch.BoolTensor | None:
        """Which rows every row sees, (batch or 1, 1, 1, rows); None is all."""
        if not has_padding(attention_mask):
            is_eager = self.config._attn_implementation == "eager"  # where None would be causal
            return torch.ones_like(input_ids[:1], dtype=torch.bool)[:, None, None] if is_eager else None
        is_token = attention_mask != 0
        # In a sequence of nothing but padding all is seen: what sees nothing is NaN, and so are its gradients.
        return (is_token | ~is_token.any(dim=-1, keepdim=True))[:, None, None]


class MDMEncoderForMaskedLM(MDMEncoderPreTrainedModel, ModelWithHead, AnyOrderGenerationMixin, EncoderLikelihoodMixin):
    """
    Encoder-only masked diffusion model: all masked positions are predicted at once, each given the revealed tokens.

    Its logits are those of the denoiser q_{0|t}(. | x_t). A SEDD gives the score instead, but one follows from the
    other: with noise that masks a token with probability 1 - e^-sigma, the ratio that the score estimates is

        p_t(x_t with y at masked i) / p_t(x_t) = e^-sigma / (1 - e^-sigma) * q_{0|t}(x_i = y | x_t),

    since to see y at i it must have been there and stayed (arXiv 2406.03736, theorem 1). The factor does not depend
    on y, so q_{0|t} is the score over the clean tokens, normalised: their softmax of the network's output, of which the
    log score is a constant away.
    """

    _auto_class = "AutoModelForMaskedLM"
    model_class = MDMEncoderModel
    canvas_class = FullPassEncoder

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        sigma: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens, with `config.mask_token_id` where they are
                hidden.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere, whatever stands
                there. Padding changes no other value, and is not counted in positions.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): What to predict, in place; -100 and padding
                are left out.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise level of each sequence, above 0, where
                `config.target_injection` is `"sigma"`: a token is masked with probability 1 - e^-sigma. Without it that
                of which the share of masks in the sequence is typical, up to -log(1e-3).

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size): at masked positions those of q_{0|t}(. | x_t) (Eq. 5)
            over the valid tokens, at revealed ones all mass on the token itself; and `loss`, the mean cross-entropy
            over labels in nats.

        Raises:
            ValueError: If an id is out of range, a sequence is too long, a label differs from a revealed token, or
                `sigma` does not fit.
        """
        self.refuse_unknown(kwargs)
        input_ids = self.checked_ids(input_ids, attention_mask, mask_allowed=True)
        output = self.model(input_ids, attention_mask=attention_mask, sigma=sigma, **kwargs)
        logits = self.apply_head(output.last_hidden_state)
        return self.masked_lm_output(logits, input_ids, attention_mask, labels, output, **kwargs)

    def network_output(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        sigma: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        What the head gives, (batch, n, vocab_size), untouched, at masked and revealed positions and for every id.
        Arguments and errors as in `forward`.
        """
        input_ids = self.checked_ids(input_ids, attention_mask, mask_allowed=True)
        return self.apply_head(self.model(input_ids, attention_mask=attention_mask, sigma=sigma).last_hidden_state)

    def log_score(
        self, input_ids: torch.LongTensor, sigma: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        The log of the score that a SEDD estimates, log p_t(x_t with y at i) / p_t(x_t), (batch, n, vocab_size) for
        every position i and id y: the network's output - log(e^sigma - 1) - log V (V valid tokens), and 0 at the id
        that is there. Arguments and errors as in `forward`; a model that takes no `sigma` gives no score.
        """
        input_ids = self.checked_ids(input_ids, attention_mask, mask_allowed=True)
        output = self.network_output(input_ids, attention_mask, sigma)
        scale = sigma.expm1().log() + math.log(self.config.num_valid_tokens)
        return (output - scale[:, None, None]).to(output.dtype).scatter(2, input_ids[..., None], 0.0)


__all__ = ["MDMEncoderForMaskedLM", "MDMEncoderModel", "MDMEncoderPreTrainedModel"]
