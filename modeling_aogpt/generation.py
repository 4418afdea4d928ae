# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Any-order generation: the method `generate` of decoders and encoders.

`generate` works as follows:

1. Append masks to the inputs, and draw an order for each sequence.
2. Make a decoding state, which predicts masked positions and fills tokens in (`decoding_state.py`).
3. Run a sampler on the decoding state until no position is masked (`unmasking.py`).
4. In each round of refinement, re-mask some of the generated tokens and run the sampler again.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.generation import BaseStreamer, GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.utils import ModelOutput, logging

from .decoding_state import DecodingState
from .devices import draw_uniform, inference_method, to_device
from .generation_config import AnyOrderGenerationConfig
from .infill import encode_with_masks
from .orders import group_orders, index_by_position, index_by_rank, token_positions
from .sampling import UNSUPPORTED_PROCESSORS, TokenSampler, is_any_of, make_processors, make_warpers, reads_prefix
from .unmasking import DRAFTS, SCORE_UNMASKING, ParallelSampler, SpeculativeSampler, make_rule
from .validation import (
    check_aligned,
    check_batch,
    check_mask_id,
    is_id,
    prepare_input_ids,
    remove_token_types,
    start_mask,
    token_mask,
)

logger = logging.get_logger(__name__)

# Arguments of `from_pretrained` for the model that are also used to load its generation config.
DOWNLOAD_ARGUMENTS = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision", "subfolder")


@dataclass
class AnyOrderGenerationOutput(ModelOutput):
    """Output of `generate(..., return_dict_in_generate=True)`.

    `batch` counts all returned sequences. Tensors of shape (batch, n) are indexed by the columns of `sequences`, in
    which padding counts. Only `orders` is indexed by rank, the index in the order.

    Args:
        sequences (`torch.LongTensor` of shape `(batch, n)`): The filled-in sequences.
        orders (`torch.LongTensor` of shape `(batch, n)`): Column of each rank in `sequences`: first the given
            tokens, then the generated tokens in the order in which they were unmasked, then padding. Positions that
            `stop_at_eos` replaced by padding keep their rank.
        unmasking_steps (`torch.LongTensor` of shape `(batch, n)`): Step (from 0) at which each position was unmasked;
            -1 for given tokens and padding.
        token_logprobs (`torch.Tensor` of shape `(batch, n)`): Log-probability, in nats, of each generated token under
            the distribution it was drawn from, after temperature and truncation; 0 for given tokens and padding.
        num_forward_passes (`int`): Number of forward passes.
        num_rows (`int`): Number of inputs that the model computed, over all passes and sequences: rows of a decoder
            (see `orders.py`) or positions of an encoder.
        tokens_per_forward (`torch.Tensor` of shape `(batch,)`): Number of generated tokens of each sequence divided by
            the number of forward passes, which includes the passes of refinement.
        acceptance_rate (`float`): With `strategy="speculative"`: fraction of drafts that were accepted (None without
            drafts). With `draft="model"`, the first draft of each round is not counted, because it is never rejected.
        history (`torch.LongTensor` of shape `(steps + 1, batch, n)`): With `output_history`: the sequences before the
            first step and after every step that unmasked at least one position.

    Examples:
        >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model, arguments = AOGPTForAnyOrderLM(config), {"max_length": 8, "order": "left_to_right"}
        >>> output = model.generate(**arguments, num_steps=4, unmasking="fixed_count", return_dict_in_generate=True)
        >>> output.unmasking_steps
        tensor([[0, 0, 1, 1, 2, 2, 3, 3]])
        >>> output.num_forward_passes, output.tokens_per_forward
        (4, tensor([2.]))
    """

    sequences: torch.LongTensor | None = None
    orders: torch.LongTensor | None = None
    unmasking_steps: torch.LongTensor | None = None
    token_logprobs: torch.FloatTensor | None = None
    num_forward_passes: int | None = None
    num_rows: int | None = None
    tokens_per_forward: torch.FloatTensor | None = None
    acceptance_rate: float | None = None
    history: torch.LongTensor | None = None


