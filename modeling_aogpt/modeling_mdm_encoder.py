# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Encoder-only masked diffusion models on the decoder's blocks: RADD, SEDD, and AO-GPT's own blocks with full attention.

A row is a token or mask at its own position, and every row attends to every other. The prediction at a masked position
thus depends on which tokens are unmasked, not on their order, and nothing can be cached.
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
from .decoding_state import EncoderDecodingState
from .devices import Linear, warn_if_slow
from .generation import AnyOrderGenerationMixin
from .generation_config import AnyOrderGenerationConfig
from .likelihood import LogLikelihoodOutput, make_order_source
from .likelihood_estimators import ROWS_PER_PASS, diffusion_bound, token_log_probs
from .modeling_aogpt import (
    AOGPTAttention,
    AOGPTBlock,
    AOGPTPreTrainedModel,
    AOGPTStack,
    AOGPTWithHead,
    TargetModulation,
    compute_frequencies,
    compute_rotation,
    embed_targets,
    has_padding,
    make_norm,
    make_target_embeddings,
)
from .orders import Orders, OrderSource, group_orders, token_mask, token_positions
from .unmasking import log_linear_noise
from .validation import (
    check_finite,
    check_forward_arguments,
    check_integer,
    prepare_input_ids,
    prepare_targets,
    should_validate,
    suggest_arguments,
)

# SEDD embeds noise levels by this number of sinusoids, with wavelengths up to 2 pi times the period.
NUM_SINUSOIDS, MAX_PERIOD = 256, 10000.0

# Default of `num_times`.
NUM_TIMES = 32


# ------------------------------------------------------------------------------------------------------------ models


class SigmaEmbedding(nn.Module):
    """SEDD's embedding of noise levels: sinusoids and an MLP."""

    def __init__(self, config: MDMEncoderConfig) -> None:
        super().__init__()
        self.up_proj = Linear(NUM_SINUSOIDS, config.target_embedding_size)
        self.down_proj = Linear(config.target_embedding_size, config.target_embedding_size)

    def forward(self, sigma: torch.Tensor) -> torch.Tensor:
        """Return the embedding (batch, target_embedding_size) of noise levels (batch,)."""
        half = NUM_SINUSOIDS // 2
        sigma = sigma.to(torch.promote_types(self.up_proj.weight.dtype, torch.float32))
        exponents = torch.arange(half, device=sigma.device, dtype=sigma.dtype) / half
        angles = sigma[:, None] * MAX_PERIOD**-exponents
        sinusoids = torch.cat((angles.cos(), angles.sin()), dim=-1).to(self.up_proj.weight.dtype)
        return self.down_proj(F.silu(self.up_proj(sinusoids)))


