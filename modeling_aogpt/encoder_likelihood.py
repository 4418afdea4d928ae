# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-likelihood bounds of an encoder-only masked diffusion model."""

import math

import torch

from .diffusion_bound import diffusion_bound
from .likelihood import check_sets
from .likelihood_output import LogLikelihoodOutput, check_count, check_finite, standard_error_of_mean
from .linear import in_fast_dtype
from .order_source import Orders, choose_orders
from .orders import group_order, tokens_of
from .row_scores import ROWS_PER_PASS, token_scores
from .schedule import log_linear_noise

# What `num_times` is where it is not given.
NUM_TIMES = 32


class EncoderLikelihoodMixin:
    """Log-likelihoods for encoders, which predict hidden tokens whatever the order of those they see."""

    @torch.no_grad()
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: Orders | None = None,
        num_orders: int = 1,
        num_times: int | None = None,
        masking: str | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        A lower bound on log p(x) of whole sequences: the masked-diffusion bound (Eq. 1), n rows for each of `num_times`
        times; or, with `orders` or `num_orders` above 1, log p(x | order) and its mean over orders (Eq. 7), n rows for
        each of n ranks. Probabilities are over the tokens of text alone, without the mask.

        A model that is told the noise level (SEDD) is told that of each time, -log(1 - (1 - eps) t). For the denoiser
        that follows from its score, Eq. 1 is then the bound that the score-entropy loss gives with the score
        normalised, which can only make it tighter; and it is that of a process which begins with all tokens hidden.
        With `masking="fixed"` and along orders it is told the level of which the share of hidden tokens is typical:
        bounds too, but not of the same process, so that their means differ somewhat.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            orders (`torch.LongTensor` of shape `(batch, n)`, `str`, `OrderDistribution` or `Callable`, *optional*):
                Given orders, `"left_to_right"`, `"random"` (uniform), another distribution or its name (`"blocks-N"`,
                `"strided-N"`), or a function that draws orders: `orders(batch, n, generator=generator)`.
            num_orders (`int`): Random orders to average over; above 1, `orders` is `"random"` unless given.
            num_times (`int`, *optional*): Times to average over, even: two in each of `num_times` / 2 strata
                (default: 32).
            masking (`str`, *optional*): `"fixed"`: exactly ceil(t n) tokens are hidden at time t (Eq. 2), the default;
                `"bernoulli"`: each with probability t (Eq. 1), which has the same mean and more spread, and is the
                default of models that are told the noise level.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            generator (`torch.Generator`, *optional*): Of all that is random.
            rows_per_pass (`int`): Rows of a forward pass, which bound its memory.

        Returns:
            [`LogLikelihoodOutput`], float64, without gradients; `importance_weighted` with orders only.

        Raises:
            ValueError: If the ids or arguments are not allowed, or a result is not finite.
        """
        input_ids = self.checked_ids(input_ids, attention_mask)
        is_token = tokens_of(input_ids, attention_mask)
        scorer = HiddenScorer(self, input_ids, is_token, rows_per_pass)
        takes_time = self.config.target_injection == "sigma"
        return self._bound(scorer, is_token, orders, num_orders, num_times, masking, generator, takes_time)

    @torch.no_grad()
    def conditional_log_likelihood(
        self,
        input_ids: torch.LongTensor,
        targets: torch.Tensor,
        context: torch.Tensor | None = None,
        orders: Orders | None = None,
        num_orders: int = 1,
        num_times: int | None = None,
        masking: str | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        A lower bound on log p(x_A | x_B), of some tokens given others: as [`log_likelihood`], where the targets alone
        are hidden, at random times or along orders, and the context never is. What is in neither set is marginalised,
        by being hidden all the time.

        A model that is told the noise level is told that of which the share of hidden tokens is typical.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens; anything where neither set is.
            targets (`torch.Tensor` of shape `(batch, n)`): True (or not 0) at the positions of A, which may be as many
                as they like in each sequence.
            context (`torch.Tensor` of shape `(batch, n)`, *optional*): The same for B. All other tokens if not given.
            orders (as in [`log_likelihood`], *optional*): Of all positions; those of the targets count.
            num_orders (`int`): Random orders to average over.
            num_times (`int`, *optional*): Times to average over, even (default: 32).
            masking (`str`, *optional*): `"fixed"` (default) or `"bernoulli"`.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            generator (`torch.Generator`, *optional*): Of all that is random.
            rows_per_pass (`int`): Rows of a forward pass, which bound its memory.

        Returns:
            [`LogLikelihoodOutput`], float64, without gradients; `importance_weighted` with orders only.

        Raises:
            ValueError: If the sets overlap or do not fit, as in [`log_likelihood`], or a result is not finite.
        """
        is_target, is_context = check_sets(input_ids, targets, context, attention_mask)
        is_known = is_target | is_context
        input_ids = self.checked_ids(input_ids.masked_fill(~is_known, 0))
        input_ids = input_ids.masked_fill(~is_known, self.config.mask_token_id)
        scorer = HiddenScorer(self, input_ids, tokens_of(input_ids, attention_mask), rows_per_pass)
        return self._bound(scorer, is_target, orders, num_orders, num_times, masking, generator, takes_time=False)

    def _bound(
        self,
        scorer: "HiddenScorer",
        is_target: torch.BoolTensor,
        orders: Orders | None,
        num_orders: int,
        num_times: int | None,
        masking: str | None,
        generator: torch.Generator | None,
        takes_time: bool,
    ) -> LogLikelihoodOutput:
        """`takes_time`: under Bernoulli masks the model is told the time, and not what share of tokens is hidden."""
        if orders is not None or num_orders != 1:
            if num_times is not None or masking is not None:
                raise ValueError("num_times and masking are of the bound without orders; leave out either.")
            output = along_orders(scorer, is_target, orders, num_orders, generator)
        else:
            masking = masking or ("bernoulli" if takes_time else "fixed")

            def score(is_hidden: torch.BoolTensor, times: torch.Tensor) -> torch.Tensor:
                sigma = log_linear_noise(times) if takes_time and masking == "bernoulli" else None
                return scorer.score(is_hidden, is_hidden, sigma)

            num_times = NUM_TIMES if num_times is None else num_times
            output = diffusion_bound(score, is_target, num_times, masking, generator)
        check_finite(output.log_likelihood, self.dtype)
        output.num_rows = scorer.num_rows
        return output


