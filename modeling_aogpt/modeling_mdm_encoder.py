# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Encoders with the layers of the decoder (masked diffusion models): RADD, SEDD, MDLM, and AO-GPT with full attention.

Each row of an encoder contains the token, or the mask, at one position, and predicts this position. Every row attends
to all rows. The prediction at a masked position depends on the set of unmasked tokens, but not on an order. Keys and
values change whenever a token is unmasked, so they cannot be cached.
"""

import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .configuration_aogpt import MDMEncoderConfig
from .cpu_inference import copy_for_cpu
from .decoding_state import EncoderDecodingState
from .devices import draw_uniform, has_padding, inference_method
from .generation import AnyOrderGenerationMixin
from .likelihood import (
    ROWS_PER_PASS,
    LogLikelihoodOutput,
    TokenScorer,
    average_over_orders,
    draw_stratified,
    resolve_orders,
    standard_error_of_pairs,
    token_log_probs,
)
from .modeling_aogpt import AOGPTPreTrainedModel, AOGPTStack, AOGPTWithHead, Precomputed
from .orders import Orders, group_orders, token_positions
from .unmasking import log_linear_noise
from .validation import (
    check_even,
    check_finite,
    check_forward_arguments,
    check_needs_targets,
    check_tensor,
    prepare_input_ids,
    prepare_targets,
    should_validate,
    suggest_arguments,
    token_mask,
)

# Default of `num_times`, the number of diffusion times at which a likelihood masks tokens.
NUM_TIMES = 32


class MDMEncoderPreTrainedModel(AOGPTPreTrainedModel):
    """Base class of all encoders (see [`AOGPTPreTrainedModel`])."""

    config: MDMEncoderConfig
    config_class = MDMEncoderConfig


class MDMEncoderModel(MDMEncoderPreTrainedModel, AOGPTStack):
    """Encoder without a head. Its input is a batch of token ids (batch, n), with the mask id at masked positions.

    Examples:
        >>> config = MDMEncoderConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> MDMEncoderModel(config)(torch.tensor([[5, config.mask_token_id, 7]])).last_hidden_state.shape
        torch.Size([1, 3, 32])
    """

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        sigma: torch.Tensor | None = None,
        precomputed: Precomputed | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Run the encoder on a batch of rows, one for each position.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, rows)`): Token of each row, or the mask id.
            attention_mask (`torch.Tensor` of shape `(batch, rows)`, *optional*): 0 at padding.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise level of each sequence (see
                [`MDMEncoderForMaskedLM.forward`]).
            precomputed (`Precomputed`, *optional*): Result of [`precompute`] for all positions. Computed by default.
            kwargs: Other arguments that Transformers may pass to any model, such as `output_hidden_states`.

        Returns:
            `BaseModelOutput` with `last_hidden_state` (batch, rows, hidden_size). Each row predicts its own position,
            also with `config.shift_predictions`.

        Raises:
            ValueError: If `sigma` has a wrong shape or wrong values, if the model does not use a noise level, or if an
                argument is unknown.
        """
        check_forward_arguments(self, kwargs)
        is_token = token_mask(self.config, input_ids, attention_mask)
        positions = token_positions(is_token)
        hidden_states = self.embed_tokens(input_ids)
        if self.position_embeddings is not None:
            hidden_states = hidden_states + self.position_embeddings(positions)
        precomputed = precomputed or self.precompute(input_ids.device)
        condition_indices = positions
        sigma = self._prepare_sigma(sigma, input_ids, is_token)
        if sigma is not None:  # one condition per sequence
            conditions = F.silu(self.sigma_embedding(sigma, hidden_states.dtype))
            precomputed = precomputed._replace(conditions=conditions)
            condition_indices = torch.arange(len(sigma), device=sigma.device)[:, None].expand_as(input_ids)
        hidden_states = self.run_layers(
            hidden_states,
            condition_indices,
            (positions, positions),
            precomputed,
            attention_mask=self._mask_padding(input_ids, attention_mask),
            **kwargs,
        )
        if self.config.shift_predictions:
            # Use the row of the last token before each row or, if there is none, the row itself.
            own = torch.arange(is_token.shape[1], device=is_token.device).expand_as(is_token)
            last = own.masked_fill(~is_token, -1).cummax(dim=1).values
            before = F.pad(last[:, :-1], (1, 0), value=-1)
            rows = torch.where(before < 0, own, before)
            hidden_states = hidden_states.gather(1, rows[..., None].expand_as(hidden_states))
        return BaseModelOutput(last_hidden_state=hidden_states)

    def _prepare_sigma(
        self, sigma: torch.Tensor | None, input_ids: torch.LongTensor, is_token: torch.BoolTensor
    ) -> torch.Tensor | None:
        """Return the noise levels (batch,), or None if the model does not use them."""
        if self.sigma_embedding is None:
            if sigma is not None:
                raise ValueError(
                    f"`sigma` is given, but this model (target_injection={self.config.target_injection!r}) takes no "
                    "noise level. Remove `sigma`."
                )
            return None
        if sigma is None:  # use the level that matches the fraction of masked tokens
            num_masked = ((input_ids == self.config.mask_token_id) & is_token).sum(dim=-1)
            return log_linear_noise(num_masked.double() / is_token.sum(dim=-1).clamp(min=1))
        check_tensor("sigma", sigma)
        if sigma.shape != input_ids.shape[:1]:
            raise ValueError(
                f"`sigma` must have one noise level per sequence, that is, shape ({len(input_ids)},), but has shape "
                f"{tuple(sigma.shape)}."
            )
        if should_validate(self, sigma) and not ((sigma > 0) & sigma.isfinite()).all():
            raise ValueError(
                f"`sigma` must be positive and finite, but is {sigma.tolist()}. Remove `sigma` to use the level that "
                "matches the fraction of masked tokens."
            )
        return sigma

    def _mask_padding(self, input_ids: torch.LongTensor, mask: torch.Tensor | None) -> torch.BoolTensor | None:
        """Return a mask (batch or 1, 1, 1, rows) of the rows to which all rows attend. None means all rows."""
        if not has_padding(mask):
            is_eager = self.config._attn_implementation == "eager"  # for eager attention, None would mean causal
            return torch.ones_like(input_ids[:1], dtype=torch.bool)[:, None, None] if is_eager else None
        is_token = mask != 0
        # If a sequence contains only padding, its rows attend to all rows. Otherwise, they would yield NaN.
        return (is_token | ~is_token.any(dim=-1, keepdim=True))[:, None, None]