class MDMEncoderBlock(AOGPTBlock):
    """The decoder's block with full attention. With `"sigma"`, the noise level modulates instead of the target."""

    def __init__(self, config: MDMEncoderConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.self_attn.is_causal = False
        if config.target_injection == "sigma":
            self.modulation = TargetModulation(config, 6)


class MDMEncoderPreTrainedModel(AOGPTPreTrainedModel):
    """Base class of encoders."""

    config: MDMEncoderConfig
    config_class = MDMEncoderConfig
    _no_split_modules = ["MDMEncoderBlock"]
    _can_record_outputs = {"hidden_states": MDMEncoderBlock, "attentions": AOGPTAttention}


class MDMEncoderModel(MDMEncoderPreTrainedModel, AOGPTStack):
    """
    The encoder over rows, without a head.

    Examples:
        >>> config = MDMEncoderConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> MDMEncoderModel(config)(torch.tensor([[5, config.mask_token_id, 7]])).last_hidden_state.shape
        torch.Size([1, 3, 32])
    """

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
        Encode rows.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, rows)`): Token of each row, or the mask.
            positions (`torch.LongTensor` of shape `(batch, rows)`, *optional*): Position of each row; by default they
                are counted from the left without padding.
            attention_mask (`torch.Tensor` of shape `(batch, rows)`, *optional*): 0 at padding, which no row attends to.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise level, see [`MDMEncoderForMaskedLM`].
            kwargs: Arguments of the attention function.

        Returns:
            `BaseModelOutput` with `last_hidden_state` (batch, rows, hidden_size).

        Raises:
            ValueError: If `sigma` has the wrong shape or values, or the model takes none.
        """
        if positions is None:
            positions = token_positions(token_mask(input_ids, attention_mask))
        hidden_states = self.embed_tokens(input_ids)
        if self.position_embeddings is not None:
            hidden_states = hidden_states + self.position_embeddings(positions)
        rotations, conditions, added, targets = None, None, None, positions
        if self.config.position_encoding == "rotary":
            rotations = (compute_rotation(positions, *compute_frequencies(self.config, positions.device)),) * 2
        sigma = self._prepare_sigma(sigma, input_ids, attention_mask)
        if sigma is not None:
            # The condition of a row is looked up by its sequence, as it is by position with "adaln".
            conditions = F.silu(self.sigma_embedding(sigma))
            targets = torch.arange(len(sigma), device=sigma.device)[:, None].expand_as(input_ids)
        elif self.modulation is not None:
            conditions = embed_targets(self.target_embeddings, self.config.max_position_embeddings, input_ids.device)
        elif self.target_embeddings is not None:
            added = self.target_embeddings(positions)
        mask = self._prepare_mask(input_ids, attention_mask)
        hidden_states = self.run_layers(
            hidden_states, targets, conditions, added, rotations, attention_mask=mask, **kwargs
        )
        return BaseModelOutput(last_hidden_state=hidden_states)

    def _prepare_sigma(
        self, sigma: torch.Tensor | None, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the noise levels (batch,), by default those of the fraction of masks; None if the model takes none."""
        if self.sigma_embedding is None:
            if sigma is not None:
                raise ValueError(
                    f"`sigma` is given, but this model (target_injection={self.config.target_injection!r}) takes no "
                    "noise level. Remove it."
                )
            return None
        if sigma is None:
            is_token = token_mask(input_ids, attention_mask)
            num_masked = ((input_ids == self.config.mask_token_id) & is_token).sum(dim=-1)
            return log_linear_noise(num_masked.double() / is_token.sum(dim=-1).clamp(min=1))
        if sigma.shape != input_ids.shape[:1]:
            raise ValueError(
                f"`sigma` must have one noise level per sequence, shape ({len(input_ids)},), but has shape "
                f"{tuple(sigma.shape)}."
            )
        if should_validate(self, sigma) and not ((sigma > 0) & sigma.isfinite()).all():
            raise ValueError(
                f"`sigma` must be positive and finite, but is {sigma.tolist()}. It is -log of the fraction of unmasked "
                "tokens."
            )
        return sigma

    def _prepare_mask(
        self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None
    ) -> torch.BoolTensor | None:
        """Return which rows all rows attend to, (batch or 1, 1, 1, rows); None stands for all."""
        if not has_padding(attention_mask):
            is_eager = self.config._attn_implementation == "eager"  # for which None means causal
            return torch.ones_like(input_ids[:1], dtype=torch.bool)[:, None, None] if is_eager else None
        is_token = attention_mask != 0
        # A sequence of padding attends to everything: attention to nothing would be NaN, and so would its gradients.
        return (is_token | ~is_token.any(dim=-1, keepdim=True))[:, None, None]


# ------------------------------------------------------------------------------------------------------- likelihoods


class MaskedScorer:
    """
    Scorer of masked tokens given the unmasked ones.

    Args:
        model (`MDMEncoderForMaskedLM`): The encoder.
        input_ids (`torch.LongTensor` of shape `(batch, n)`): The sequences.
        is_token (`torch.BoolTensor` of shape `(batch, n)`): False at padding.
        rows_per_pass (`int`): Largest number of rows in a forward pass.

    Attributes:
        num_rows (`int`): Number of rows computed so far.
    """

    def __init__(
        self,
        model: "MDMEncoderForMaskedLM",
        input_ids: torch.LongTensor,
        is_token: torch.BoolTensor,
        rows_per_pass: int,
    ) -> None:
        check_integer("rows_per_pass", rows_per_pass)
        self.model, self.input_ids, self.is_token = model, input_ids, is_token
        self.sequences_per_pass = max(1, rows_per_pass // input_ids.shape[1])
        self.num_rows = 0

    def score(
        self, is_masked: torch.BoolTensor, is_scored: torch.BoolTensor, sigma: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        Return the log-probability (batch, n) of each scored token, by position, float64; 0 elsewhere.

        Args:
            is_masked (`torch.BoolTensor` of shape `(batch, n)`): Positions to mask.
            is_scored (`torch.BoolTensor` of shape `(batch, n)`): Positions to score, among the masked ones.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise levels for a model that takes them; by default
                those of the fraction of masks.
        """
        scores = torch.zeros(is_masked.shape, dtype=torch.float64, device=is_masked.device)
        config = self.model.config
        active = is_scored.any(dim=-1).nonzero().squeeze(1)
        for selected in active.split(self.sequences_per_pass):
            ids, is_selected = self.input_ids[selected], is_scored[selected]
            self.num_rows += ids.numel()
            hidden_states = self.model.model(
                ids.masked_fill(is_masked[selected], config.mask_token_id),
                attention_mask=self.is_token[selected],
                sigma=None if sigma is None else sigma[selected],
            ).last_hidden_state
            log_probs = token_log_probs(
                self.model.apply_head, hidden_states[is_selected], ids[is_selected], config.num_valid_tokens
            )
            scores[selected] = torch.zeros_like(scores[selected]).masked_scatter(is_selected, log_probs)
        return scores


class EncoderLikelihoodMixin:
    """Log-likelihood bounds of encoders."""

    @suggest_arguments
    @torch.no_grad()
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: Orders | None = None,
        num_orders: int = 1,
        block_length: int | None = None,
        stride: int | None = None,
        num_times: int | None = None,
        masking: str | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Compute a lower bound on log p(x) of whole sequences.

        Without orders, this is the masked-diffusion bound (Eq. 1), at n rows for each of `num_times` times. With
        `orders`, blocks or `num_orders` above 1, it is log p(x | order) and its mean over orders (Eq. 7), at n rows for
        each of n ranks. Probabilities are normalized over the ids of text.

        A model that takes the noise level (SEDD) gets -log(1 - (1 - eps) t) at time t with `masking="bernoulli"`. For
        the denoiser that follows from its score, Eq. 1 is then at least as tight as the bound of the score-entropy
        loss, for a process that starts with all tokens masked. With `masking="fixed_count"` and along orders, it gets
        the level that matches the fraction of masks. These are bounds too, but of another process, with a somewhat
        different mean.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            orders (`torch.LongTensor` of shape `(batch, n)`, `str` or `Callable`, *optional*): Given orders,
                `"left_to_right"`, `"random"`, or a function that is called as `orders(batch, n, generator=generator)`.
            num_orders (`int`, defaults to 1): Number of random orders to average over.
            block_length (`int`, *optional*): Visit contiguous blocks of this length from left to right, in `orders`
                within each.
            stride (`int`, *optional*): The same with strided blocks: first positions 0, stride, 2 stride, ...
            num_times (`int`, *optional*): Number of random times, even: two in each of `num_times` / 2 strata. Defaults
                to 32.
            masking (`str`, *optional*): `"fixed_count"`: exactly ceil(t n) tokens are masked at time t (Eq. 2);
                `"bernoulli"`: each token with probability t (Eq. 1), which has more variance. Defaults to `"bernoulli"`
                for models that take the noise level, and to `"fixed_count"` for others.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, which may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a forward pass, which bounds memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients. `importance_weighted` is set with orders only.

        Raises:
            ValueError: If an argument is not allowed, or a result is not finite.

        Examples:
            >>> from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM

            >>> config = MDMEncoderConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model, input_ids = MDMEncoderForMaskedLM(config), torch.tensor([[5, 6, 7]])
            >>> bound = model.log_likelihood(input_ids, num_times=8)
            >>> left_to_right = model.log_likelihood(input_ids, orders="left_to_right")
            >>> bound.num_rows, left_to_right.num_rows
            (24, 9)
        """
        input_ids = prepare_input_ids(self, input_ids, attention_mask)
        is_token = token_mask(input_ids, attention_mask)
        scorer = MaskedScorer(self, input_ids, is_token, rows_per_pass)
        source = self._make_source(orders, num_orders, block_length, stride, num_times, masking)
        if source is not None:
            return self._score_along_orders(scorer, is_token, source, num_orders, generator)
        takes_sigma = self.config.target_injection == "sigma"
        masking = masking or ("bernoulli" if takes_sigma else "fixed_count")
        uses_time = takes_sigma and masking == "bernoulli"
        return self._estimate_bound(scorer, is_token, num_times, masking, generator, uses_time)

    @suggest_arguments
    @torch.no_grad()
    def conditional_log_likelihood(
        self,
        input_ids: torch.LongTensor,
        targets: torch.Tensor,
        context: torch.Tensor | None = None,
        orders: Orders | None = None,
        num_orders: int = 1,
        block_length: int | None = None,
        stride: int | None = None,
        num_times: int | None = None,
        masking: str | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Compute a lower bound on log p(x_A | x_B), the log-likelihood of some tokens given others.

        As [`log_likelihood`], but only targets are masked, and the context never is. Tokens in neither set are
        marginalized out: they are always masked. A model that takes the noise level gets the one that matches the
        fraction of masks.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens; arbitrary values at positions in neither set.
            targets (`torch.Tensor` of shape `(batch, n)`): Nonzero or True at the positions of A.
            context (`torch.Tensor` of shape `(batch, n)`, *optional*): The same for B; defaults to all other tokens.
            orders (as in [`log_likelihood`], *optional*): Orders of all positions; the targets are predicted in their
                relative order.
            num_orders (`int`, defaults to 1): Number of random orders to average over.
            block_length (`int`, *optional*): As in [`log_likelihood`].
            stride (`int`, *optional*): As in [`log_likelihood`].
            num_times (`int`, *optional*): Number of random times, even. Defaults to 32.
            masking (`str`, *optional*): `"fixed_count"` (default) or `"bernoulli"`.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, which may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a forward pass, which bounds memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients. `importance_weighted` is set with orders only.

        Raises:
            ValueError: If the sets overlap or do not fit the ids, as in [`log_likelihood`], or a result is not finite.

        Examples:
            >>> from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM

            >>> config = MDMEncoderConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = MDMEncoderForMaskedLM(config)
            >>> output = model.conditional_log_likelihood(torch.tensor([[5, 6, 7]]), targets=torch.tensor([[0, 1, 0]]))
            >>> output.token_log_likelihood.ne(0).tolist()
            [[False, True, False]]
        """
        is_target, is_context = prepare_targets(input_ids, targets, context, attention_mask)
        is_known = is_target | is_context
        input_ids = prepare_input_ids(self, input_ids.masked_fill(~is_known, 0))
        input_ids = input_ids.masked_fill(~is_known, self.config.mask_token_id)
        scorer = MaskedScorer(self, input_ids, token_mask(input_ids, attention_mask), rows_per_pass)
        source = self._make_source(orders, num_orders, block_length, stride, num_times, masking)
        if source is not None:
            return self._score_along_orders(scorer, is_target, source, num_orders, generator)
        return self._estimate_bound(scorer, is_target, num_times, masking or "fixed_count", generator, uses_time=False)

    def _make_source(
        self,
        orders: Orders | None,
        num_orders: int,
        block_length: int | None,
        stride: int | None,
        num_times: int | None,
        masking: str | None,
    ) -> OrderSource | None:
        """Return the source of orders, or None for the bound without orders."""
        warn_if_slow(self)
        if orders is None and num_orders == 1 and block_length is None and stride is None:
            return None
        if num_times is not None or masking is not None:
            raise ValueError(
                "`num_times` and `masking` belong to the bound without orders. Remove them, or remove `orders`, "
                "`num_orders`, `block_length` and `stride`."
            )
        return make_order_source(orders, num_orders, block_length, stride)

    def _estimate_bound(
        self,
        scorer: MaskedScorer,
        is_target: torch.BoolTensor,
        num_times: int | None,
        masking: str,
        generator: torch.Generator | None,
        uses_time: bool,
    ) -> LogLikelihoodOutput:
        """Estimate the bound from random times. `uses_time`: the model gets the noise level of the time."""

        def score(is_masked: torch.BoolTensor, times: torch.Tensor) -> torch.Tensor:
            return scorer.score(is_masked, is_masked, log_linear_noise(times) if uses_time else None)

        num_times = NUM_TIMES if num_times is None else num_times
        per_token, standard_error = diffusion_bound(score, is_target, num_times, masking, generator)
        log_likelihood = per_token.sum(dim=-1)
        check_finite(log_likelihood, self.dtype)
        return LogLikelihoodOutput(log_likelihood, per_token, standard_error, num_rows=scorer.num_rows)

    def _score_along_orders(
        self,
        scorer: MaskedScorer,
        is_target: torch.BoolTensor,
        source: OrderSource,
        num_orders: int,
        generator: torch.Generator | None,
    ) -> LogLikelihoodOutput:
        """Compute the mean over orders of log p of the targets (batch, n), one after another (Eq. 7)."""
        per_token = torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
        totals = []
        for _ in range(num_orders):
            drawn = group_orders(source.draw(scorer.is_token, generator), (~is_target).long())
            ranks = drawn.argsort(dim=-1)
            total = torch.zeros_like(per_token[:, 0])
            for rank in range(int(is_target.sum(dim=-1).max())):
                scores = scorer.score((ranks >= rank) & is_target, (ranks == rank) & is_target)
                per_token += scores / num_orders
                total += scores.sum(dim=-1)
            totals.append(total)
        totals = torch.stack(totals)
        check_finite(totals, self.dtype)
        return LogLikelihoodOutput.from_orders(per_token, totals, source.is_random, scorer.num_rows)


class MDMEncoderForMaskedLM(MDMEncoderPreTrainedModel, AOGPTWithHead, AnyOrderGenerationMixin, EncoderLikelihoodMixin):
    """
    Encoder-only masked diffusion model: predicts all masked positions at once, each given the unmasked tokens.

    The logits are those of the denoiser q_{0|t}(. | x_t). A SEDD predicts the score instead, which determines the
    denoiser: with noise that masks a token with probability 1 - e^-sigma, the ratio that the score estimates is

        p_t(x_t with y at masked i) / p_t(x_t) = e^-sigma / (1 - e^-sigma) * q_{0|t}(x_i = y | x_t),

    since y at position i must be the clean token that was not masked (arXiv 2406.03736, theorem 1). The factor does not
    depend on y, so q_{0|t} is the softmax of the network's output over the ids of text.

    Examples:
        >>> config = MDMEncoderConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = MDMEncoderForMaskedLM(config)
        >>> model(torch.tensor([[5, config.mask_token_id, 7]])).logits.shape
        torch.Size([1, 3, 101])
        >>> model.generate(max_length=8, num_steps=4).shape
        torch.Size([1, 8])
    """

    _auto_class = "AutoModelForMaskedLM"
    model_class = MDMEncoderModel
    decoding_state_class = EncoderDecodingState
    generation_config_class = AnyOrderGenerationConfig

    def __init__(self, config: MDMEncoderConfig) -> None:
        super().__init__(config)
        # Transformers before 5.13 does not know `generation_config_class`.
        self.generation_config = AnyOrderGenerationConfig.from_model_config(config)

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
        Predict all masked positions.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens, with `config.mask_token_id` at masked
                positions.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, which may be anywhere.
                Padding affects no other value and is not counted in positions.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): Ids to predict, by position; -100 and padding
                are ignored.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Positive noise level of each sequence, for
                `config.target_injection="sigma"`: a token is masked with probability 1 - e^-sigma. Defaults to the
                level that matches the fraction of masks in the sequence, at most -log(1e-3).
            kwargs: Arguments that Transformers passes to any model.

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size): at masked positions those of q_{0|t}(. | x_t) (Eq. 5)
            over the ids of text, at unmasked ones all mass on the given token; and `loss`, the mean cross-entropy over
            labels in nats.

        Raises:
            ValueError: If an id is out of range, a sequence is too long, a label differs from an unmasked token, or
                `sigma` is not allowed.
        """
        check_forward_arguments(self, kwargs)
        input_ids = prepare_input_ids(self, input_ids, attention_mask, allow_mask=True)
        output = self.model(input_ids, attention_mask=attention_mask, sigma=sigma, **kwargs)
        logits = self.apply_head(output.last_hidden_state)
        return self.make_masked_lm_output(logits, input_ids, attention_mask, labels, output, **kwargs)

    def network_output(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        sigma: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Return the unmodified output of the head, (batch, n, vocab_size), for all positions and ids.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): As in [`forward`].
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): As in [`forward`].
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): As in [`forward`].
        """
        input_ids = prepare_input_ids(self, input_ids, attention_mask, allow_mask=True)
        return self.apply_head(self.model(input_ids, attention_mask=attention_mask, sigma=sigma).last_hidden_state)

    def log_score(
        self, input_ids: torch.LongTensor, sigma: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        Return the log of the score that a SEDD estimates, log p_t(x_t with y at i) / p_t(x_t), (batch, n, vocab_size).

        For each position i and id y this is the network's output - log(e^sigma - 1) - log V, with V ids of text, and 0
        at the given id.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): As in [`forward`].
            sigma (`torch.Tensor` of shape `(batch,)`): Noise levels. A model that takes none has no score.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): As in [`forward`].
        """
        input_ids = prepare_input_ids(self, input_ids, attention_mask, allow_mask=True)
        output = self.network_output(input_ids, attention_mask, sigma)
        scale = sigma.expm1().log() + math.log(self.config.num_valid_tokens)
        return (output - scale[:, None, None]).to(output.dtype).scatter(2, input_ids[..., None], 0.0)


__all__ = ["MDMEncoderForMaskedLM", "MDMEncoderModel", "MDMEncoderPreTrainedModel"]
