# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Showing a generation while it runs."""

import torch
from transformers.generation import BaseStreamer

from .canvas import Canvas
from .orders import in_place


class Progress:
    """
    Tells a streamer of every step, and keeps the history.

    What lies before the first hidden position of the batch is final and goes to `streamer.put`, once; the rest, with
    masks where it is hidden, goes to `streamer.put_draft` where there is one (the contract of transformers'
    `TextDiffusionStreamer`). So any streamer shows left-to-right text as it grows. With refinement, which may change
    everything, only the prompt is final before the end. Padding behind the end-of-text of a sequence is put as far as
    others have text there, as transformers has it.

    Attributes:
        history (list of `torch.LongTensor` of shape `(batch, n)`): Of all steps, the beginning first, if kept.
    """

    def __init__(self, canvas: Canvas, streamer: BaseStreamer | None, keeps_history: bool, refines: bool) -> None:
        self.canvas, self.streamer, self.refines = canvas, streamer, refines
        self.history = [canvas.sequences()] if keeps_history else None
        self.num_put = 0
        if streamer is not None:
            self._put(canvas.sequences().cpu(), always=True)

    def after_step(self) -> None:
        """To be called after each step that revealed something."""
        if self.history is None and self.streamer is None:
            return
        sequences = self.canvas.sequences()
        if self.history is not None:
            self.history.append(sequences)
        if self.streamer is None:
            return
        sequences = sequences.cpu()
        if not self.refines:
            self._put(sequences)
        if hasattr(self.streamer, "put_draft") and self.num_put < sequences.shape[1]:
            self.streamer.put_draft(sequences[:, self.num_put :])

    def end(self) -> None:
        """To be called when all is generated."""
        if self.streamer is not None:
            self._put(self.canvas.sequences().cpu())
            self.streamer.end()

    def _put(self, sequences: torch.LongTensor, always: bool = False) -> None:
        num_final = self._count_final()
        if num_final > self.num_put or always:  # even an empty prompt is put: streamers may leave the first out
            self.streamer.put(sequences[:, self.num_put : num_final])
        self.num_put = num_final

    def _count_final(self) -> int:
        """Columns before the first with something hidden, without those at the end that an end-of-text left empty."""
        canvas = self.canvas
        was_hidden = canvas.ranks_between(canvas.num_given, canvas.num_tokens)
        is_text = in_place(~was_hidden | (canvas.reveal_steps >= 0), canvas.orders).any(dim=0)
        is_final = (~canvas.is_hidden().any(dim=0)).long().cumprod(dim=0)
        return int((torch.arange(1, len(is_text) + 1, device=is_text.device) * is_text * is_final).max())