class HiddenScorer:
    """
    Scores hidden tokens of some sequences given the others.

    Attributes:
        num_rows (`int`): Rows computed so far.
    """

    def __init__(
        self,
        model: EncoderLikelihoodMixin,
        input_ids: torch.LongTensor,
        is_token: torch.BoolTensor,
        rows_per_pass: int,
    ) -> None:
        check_count("rows_per_pass", rows_per_pass)
        self.model, self.input_ids, self.is_token = in_fast_dtype(model), input_ids, is_token
        self.sequences_per_pass = max(1, rows_per_pass // input_ids.shape[1])
        self.num_rows = 0

    def score(
        self, is_hidden: torch.BoolTensor, is_scored: torch.BoolTensor, sigma: torch.Tensor | None
    ) -> torch.Tensor:
        """
        log p of each scored token, (batch, n) in place, float64, 0 elsewhere; what is hidden and scored is (batch, n).
        `sigma` (batch,) is the noise level for a model that is told one, that of the share of hidden tokens if None.
        """
        scores = torch.zeros(is_hidden.shape, dtype=torch.float64, device=is_hidden.device)
        config = self.model.config
        asked_for = is_scored.any(dim=-1).nonzero().squeeze(1)
        for start in range(0, len(asked_for), self.sequences_per_pass):
            chosen = asked_for[start : start + self.sequences_per_pass]
            ids, asked = self.input_ids[chosen], is_scored[chosen]
            self.num_rows += ids.numel()
            hidden_states = self.model.model(
                ids.masked_fill(is_hidden[chosen], config.mask_token_id),
                attention_mask=self.is_token[chosen],
                sigma=None if sigma is None else sigma[chosen],
            ).last_hidden_state
            found = token_scores(self.model.apply_head, hidden_states[asked], ids[asked], config.num_valid_tokens)
            scores[chosen] = torch.zeros_like(scores[chosen]).masked_scatter(asked, found)
        return scores


def along_orders(
    scorer: HiddenScorer,
    is_target: torch.BoolTensor,
    orders: Orders | None,
    num_orders: int,
    generator: torch.Generator | None,
) -> LogLikelihoodOutput:
    """The mean over orders of log p of the targets (batch, n), one after the other in each (Eq. 7)."""
    source = choose_orders(orders, num_orders)
    shares = torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
    totals = []
    for _ in range(num_orders):
        drawn = group_order(source.draw(scorer.is_token, generator), (~is_target).long())
        ranks = drawn.argsort(dim=-1)
        total = torch.zeros_like(shares[:, 0])
        for rank in range(int(is_target.sum(dim=-1).max())):
            scores = scorer.score((ranks >= rank) & is_target, (ranks == rank) & is_target, None)
            shares += scores / num_orders
            total += scores.sum(dim=-1)
        totals.append(total)
    totals = torch.stack(totals)
    return LogLikelihoodOutput(
        log_likelihood=totals.mean(dim=0),
        token_log_likelihood=shares,
        standard_error=standard_error_of_mean(totals) if source.is_random else torch.zeros_like(totals[0]),
        importance_weighted=totals.logsumexp(dim=0) - math.log(num_orders),
    )
