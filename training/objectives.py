# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
What a model is trained on: an objective holds the model and gives the loss of a batch, in nats per token.

A batch says everything that was drawn at random (orders, times, masks), so a loss is a function of batch and weights;
`training/draws.py` draws. For uniform orders all of them are unbiased estimates of one bound on -log p(x) / n: Eq. 7 of
the paper, equal to Eq. 1.
"""

import torch
from torch import nn

from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from modeling_aogpt.orders import index_by_rank
from modeling_aogpt.unmasking import log_linear_noise
from modeling_aogpt.validation import prepare_input_ids
from training.head_loss import Loss, head_loss


class AnyOrderObjective(nn.Module):
    """The decoder predicts every token given those before it in an order: Eq. 7, the mean over labels."""

    def __init__(self, model: AOGPTForAnyOrderLM) -> None:
        super().__init__()
        self.model = model
        self._no_split_modules = model._no_split_modules

    def forward(
        self, input_ids: torch.LongTensor, orders: torch.LongTensor, labels: torch.LongTensor | None = None
    ) -> torch.Tensor:
        """All (batch, n), as [`DataCollatorForAnyOrderLM`] makes them of whole sequences."""
        output, orders = self.model.forward_by_rank(input_ids, orders, attention_mask=None)
        targets = index_by_rank(input_ids if labels is None else labels, orders).flatten()
        is_label = targets != -100
        return head_loss(
            output.last_hidden_state.flatten(0, 1),
            self.model.lm_head,
            targets.masked_fill(~is_label, 0),
            is_label / is_label.sum().clamp(min=1),
        )


class MaskedDiffusionObjective(nn.Module):
    """
    The encoder predicts every masked token given the others, with weight 1 / t: Eq. 1.

    That is the masked-diffusion bound when every token is masked with probability t on its own, and its any-order form
    when t n tokens are, t n being uniform in 1 ... n.
    """

    loss: Loss = "cross_entropy"

    def __init__(self, model: MDMEncoderForMaskedLM) -> None:
        super().__init__()
        self.model = model
        self._no_split_modules = model._no_split_modules

    def forward(
        self, input_ids: torch.LongTensor, is_masked: torch.BoolTensor, times: torch.DoubleTensor
    ) -> torch.Tensor:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            is_masked (`torch.BoolTensor` of shape `(batch, n)`): What is hidden from the model.
            times (`torch.DoubleTensor` of shape `(batch,)`): t of each sequence, in (0, 1].
        """
        rows = is_masked.flatten().nonzero().squeeze(1)  # before the model: an accelerator waits for nothing after it
        input_ids = prepare_input_ids(self.model, input_ids)
        masked_ids = input_ids.masked_fill(is_masked, self.model.config.mask_token_id)
        output = self.model.model(masked_ids, sigma=self.noise_levels(times))
        weights = (1 / times / input_ids.numel())[:, None].expand_as(input_ids)
        return head_loss(
            output.last_hidden_state.flatten(0, 1).index_select(0, rows),
            self.model.lm_head,
            input_ids.flatten()[rows],
            weights.flatten()[rows],
            self.loss,
            self.model.config.num_valid_tokens,
        )

    def noise_levels(self, times: torch.DoubleTensor) -> torch.Tensor | None:
        """None: a model that wants to be told goes by the share of masks."""
        return None


class ScoreEntropyObjective(MaskedDiffusionObjective):
    """
    Denoising score entropy of SEDD (arXiv 2310.16834), with its absorbing graph and log-linear noise: a token is masked
    with probability 1 - e^-sigma(t) = (1 - eps) t.

    The true ratio at a masked position is r = 1 / (e^sigma - 1) for the token that is hidden and 0 for all others, and
    the model's score is r exp(logits - log V) (`MDMEncoderForMaskedLM.log_score`). In the loss of a position,
    sigma'(t) (sum of scores - r log score[token] + r log r - r), then sigma'(t) r = 1 / t stands before everything:
    the weight of Eq. 1. A model with normalised scores has the same loss under both, but for times above 1 - eps, which
    the noise does not reach.
    """

    loss: Loss = "score_entropy"

    def noise_levels(self, times: torch.DoubleTensor) -> torch.Tensor:
        return log_linear_noise(times)


OBJECTIVES = {
    ("decoder", "any_order"): AnyOrderObjective,
    ("encoder", "any_order"): MaskedDiffusionObjective,
    ("encoder", "masked_diffusion"): MaskedDiffusionObjective,
    ("encoder", "score_entropy"): ScoreEntropyObjective,
}
