# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Drafts for nothing: the tokens that stand, in the text revealed so far, where it is most like the place at hand."""

import torch

from .cached_decoder import CachedDecoder
from .devices import to_device
from .orders import in_place

# Neighbours on each side that are compared.
REACH = 3


class NgramDrafts:
    """
    Drafts the token of the revealed position whose neighbours agree best with those of the target.

    Agreement is the number of equal revealed tokens going left from the position without a gap, plus that going right,
    at most `REACH` each way; of equals the last position wins. Left to right this is looking up the longest n-gram. A
    target none of whose neighbours is found elsewhere ends the drafts of its round.
    """

    num_sure = 0  # as of `ModelDrafts`

    def __init__(self, canvas: CachedDecoder) -> None:
        self.canvas = canvas

    def draft(self, num_drafts: torch.LongTensor) -> tuple[torch.LongTensor, torch.Tensor, torch.LongTensor]:
        """As `ModelDrafts.draft`: each draft has all of its q."""
        canvas, device = self.canvas, self.canvas.ids.device
        width, batch_size = int(num_drafts.max()), len(num_drafts)
        known = to_device(canvas.num_context, device)
        # Unknown tokens are -1, which equals nothing; drafts become known as they are made.
        is_known = canvas.ranks_between(torch.zeros_like(canvas.num_context), canvas.num_context)
        text = in_place(canvas.ids.masked_fill(~is_known, -1), canvas.orders)
        drafts = torch.zeros(batch_size, width, dtype=torch.long, device=device)
        is_open = torch.ones(batch_size, dtype=torch.bool, device=device)
        num_found = torch.zeros(batch_size, dtype=torch.long, device=device)
        rows = torch.arange(batch_size, device=device)
        for column in range(width):
            targets = canvas.orders[rows, (known + column).clamp(max=text.shape[1] - 1)]
            tokens, is_found = most_alike(text, targets)
            is_open &= is_found & (column < to_device(num_drafts, device))
            drafts[:, column] = torch.where(is_open, tokens, 0)
            text[rows, targets] = torch.where(is_open, tokens, text[rows, targets])
            num_found += is_open
        is_draft = torch.arange(width, device=device) < num_found[:, None]
        shape = batch_size, width + 1, canvas.model.config.vocab_size
        drafted = torch.zeros(shape, dtype=torch.float64, device=device)
        drafted[:, :width].scatter_(2, drafts[..., None], is_draft[..., None].double())
        return drafts, drafted, num_found.cpu()


def most_alike(text: torch.LongTensor, targets: torch.LongTensor) -> tuple[torch.LongTensor, torch.BoolTensor]:
    """
    The token (batch,) of the position in `text` (batch, n), -1 where unknown, whose neighbours agree best with those of
    `targets` (batch,), and whether any agrees at all.
    """
    length = text.shape[1]
    padded = torch.nn.functional.pad(text, (REACH, REACH), value=-1)
    agreement = torch.zeros_like(text)
    for direction in (-1, 1):
        is_same = torch.ones_like(text, dtype=torch.bool)
        for distance in range(1, REACH + 1):
            shift = REACH + direction * distance
            neighbours = padded[:, shift : shift + length]
            wanted = padded.gather(1, (targets + shift)[:, None])
            is_same &= (neighbours == wanted) & (wanted >= 0)
            agreement += is_same
    positions = torch.arange(length, device=text.device)
    best = (agreement * (text >= 0) * length + positions).masked_fill(text < 0, -1).argmax(dim=1, keepdim=True)
    is_found = (agreement.gather(1, best) > 0) & (text.gather(1, best) >= 0)
    return text.gather(1, best).squeeze(1), is_found.squeeze(1)
