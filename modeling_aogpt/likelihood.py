# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of a decoder, in any order: of whole sequences, and of some tokens given others."""

import math
from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput

from .devices import warn_if_slow
from .likelihood_estimators import (
    ROWS_PER_PASS,
    RowScorer,
    diffusion_bound,
    ensemble_gain_along_orders,
    ensemble_gain_of_random_orders,
    ensemble_log_probs,
    score_permutations,
    standard_error_of_mean,
    standard_error_of_pairs,
)
from .orders import Orders, OrderSource, group_orders, index_by_position, index_by_rank, random_orders
from .rows import CONTEXT, PADDING, chain, parallel_queries
from .validation import check_even, check_finite, check_integer, prepare_targets, suggest_arguments


@dataclass
class LogLikelihoodOutput(ModelOutput):
    """
    Output of `log_likelihood` and its variants. Log-likelihoods are in nats and float64.

    Args:
        log_likelihood (`torch.Tensor` of shape `(batch,)`): log p(x | order), its mean over orders, or an estimate of
            that mean.
        token_log_likelihood (`torch.Tensor` of shape `(batch, n)`): Contribution of each token, by position; 0 at
            tokens that were not scored. The contributions of a sequence sum to its `log_likelihood`.
        standard_error (`torch.Tensor` of shape `(batch,)`): Standard error of `log_likelihood`. It is 0 if nothing is
            random, and NaN if there is only one random draw, since a single draw gives no information about the
            variance.
        importance_weighted (`torch.Tensor` of shape `(batch,)`): log (1/K) sum_k p(x | order k) over the K orders. Its
            expectation is a lower bound on the log-likelihood under the mixture of all orders. This bound is tighter
            for larger K. None if log p(x | order) is only estimated.
        num_rows (`int`): Number of rows that the model computed for all sequences together.

    Examples:
        >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> output = AOGPTForAnyOrderLM(config).log_likelihood(torch.tensor([[5, 6, 7]]), num_orders=4)
        >>> perplexity = (-output.log_likelihood / 3).exp()
        >>> bool(output.importance_weighted > output.log_likelihood)
        True
    """

    log_likelihood: torch.FloatTensor | None = None
    token_log_likelihood: torch.FloatTensor | None = None
    standard_error: torch.FloatTensor | None = None
    importance_weighted: torch.FloatTensor | None = None
    num_rows: int | None = None

    @classmethod
    def from_orders(
        cls, per_token: torch.Tensor, totals: torch.Tensor, is_random: bool, num_rows: int
    ) -> "LogLikelihoodOutput":
        """
        Return the output for one or several orders.

        Args:
            per_token (`torch.Tensor` of shape `(batch, n)`): Mean over orders of log p of each token, by position.
            totals (`torch.Tensor` of shape `(orders, batch)`): log p of each sequence under each order.
            is_random (`bool`): Whether the orders are random.
            num_rows (`int`): Number of rows computed.
        """
        return cls(
            log_likelihood=per_token.sum(dim=-1),
            token_log_likelihood=per_token,
            standard_error=standard_error_of_mean(totals) if is_random else torch.zeros_like(totals[0]),
            importance_weighted=totals.logsumexp(dim=0) - math.log(len(totals)),
            num_rows=num_rows,
        )


