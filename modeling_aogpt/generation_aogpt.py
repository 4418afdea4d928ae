# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Any-order generation, for every architecture. It knows two verbs (`canvas.py`): *query* the positions that come next,
given all that is revealed, and *commit* tokens to them.
"""

from dataclasses import dataclass

import torch
from transformers.generation import BaseStreamer, GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.utils import ModelOutput

from .canvas import Canvas
from .end_of_text import stop_at_ends
from .evaluation_mode import evaluation_mode
from .generation_settings import AnyOrderGenerationSettings, is_integer, resolve_settings
from .ngram_drafts import NgramDrafts
from .orders import (
    blocks_of,
    check_aligned,
    check_batch,
    check_orders,
    group_order,
    in_place,
    left_to_right_orders,
    random_orders,
    token_positions,
)
from .parallel import ParallelSampler
from .refinement import check_refine_length, draw_blocks
from .reveal_rules import EntropyBoundedReveal, PlannedReveal, RevealRule, ScoreReveal
from .sampling import make_warpers
from .schedule import SCORE_RULES
from .speculative import ModelDrafts, SpeculativeSampler
from .streaming import Progress
from .token_drawer import TokenDrawer


@dataclass
class AnyOrderGenerationOutput(ModelOutput):
    """
    What `generate(..., return_dict_in_generate=True)` returns, everything in place.

    Args:
        sequences (`torch.LongTensor` of shape `(batch, n)`): The filled sequences.
        orders (`torch.LongTensor` of shape `(batch, n)`): The order in which tokens entered the context: given tokens,
            then generated ones, then padding. What `stop_at_eos` cleared stands where it entered.
        reveal_steps (`torch.LongTensor` of shape `(batch, n)`): The step, from 0, at which each position was revealed;
            -1 for given tokens and padding.
        token_logprobs (`torch.Tensor` of shape `(batch, n)`): Log-probability, in nats, of each generated token under
            the (tempered, truncated) distribution it was chosen from; 0 for given tokens and padding.
        num_forward_passes (`int`): Passes of the model.
        num_rows (`int`): Rows computed, over all passes and sequences.
        acceptance_rate (`float`): Of `strategy="speculative"`: the share of drafts that were kept; the model's first of
            each round, which always is, left out.
        history (`torch.LongTensor` of shape `(steps + 1, batch, n)`): With `output_history`: the sequences, masks where
            they are hidden, before the first step and after each that revealed something.
    """

    sequences: torch.LongTensor | None = None
    orders: torch.LongTensor | None = None
    reveal_steps: torch.LongTensor | None = None
    token_logprobs: torch.FloatTensor | None = None
    num_forward_passes: int | None = None
    num_rows: int | None = None
    acceptance_rate: float | None = None
    history: torch.LongTensor | None = None


class AnyOrderGenerationMixin(GenerationMixin):
    """`generate` for models that predict tokens in any order; `canvas_class` says how they are queried."""

    canvas_class: type[Canvas]

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.LongTensor | None = None,
        *,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        logits_processor: LogitsProcessorList | None = None,
        streamer: BaseStreamer | None = None,
        generation_config: GenerationConfig | None = None,
        **kwargs: object,
    ) -> torch.LongTensor | AnyOrderGenerationOutput:
        """
        Fills the masked positions of `inputs`, or makes whole sequences, revealing several positions per forward pass.

        The result is a sample of the reverse process (Eq. 5) on the grid of `schedule` with `num_steps` steps:
        positions of one step are drawn independently given all that was revealed before. Arguments that are not given
        come from `generation_config`, which defaults to the model's own, and then from the defaults below.

        Args:
            inputs (`torch.LongTensor` of shape `(batch, l)`, *optional*): Tokens, with `config.mask_token_id` where
                they are to be filled. Without it, generation is unconditional. Also taken as `input_ids`.
            attention_mask (`torch.Tensor` of shape `(batch, l)`, *optional*): 0 at padding, anywhere; padding is
                neither seen nor filled nor counted in positions.
            generator (`torch.Generator`, *optional*): Makes the result reproducible.
            logits_processor (`LogitsProcessorList`, *optional*): Changes logits (queries, vocab) before temperature and
                truncation, seeing the sequences (queries, n) in place with masks where they are hidden, and at padding.
            streamer (`BaseStreamer`, *optional*): Is put every token once all before it in the text are known; one with
                `put_draft`, as transformers' `TextDiffusionStreamer`, also the rest of the text after every step.
            generation_config (`GenerationConfig`, *optional*): Holds any of the following.
            max_length (`int`, *optional*): Extends the inputs with masks to this length; the length of unconditional
                sequences (default: `config.max_position_embeddings`).
            max_new_tokens (`int`, *optional*): Extends the inputs by so many masks.
            num_steps (`int`, *optional*): Steps T of the reverse process. Without it positions are revealed one at a
                time, which samples p(x | order) exactly, and `schedule` has nothing to choose.
            schedule (`str`): `"linear"` (default) or `"cosine"`, see [`masked_fractions`].
            reveal (`str`): How many positions a step reveals. With `num_steps`, `"bernoulli"` (default): each position
                draws its own reveal step (Lemma 4.1); `"fixed"`: the same number each time, see [`draw_reveal_steps`];
                of SEDD only, `"euler"` and `"analytic"`: by the score, see [`ScoreReveal`] (`"bernoulli"` and `"fixed"`
                take it as a denoiser). Without, `"entropy_bounded"`: as many as are nearly independent, see
                [`EntropyBoundedReveal`].
            entropy_bound (`float`): Of `reveal="entropy_bounded"`, in nats (default: 0.1).
            order (`str` or `torch.LongTensor` of shape `(batch * num_return_sequences, n)`): `"random"` (default),
                `"left_to_right"`, or one given order per returned sequence. Given tokens enter the context first, in
                the order's order. Or adaptive: all hidden positions are queried, and revealed in the order of the
                `"confidence"`, `"margin"` or `"entropy"` of their predictions, the most certain first (see
                `certainty.py`). That samples another distribution than the model's under any fixed order.
            block_length (`int`, *optional*): Reveals blocks of so many positions one after the other, left to right, in
                `order` within each.
            stride (`int`, *optional*): The same with strided blocks: first positions 0, stride, 2 stride, ...
            window (`int`, *optional*): Candidates of adaptive orders (the first hidden positions of the text) and of
                `"entropy_bounded"` (the next of the order); all of the block if not given.
            do_sample (`bool`): Draw tokens (default) or take the likeliest.
            temperature (`float`): Above 0. Divides the logits.
            top_k (`int`): Draw from the k likeliest tokens only; 0 (default) from all.
            top_p (`float`): Draw from the likeliest tokens that together reach this probability; 1 (default) from all.
            top_p_rule (`str`): `"inclusive"` (default): the token that crosses `top_p` is kept, as in transformers;
                `"exclusive"`: it is not, as in the released code, which made Table 1 of the paper.
            strategy (`str`): `"parallel"` (default), as above, or `"speculative"`: draws from p(x | order) exactly, as
                without `num_steps`, but in fewer passes, by drafting several tokens and verifying them. Decoders only.
            draft (`str`): Who drafts: the `"model"` (default), or `"ngram"`: the text revealed so far, for nothing.
            draft_length (`int`): Tokens that are drafted at once, at least 2 (default: 4).
            stop_at_eos (`bool`): End a sequence with the first end-of-text that is generated, and pad what follows it;
                under `order="left_to_right"` or with `block_length`.
            eos_token_id (`int` or `list[int]`, *optional*): Of `stop_at_eos`; the configuration's if not given.
            pad_token_id (`int`, *optional*): The same; the first of `eos_token_id` if there is none.
            refine_rounds (`int`): Rounds of block-Gibbs refinement (default: 0): each hides `refine_length` generated
                tokens in a row and draws them again, given all the rest, in the way of the first time. Sequences in
                which nothing is to be filled stay as they are.
            refine_length (`int`, *optional*): See there.
            num_return_sequences (`int`): Samples for each input; the batch of unconditional generation.
            output_history (`bool`): Keep the sequences as they were before and after every step.
            return_dict_in_generate (`bool`): Return an [`AnyOrderGenerationOutput`] instead of the ids.

            Other arguments of transformers' `generate` are taken at the value at which they ask for nothing, such as
            `num_beams=1` (`NEUTRAL` in `generation_settings.py`).

        Returns:
            `torch.LongTensor` (batch * num_return_sequences, n), or an [`AnyOrderGenerationOutput`].

        Raises:
            ValueError: For an argument that is unknown, out of range, at odds with another or of no use without one
                that is missing, ids that are neither tokens nor the mask, sequences longer than the model takes,
                nothing to fill, or logits that are not finite.
            TypeError: For inputs or a mask that are no tensor, and what is no generator, no list of processors or no
                generation config.
        """
        if inputs is not None and input_ids is not None:
            raise ValueError("Both inputs and input_ids are given; they are two names of one argument.")
        kwargs.pop("token_type_ids", None)  # which tokenizers return, and `forward` takes as well
        config = self.generation_config if generation_config is None else generation_config
        if not isinstance(config, GenerationConfig):
            raise TypeError(f"generation_config is a {type(config).__name__}, but must be a GenerationConfig.")
        settings = resolve_settings(config, kwargs)
        self._check_architecture(settings)
        ends = self._end_tokens(settings) if settings.stop_at_eos else None
        inputs = input_ids if inputs is None else inputs
        with evaluation_mode(self):  # gradient checkpointing, in training mode, would take the cache away
            output = self._generate(inputs, attention_mask, settings, ends, generator, logits_processor, streamer)
        return output if settings.return_dict_in_generate else output.sequences

    def _generate(
        self,
        inputs: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        settings: AnyOrderGenerationSettings,
        ends: tuple[torch.LongTensor, int] | None,
        generator: torch.Generator | None,
        logits_processor: LogitsProcessorList | None,
        streamer: BaseStreamer | None,
    ) -> AnyOrderGenerationOutput:
        ids, is_padding = self._prepare_canvas(inputs, attention_mask, settings)
        blocks = blocks_of(token_positions(~is_padding), settings.block_length, settings.stride)
        orders = self._draw_orders(settings, ids, blocks, generator)
        canvas = self.canvas_class(self, ids, orders, blocks, is_padding)
        progress = Progress(canvas, streamer, settings.output_history, settings.refine_rounds > 0)
        if settings.refine_rounds:
            check_refine_length(canvas, settings.refine_length)

        def after_step() -> None:
            if ends is not None:
                stop_at_ends(canvas, *ends)
            progress.after_step()

        sampler = self._make_sampler(canvas, settings, logits_processor, generator)
        step = sampler.run(0, after_step)
        for _ in range(settings.refine_rounds):
            orders = self._draw_orders(settings, ids, blocks, generator)
            canvas.hide(draw_blocks(canvas, settings.refine_length, generator), orders)
            step = sampler.run(step, after_step)
        progress.end()
        output = self._describe(canvas, sampler, progress)
        canvas.end()
        return output

    def _make_sampler(
        self,
        canvas: Canvas,
        settings: AnyOrderGenerationSettings,
        logits_processor: LogitsProcessorList | None,
        generator: torch.Generator | None,
    ) -> ParallelSampler | SpeculativeSampler:
        if not isinstance(logits_processor, list | tuple | None):
            raise TypeError(
                f"logits_processor is a {type(logits_processor).__name__}, but must be a list of processors."
            )
        processors = LogitsProcessorList(logits_processor or [])
        warpers = make_warpers(settings.temperature, settings.top_k, settings.top_p, settings.top_p_rule)
        if settings.strategy == "speculative":
            drawer = TokenDrawer(canvas, processors, warpers, generator=generator)
            drafter = ModelDrafts(drawer) if settings.draft == "model" else NgramDrafts(canvas)
            return SpeculativeSampler(canvas, drawer, drafter, settings.draft_length)
        rule = make_reveal_rule(settings, generator)
        certainty = settings.order if settings.is_adaptive else None
        measures = tuple({name for name in (certainty, rule.measure) if name is not None})
        drawer = TokenDrawer(canvas, processors, warpers, settings.do_sample, generator, measures)
        return ParallelSampler(canvas, rule, drawer, certainty, settings.window)

    def _describe(
        self, canvas: Canvas, sampler: ParallelSampler | SpeculativeSampler, progress: Progress
    ) -> AnyOrderGenerationOutput:
        if not torch.isfinite(canvas.token_logprobs).all():
            raise ValueError(
                "The logits are not finite (NaN or infinity), so there is no distribution to draw from. Check the "
                f"weights, the dtype they were loaded in ({self.dtype}), and whether a logits_processor, if there is "
                "one, forbids every token."
            )
        is_speculative = isinstance(sampler, SpeculativeSampler)
        return AnyOrderGenerationOutput(
            sequences=canvas.sequences(),
            orders=canvas.orders,
            reveal_steps=in_place(canvas.reveal_steps, canvas.orders),
            token_logprobs=in_place(canvas.token_logprobs, canvas.orders),
            num_forward_passes=canvas.num_forward_passes,
            num_rows=canvas.num_rows,
            acceptance_rate=sampler.num_accepted / max(sampler.num_drafts, 1) if is_speculative else None,
            history=None if progress.history is None else torch.stack(progress.history),
        )

    def _check_architecture(self, settings: AnyOrderGenerationSettings) -> None:
        if settings.strategy == "speculative" and not hasattr(self.canvas_class, "verify"):
            raise ValueError(
                "strategy='speculative' verifies drafts as a causal chain in one pass, which only a decoder can: leave "
                "it out."
            )
        if settings.reveal in SCORE_RULES and self.config.target_injection != "sigma":
            raise ValueError(
                f"reveal={settings.reveal!r} samples from the score of a SEDD, and this model gives none: take "
                "'bernoulli' or 'fixed'."
            )

    def _end_tokens(self, settings: AnyOrderGenerationSettings) -> tuple[torch.LongTensor, int]:
        """The ids of end-of-text, and what to pad with."""
        sources = settings, self.generation_config, self.config
        eos, pad = (
            next((getattr(source, name) for source in sources if getattr(source, name, None) is not None), None)
            for name in ("eos_token_id", "pad_token_id")
        )
        if eos is None:
            raise ValueError(
                "stop_at_eos needs the id of end-of-text: give eos_token_id (the tokenizer's), or set it in "
                "model.generation_config."
            )
        ids, num_valid = eos if isinstance(eos, list | tuple) else [eos], self.config.num_valid_tokens
        if not ids or not all(is_integer(token) and 0 <= token < num_valid for token in ids):
            raise ValueError(
                f"eos_token_id={eos!r} is never generated: give one or several integers from 0 to {num_valid - 1} "
                "(config.num_valid_tokens), the ids of text."
            )
        pad = ids[0] if pad is None else pad
        if pad >= self.config.vocab_size:
            raise ValueError(
                f"pad_token_id={pad} has no row in the token table: give an id from 0 to {self.config.vocab_size - 1}."
            )
        return torch.tensor(ids, device="cpu"), pad

    def _prepare_canvas(
        self,
        inputs: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        settings: AnyOrderGenerationSettings,
    ) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Ids (batch, n), extended by masks and repeated for every returned sequence, and where they are padding."""
        longest, mask = self.config.max_position_embeddings, self.config.mask_token_id
        if inputs is None:
            if attention_mask is not None:
                raise ValueError("attention_mask is given without inputs; unconditional sequences have no padding.")
            length = settings.max_new_tokens or settings.max_length or longest
            inputs = torch.full((1, 0), mask, dtype=torch.long, device="cpu")
        else:
            check_batch(inputs, "inputs")
            if attention_mask is not None:
                check_aligned(attention_mask, inputs)
            length = settings.max_length or inputs.shape[1] + (settings.max_new_tokens or 0)
            if length == 0:
                raise ValueError(
                    f"Nothing to generate: inputs has shape {tuple(inputs.shape)}. Give max_new_tokens or max_length "
                    "to extend it."
                )
        # The weights of an offloaded model are nowhere; its inputs stay where they are.
        inputs = inputs.to(inputs.device if self.device.type == "meta" else self.device, torch.long)
        num_added = length - inputs.shape[1]
        if num_added < 0:
            raise ValueError(
                f"max_length={length} is shorter than the inputs, which have {inputs.shape[1]} tokens; raise it, or "
                "give max_new_tokens."
            )
        if length > longest >= inputs.shape[1]:
            raise ValueError(
                f"Sequences would have {length} tokens, {num_added} of them new, but this model takes 1 to {longest} "
                f"(config.max_position_embeddings): ask for {longest - inputs.shape[1]} new ones at most."
            )
        ids = torch.nn.functional.pad(inputs, (0, num_added), value=mask)
        is_padding = torch.zeros_like(ids, dtype=torch.bool)
        if attention_mask is not None:
            is_padding[:, : inputs.shape[1]] = attention_mask.to(ids.device) == 0
        self.checked_ids(ids, ~is_padding, mask_allowed=True)
        if not ((ids == mask) & ~is_padding).any():
            raise ValueError(
                f"Nothing to generate: inputs holds no mask (id {mask}). Put it where tokens are to be filled in, or "
                "give max_new_tokens or max_length to extend the inputs."
            )
        repeats = settings.num_return_sequences
        return ids.repeat_interleave(repeats, dim=0), is_padding.repeat_interleave(repeats, dim=0)

    def _draw_orders(
        self,
        settings: AnyOrderGenerationSettings,
        ids: torch.LongTensor,
        blocks: torch.LongTensor,
        generator: torch.Generator | None,
    ) -> torch.LongTensor:
        order = settings.order
        if isinstance(order, torch.Tensor):
            repeats = settings.num_return_sequences
            needed = f"all positions of every returned sequence (num_return_sequences={repeats} for each input)"
            check_orders(order, *ids.shape, name="order", needed=needed)
            return order.to(ids.device, torch.long)
        if order == "random":
            orders = random_orders(*ids.shape, generator=generator, device=ids.device)
        else:  # adaptive orders look at windows from the left
            orders = left_to_right_orders(*ids.shape, device=ids.device)
        return group_order(orders, blocks)


def make_reveal_rule(settings: AnyOrderGenerationSettings, generator: torch.Generator | None) -> RevealRule:
    if settings.reveal == "entropy_bounded":
        return EntropyBoundedReveal(settings.entropy_bound)
    if settings.reveal in SCORE_RULES:
        return ScoreReveal(settings.num_steps, settings.schedule, settings.reveal, generator)
    return PlannedReveal(settings.num_steps, settings.schedule, settings.reveal, generator)
