# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Infilling of gaps of unknown length.

`infill` compares several lengths of a gap. For each length, it fills in the gap with likely tokens, and computes the
likelihood of the whole text from left to right. It then chooses the length with the likeliest text. In measurements,
this finds the right length more often than two other rules, which compare the likelihood of only the text around the
gap, or the mean log-probability of the tokens in the gap (docs/infilling.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from .devices import check_generator
from .generation_config import AnyOrderGenerationConfig
from .inference import inference_method
from .likelihood import ROWS_PER_PASS
from .validation import check_integer, check_mask_token, check_tensor, is_integer

# Largest number of candidates. A candidate contains one length for each gap of a text.
MAX_CANDIDATES = 4096
# Arguments of `generate` that `infill` always sets to these values.
FIXED_ARGUMENTS = {
    "max_length": None,
    "max_new_tokens": None,
    "return_dict_in_generate": False,
    "stop_at_eos": False,
}
# Arguments of `generate` that a caller of `infill` may not pass.
UNUSABLE_ARGUMENTS = frozenset({"inputs", "output_history", *FIXED_ARGUMENTS})


@dataclass
class InfillingOutput(ModelOutput):
    """
    Output of [`~AnyOrderInfillingMixin.infill`].

    Args:
        sequences (`torch.LongTensor` of shape `(num_return_sequences, n)`): Samples of the text with its gaps filled
            in, and with padding if `padded_length` is set.
        lengths (`torch.LongTensor` of shape `(gaps,)`): Number of tokens in each gap of `sequences`.
        candidates (`torch.LongTensor` of shape `(candidates, gaps)`): The combinations of lengths that were compared.
        log_probs (`torch.Tensor` of shape `(candidates,)`): Log-likelihood of the text that was filled in to compare
            each combination, in nats, normalized so that the probabilities of all combinations add up to 1.
        texts (`list[str]`): With `tokenizer`: `sequences` as strings, without special tokens.

    Examples:
        >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> ids = torch.tensor([5, 6, config.mask_token_id, 7])
        >>> output = AOGPTForAnyOrderLM(config).infill(ids, lengths=[1, 2, 3])
        >>> output.candidates.tolist(), output.log_probs.shape
        ([[1], [2], [3]], torch.Size([3]))
    """

    sequences: torch.LongTensor | None = None
    lengths: torch.LongTensor | None = None
    candidates: torch.LongTensor | None = None
    log_probs: torch.FloatTensor | None = None
    texts: list[str] | None = None


class AnyOrderInfillingMixin:
    """Mixin with `infill` for decoders that predict tokens in any order."""

    @inference_method
    def infill(
        self,
        input_ids: torch.LongTensor | str | list[torch.LongTensor] | list[str],
        lengths: Sequence[int] | Sequence[Sequence[int]] = range(1, 9),
        padded_length: int | None = None,
        generator: torch.Generator | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: object,
    ) -> InfillingOutput | list[InfillingOutput]:
        """
        Fill in gaps of unknown length.

        The method fills in the gaps with each combination of lengths, one token per step, with the likeliest token.
        Each step fills in the position of which the model is most certain. If `order` is `"left_to_right"` (as an
        argument or in the generation config), it fills in the first masked position instead. The method chooses the
        combination whose text has the highest likelihood from left to right, and fills in the gaps again, with the
        arguments of `generate`.

        Args:
            input_ids (`torch.LongTensor` of shape `(n,)` or `(1, n)`, or `str`, or a list of them): Tokens of one text,
                in which each `config.mask_token_id` stands for a gap; or a string, in which each
                `tokenizer.mask_token` stands for a gap; or a list of such texts.
            lengths (sequence of `int`, or one such sequence for each gap, defaults to `range(1, 9)`): Numbers of tokens
                that a gap may have.
            padded_length (`int`, *optional*): Length to which the text is padded with `config.eos_token_id`. Needed if
                the model was trained on documents with such padding. The gaps then contain no end-of-text. Without
                `padded_length`, a gap at the end of the text must have a single length, because no token after the gap
                shows where it ends.
            generator (`torch.Generator`, *optional*): Source of randomness, for reproducible results.
            tokenizer (`PreTrainedTokenizerBase`, *optional*): Tokenizer of the model. Needed for strings.
            attention_mask (`torch.Tensor`, *optional*): Mask that tokenizers return for one text. It must be 1
                everywhere, because a text must not contain padding.
            kwargs: Other arguments of [`~AnyOrderGenerationMixin.generate`], which fills in the gaps.

        Returns:
            [`InfillingOutput`], or a list of them if `input_ids` is a list.

        Raises:
            ValueError: If a text has no gap, if two gaps are adjacent, if there is no text around the gaps, if nothing
                determines the length of the last gap, if no combination of lengths fits, if there are more than 4096
                combinations, if a text is a string and `tokenizer` is missing, if `attention_mask` marks padding or is
                passed with a list, if `input_ids` is an empty list, if an argument of `generate` cannot be used here,
                or if `generate` raises an error.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = AOGPTForAnyOrderLM(config)
            >>> output = model.infill(torch.tensor([5, 6, config.mask_token_id, 7]), lengths=[1, 2, 3])
            >>> output.sequences.shape[1] == 3 + int(output.lengths)
            True
        """
        check_mask_token(self.config)
        if unusable := sorted(UNUSABLE_ARGUMENTS.intersection(kwargs)):
            raise ValueError(
                f"`infill` does not accept the argument `{unusable[0]}` of `generate`. Remove it, or pass it to "
                "`generate` with inputs that have one mask for each token of the chosen `lengths`."
            )
        texts = input_ids if isinstance(input_ids, list) else [input_ids]
        if not texts:
            raise ValueError("`input_ids` is an empty list. Pass at least one text.")
        if attention_mask is not None:
            check_mask_of_text(attention_mask, input_ids)
        lengths = list_lengths(lengths)
        candidates: list[dict[tuple[int, ...], torch.LongTensor]] = []  # for each text, the ids with each candidate
        for number, text in enumerate(texts):
            try:
                segments = self._split_at_gaps(text, tokenizer)
                combinations = self._list_candidates(segments, lengths, padded_length)
            except ValueError as error:
                if texts is not input_ids:
                    raise
                raise ValueError(f"Text {number} of the list: {error}") from error
            candidates.append({chosen: self._insert_masks(segments, chosen, padded_length) for chosen in combinations})
        # End-of-text in a gap at the end of a document would make the same text as a shorter gap.
        eos = [] if padded_length is None else self._end_of_text_ids()
        excluded = [token for token in eos if token < self.config.num_valid_tokens]
        # The settings are checked first, because all candidates are scored before the last `generate`.
        settings = self._check_settings(generator, tokenizer, kwargs)
        order = "left_to_right" if settings.has_left_to_right_order else "confidence"
        log_probs = self._score_candidates([list(ids.values()) for ids in candidates], excluded, order)
        best = [list(ids)[int(values.argmax())] for ids, values in zip(candidates, log_probs, strict=True)]
        chosen_ids = [ids[chosen] for ids, chosen in zip(candidates, best, strict=True)]
        filled = self._fill_in(chosen_ids, generator, excluded, **kwargs)
        outputs = [
            InfillingOutput(
                sequences=sequences if isinstance(text, str) else sequences.to(text.device),
                lengths=torch.tensor(chosen),
                candidates=torch.tensor(list(ids)),
                log_probs=values,
                texts=None if tokenizer is None else tokenizer.batch_decode(sequences, skip_special_tokens=True),
            )
            for text, ids, chosen, values, sequences in zip(texts, candidates, best, log_probs, filled, strict=True)
        ]
        return outputs if texts is input_ids else outputs[0]

    def _check_settings(
        self, generator: torch.Generator | None, tokenizer: object, kwargs: dict[str, object]
    ) -> AnyOrderGenerationConfig:
        """
        Return the settings with which `generate` is called.

        Raise an error if `generate` would not accept `generator` or `kwargs`, or if `tokenizer` has a wrong type.
        """
        check_generator(generator)
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(
                f"`tokenizer` must be a tokenizer of Transformers, but has type {type(tokenizer).__name__}."
            )
        others = ("generation_config", "logits_processor", "streamer", "token_type_ids")
        config = kwargs.get("generation_config") or self.generation_config
        arguments = {name: value for name, value in kwargs.items() if name not in others}
        return AnyOrderGenerationConfig.from_generation_config(config).with_arguments(arguments | FIXED_ARGUMENTS)

    def _split_at_gaps(
        self, input_ids: torch.LongTensor | str, tokenizer: PreTrainedTokenizerBase | None
    ) -> list[list[int]]:
        """Split a text at its gaps. Return the ids of each part, of which the first and the last can be empty."""
        if isinstance(input_ids, str):
            if tokenizer is None:
                raise ValueError("`input_ids` is a string, but `tokenizer` is missing. Pass the model's tokenizer.")
            if tokenizer.mask_token_id != self.config.mask_token_id:
                raise ValueError(
                    f"The mask token of `tokenizer` ({tokenizer.mask_token!r}) has id {tokenizer.mask_token_id}, but "
                    f"the model's is {self.config.mask_token_id}. Pass the model's tokenizer."
                )
            input_ids = torch.tensor(encode_with_masks(input_ids, tokenizer))
        is_tensor = isinstance(input_ids, torch.Tensor)
        if not is_tensor or input_ids.dim() not in (1, 2) or input_ids.numel() != input_ids.shape[-1]:
            given = f"has shape {tuple(input_ids.shape)}" if is_tensor else f"has type {type(input_ids).__name__}"
            raise ValueError(
                f"`input_ids` must be a string, a tensor (n,) or (1, n) of one text, or a list of such texts, but "
                f"{given}."
            )
        segments: list[list[int]] = [[]]
        for token in input_ids.flatten().tolist():
            if token == self.config.mask_token_id:
                segments.append([])
            else:
                segments[-1].append(token)
        if len(segments) == 1:
            mask = f"id {self.config.mask_token_id}" if tokenizer is None else tokenizer.mask_token
            raise ValueError(f"`input_ids` has no gap. Put the mask token ({mask}) where text is missing.")
        if not all(segments[1:-1]):
            raise ValueError("`input_ids` has adjacent masks. Put one mask for each gap, whatever its length.")
        if not any(segments):
            raise ValueError("`input_ids` has no text around the gap. Use `generate` for whole sequences.")
        return segments

    def _list_candidates(
        self,
        segments: list[list[int]],
        lengths: Sequence[int] | Sequence[Sequence[int]],
        padded_length: int | None,
    ) -> list[tuple[int, ...]]:
        """Return the combinations of lengths with which the text fits into the model and into `padded_length`."""
        num_gaps, num_tokens = len(segments) - 1, sum(map(len, segments))
        per_gap = [lengths] * num_gaps if all(map(is_integer, lengths)) else lengths
        if len(per_gap) != num_gaps or not all(isinstance(values, list) and values for values in per_gap):
            raise ValueError(
                f"`lengths` must be a list of numbers of tokens, or one such list for each gap (here {num_gaps}), but "
                f"is {lengths!r}."
            )
        for length in chain.from_iterable(per_gap):
            check_integer("lengths[...]", length)
        if padded_length is None and not segments[-1] and len(set(per_gap[-1])) > 1:
            raise ValueError(
                "The text ends with a gap, so no text after the gap shows how long it is. Append end-of-text to the "
                "text, set `padded_length`, or pass one length for the last gap."
            )
        if padded_length is not None:
            check_integer("padded_length", padded_length, most=self.config.max_position_embeddings)
            if self.config.eos_token_id is None:
                raise ValueError("`padded_length` needs `config.eos_token_id`. Set that id, or remove `padded_length`.")
        most = min(self.config.max_position_embeddings, padded_length or self.config.max_position_embeddings)
        candidates = list(dict.fromkeys(combine_lengths(per_gap, most - num_tokens)))
        if not candidates:
            raise ValueError(
                f"The text has {num_tokens} tokens, and may have at most {most} with its gaps, so none of the "
                "`lengths` fits. Pass smaller `lengths` or a shorter text."
            )
        return candidates

    def _insert_masks(
        self, segments: list[list[int]], lengths: tuple[int, ...], padded_length: int | None
    ) -> torch.LongTensor:
        ids = list(segments[0])
        for length, segment in zip(lengths, segments[1:], strict=True):
            ids += [self.config.mask_token_id] * length + segment
        num_padding = 0 if padded_length is None else padded_length - len(ids)
        return torch.tensor(ids + self._end_of_text_ids()[:1] * num_padding)

    def _end_of_text_ids(self) -> list[int]:
        eos = self.config.eos_token_id
        return list(eos) if isinstance(eos, list) else [eos]

    def _score_candidates(
        self, candidate_ids: list[list[torch.LongTensor]], excluded: list[int], order: str
    ) -> list[torch.Tensor]:
        """
        Return, for each text, the log-probability (candidates,) of each candidate, as in `InfillingOutput.log_probs`.

        `candidate_ids` contains, for each text, the ids (n,) of each candidate, with masks in the gaps. `order` is the
        order in which the masks are filled in. `excluded` ids are never used.
        """
        candidates = list(chain.from_iterable(candidate_ids))
        ids, is_token = (
            pad_sequence(rows, batch_first=True) for rows in (candidates, [torch.ones_like(row) for row in candidates])
        )
        greedy = AnyOrderGenerationConfig(
            order=order, do_sample=False, stop_at_eos=False, suppress_tokens=excluded or None
        )
        scores, batch_size = [], max(ROWS_PER_PASS // ids.shape[1], 1)
        for part, attention_mask in zip(ids.split(batch_size), is_token.split(batch_size), strict=True):
            filled = self.generate(part, generation_config=greedy, attention_mask=attention_mask)
            attention_mask = attention_mask.to(filled.device)
            scores.append(self.log_likelihood(filled, attention_mask=attention_mask).log_likelihood)
        return [values.log_softmax(dim=0) for values in torch.cat(scores).split(list(map(len, candidate_ids)))]

    def _fill_in(
        self, texts: list[torch.LongTensor], generator: torch.Generator | None, excluded: list[int], **kwargs: object
    ) -> list[torch.LongTensor]:
        """
        Fill in the masks of each text (n,), and return samples (num_return_sequences, n) of each text.

        The samples do not contain `excluded` ids, in addition to those that the arguments of `generate` exclude.
        """
        if excluded:
            config = kwargs.get("generation_config") or self.generation_config
            suppressed = kwargs.get("suppress_tokens", config.suppress_tokens) or []
            if isinstance(suppressed, list | tuple):  # otherwise, `generate` raises an error
                kwargs["suppress_tokens"] = [*excluded, *suppressed]
        kwargs |= FIXED_ARGUMENTS
        if len({len(text) for text in texts}) > 1:
            kwargs["attention_mask"] = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        sequences = self.generate(pad_sequence(texts, batch_first=True), generator=generator, **kwargs)
        samples = sequences.unflatten(0, (len(texts), -1))
        return [samples[number, :, : len(text)] for number, text in enumerate(texts)]


def encode_with_masks(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """
    Return the ids of a text. One space before each mask is dropped, because the token of a word includes it.

    The tokenizer itself drops all whitespace before a mask, also line breaks and indentation. The text is therefore
    encoded in parts, each of which begins with a mask, except the first.
    """
    first, *rest = text.split(tokenizer.mask_token)
    *parts, last = [first, *(tokenizer.mask_token + part for part in rest)]
    parts = [*(part.removesuffix(" ") for part in parts), last]
    return [token for part in parts for token in tokenizer(part, add_special_tokens=False).input_ids]


def check_mask_of_text(attention_mask: torch.Tensor, input_ids: object) -> None:
    """Raise a `ValueError` unless `attention_mask` is the mask of one text without padding."""
    check_tensor("attention_mask", attention_mask)
    if not attention_mask.all():
        raise ValueError(
            "`attention_mask` marks padding, but `infill` needs one text without padding. Remove the padding and "
            "`attention_mask`. (`padded_length` adds padding after the text.)"
        )
    if isinstance(input_ids, list):
        raise ValueError("`attention_mask` is for one text, but `input_ids` is a list. Remove `attention_mask`.")
    if isinstance(input_ids, torch.Tensor) and attention_mask.numel() != input_ids.numel():
        raise ValueError(
            "`attention_mask` must have one value for each token, but `input_ids` has shape "
            f"{tuple(input_ids.shape)} and `attention_mask` {tuple(attention_mask.shape)}. Remove `attention_mask`."
        )


def list_lengths(lengths: object) -> list:
    """Return lists instead of other iterables of lengths, such as ranges, sets and tensors."""
    if isinstance(lengths, torch.Tensor):
        lengths = lengths.tolist()
    if not isinstance(lengths, Iterable) or isinstance(lengths, str):
        raise ValueError(
            f"`lengths` must be a list of numbers of tokens, or one such list for each gap, but is {lengths!r}."
        )
    values = (value.tolist() if isinstance(value, torch.Tensor) else value for value in lengths)
    return [list(value) if isinstance(value, Iterable) else value for value in values]


def combine_lengths(lengths: list[Sequence[int]], most: int) -> list[tuple[int, ...]]:
    """
    Return the combinations of one length for each gap whose sum is at most `most`.

    Raises:
        ValueError: If there are more than `MAX_CANDIDATES` combinations.
    """
    combinations: list[tuple[int, ...]] = [()]
    for gap, values in enumerate(lengths):
        free = most - sum(map(min, lengths[gap + 1 :]))  # leave room for the shortest lengths of the later gaps
        combinations = [
            (*chosen, length) for chosen in combinations for length in values if sum(chosen) + length <= free
        ]
        if len(combinations) > MAX_CANDIDATES:  # each of them leads to at least one result
            raise ValueError(
                f"There are more than {MAX_CANDIDATES} combinations of `lengths`. Give fewer lengths, or fill in some "
                "gaps first."
            )
    return combinations