class MaskedScorer(TokenScorer):
    """Scorer of an encoder. It computes log-probabilities of masked tokens given the unmasked tokens."""

    def score(
        self, is_masked: torch.BoolTensor, is_scored: torch.BoolTensor, sigma: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the log-probability of each token in `is_scored` (batch, n), by position, and 0 elsewhere.

        Positions in `is_masked`, which include those in `is_scored`, are masked. `sigma` (batch,) is the noise level.
        """
        scores = torch.zeros(is_masked.shape, dtype=torch.float64, device=is_masked.device)
        active = is_scored.any(dim=-1).nonzero().squeeze(1)
        if not len(active):
            return scores
        for selected in active.split(max(1, self.rows_per_pass // is_scored.shape[1])):
            ids, is_selected = self.input_ids[selected], is_scored[selected]
            self.num_rows += ids.numel()
            hidden_states = self.model.model(
                ids.masked_fill(is_masked[selected], self.model.config.mask_token_id),
                attention_mask=self.is_token[selected],
                sigma=None if sigma is None else sigma[selected],
            ).last_hidden_state
            log_probs = token_log_probs(self.model, hidden_states[is_selected], ids[is_selected])
            scores[selected] = torch.zeros_like(scores[selected]).masked_scatter(is_selected, log_probs)
        return scores

    def bound(self, is_target: torch.BoolTensor, num_times: int, uses_time: bool) -> LogLikelihoodOutput:
        """Estimate the masked-diffusion bound on the log-likelihood (Eq. 1) from stratified random diffusion times.

        The bound is log p(x) >= integral over t in (0, 1] of (1/t) E[sum over masked i of log p(x_i | x_t)], where each
        target is masked with probability t. With `uses_time`, the model gets the noise level of t. Otherwise, k of n
        targets are masked instead, with a uniformly random number k and the weight n / k. For a model that does not
        depend on t, this has the same mean (second line of Eq. 2) and less variance.
        """
        check_even("num_times", num_times)
        draw_masks = mask_independently if uses_time else mask_fixed_count
        draws, per_token = [], torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
        for times in 1 - draw_stratified(num_times, len(is_target), self.generator, is_target.device):
            # 1. Mask targets at diffusion time t. 2. Predict them given all other tokens. 3. Average the weighted sums.
            is_masked, weights = draw_masks(is_target, times, self.generator)
            scores = self.score(is_masked, is_masked, log_linear_noise(times) if uses_time else None)
            scores *= weights[:, None]
            per_token += scores / num_times
            draws.append(scores.sum(dim=-1))
        log_likelihood, error = per_token.sum(dim=-1), standard_error_of_pairs(draws)
        check_finite(log_likelihood, self.model.dtype)
        return LogLikelihoodOutput(log_likelihood, per_token, error, num_rows=self.num_rows)

    def mean_over_orders(self, is_target: torch.BoolTensor, source: Orders, num_orders: int) -> LogLikelihoodOutput:
        """Compute the mean log-likelihood of targets over `num_orders` orders (Eq. 7), one target after another."""
        per_token = torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
        totals = []
        for _ in range(num_orders):
            drawn = group_orders(source.draw(self.is_token, self.generator), (~is_target).long())
            ranks = drawn.argsort(dim=-1)
            total = torch.zeros_like(per_token[:, 0])
            for rank in range(int(is_target.sum(dim=-1).max())):
                scores = self.score((ranks >= rank) & is_target, (ranks == rank) & is_target)
                per_token += scores / num_orders
                total += scores.sum(dim=-1)
            totals.append(total)
        return average_over_orders(self, per_token, totals, source.is_random)


def mask_fixed_count(
    is_target: torch.BoolTensor, times: torch.Tensor, generator: torch.Generator | None
) -> tuple[torch.BoolTensor, torch.Tensor]:
    """Mask exactly ceil(t n) of the n targets of each sequence, at diffusion `times` t (batch,) in (0, 1].

    Return a boolean tensor (batch, n), and the weight (batch,) of the log-probabilities in the bound.
    """
    num_targets = is_target.sum(dim=-1)
    num_masked = (times * num_targets).ceil().clamp(min=1)
    draws = draw_uniform(*is_target.shape, generator=generator, device=is_target.device)
    ranks = draws.masked_fill(~is_target, 1.0).argsort(dim=-1).argsort(dim=-1)
    return (ranks < num_masked[:, None]) & is_target, num_targets / num_masked


def mask_independently(
    is_target: torch.BoolTensor, times: torch.Tensor, generator: torch.Generator | None
) -> tuple[torch.BoolTensor, torch.Tensor]:
    """Mask each target with probability t, given that at least one is masked (see [`mask_fixed_count`]).

    Without this condition, a draw without masked targets would take a pass and contribute nothing. The variance would
    also be infinite: for small t, the probability that a target is masked is about n t, but the squared weight of its
    log-probability is 1 / t^2, and the integral of their product n / t over t diverges.
    """
    num_targets = is_target.sum(dim=-1)
    draws = draw_uniform(*is_target.shape, generator=generator, device=is_target.device)
    log_kept = torch.log1p(-times)
    probability_of_any = -torch.expm1(num_targets * log_kept)
    first_draw = draw_uniform(len(times), generator=generator, device=times.device)
    first = (torch.log1p(-first_draw * probability_of_any) / log_kept).floor().clamp(max=num_targets - 1)
    numbers, first = token_positions(is_target), first[:, None]
    is_masked = (numbers == first) | ((numbers > first) & (draws < times[:, None]))
    return is_masked & is_target, probability_of_any / times


class MDMEncoderForMaskedLM(MDMEncoderPreTrainedModel, AOGPTWithHead, AnyOrderGenerationMixin):
    """Encoder-only masked diffusion model. It predicts all masked positions at once, each given the unmasked tokens.

    The softmax of the logits is the denoiser q_{0|t}(. | x_t), the distribution of the original text given the masked
    text. SEDD models are trained to predict the score, a ratio of probabilities that determines the denoiser. If
    noise masks each token with probability 1 - e^-sigma, this ratio is

        p_t(x_t with y at masked i) / p_t(x_t) = e^-sigma / (1 - e^-sigma) * q_{0|t}(x_i = y | x_t),

    because noise never changes a token to another token, but only masks it (arXiv 2406.03736, theorem 1). The factor
    before q_{0|t} does not depend on y, so q_{0|t} is the softmax of the network's output over the ids of text.

    Do not set `label_smoothing_factor` of the `Trainer`. It adds the log-probabilities of all ids, and the mask has
    probability 0, so the loss would be infinite.

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

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        sigma: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Predict all masked positions.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens; `config.mask_token_id` at masked positions.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere. It
                does not change the logits of tokens and is not counted in positions.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): Ids to predict; -100 and padding are ignored.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise level of each sequence, only for
                `config.target_injection="sigma"`. Noise masks a token with probability 1 - e^-sigma, so sigma must be
                positive. By default, this probability is 0.999 times the fraction of masked tokens in the sequence.
            kwargs: Other arguments that Transformers may pass to any model, such as `output_hidden_states`.

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size) and `loss`. At masked positions, the softmax of the
            logits is the predicted distribution q_{0|t}(. | x_t) over ids of text (Eq. 5). At unmasked positions,
            the given token has probability 1. The loss is the mean cross-entropy over labels in nats.

        Raises:
            ValueError: If an id is out of range, if a sequence is too long, if a label differs from an unmasked token,
                or if `sigma` is not allowed.
        """
        check_forward_arguments(self, kwargs)
        input_ids = prepare_input_ids(self, input_ids, attention_mask, allow_mask=True)
        output = self.model(input_ids, attention_mask=attention_mask, sigma=sigma, **kwargs)
        logits = self.apply_head(output.last_hidden_state)
        return self.make_masked_lm_output(logits, input_ids, attention_mask, labels, output, **kwargs)

    @suggest_arguments
    @inference_method
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | str | None = None,
        num_orders: int = 1,
        block_length: int | None = None,
        stride: int | None = None,
        targets: torch.Tensor | None = None,
        context: torch.Tensor | None = None,
        num_times: int | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """Compute a lower bound on log p(x) of whole sequences, or on log p(x_A | x_B) of `targets` given `context`.

        By default, this is the masked-diffusion bound (Eq. 1 of the paper). It takes n rows for each of `num_times`
        diffusion times. With `orders`, `block_length`, `stride` or `num_orders` above 1, it is the mean of
        log p(x | order) over orders (Eq. 7). This takes n rows for each of the n ranks of an order. Probabilities are
        normalized over the ids of text.

        With `targets`, only targets are masked at random. Context tokens are never masked. Tokens that are neither
        targets nor context are always masked, and so marginalized out.

        SEDD also uses a noise level. Without orders and targets, the level at diffusion time t is
        -log(1 - (1 - eps) t), with eps = 1e-3. If the reverse process starts with all tokens masked, the result is at
        least as tight as the bound of SEDD's score-entropy loss. With orders or targets, the level matches the fraction
        of masked tokens. The result is then also a lower bound, but for another process, so it is somewhat different.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences. With `targets`, values at positions
                that are neither targets nor context are ignored.
            orders (`torch.LongTensor` of shape `(batch, n)` or `str`, *optional*): A tensor of orders,
                `"left_to_right"` or `"random"`. With `targets`, only their relative order matters.
            num_orders (`int`, defaults to 1): Number of random orders over which to average.
            block_length (`int`, *optional*): As in [`~AnyOrderLikelihoodMixin.log_likelihood`], like `stride`.
            stride (`int`, *optional*): As in [`~AnyOrderLikelihoodMixin.log_likelihood`].
            targets (`torch.Tensor` of shape `(batch, n)`, *optional*): Nonzero or True at the positions of A. Defaults
                to all tokens, without context.
            context (`torch.Tensor` of shape `(batch, n)`, *optional*): Nonzero or True at the positions of B. Defaults
                to all tokens that are not targets.
            num_times (`int`, *optional*): Number of random diffusion times t. It must be even, since two times are
                drawn in each of `num_times` / 2 strata. Defaults to 32. For a whole sequence of a model that uses a
                noise level, each token is masked with probability t (Eq. 1). Otherwise, exactly ceil(t n) of n targets
                are masked (Eq. 2).
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a pass, unless one sequence has more. It limits memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients. `importance_weighted` is None unless orders are used.

        Raises:
            ValueError: If an argument is not allowed, if `targets` and `context` overlap or do not fit `input_ids`, or
                if a result is not finite.

        Examples:
            >>> config = MDMEncoderConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model, input_ids = MDMEncoderForMaskedLM(config), torch.tensor([[5, 6, 7]])
            >>> bound = model.log_likelihood(input_ids, num_times=8)
            >>> left_to_right = model.log_likelihood(input_ids, orders="left_to_right")
            >>> bound.num_rows, left_to_right.num_rows
            (24, 9)
            >>> infill = model.log_likelihood(input_ids, targets=torch.tensor([[0, 1, 0]]))
            >>> infill.token_log_likelihood.ne(0).tolist()
            [[False, True, False]]
        """
        check_needs_targets(targets, context=context)
        if targets is None:
            input_ids = prepare_input_ids(self, input_ids, attention_mask)
        else:
            is_target, is_context = prepare_targets(self.config, input_ids, targets, context, attention_mask)
            is_hidden = ~(is_target | is_context)
            input_ids = prepare_input_ids(self, input_ids.masked_fill(is_hidden, 0))
            input_ids = input_ids.masked_fill(is_hidden, self.config.mask_token_id)
        scorer = MaskedScorer(copy_for_cpu(self), input_ids, attention_mask, rows_per_pass, generator)
        is_target = scorer.is_token if targets is None else is_target
        if orders is None and num_orders == 1 and block_length is None and stride is None:
            uses_time = targets is None and self.config.target_injection == "sigma"
            return scorer.bound(is_target, NUM_TIMES if num_times is None else num_times, uses_time)
        if num_times is not None:
            raise ValueError(
                "`num_times` applies only to the masked-diffusion bound, which uses no orders. Remove `num_times`, or "
                "remove `orders`, `num_orders`, `block_length` and `stride`."
            )
        return scorer.mean_over_orders(is_target, resolve_orders(orders, num_orders, block_length, stride), num_orders)