class AnyOrderGenerationMixin(GenerationMixin):
    """Mixin with `generate` for models that predict tokens in any order.

    A model class sets `decoding_state_class` to a subclass of [`DecodingState`], which runs the model. Each model has
    default settings in `generation_config`.
    """

    generation_config_class = AnyOrderGenerationConfig
    generation_config: AnyOrderGenerationConfig
    decoding_state_class: type[DecodingState]

    @inference_method
    def generate(
        self,
        inputs: torch.LongTensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        logits_processor: LogitsProcessorList | None = None,
        streamer: BaseStreamer | None = None,
        **kwargs: object,
    ) -> torch.LongTensor | AnyOrderGenerationOutput:
        """Fill in the masked positions of `inputs`, or generate whole sequences.

        By default, positions are unmasked one at a time. With `num_steps`, this method samples the reverse diffusion
        process (Eq. 5) at the diffusion times of `schedule`. The tokens of a step are then drawn independently, given
        all tokens that were unmasked before.

        Args:
            inputs (`torch.LongTensor` of shape `(batch, l)`, *optional*): Tokens, with `config.mask_token_id` at the
                positions to fill in. Without `inputs`, whole sequences are generated. Also accepted as `input_ids`.
            generation_config (`GenerationConfig`, *optional*): Settings to use instead of the model's own
                `generation_config`.
            input_ids (`torch.LongTensor` of shape `(batch, l)`, *optional*): The same as `inputs`.
            attention_mask (`torch.Tensor` of shape `(batch, l)`, *optional*): 0 at padding. Padding may be anywhere. It
                is not filled in, not attended to, and not counted in positions.
            generator (`torch.Generator`, *optional*): Source of randomness, for reproducible results.
            logits_processor (`LogitsProcessorList`, *optional*): Processors of logits (queries, vocab_size) with one
                row for each predicted position, applied before temperature and truncation. If tokens are generated from
                left to right, one at a time or with `strategy="speculative"`, without refinement, and no given token of
                the batch is to the right of a mask, processors get the text before the token, without padding (for
                drafts of `draft="model"`, the text before the first draft). In other cases, they get the whole sequence
                (queries, n), with the mask id at masked positions and at padding. If the mask id is `vocab_size` or
                higher, logits then have further columns, up to the mask id, so that they can be indexed with the
                sequence. Logits are at least float32. Processors of Transformers that depend on the end or the length
                of the text always get the text before the token. They raise an error if tokens are generated in another
                way.
            streamer (`BaseStreamer`, *optional*): Streamer that receives each token as soon as all tokens to the left
                are known. A streamer with `put_draft`, like Transformers' `TextDiffusionStreamer`, also receives the
                rest of the text after every step.
            kwargs: Fields of [`AnyOrderGenerationConfig`], which override `generation_config`. `order` may also be a
                tensor (batch * num_return_sequences, n) with one order for each returned sequence: a permutation of its
                columns, in which padding counts. Given tokens are moved to the front of each order, padding to its end.

        Returns:
            `torch.LongTensor` (batch * num_return_sequences, n), or an [`AnyOrderGenerationOutput`] with
            `return_dict_in_generate=True`.

        Raises:
            ValueError: If an argument is unknown, out of range, contradicts another one or has no effect; if an id is
                neither an id of text nor the mask id; if sequences are too long; if nothing is masked; or if logits are
                not finite.
            TypeError: If an argument has the wrong type.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = AOGPTForAnyOrderLM(config)
            >>> inputs = torch.tensor([[5, config.mask_token_id, 7, config.mask_token_id]])
            >>> output = model.generate(inputs, num_steps=1, return_dict_in_generate=True)
            >>> output.sequences.shape, output.num_forward_passes
            (torch.Size([1, 4]), 1)
        """
        if inputs is not None and input_ids is not None:
            raise ValueError("`inputs` and `input_ids` are two names of the same argument. Remove one of them.")
        remove_token_types(kwargs)
        inputs = inputs if input_ids is None else input_ids
        config = self.generation_config if generation_config is None else generation_config
        config = AnyOrderGenerationConfig.from_generation_config(config)
        check_mask_id(self.config)
        is_continuation = False
        if inputs is not None:
            check_batch("inputs", inputs)
            inputs = inputs.long()
            if attention_mask is not None:
                check_aligned("attention_mask", attention_mask, inputs)
            # Padding may have the mask id, too.
            is_token = token_mask(self.config, inputs, attention_mask).to(inputs.device)
            is_continuation = not ((inputs == self.config.mask_token_id) & is_token).any()
        config = config.with_arguments(kwargs, is_continuation=is_continuation)
        self._check_architecture(config)
        output = self._generate(inputs, attention_mask, config, generator, logits_processor, streamer)
        return output if config.return_dict_in_generate else output.sequences

    def encode_text(self, text: str, tokenizer: PreTrainedTokenizerBase) -> torch.LongTensor:
        """Return the ids (1, n) of a text with masks, each of which stands for one missing token.

        Unlike `tokenizer(text)`, this method encodes the text after a mask as a part of a text with any tokenizer:
        "un<|mask|>ly" contains no space, and "ly" begins no word. It keeps line breaks and indentation before a mask,
        without one space if tokens of words include the space before the word.

        Args:
            text (`str`): The text, in which each `tokenizer.mask_token` stands for a token.
            tokenizer (`PreTrainedTokenizerBase`): Tokenizer of the model.

        Returns:
            `torch.LongTensor` (1, n), the `inputs` of [`~AnyOrderGenerationMixin.generate`].

        Raises:
            ValueError: If the tokenizer cannot encode the text.

        Examples:
            >>> from tokenizers import Tokenizer, models
            >>> from transformers import PreTrainedTokenizerFast
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> pieces = Tokenizer(models.WordPiece({"un": 0, "ly": 1, "##ly": 2, "a": 3}, unk_token="a"))
            >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, mask_token="<mask>")
            >>> model = AOGPTForAnyOrderLM(AOGPTConfig(vocab_size=4, num_hidden_layers=1))
            >>> tokenizer.convert_ids_to_tokens(model.encode_text("un<mask>ly", tokenizer)[0].tolist())
            ['un', '<mask>', '##ly']
        """
        return torch.tensor([encode_with_masks(text, tokenizer)])

    def _generate(
        self,
        inputs: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        config: AnyOrderGenerationConfig,
        generator: torch.Generator | None,
        logits_processor: LogitsProcessorList | None,
        streamer: BaseStreamer | None,
        gap_ends: tuple[torch.BoolTensor, torch.LongTensor] | None = None,
    ) -> AnyOrderGenerationOutput:
        """Generate with checked arguments.

        `gap_ends` contains a mask (batch, n) and ids. Each gap between given tokens may then end early, with one of the
        ids, but not where the mask is True. The rest of such a gap is not filled in.
        """
        if config.draws_positions and not config.do_sample and generator is None:
            logger.warning_once(
                "`do_sample=False` takes the likeliest tokens, but at random positions, so texts can differ from call "
                "to call. Pass a `generator`. Or set an `order` that is not random (such as 'confidence'); with "
                "`num_steps`, also `unmasking='fixed_count'`; with `refine_rounds`, also "
                "`refine_selection='least_likely'`."
            )
        # 1. Append masks to the inputs, and draw an order for each sequence.
        ids, is_token = self._prepare_inputs(inputs, attention_mask, config)
        eos, pad_token_id = self._resolve_eos(config)
        orders, blocks = config.orders.draw(is_token, generator), config.orders.blocks(token_positions(is_token))
        if isinstance(config.order, str):  # given tokens come first, from left to right
            is_given = (ids != self.config.mask_token_id) & is_token
            columns = torch.arange(ids.shape[1], device=ids.device)
            orders = group_orders(orders, torch.where(is_given, columns, len(columns)))
        # 2. Make the decoding state and the sampler.
        state = self.decoding_state_class(self, ids, orders, blocks, is_token)
        if config.refine_rounds:
            num_masked = state.num_masked
            if config.refine_length > (fewest := int(num_masked[num_masked > 0].min())):
                raise ValueError(
                    f"`refine_length` ({config.refine_length}) is more than the {fewest} generated tokens of a "
                    f"sequence. Decrease `refine_length` to at most {fewest}."
                )
        stops, in_blocks = eos is not None and config.may_stop_at_eos, not config.is_left_to_right
        may_end = state.continues_prompt | bool(config.stop_at_eos)
        eos_ban = make_eos_ban(state, config.min_length, config.min_new_tokens, eos)
        if gap_ends is not None:
            state.blocks = index_by_rank((ids != self.config.mask_token_id).cumsum(dim=1), state.orders)
            cannot_end, end = (part.to(ids.device) for part in gap_ends)
            eos_ban = cannot_end.repeat_interleave(config.num_return_sequences, dim=0), end
        sampler = self._make_sampler(state, config, eos_ban, logits_processor, generator)
        progress = GenerationProgress(state, streamer, config.output_history, refines=config.refine_rounds > 0)
        # 3. Unmask all positions. 4. In each round of refinement, re-mask some of them, and unmask them again.
        for number in range(config.refine_rounds + 1):
            if number > 0:
                orders = config.orders.draw(is_token, generator)
                state.remask(choose_refined_positions(state, config, generator), orders)
            for _ in sampler.run():
                if stops:
                    state.end_after_eos(eos, pad_token_id, in_blocks, may_end)
                if gap_ends is not None:
                    state.end_gaps(end)
                if state.token_logprobs.is_cpu:  # an accelerator would make the CPU wait in every step
                    state.check_finite()
                progress.update()
        progress.finish()
        return self._make_output(state, sampler, progress)

    def _make_sampler(
        self,
        state: DecodingState,
        config: AnyOrderGenerationConfig,
        eos_ban: tuple[torch.BoolTensor, torch.LongTensor] | None,
        logits_processor: LogitsProcessorList | None,
        generator: torch.Generator | None,
    ) -> ParallelSampler | SpeculativeSampler:
        if not isinstance(logits_processor, list | tuple | None) or not all(map(callable, logits_processor or [])):
            raise TypeError(
                "`logits_processor` must be a list of functions, such as processors of Transformers, but is "
                f"{logits_processor!r}."
            )
        processors = make_processors(config, self.config.num_valid_tokens)
        processors.extend(logits_processor or [])
        has_prefix = config.is_left_to_right and config.unmasks_one_by_one and not config.refine_rounds
        check_processors(processors, has_prefix)
        sampler = TokenSampler(
            state,
            processors,
            # A temperature of 0 is allowed only with `do_sample=False`, where it has no effect.
            make_warpers(config.temperature or 1.0, config.top_k, config.top_p, config.top_p_rule, config.min_p),
            config.do_sample,
            generator,
            is_left_to_right=has_prefix,
            eos_ban=eos_ban,
        )
        if config.strategy == "speculative":
            return SpeculativeSampler(sampler, DRAFTS[config.draft], config.draft_length)
        rule = make_rule(config, self.config.num_valid_tokens, generator)
        return ParallelSampler(sampler, rule, config.certainty, config.window)

    def _make_output(
        self, state: DecodingState, sampler: ParallelSampler | SpeculativeSampler, progress: "GenerationProgress"
    ) -> AnyOrderGenerationOutput:
        state.check_finite()
        has_drafts = isinstance(sampler, SpeculativeSampler) and sampler.num_drafts > 0
        num_generated = (state.unmasking_steps >= 0).sum(dim=1)
        return AnyOrderGenerationOutput(
            sequences=state.sequences(),
            orders=state.orders,
            unmasking_steps=index_by_position(state.unmasking_steps, state.orders),
            token_logprobs=index_by_position(state.token_logprobs, state.orders),
            num_forward_passes=state.num_forward_passes,
            num_rows=state.num_rows,
            tokens_per_forward=num_generated / state.num_forward_passes,
            acceptance_rate=sampler.num_accepted / sampler.num_drafts if has_drafts else None,
            history=None if progress.history is None else torch.stack(progress.history),
        )

    def _check_architecture(self, config: AnyOrderGenerationConfig) -> None:
        if config.strategy == "speculative" and not hasattr(self.decoding_state_class, "verify"):
            raise ValueError(
                "`strategy='speculative'` needs a decoder, because an encoder cannot verify several drafts in one "
                "pass. Remove `strategy`."
            )
        if config.unmasking in SCORE_UNMASKING and self.config.target_injection != "sigma":
            raise ValueError(
                f"`unmasking={config.unmasking!r}` needs a model that predicts a score (SEDD). Set "
                "`unmasking` to 'bernoulli' or 'fixed_count'."
            )

    def _find_token_id(self, name: str, config: AnyOrderGenerationConfig) -> int | list[int] | None:
        """Return the ids of a special token from the call, or else from the model's defaults. None if unknown."""
        ids = (getattr(source, name, None) for source in (config, self.generation_config, self.config))
        return next((value for value in ids if value is not None), None)

    def _resolve_eos(self, config: AnyOrderGenerationConfig) -> tuple[torch.LongTensor | None, int]:
        """Return the ids of end-of-text tokens (None if unknown or not needed) and the id of padding after them."""
        eos, pad = (self._find_token_id(name, config) for name in ("eos_token_id", "pad_token_id"))
        needs_eos = config.stop_at_eos or config.min_length or config.min_new_tokens
        if not config.uses_eos or (eos is None and not needs_eos):
            return None, 0
        if eos is None:
            raise ValueError(
                "`stop_at_eos`, `min_length` and `min_new_tokens` need the id of end-of-text, but none is set. Pass "
                "`eos_token_id=tokenizer.eos_token_id`, or set model.generation_config.eos_token_id."
            )
        ids, num_valid = eos if isinstance(eos, list | tuple) else [eos], self.config.num_valid_tokens
        if not ids or not all(is_id(token, num_valid) for token in ids):
            raise ValueError(
                f"`eos_token_id` must be one or several ids of text, 0 to {num_valid - 1} (config.num_valid_tokens), "
                f"but is {eos!r}."
            )
        pad = ids[0] if pad is None else pad
        if pad >= self.config.vocab_size or pad == self.config.mask_token_id:
            raise ValueError(
                f"`pad_token_id` must be an id of the vocabulary, 0 to {self.config.vocab_size - 1}, and not the mask "
                f"id, but is {pad}."
            )
        return torch.tensor(ids, device="cpu"), pad

    def _prepare_inputs(
        self, inputs: torch.LongTensor | None, attention_mask: torch.Tensor | None, config: AnyOrderGenerationConfig
    ) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Return ids (batch * num_return_sequences, n) with masks appended, and which are text (see `token_mask`)."""
        mask = self.config.mask_token_id
        if inputs is None:
            if attention_mask is not None:
                raise ValueError("`attention_mask` has no effect without `inputs`. Pass `inputs`, or remove the mask.")
            length = config.max_new_tokens or config.max_length or self.config.max_position_embeddings
            inputs = torch.full((1, 0), mask, dtype=torch.long, device="cpu")
        else:
            length = config.max_length or inputs.shape[1] + (config.max_new_tokens or 0)
            if attention_mask is None and length > inputs.shape[1]:
                prompts = inputs.masked_fill(start_mask(self.config, inputs, attention_mask), -1)
                pad = self._find_token_id("pad_token_id", config)
                if pad is not None and inputs.shape[1] > 1 and (prompts[:, [0, -1]] == pad).any():
                    logger.warning_once(
                        f"A prompt begins or ends with the padding token ({pad}), but there is no `attention_mask`, so "
                        "this token is treated as text. Pass the tokenizer's `attention_mask`, or call "
                        "`model.generate(**tokenizer(...))`."
                    )
        is_token = token_mask(self.config, inputs, attention_mask)
        num_new, most = length - inputs.shape[1], self.config.max_position_embeddings
        if self.config.start_token_id is not None and not is_token.all(dim=1).any():
            most += 1  # a start token needs no position
        if num_new < 0:
            raise ValueError(
                f"`max_length` ({length}) is less than the length of `inputs` ({inputs.shape[1]}). Increase "
                "`max_length`, or set `max_new_tokens` instead."
            )
        if length > most:
            room = most - inputs.shape[1]
            advice = f"Request at most {room} new tokens, or shorten the inputs." if room > 0 else "Shorten the inputs."
            raise ValueError(
                f"`inputs` has {inputs.shape[1]} tokens per sequence (with padding), and {num_new} new tokens are "
                f"requested, but this model takes at most {most} in all (config.max_position_embeddings). {advice}"
            )
        # If the model is offloaded, `self.device` can be the meta device. Do not move the inputs then.
        inputs = inputs.to(inputs.device if self.device.type == "meta" else self.device, torch.long)
        ids = nn.functional.pad(inputs, (0, num_new), value=mask)
        is_token = nn.functional.pad(is_token.to(ids.device), (0, num_new), value=True)
        if length:  # otherwise, the next error says what to do
            prepare_input_ids(self, ids, is_token, allow_mask=True)
        if not ((ids == mask) & is_token).any():
            raise ValueError(
                f"There is nothing to generate: `inputs` contains no mask (id {mask}). Put masks where tokens should "
                "be filled in, or set `max_new_tokens` or `max_length` to append masks."
            )
        repeats = config.num_return_sequences
        return ids.repeat_interleave(repeats, dim=0), is_token.repeat_interleave(repeats, dim=0)

    def adjust_generation_fn(
        self,
        generation_config: GenerationConfig | None,
        from_auto_class: bool,
        from_pipeline: str | None,
        pretrained_model_name_or_path: str | None,
        **kwargs: object,
    ) -> None:
        """Set `generation_config` to the given one or, if any, that of the folder. Called by `from_pretrained`."""
        if generation_config is not None:
            self.generation_config = AnyOrderGenerationConfig.from_generation_config(generation_config)
        elif pretrained_model_name_or_path is not None:
            options = {name: kwargs[name] for name in DOWNLOAD_ARGUMENTS if name in kwargs}
            folder = Path(pretrained_model_name_or_path, options.get("subfolder") or "")
            if folder.is_dir():  # Transformers would prefer a file in the folder above
                pretrained_model_name_or_path, options["subfolder"] = folder, ""
            try:
                self.generation_config = AnyOrderGenerationConfig.from_pretrained(
                    pretrained_model_name_or_path, _from_auto=from_auto_class, _from_pipeline=from_pipeline, **options
                )
            except OSError as error:  # usually there is no file: keep the default from the model configuration
                if "valid JSON" in str(error):
                    raise


def check_processors(processors: LogitsProcessorList, has_prefix: bool) -> None:
    """Raise a `ValueError` if a processor cannot be used. `has_prefix`: whether the text before a token is known."""
    for processor in processors:
        name = type(processor).__name__
        if is_any_of(processor, UNSUPPORTED_PROCESSORS):
            raise ValueError(
                f"{name} runs the model itself, or needs one row of logits for each sequence. Remove the processor, or "
                "load the model with AutoModelForCausalLM."
            )
        if reads_prefix(processor) and not has_prefix:
            raise ValueError(
                f"{name} needs the text before each token, which is known only if tokens are generated left to right, "
                "one at a time. Set `order='left_to_right'` without `num_steps`, `unmasking`, `stride` and "
                "`refine_rounds`, or remove the processor (or `no_repeat_ngram_size` or `bad_words_ids`)."
            )


def make_eos_ban(
    state: DecodingState, min_length: int, min_new_tokens: int, eos_token_ids: torch.LongTensor | None
) -> tuple[torch.BoolTensor, torch.LongTensor] | None:
    """Return a tensor (batch, n), True at columns that may not be end-of-text, and its ids, or None without limits."""
    if not min_length and not min_new_tokens:
        return None
    is_masked = state.is_masked()
    positions = index_by_position(state.positions, state.orders)
    is_banned = (positions < min_length) | (is_masked.long().cumsum(dim=1) <= min_new_tokens)
    return is_banned & is_masked, to_device(eos_token_ids, is_masked.device)


def choose_refined_positions(
    state: DecodingState, config: AnyOrderGenerationConfig, generator: torch.Generator | None
) -> torch.BoolTensor:
    """Return a boolean tensor (batch, n) that is True at the positions to re-mask in the next round."""
    is_generated = index_by_position(state.ranks_between(state.num_given, state.ends), state.orders)
    if config.refine_selection == "least_likely":
        logprobs = index_by_position(state.token_logprobs, state.orders).masked_fill(~is_generated, float("inf"))
        return is_generated & (logprobs.argsort(dim=1, stable=True).argsort(dim=1) < config.refine_length)
    # The last generated position counts as a neighbour of the first, so that all positions are equally likely.
    number = is_generated.long().cumsum(dim=1) - 1  # index among the generated positions, from the left
    count = is_generated.sum(dim=1, keepdim=True).clamp(min=1)
    start = (draw_uniform(len(count), 1, generator=generator, device=count.device) * count).long()
    return is_generated & ((number - start) % count < config.refine_length)


class GenerationProgress:
    """Streaming and history of a generation.

    A column of the batch is final if no sequence has a masked position in this column or to the left. With refinement
    (`refines`), columns are final when the generation is finished. `streamer.put` gets each final column once,
    without padding at the end. `streamer.put_draft` gets the other columns after every step.
    """

    def __init__(self, state: DecodingState, streamer: BaseStreamer | None, keep_history: bool, refines: bool) -> None:
        self.state, self.streamer, self.refines = state, streamer, refines
        self.history = [state.sequences()] if keep_history else None  # at the beginning and after every step
        self.num_put = 0
        if streamer is not None:
            if not (hasattr(streamer, "put") and hasattr(streamer, "end")):
                raise TypeError(
                    f"`streamer` must have the methods `put` and `end`, but has type {type(streamer).__name__}. Pass a "
                    "streamer of Transformers, such as TextStreamer."
                )
            self._put_final(always=True)  # even without a prompt, because a streamer may skip the first call

    def update(self) -> None:
        """Update the history and the streamer after a step that unmasked at least one position."""
        if self.history is not None:
            self.history.append(self.state.sequences())
        if self.streamer is not None and not self.refines:
            self._put_final()
        if hasattr(self.streamer, "put_draft") and (self.refines or self.state.num_masked.any()):
            self.streamer.put_draft(self.state.sequences()[:, self.num_put :].cpu())

    def finish(self) -> None:
        """Stream the remaining columns, and end the stream."""
        if self.streamer is not None:
            self._put_final()
            self.streamer.end()

    def _put_final(self, always: bool = False) -> None:
        num_final = self._count_final()
        if num_final > self.num_put or always:
            self.streamer.put(self.state.sequences()[:, self.num_put : num_final].cpu())
        self.num_put = num_final

    def _count_final(self) -> int:
        """Return the number of final columns, without columns at the end that are only padding after end-of-text."""
        state = self.state
        is_generated = state.ranks_between(state.num_given, state.num_tokens)
        is_text = index_by_position(~is_generated | (state.unmasking_steps >= 0), state.orders).any(dim=0)
        is_final = (~state.is_masked().any(dim=0)).long().cumprod(dim=0)
        return int((torch.arange(1, len(is_text) + 1, device=is_text.device) * is_text * is_final).max())
