# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Ending a sequence where the model has written its end."""

import torch

from .canvas import Canvas
from .orders import in_place


def first_end(canvas: Canvas, eos_token_ids: torch.LongTensor) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    The first position of each sequence where end-of-text was generated, and the first that is hidden, (batch,) each; n
    where there is none.
    """
    length = canvas.ids.shape[1]
    ranks = torch.arange(length, device=canvas.ids.device)
    given, known, total = (
        counts.to(ranks.device)[:, None] for counts in (canvas.num_given, canvas.num_context, canvas.num_tokens)
    )
    is_end = torch.isin(canvas.ids, eos_token_ids.to(canvas.ids.device)) & (ranks >= given) & (ranks < known)
    is_hidden = (ranks >= known) & (ranks < total)
    first = [torch.where(chosen, canvas.orders, length).amin(dim=1) for chosen in (is_end, is_hidden)]
    return first[0], first[1]


def stop_at_ends(canvas: Canvas, eos_token_ids: torch.LongTensor) -> None:
    """
    Ends a sequence once nothing before a generated end-of-text is hidden: what was revealed behind that is hidden
    again, so that nobody is shown it, and stays so.
    """
    end, hidden = first_end(canvas, eos_token_ids)
    is_over = end < hidden
    ranks = torch.arange(canvas.ids.shape[1], device=canvas.ids.device)
    given, known = (counts.to(ranks.device)[:, None] for counts in (canvas.num_given, canvas.num_context))
    is_behind = is_over[:, None] & (canvas.orders > end[:, None]) & (ranks >= given) & (ranks < known)
    if is_behind.any():
        canvas.hide(in_place(is_behind, canvas.orders), canvas.orders)
    canvas.ends = torch.where(is_over.cpu(), canvas.num_context, canvas.ends)


def clear_after_ends(canvas: Canvas, eos_token_ids: torch.LongTensor, pad_token_id: int) -> None:
    """Puts padding at all positions to be filled behind a generated end-of-text, as if never generated."""
    end, _ = first_end(canvas, eos_token_ids)
    ranks = torch.arange(canvas.ids.shape[1], device=canvas.ids.device)
    given, total = (counts.to(ranks.device)[:, None] for counts in (canvas.num_given, canvas.num_tokens))
    is_cleared = (canvas.orders > end[:, None]) & (ranks >= given) & (ranks < total)
    canvas.ids[is_cleared] = pad_token_id
    canvas.reveal_steps[is_cleared] = -1
    canvas.token_logprobs[is_cleared] = 0.0
    canvas.num_context = canvas.num_tokens.clone()
