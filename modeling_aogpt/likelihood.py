# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of whole sequences under one order or an average over orders."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput

from .orders import in_order, in_place, random_orders

# Rows whose logits are held at once: 1024 rows of a table of 50304 are 206 MB in float32.
ROWS_PER_HEAD_CALL = 1024


@dataclass
class LogLikelihoodOutput(ModelOutput):
    """
    Args:
        log_likelihood (`torch.Tensor` of shape `(batch,)`): log p(x | order) in nats, averaged over orders.
        token_log_likelihood (`torch.Tensor` of shape `(batch, n)`): The share of each token, in place; 0 at padding.
            The shares of a sequence sum to its `log_likelihood`.
        standard_error (`torch.Tensor` of shape `(batch,)`): Of that average, from the spread over orders: 0 for orders
            that were given or left to right, NaN for a single random one, which tells nothing about the spread.
    """

    log_likelihood: torch.FloatTensor | None = None
    token_log_likelihood: torch.FloatTensor | None = None
    standard_error: torch.FloatTensor | None = None


class AnyOrderLikelihoodMixin:
    """`log_likelihood` for models that predict tokens in any order."""

    @torch.no_grad()
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | str | None = None,
        num_orders: int = 1,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> LogLikelihoodOutput:
        """
        Log-likelihood of whole sequences: log p(x | order), or its mean over uniform random orders, whose negative is
        the any-order loss (Eq. 7) and so the masked-diffusion bound (Eq. 1) on -log p(x).

        Probabilities are normalised over the whole token table, as in training and in the authors' code. Generation
        leaves out ids that are no text (`config.num_valid_tokens` on), which a trained model gives next to nothing.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            orders (`torch.LongTensor` of shape `(batch, n)` or `str`, *optional*): Given orders, `"left_to_right"` or
                `"random"`. Without it: left to right, or random where `num_orders` is above 1.
            num_orders (`int`): Random orders to average over, drawn for each sequence on its own.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            generator (`torch.Generator`, *optional*): Of the random orders.

        Returns:
            [`LogLikelihoodOutput`], float64.

        Raises:
            ValueError: If the ids, orders or their number are not allowed, or a result is not finite.
        """
        input_ids = input_ids.long()
        kind = self._order_kind(orders, num_orders)
        orders = orders if kind == "given" else None  # None is left to right
        totals, token_log_likelihood = [], 0.0
        for _ in range(num_orders):
            if kind == "random":
                orders = random_orders(*input_ids.shape, generator=generator, device=input_ids.device)
            tokens = self._score(input_ids, orders, attention_mask)
            token_log_likelihood = token_log_likelihood + tokens / num_orders
            totals.append(tokens.sum(dim=-1))
        totals = torch.stack(totals)
        if not torch.isfinite(totals).all():
            raise ValueError(
                f"The log-likelihood of sequence {int((~torch.isfinite(totals)).any(dim=0).nonzero()[0])} is not "
                f"finite. Check the weights, and the dtype they were loaded in ({self.dtype})."
            )
        standard_error = torch.zeros_like(totals[0])
        if kind == "random":
            standard_error = totals.std(dim=0) / num_orders**0.5 if num_orders > 1 else standard_error + torch.nan
        return LogLikelihoodOutput(
            log_likelihood=totals.mean(dim=0),
            token_log_likelihood=token_log_likelihood,
            standard_error=standard_error,
        )

    @staticmethod
    def _order_kind(orders: torch.LongTensor | str | None, num_orders: int) -> str:
        if num_orders < 1:
            raise ValueError(f"num_orders={num_orders} must be at least 1.")
        if isinstance(orders, torch.Tensor):
            kind = "given"
        else:
            kind = orders or ("random" if num_orders > 1 else "left_to_right")
        if kind not in ("given", "random", "left_to_right"):
            raise ValueError(f"orders={orders!r} is not a (batch, n) tensor, 'left_to_right' or 'random'.")
        if num_orders > 1 and kind != "random":
            raise ValueError(f"num_orders={num_orders} averages over random orders, but one order is fixed ({kind}).")
        return kind

    def _score(
        self, input_ids: torch.LongTensor, orders: torch.LongTensor | None, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """log p of each token under one order, (batch, n) in place, 0 at padding, without ever holding all logits."""
        output, orders = self.predict_in_order(input_ids, orders, attention_mask)
        targets = in_order(input_ids, orders).flatten()
        scores = []
        for hidden_states, ids in zip(
            output.last_hidden_state.flatten(0, 1).split(ROWS_PER_HEAD_CALL),
            targets.split(ROWS_PER_HEAD_CALL),
            strict=True,
        ):
            logits = self.lm_head(hidden_states)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            scores.append(-torch.nn.functional.cross_entropy(logits, ids, reduction="none").double())
        scores = in_place(torch.cat(scores).view(input_ids.shape), orders)
        return scores if attention_mask is None else scores.masked_fill(attention_mask == 0, 0.0)
