# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of a decoder: of whole sequences, and of some tokens given others, in any order."""

import math

import torch

from .context_ensemble import ensemble_scores, gains_along_orders, gains_of_uniform_orders, permuted_scores
from .diffusion_bound import diffusion_bound
from .likelihood_output import (
    LogLikelihoodOutput,
    check_count,
    check_finite,
    check_pairs,
    standard_error_of_mean,
    standard_error_of_pairs,
)
from .order_source import Orders, OrderSource, choose_orders
from .orders import check_aligned, check_batch, group_order, in_order, in_place, random_orders, tokens_of
from .row_scores import CONTEXT, PADDING, ROWS_PER_PASS, RowScorer, one_branch, parallel_branches


class AnyOrderLikelihoodMixin:
    """Log-likelihoods for models that predict tokens in any order."""

    @torch.no_grad()
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: Orders | None = None,
        num_orders: int = 1,
        num_context_orders: int = 1,
        num_ranks: int | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Log-likelihood of whole sequences: log p(x | order), or its mean over random orders. Under uniform ones its
        negative is the any-order loss (Eq. 7) and so the masked-diffusion bound (Eq. 1) on -log p(x).

        With `num_context_orders` M above 1, every p(x_i | context) is an ensemble over M orders of its context: the one
        that the order gives and M - 1 random permutations (Eq. 4). That takes about M n^2 / 2 rows for each sequence
        and order. `num_ranks` R estimates it without bias from fewer: n for each order, and R M n for uniform random
        orders (a context drawn R times, all other tokens queried given it), or R M n / 2 for others (R ranks of the
        order drawn).

        Probabilities are normalised over the whole token table, as in training and in the authors' code. Generation
        leaves out ids that are no text (`config.num_valid_tokens` on), which a trained model gives next to nothing.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences, as many as memory holds ids of.
            orders (`torch.LongTensor` of shape `(batch, n)`, `str`, `OrderDistribution` or `Callable`, *optional*):
                Given orders, `"left_to_right"`, `"random"` (uniform), another distribution or its name (`"blocks-N"`,
                `"strided-N"`), or a function that draws orders: `orders(batch, n, generator=generator)`. Without it:
                left to right, or random where `num_orders` is above 1.
            num_orders (`int`): Random orders K to average over, drawn for each sequence on its own.
            num_context_orders (`int`): Orders M of every context.
            num_ranks (`int`, *optional*): Even. Draws R that estimate what the ensemble adds; all ranks if not given.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            generator (`torch.Generator`, *optional*): Of all that is random.
            rows_per_pass (`int`): Rows of a forward pass, which bound its memory.

        Returns:
            [`LogLikelihoodOutput`], float64, without gradients: `forward` gives these. Its standard error covers
            orders, ranks and context orders.

        Raises:
            ValueError: If the ids, orders or their number are not allowed, or a result is not finite.
        """
        check_count("num_context_orders", num_context_orders)
        if num_ranks is not None:
            check_pairs("num_ranks", num_ranks)
            if num_context_orders == 1:
                raise ValueError(
                    f"num_ranks={num_ranks} estimates an ensemble, but there is none: set num_context_orders above 1."
                )
        source = choose_orders(orders, num_orders, may_repeat=num_context_orders > 1)
        scorer = RowScorer(self, input_ids, attention_mask, rows_per_pass)
        draws_contexts = num_ranks is not None and source.is_uniform
        start, totals, shares = torch.zeros_like(scorer.num_tokens), [], 0.0
        for _ in range(num_orders):
            drawn = source.draw(scorer.is_token, generator)
            scores = scorer.score(drawn, one_branch(start, scorer.num_tokens, drawn.shape[1]))
            if num_context_orders > 1 and not draws_contexts:
                gains, draws = gains_along_orders(scorer, drawn, scores, num_context_orders, num_ranks, generator)
                scores = scores + gains
            totals.append(scores.sum(dim=-1))
            shares = shares + in_place(scores, drawn) / num_orders
        totals = torch.stack(totals)

        is_exact = not source.is_random and num_context_orders == 1
        standard_error = torch.zeros_like(totals[0]) if is_exact else standard_error_of_mean(totals)
        if draws_contexts:
            gains, draws = gains_of_uniform_orders(scorer, num_context_orders, num_ranks, generator)
            shares = shares + gains
            standard_error = torch.hypot(standard_error, standard_error_of_pairs(draws))
        elif num_ranks is not None and num_orders == 1 and not source.is_random:
            standard_error = standard_error_of_pairs(draws)
        check_finite(torch.cat((totals, shares.sum(dim=-1)[None])), self.dtype)
        return LogLikelihoodOutput(
            log_likelihood=shares.sum(dim=-1),
            token_log_likelihood=shares,
            standard_error=standard_error,
            importance_weighted=totals.logsumexp(dim=0) - math.log(num_orders) if num_ranks is None else None,
            num_rows=scorer.num_rows,
        )

    @torch.no_grad()
    def conditional_log_likelihood(
        self,
        input_ids: torch.LongTensor,
        targets: torch.Tensor,
        context: torch.Tensor | None = None,
        orders: Orders | None = None,
        num_orders: int = 1,
        context_orders: Orders = "left_to_right",
        num_context_orders: int = 1,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        Log-likelihood of some tokens given others, log p(x_A | x_B), for example of an infill given its surroundings.
        What is in neither set is marginalised, by not being shown. The rows of the context are computed once for all
        orders of the targets.

        With `num_context_orders` M above 1, the probability of each target is the mean over M orders of the context:
        `context_orders` and M - 1 random permutations (Eq. 4; targets that come before others stay behind the context).

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens; anything where neither set is.
            targets (`torch.Tensor` of shape `(batch, n)`): True (or not 0) at the positions of A, which may be as many
                as they like in each sequence.
            context (`torch.Tensor` of shape `(batch, n)`, *optional*): The same for B. All other tokens if not given.
            orders (as in [`log_likelihood`], *optional*): In which the targets are predicted; their places in an order
                of all positions count.
            num_orders (`int`): Random orders K to average over.
            context_orders (as `orders`): In which the context enters, likewise.
            num_context_orders (`int`): Orders M of the context.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            generator (`torch.Generator`, *optional*): Of all that is random.
            rows_per_pass (`int`): Rows of a forward pass, which bound its memory.

        Returns:
            [`LogLikelihoodOutput`], float64, without gradients. Its standard error is that over the orders of the
            targets, and so NaN where a single one was scored and anything is random, be it the context's order alone.

        Raises:
            ValueError: If the sets overlap or do not fit, as in [`log_likelihood`], or a result is not finite.
        """
        check_count("num_context_orders", num_context_orders)
        source, context_source = choose_orders(orders, num_orders), OrderSource(context_orders, "context_orders")
        is_target, is_context = check_sets(input_ids, targets, context, attention_mask)
        scorer = RowScorer(self, input_ids.masked_fill(~(is_target | is_context), 0), attention_mask, rows_per_pass)
        num_targets, num_context = is_target.sum(dim=-1), is_context.sum(dim=-1)
        most_targets, most_context = int(num_targets.max()), int(num_context.max())
        has_random_context = context_source.is_random or num_context_orders > 1
        # Orders that share a pass leave out each other's slots, so not more of them than take the slots of the context.
        # They share its order too: where that is random, each takes a pass of its own, to be independent of the others.
        orders_per_pass = 1 if has_random_context else max(1, most_context // max(1, most_targets))
        totals, shares = [], torch.zeros(input_ids.shape, dtype=torch.float64, device=input_ids.device)
        for first in range(0, num_orders, orders_per_pass):
            number = min(orders_per_pass, num_orders - first)
            drawn = context_source.draw(scorer.is_token, generator)
            parts = [group_order(drawn, (~is_context).long())[:, :most_context]]
            for _ in range(number):
                drawn = source.draw(scorer.is_token, generator)
                parts.append(group_order(drawn, (~is_target).long())[:, :most_targets])
            order, branches = join_branches(parts, num_context, num_targets)
            scores = ensemble_scores(
                scorer.score(order, branches), scorer, order, num_context, branches, num_context_orders, generator
            )
            scores = scores.masked_fill(branches < 0, 0.0)
            totals += [scores.masked_fill(branches != branch, 0.0).sum(dim=-1) for branch in range(number)]
            shares.scatter_add_(1, order, scores / num_orders)
        totals = torch.stack(totals)
        is_random = source.is_random or has_random_context
        check_finite(totals, self.dtype)
        return LogLikelihoodOutput(
            log_likelihood=shares.sum(dim=-1),
            token_log_likelihood=shares,
            standard_error=standard_error_of_mean(totals) if is_random else torch.zeros_like(totals[0]),
            importance_weighted=totals.logsumexp(dim=0) - math.log(num_orders),
            num_rows=scorer.num_rows,
        )

    @torch.no_grad()
    def diffusion_log_likelihood(
        self,
        input_ids: torch.LongTensor,
        num_times: int = 32,
        masking: str = "fixed",
        num_context_orders: int = 1,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """
        The masked-diffusion bound (Eq. 1) on log p(x) as one would compute it for an encoder, with which it can so be
        compared: tokens are hidden at random times, and the hidden ones queried all at once given the others, which
        enter in a random order. Its mean is that of [`log_likelihood`] over random orders (Eq. 7), which for a decoder
        has less spread for the same n rows per draw.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            num_times (`int`): Times to average over, even: two in each of `num_times` / 2 strata.
            masking (`str`): `"fixed"`: exactly ceil(t n) tokens are hidden at time t (Eq. 2); `"bernoulli"`: each with
                probability t (Eq. 1). The first has less spread.
            num_context_orders (`int`): Orders M of the context, over which probabilities are averaged (Eq. 4). With
                M n rows per draw this, too, estimates the ensemble of all ranks; `log_likelihood(..., num_ranks=...)`
                does so with less spread.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            generator (`torch.Generator`, *optional*): Of all that is random.
            rows_per_pass (`int`): Rows of a forward pass, which bound its memory.

        Returns:
            [`LogLikelihoodOutput`], float64, without gradients.

        Raises:
            ValueError: If the ids or arguments are not allowed, or a result is not finite.
        """
        check_count("num_context_orders", num_context_orders)
        scorer = RowScorer(self, input_ids, attention_mask, rows_per_pass)

        def score(is_hidden: torch.BoolTensor, times: torch.Tensor) -> torch.Tensor:
            drawn = random_orders(*input_ids.shape, generator=generator, device=input_ids.device)
            drawn = group_order(drawn, torch.where(scorer.is_token, is_hidden.long(), 2))
            num_context = scorer.num_tokens - is_hidden.sum(dim=-1)
            branches = parallel_branches(num_context, scorer.num_tokens, drawn.shape[1])
            scores, _ = permuted_scores(scorer, drawn, num_context, branches, num_context_orders, generator)
            return in_place(scores, drawn)

        output = diffusion_bound(score, scorer.is_token, num_times, masking, generator)
        check_finite(output.log_likelihood, self.dtype)
        output.num_rows = scorer.num_rows
        return output


def check_sets(
    input_ids: torch.LongTensor,
    targets: torch.Tensor,
    context: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """
    Targets and context (batch, n), no context where there is no target. Raises a `ValueError` if they do not fit the
    ids, overlap or hold padding.
    """
    check_batch(input_ids)
    for name, given in (("targets", targets), ("context", context), ("attention_mask", attention_mask)):
        if given is not None or name == "targets":
            check_aligned(given, input_ids, name)
    is_target, is_token = targets != 0, tokens_of(input_ids, attention_mask)
    is_context = is_token & ~is_target if context is None else context != 0
    for wrong, what in (
        (is_target & is_context, "is both a target and context; leave it out of one"),
        ((is_target | is_context) & ~is_token, "is padding (attention_mask is 0); leave it out of targets and context"),
    ):
        if wrong.any():
            sequence, position = wrong.nonzero()[0].tolist()
            raise ValueError(f"Position {position} of sequence {sequence} {what}.")
    if not is_target.any():
        raise ValueError("targets holds no position: mark what is to be scored.")
    return is_target, is_context & is_target.any(dim=-1, keepdim=True)


def join_branches(
    parts: list[torch.LongTensor], num_context: torch.LongTensor, num_targets: torch.LongTensor
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    The order of rows and their branches, both (batch, rows), of a context (batch, most_context) and of branches
    (batch, most_targets), `parts`, of which a sequence has `num_context` and `num_targets` (batch,) entries.
    """
    branches = []
    for branch, part in enumerate(parts, CONTEXT):
        ranks = torch.arange(part.shape[1], device=part.device)
        size = num_context if branch == CONTEXT else num_targets
        branches.append(torch.where(ranks < size[:, None], branch, PADDING))
    order, branches = torch.cat(parts, dim=1), torch.cat(branches, dim=1)
    packed = (branches == PADDING).long().argsort(dim=-1, stable=True)
    return in_order(order, packed), in_order(branches, packed)