class AnyOrderLikelihoodMixin:
    """Mixin with log-likelihoods for models that predict tokens in any order."""

    @suggest_arguments
    @torch.no_grad()
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: Orders | None = None,
        num_orders: int = 1,
        block_length: int | None = None,
        stride: int | None = None,
        ensemble_size: int = 1,
        num_ranks: int | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Compute the log-likelihood of whole sequences: log p(x | order), or its mean over random orders.

        Minus the mean over uniformly random orders is the any-order loss (Eq. 7), and thus the masked-diffusion bound
        (Eq. 1) on -log p(x). Probabilities are normalized over the ids of text (`config.num_valid_tokens`), as in
        `generate`.

        With `ensemble_size` M above 1, every p(x_i | context) is the mean over M orders of its context: the given order
        and M - 1 random permutations of the context (Eq. 4). This takes about M n^2 / 2 rows per sequence and order.
        With `num_ranks` R, log p(x | order) without the ensemble is computed exactly. Only the ensemble gain, the
        amount that the ensemble adds, is estimated without bias from R random draws. This takes fewer rows:

        * For uniformly random orders, a draw is a random context, given which all other tokens are predicted. This
          takes n rows per order, and R M n rows in total for R draws.
        * For other orders, a draw is a random rank of the order. This takes n + R M n / 2 rows per order.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            orders (`torch.LongTensor` of shape `(batch, n)`, `str` or `Callable`, *optional*): A tensor of orders,
                `"left_to_right"`, `"random"`, or a function that is called as `orders(batch, n, generator=generator)`
                and returns a tensor (batch, n). Defaults to `"left_to_right"`, or to `"random"` with `num_orders` above
                1, `block_length` or `stride`.
            num_orders (`int`, defaults to 1): Number of random orders K to average over, drawn for each sequence.
            block_length (`int`, *optional*): Predict contiguous blocks of this length one after another, from left to
                right. `orders` applies within each block.
            stride (`int`, *optional*): Like `block_length`, but with strided blocks: first the positions 0, stride, 2
                stride, ..., then 1, stride + 1, ...
            ensemble_size (`int`, defaults to 1): Number of orders M of each context; 1 means no ensemble.
            num_ranks (`int`, *optional*): Even number of random draws R to estimate the ensemble. By default, the
                ensemble is computed at all ranks.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a forward pass. It limits the use of memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients (`forward` gives gradients). The standard error includes the
            random choice of orders, ranks and permutations of contexts. With a single random order, the standard error
            is NaN, even with `num_ranks`: random ranks or contexts do not show how log p varies between orders.

        Raises:
            ValueError: If an argument is not allowed, or if a result is not finite.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model, input_ids = AOGPTForAnyOrderLM(config), torch.tensor([[5, 6, 7]])
            >>> left_to_right = model.log_likelihood(input_ids)
            >>> any_order = model.log_likelihood(input_ids, num_orders=4)
            >>> any_order.token_log_likelihood.shape
            torch.Size([1, 3])
        """
        check_integer("ensemble_size", ensemble_size)
        if num_ranks is not None:
            check_even("num_ranks", num_ranks)
            if ensemble_size == 1:
                raise ValueError(
                    "`num_ranks` has no effect without an ensemble. Set `ensemble_size` above 1, or remove `num_ranks`."
                )
        source = make_order_source(orders, num_orders, block_length, stride, allow_repeats=ensemble_size > 1)
        warn_if_slow(self)
        scorer = RowScorer(self, input_ids, attention_mask, rows_per_pass)
        samples_contexts = num_ranks is not None and source.is_uniform
        no_context, totals, per_token = torch.zeros_like(scorer.num_tokens), [], 0.0
        for _ in range(num_orders):
            drawn = source.draw(scorer.is_token, generator)
            scores = scorer.score(drawn, chain(no_context, scorer.num_tokens, drawn.shape[1]))
            if ensemble_size > 1 and not samples_contexts:
                gain, draws = ensemble_gain_along_orders(scorer, drawn, scores, ensemble_size, num_ranks, generator)
                scores = scores + gain
            totals.append(scores.sum(dim=-1))
            per_token = per_token + index_by_position(scores, drawn) / num_orders
        if samples_contexts:
            gain, draws = ensemble_gain_of_random_orders(scorer, ensemble_size, num_ranks, generator)
            per_token = per_token + gain
        totals = torch.stack(totals)
        check_finite(torch.cat((totals, per_token.sum(dim=-1)[None])), self.dtype)
        output = LogLikelihoodOutput.from_orders(
            per_token, totals, source.is_random or ensemble_size > 1, scorer.num_rows
        )
        if num_ranks is None:
            return output
        standard_error = output.standard_error
        if samples_contexts:
            standard_error = torch.hypot(standard_error, standard_error_of_pairs(draws))
        elif num_orders == 1 and not source.is_random:
            standard_error = standard_error_of_pairs(draws)
        return LogLikelihoodOutput(output.log_likelihood, per_token, standard_error, num_rows=scorer.num_rows)

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
        context_orders: Orders = "left_to_right",
        ensemble_size: int = 1,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Compute log p(x_A | x_B), the log-likelihood of some tokens given others, for example of an infill.

        Tokens that are neither targets nor context are marginalized out: the model does not see them. Several orders of
        the targets share the rows of the context in a pass.

        With `ensemble_size` M above 1, the probability of each target is the mean over M orders of the context: the
        order given by `context_orders` and M - 1 random permutations (Eq. 4). Only context is permuted, not targets.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens. Values at positions that are neither targets
                nor context are ignored.
            targets (`torch.Tensor` of shape `(batch, n)`): Nonzero or True at the positions of A. Sequences may have
                different numbers of targets.
            context (`torch.Tensor` of shape `(batch, n)`, *optional*): Nonzero or True at the positions of B. Defaults
                to all tokens that are not targets.
            orders (as in [`log_likelihood`], *optional*): Orders of all positions. Only the relative order of the
                targets matters.
            num_orders (`int`, defaults to 1): Number of random orders K to average over.
            block_length (`int`, *optional*): As in [`log_likelihood`].
            stride (`int`, *optional*): As in [`log_likelihood`].
            context_orders (as `orders`, defaults to `"left_to_right"`): Orders of all positions. The model reads the
                context in this relative order.
            ensemble_size (`int`, defaults to 1): Number of orders M of the context.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a forward pass. It limits the use of memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients. The standard error is computed from the orders of the targets.
            For a single order, it is NaN if the order of the targets or of the context is random.

        Raises:
            ValueError: If `targets` and `context` overlap or do not fit `input_ids`, if another argument is not
                allowed, or if a result is not finite.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = AOGPTForAnyOrderLM(config)
            >>> output = model.conditional_log_likelihood(torch.tensor([[5, 6, 7]]), targets=torch.tensor([[0, 1, 0]]))
            >>> output.token_log_likelihood.ne(0).tolist()
            [[False, True, False]]
        """
        check_integer("ensemble_size", ensemble_size)
        source = make_order_source(orders, num_orders, block_length, stride)
        context_source = OrderSource(context_orders, name="context_orders")
        is_target, is_context = prepare_targets(input_ids, targets, context, attention_mask)
        warn_if_slow(self)
        scorer = RowScorer(self, input_ids.masked_fill(~(is_target | is_context), 0), attention_mask, rows_per_pass)
        num_targets, num_context = is_target.sum(dim=-1), is_context.sum(dim=-1)
        max_targets, max_context = int(num_targets.max()), int(num_context.max())
        is_context_random = context_source.is_random or ensemble_size > 1
        # Several orders of the targets can be scored in one pass, with the same order of the context. If the order of
        # the context is random, each order of the targets takes its own pass, so that the results are independent.
        # Otherwise, a pass has at most as many target rows as context rows. With more target rows, most of the
        # attention would be computed between rows of different orders, which do not attend to each other. A pass also
        # has at most `rows_per_pass` rows, which limits the size of its attention mask.
        max_target_rows = 0 if is_context_random else min(max_context, rows_per_pass - max_context)
        orders_per_pass = max(1, max_target_rows // max(1, max_targets))
        totals, per_token = [], torch.zeros(input_ids.shape, dtype=torch.float64, device=input_ids.device)
        for first in range(0, num_orders, orders_per_pass):
            number = min(orders_per_pass, num_orders - first)
            drawn = context_source.draw(scorer.is_token, generator)
            parts = [group_orders(drawn, (~is_context).long())[:, :max_context]]
            for _ in range(number):
                drawn = source.draw(scorer.is_token, generator)
                parts.append(group_orders(drawn, (~is_target).long())[:, :max_targets])
            order, branches = join_branches(parts, num_context, num_targets)
            scores = ensemble_log_probs(
                scorer.score(order, branches), scorer, order, num_context, branches, ensemble_size, generator
            )
            scores = scores.masked_fill(branches < 0, 0.0)
            totals += [scores.masked_fill(branches != branch, 0.0).sum(dim=-1) for branch in range(number)]
            per_token.scatter_add_(1, order, scores / num_orders)
        totals = torch.stack(totals)
        check_finite(totals, self.dtype)
        return LogLikelihoodOutput.from_orders(
            per_token, totals, source.is_random or is_context_random, scorer.num_rows
        )

    @suggest_arguments
    @torch.no_grad()
    def diffusion_log_likelihood(
        self,
        input_ids: torch.LongTensor,
        num_times: int = 32,
        masking: str = "fixed_count",
        ensemble_size: int = 1,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Estimate the masked-diffusion bound (Eq. 1) on log p(x) in the same way as an encoder does.

        Tokens are masked at random diffusion times. All masked tokens are predicted given the unmasked tokens, which
        the model reads in a random order. The expectation equals that of [`log_likelihood`] with random orders (Eq. 7).
        Both take n rows per draw, but [`log_likelihood`] has less variance.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            num_times (`int`, defaults to 32): Number of random diffusion times. It must be even, since two times are
                drawn in each of `num_times` / 2 strata.
            masking (`str`, defaults to `"fixed_count"`): With `"fixed_count"`, exactly ceil(t n) tokens are masked at
                diffusion time t (Eq. 2). With `"bernoulli"`, each token is masked with probability t (Eq. 1), which has
                more variance.
            ensemble_size (`int`, defaults to 1): Number of orders M of the context, over which probabilities are
                averaged (Eq. 4). `log_likelihood(..., num_ranks=...)` estimates the ensemble with less variance.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a forward pass. It limits the use of memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients.

        Raises:
            ValueError: If an argument is not allowed, or if a result is not finite.
        """
        check_integer("ensemble_size", ensemble_size)
        warn_if_slow(self)
        scorer = RowScorer(self, input_ids, attention_mask, rows_per_pass)

        def score(is_masked: torch.BoolTensor, times: torch.Tensor) -> torch.Tensor:
            drawn = random_orders(*input_ids.shape, generator=generator, device=input_ids.device)
            drawn = group_orders(drawn, torch.where(scorer.is_token, is_masked.long(), 2))
            num_context = scorer.num_tokens - is_masked.sum(dim=-1)
            branches = parallel_queries(num_context, scorer.num_tokens, drawn.shape[1])
            scores, _ = score_permutations(scorer, drawn, num_context, branches, ensemble_size, generator)
            return index_by_position(scores, drawn)

        per_token, standard_error = diffusion_bound(score, scorer.is_token, num_times, masking, generator)
        log_likelihood = per_token.sum(dim=-1)
        check_finite(log_likelihood, self.dtype)
        return LogLikelihoodOutput(log_likelihood, per_token, standard_error, num_rows=scorer.num_rows)


def make_order_source(
    orders: Orders | None, num_orders: int, block_length: int | None, stride: int | None, allow_repeats: bool = False
) -> OrderSource:
    """
    Return the source of the orders of a likelihood.

    If `orders` is None, the order is left to right. If also `num_orders` is above 1, or `block_length` or `stride` is
    set, the orders are random.

    Raises:
        ValueError: If `num_orders` is above 1 but the order is always the same, unless `allow_repeats`.
    """
    check_integer("num_orders", num_orders)
    if orders is None:
        is_plain = num_orders == 1 and block_length is None and stride is None
        orders = "left_to_right" if is_plain else "random"
    source = OrderSource(orders, block_length, stride)
    if num_orders > 1 and not source.is_random and not allow_repeats:
        given = repr(orders) if isinstance(orders, str) else "a tensor"
        raise ValueError(
            f"`num_orders` ({num_orders}) averages over random orders, but `orders` is {given}. Set `orders='random'`, "
            "or remove `num_orders`."
        )
    return source


def join_branches(
    parts: list[torch.LongTensor], num_context: torch.LongTensor, num_targets: torch.LongTensor
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    Return the target position and the branch of each row, both (batch, rows). Each order of the targets is a branch.

    Args:
        parts (`list` of `torch.LongTensor`): The positions of the context (batch, max_context), then the positions of
            the targets (batch, max_targets) in each order.
        num_context (`torch.LongTensor` of shape `(batch,)`): Number of positions in the first part that are context.
            The positions after them are padding.
        num_targets (`torch.LongTensor` of shape `(batch,)`): Number of positions in each other part that are targets.
            The positions after them are padding.
    """
    branches = []
    for branch, part in enumerate(parts, CONTEXT):
        ranks = torch.arange(part.shape[1], device=part.device)
        size = num_context if branch == CONTEXT else num_targets
        branches.append(torch.where(ranks < size[:, None], branch, PADDING))
    order, branches = torch.cat(parts, dim=1), torch.cat(branches, dim=1)
    padding_last = (branches == PADDING).long().argsort(dim=-1, stable=True)
    return index_by_rank(order, padding_last), index_by_rank(branches, padding_last)
