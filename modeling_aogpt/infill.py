# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Texts with gaps: encoding by a tokenizer, and infilling of gaps of unknown length.

`infill` compares several lengths of a gap. For each length, it fills in the gap with likely tokens, and computes the
likelihood of the whole text from left to right. It then chooses the length with the likeliest text. In measurements,
this finds the right length more often than two other rules, which compare the likelihood of only the text around the
gap, or the mean log-probability of the tokens in the gap (docs/infilling.md).

Texts are encoded part by part, so that the tokens of all parts decode to the text. A tokenizer encodes a whole text in
another way than a part of a text: SentencePiece puts a space before a text, and WordPiece begins a word with it. A part
is therefore encoded after other characters. The tokens of these characters are then removed.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product, zip_longest

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, RepetitionPenaltyLogitsProcessor
from transformers.utils import ModelOutput, logging

from .configuration_aogpt import as_list
from .devices import check_generator, inference_method
from .generation_config import AnyOrderGenerationConfig
from .likelihood import ROWS_PER_PASS
from .sampling import make_processors, reads_prefix
from .validation import check_integer, check_mask_id, is_integer

logger = logging.get_logger(__name__)

# Characters after which a part is encoded. Tokenizers seldom merge a digit with text, or a letter with digits.
CONTEXTS = "7ea.\n"
NUM_CHARACTERS_BEFORE = 64  # of the known text before a part; more characters do not change the tokens of the part

# Largest number of combinations of the lengths of several gaps that are all compared. Otherwise, the lengths are chosen
# one gap after another.
MAX_COMBINATIONS = 64
DEFAULT_MAX_LENGTH = 8  # largest of the lengths that are compared by default
SECONDS_WITHOUT_PROGRESS_BAR = 5
# Arguments of `generate` that `infill` always sets to these values.
FIXED_ARGUMENTS = {"max_length": None, "max_new_tokens": None, "return_dict_in_generate": False, "stop_at_eos": False}
# Arguments of `generate` that a caller of `infill` may not pass.
UNUSABLE_ARGUMENTS = frozenset({"inputs", "output_history", *FIXED_ARGUMENTS})


@dataclass
class InfillingOutput(ModelOutput):
    """Output of [`~AnyOrderInfillingMixin.infill`].

    A model with `config.max_gap_length` predicts the lengths. Each sample then has lengths of its own, and is a
    candidate. The samples are sorted: the likeliest is the first.

    Args:
        sequences (`torch.LongTensor` of shape `(num_return_sequences, n)`): Samples of the text with its gaps filled
            in, and with padding if `padded_length` is set or samples have different lengths.
        lengths (`torch.LongTensor` of shape `(gaps,)`): Number of tokens in each gap of `sequences` or, if the
            model predicts the lengths, of `sequences[0]`.
        candidates (`torch.LongTensor` of shape `(candidates, gaps)`): The combinations of lengths that were compared;
            if the model predicts the lengths, those of the samples.
        log_probs (`torch.Tensor` of shape `(candidates,)`): Log-likelihood of the text that was filled in to compare
            each combination, in nats, normalized so that the probabilities of all `candidates` add up to 1. If the
            model predicts the lengths: log-probability of each filling with its ends, given the text around it. (The
            probabilities of all fillings with up to the largest of `lengths` tokens, with empty ones, add up to 1.)
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


@dataclass
class LengthSearch:
    """The search for the lengths of the gaps of one text (see [`AnyOrderInfillingMixin.infill`]).

    A candidate contains one length for each gap. Each round compares all candidates, or the lengths of one gap.
    `scores` has the log-likelihood of the text with each candidate that was compared.
    """

    segments: list[list[int]]  # ids of each part of the text between the gaps
    lengths: list[list[int]]  # to compare, for each gap
    most: int  # largest sum of the lengths with which the text is not too long
    padded_length: int | None  # length to which the text is padded
    scores: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def rounds(self) -> list[list[int]]:
        """Return the gaps whose lengths are compared in each round."""
        gaps = [*range(len(self.lengths))]
        return [gaps] if math.prod(map(len, self.lengths)) <= MAX_COMBINATIONS else [[gap] for gap in gaps]

    @property
    def best(self) -> tuple[int, ...]:
        """Return the candidate with the likeliest text, of those that were compared."""
        return max(self.scores, key=self.scores.__getitem__)

    def candidates(self, gaps: list[int]) -> list[tuple[int, ...]]:
        """Return the candidates of the round of `gaps` that fit into the text and were not compared before."""
        choices = [[length] for length in (self.best if self.scores else map(min, self.lengths))]
        for gap in gaps:
            choices[gap] = self.lengths[gap]
        return [lengths for lengths in product(*choices) if sum(lengths) <= self.most and lengths not in self.scores]


class AnyOrderInfillingMixin:
    """Mixin with `infill` for decoders that predict tokens in any order."""

    @inference_method
    def infill(
        self,
        input_ids: torch.LongTensor | str | list[torch.LongTensor] | list[str],
        lengths: Sequence[int] | Sequence[Sequence[int]] | None = None,
        padded_length: int | None = None,
        generator: torch.Generator | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: object,
    ) -> InfillingOutput | list[InfillingOutput]:
        """Fill in gaps of unknown length.

        The method fills in a gap with each length, one token per step, with the likeliest token. Each step fills in the
        position of which the model is most certain or, with `order="left_to_right"`, the first masked position. The
        method chooses the length whose text has the highest likelihood from left to right, and fills in the gap again,
        with the arguments of `generate`. Each further token makes a text less likely, so short fillings are preferred.

        If a text has several gaps, all combinations of their lengths are compared if there are at most 64. Otherwise,
        the lengths are chosen one gap after another, while later gaps have their shortest length. The time is then
        proportional to the number of gaps.

        A model with `config.max_gap_length` needs no search. It fills in each gap from left to right, until it
        predicts the end of the gap, or the gap has the largest of its `lengths`. The log-probabilities of the returned
        samples are exact.

        Args:
            input_ids (`torch.LongTensor` of shape `(n,)` or `(1, n)`, or `str`, or a list of them): Tokens of one text,
                in which each `config.mask_token_id` stands for a gap; or a string, in which each
                `tokenizer.mask_token` stands for a gap; or a list of such texts.
            lengths (sequence of `int`, or one such sequence for each gap): Numbers of tokens that a gap may have.
                Defaults to `range(1, 9)`. If the model predicts the lengths, they default to `range(1,
                config.max_gap_length + 1)`, must be consecutive, and may contain 0, so that a filling can be empty.
            padded_length (`int`, *optional*): Length to which the text is padded with `config.eos_token_id`. Needed if
                the model was trained on documents with such padding. The gaps then contain no end-of-text. Without
                `padded_length`, a gap at the end of the text must have a single length, because no token after the gap
                shows where it ends.
            generator (`torch.Generator`, *optional*): Source of randomness, for reproducible results.
            tokenizer (`PreTrainedTokenizerBase`, *optional*): Tokenizer of the model. Needed for strings.
            attention_mask (`torch.Tensor`, *optional*): Mask that tokenizers return. It must be 1 everywhere.
            kwargs: Other arguments of [`~AnyOrderGenerationMixin.generate`], which fills in the gaps. With
                `do_sample=False`, `order` defaults to `"confidence"`.

        Returns:
            [`InfillingOutput`], or a list of them if `input_ids` is a list.

        Raises:
            ValueError: If a text has no gap, if two gaps are adjacent, if there is no text around the gaps, if nothing
                determines the length of the last gap, if no combination of lengths fits, if a text is a string and
                `tokenizer` is missing or cannot encode it, if `attention_mask` marks padding, if `input_ids` is an
                empty list, or if an argument of `generate` cannot be used here or is not allowed.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = AOGPTForAnyOrderLM(config)
            >>> output = model.infill(torch.tensor([5, 6, config.mask_token_id, 7]), lengths=[1, 2, 3])
            >>> output.sequences.shape[1] == 3 + int(output.lengths)
            True
        """
        check_mask_id(self.config)
        longest = self.config.max_gap_length
        unusable = UNUSABLE_ARGUMENTS if longest is None else UNUSABLE_ARGUMENTS | {"streamer"}
        if unusable := sorted(unusable.intersection(kwargs)):
            raise ValueError(
                f"`infill` does not accept the argument `{unusable[0]}` of `generate`. Remove it, or pass it to "
                "`generate` with inputs that have one mask for each token of the chosen `lengths`."
            )
        if attention_mask is not None and not torch.as_tensor(attention_mask).all():
            raise ValueError(
                "`attention_mask` marks padding, but `infill` needs texts without padding. Remove the padding and "
                "`attention_mask`. (`padded_length` adds padding after the text.)"
            )
        texts = input_ids if isinstance(input_ids, list) else [input_ids]
        lengths = range(1, (longest or DEFAULT_MAX_LENGTH) + 1) if lengths is None else lengths
        searches = self._parse_texts(input_ids, list_lengths(lengths), padded_length, tokenizer)
        # In a gap at the end of a document, end-of-text would make the same text as in a shorter gap.
        eos = [] if padded_length is None else as_list(self.config.eos_token_id)
        # A start token at the beginning would not be text.
        start = [] if self.config.start_token_id is None else [self.config.start_token_id]
        excluded = [token for token in (*eos, *start) if token < self.config.num_valid_tokens]
        # Check the settings before all candidates are scored.
        settings = self._check_settings(generator, tokenizer, kwargs)
        is_end = set() if longest is None else {as_list(self.config.eos_token_id)[0]}
        settings.suppress_tokens = list({*excluded, *(settings.suppress_tokens or [])} - is_end) or None
        options = {name: kwargs.get(name) for name in ("logits_processor", "streamer")}
        generate = partial(self._generate, config=settings, generator=generator, **options)
        if longest is not None:
            outputs = self._fill_until_end(searches, settings, generate)
        else:
            order = "left_to_right" if settings.order == "left_to_right" else "confidence"
            self._compare_lengths(searches, excluded, order)
            chosen_ids = [self._insert_masks(search, search.best) for search in searches]
            samples = generate(*pad_texts(chosen_ids)).sequences.unflatten(0, (len(texts), -1))
            outputs = [
                InfillingOutput(
                    sequences=samples[number, :, : len(chosen_ids[number])],
                    lengths=torch.tensor(search.best),
                    candidates=torch.tensor(list(search.scores)),
                    log_probs=torch.tensor(list(search.scores.values()), dtype=torch.float64).log_softmax(dim=0),
                )
                for number, search in enumerate(searches)
            ]
        for text, output in zip(texts, outputs, strict=True):
            if tokenizer is not None:
                output.texts = [_decode(ids, tokenizer, skip_special_tokens=True) for ids in output.sequences]
            if not isinstance(text, str):
                output.sequences = output.sequences.to(text.device)
        return outputs if texts is input_ids else outputs[0]

    def _parse_texts(
        self,
        input_ids: torch.LongTensor | str | list[torch.LongTensor] | list[str],
        lengths: list[int] | list[list[int]],
        padded_length: int | None,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> list[LengthSearch]:
        """Return a search for each text. Errors name the text if `input_ids` is a list."""
        if not isinstance(input_ids, list):
            return [self._start_search(self._split_at_gaps(input_ids, tokenizer), lengths, padded_length)]
        if not input_ids:
            raise ValueError("`input_ids` is an empty list. Pass at least one text.")
        searches = []
        for number, text in enumerate(input_ids):
            try:
                searches += self._parse_texts(text, lengths, padded_length, tokenizer)
            except ValueError as error:
                raise ValueError(f"Text {number} of the list: {error}") from error
        return searches

    def _check_settings(
        self, generator: torch.Generator | None, tokenizer: object, kwargs: dict[str, object]
    ) -> AnyOrderGenerationConfig:
        """Return the settings for `generate`. Raise the errors that `generate` would raise."""
        check_generator(generator)
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(f"`tokenizer` must be a tokenizer of Transformers, not a {type(tokenizer).__name__}.")
        others = ("generation_config", "logits_processor", "streamer", "token_type_ids")
        config = kwargs.get("generation_config") or self.generation_config
        arguments = {name: value for name, value in kwargs.items() if name not in others}
        order = {} if self.config.max_gap_length is None else {"order": "left_to_right"}
        settings = AnyOrderGenerationConfig.from_generation_config(config)
        given = order | arguments | FIXED_ARGUMENTS
        has_order = settings.order is not None or given.get("order") is not None
        settings = settings.with_arguments(given)
        if not has_order and not settings.do_sample:  # in a random order, the likeliest tokens differ from call to call
            settings.order = "confidence"
        self._check_architecture(settings)
        return settings

    def _split_at_gaps(
        self, input_ids: torch.LongTensor | str, tokenizer: PreTrainedTokenizerBase | None
    ) -> list[list[int]]:
        """Split a text at its gaps. Return the ids of each part. The first and the last part can be empty."""
        if isinstance(input_ids, str):
            if tokenizer is None:
                raise ValueError("`input_ids` is a string, but `tokenizer` is missing. Pass the model's tokenizer.")
            if tokenizer.mask_token_id != self.config.mask_token_id:
                raise ValueError(
                    f"The mask token of `tokenizer` ({tokenizer.mask_token!r}) has id {tokenizer.mask_token_id}, but "
                    f"the model's is {self.config.mask_token_id}. Pass the model's tokenizer."
                )
            segments = encode_between_masks(input_ids, tokenizer)
        else:
            segments = self._split_ids(input_ids)
        if len(segments) == 1:
            mask = f"id {self.config.mask_token_id}" if tokenizer is None else tokenizer.mask_token
            raise ValueError(f"`input_ids` has no gap. Put the mask token ({mask}) where text is missing.")
        if not all(segments[1:-1]):
            raise ValueError("`input_ids` has adjacent masks. Put one mask for each gap, whatever its length.")
        if not any((segments[0][self._num_starts(segments) :], *segments[1:])):
            raise ValueError("`input_ids` has no text around the gap. Use `generate` for whole sequences.")
        return segments

    def _split_ids(self, input_ids: object) -> list[list[int]]:
        is_tensor = isinstance(input_ids, torch.Tensor)
        if not is_tensor or input_ids.dim() not in (1, 2) or input_ids.numel() != input_ids.shape[-1]:
            given = f"has shape {tuple(input_ids.shape)}" if is_tensor else f"has type {type(input_ids).__name__}"
            raise ValueError(
                f"`input_ids` must be a string, a tensor (n,) or (1, n) of one text, or a list of them, but {given}."
            )
        ids = input_ids.flatten().cpu()
        starts = (ids == self.config.mask_token_id).nonzero().flatten()
        first, *others = (part.tolist() for part in ids.tensor_split(starts))
        return [first, *(part[1:] for part in others)]

    def _start_search(
        self, segments: list[list[int]], lengths: list[int] | list[list[int]], padded_length: int | None
    ) -> LengthSearch:
        """Return a search over the `lengths` with which the text fits into the model and into `padded_length`."""
        num_gaps, num_tokens = len(segments) - 1, sum(map(len, segments)) - self._num_starts(segments)
        per_gap, longest = lengths if isinstance(lengths, list) else [], self.config.max_gap_length
        if all(map(is_integer, per_gap)):
            per_gap = [per_gap] * num_gaps
        if len(per_gap) != num_gaps or not all(isinstance(values, list) and values for values in per_gap):
            raise ValueError(
                f"`lengths` must be a list of numbers of tokens, or one such list for each gap (here {num_gaps}), but "
                f"is {lengths!r}."
            )
        for length in chain.from_iterable(per_gap):
            check_integer("lengths[...]", length, least=1 if longest is None else 0, most=longest)
        is_run = all(0 < max(values) < min(values) + len(set(values)) for values in per_gap)
        if longest is not None and not is_run:
            raise ValueError(
                "`lengths` must be consecutive numbers for each gap, not only 0, because this model predicts where a "
                f"gap ends, but is {lengths!r}."
            )
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
        kind, extreme = ("smallest", min) if longest is None else ("largest", max)
        if (needed := num_tokens + sum(map(extreme, per_gap))) > most:
            raise ValueError(
                f"With the {kind} of `lengths`, the text has {needed} tokens, but it may have at most {most}. Pass "
                "smaller `lengths` or a shorter text."
            )
        compared = [list(dict.fromkeys(values)) for values in per_gap]
        return LengthSearch(segments, compared, most - num_tokens, padded_length)

    def _insert_masks(self, search: LengthSearch, lengths: Iterable[int]) -> torch.LongTensor:
        ids, padded = list(search.segments[0]), search.padded_length
        for length, segment in zip(lengths, search.segments[1:], strict=True):
            ids += [self.config.mask_token_id] * length + segment
        num_padding = 0 if padded is None else padded + self._num_starts(search.segments) - len(ids)
        return torch.tensor(ids + as_list(self.config.eos_token_id)[:1] * num_padding)

    def _num_starts(self, segments: list[list[int]]) -> int:
        """Return 1 if a text begins with the model's start token, which is not part of the text, else 0."""
        return int(segments[0][:1] == [self.config.start_token_id])

    def _fill_until_end(
        self, searches: list[LengthSearch], settings: AnyOrderGenerationConfig, generate: partial[ModelOutput]
    ) -> list[InfillingOutput]:
        """Fill in each gap until the model predicts its end, and score the samples."""
        mask, end = self.config.mask_token_id, as_list(self.config.eos_token_id)[0]
        is_one_by_one = settings.is_left_to_right and settings.unmasks_one_by_one and settings.strategy == "parallel"
        processors = make_processors(settings, self.config.num_valid_tokens)
        processors += generate.keywords["logits_processor"] or []
        # They would take the ends of gaps, and the masks after them, for text.
        reads_text = any(reads_prefix(one) or isinstance(one, RepetitionPenaltyLogitsProcessor) for one in processors)
        if not is_one_by_one or settings.refine_rounds or settings.uses_eos or reads_text:
            raise ValueError(
                "This model predicts where a gap ends, so `infill` fills in one token at a time, from left to right. "
                "Remove `order`, `num_steps`, `unmasking`, `strategy`, `refine_rounds`, `repetition_penalty`, "
                "`no_repeat_ngram_size`, `bad_words_ids` of several tokens, processors that do the same, `min_length` "
                "and `min_new_tokens`. (`lengths` sets the smallest number of tokens.)"
            )
        # 1. Fill in the gaps. Each has as many masks as the largest of its lengths.
        texts = [self._insert_masks(search, map(max, search.lengths)) for search in searches]
        rows, is_token = pad_texts(texts)
        is_mask, columns = rows == mask, torch.arange(rows.shape[1])
        is_first = is_mask & ~F.pad(is_mask[:, :-1], (1, 0))
        gaps = is_first.cumsum(dim=1)  # index of the gap, from 1
        least = pad_sequence([torch.tensor([0, *map(min, search.lengths)]) for search in searches], batch_first=True)
        cannot_end = columns - (columns * is_first).cummax(dim=1).values < least.gather(1, gaps)
        output = generate(rows, is_token, gap_ends=(cannot_end & is_mask, torch.tensor([end])))
        # 2. Score the samples. Masks after the end of a gap are neither predicted nor read.
        sequences, count = output.sequences.to(rows.device), settings.num_return_sequences
        is_token, is_mask, gaps = (part.repeat_interleave(count, dim=0) for part in (is_token, is_mask, gaps))
        is_filled = is_mask & (sequences != mask)
        parts = (part.to(output.sequences.device) for part in (is_filled, is_token.bool() & ~is_mask, is_token))
        targets, context, attention_mask = parts
        scores = self.log_likelihood(
            output.sequences, targets=targets, context=context, orders="left_to_right", attention_mask=attention_mask
        ).log_likelihood.to(rows.device)
        # 3. Remove the ends of the gaps, and sort the samples of each text.
        is_filled &= sequences != end
        lengths = torch.zeros(len(sequences), least.shape[1], dtype=torch.long)
        lengths = lengths.scatter_add(1, gaps, is_filled.long())[:, 1:]
        is_text = is_filled | (is_token.bool() & ~is_mask)
        outputs = []
        for number, (text, search) in enumerate(zip(texts, searches, strict=True)):
            best = number * count + scores[number * count :][:count].argsort(descending=True, stable=True)
            filled = [sequences[sample, is_text[sample]] for sample in best]
            width = max(map(len, filled)) if search.padded_length is None else len(text)
            candidates = lengths[best, : len(search.lengths)]
            ids = torch.stack([F.pad(row, (0, width - len(row)), value=end) for row in filled]).to(output.sequences)
            outputs.append(InfillingOutput(ids, candidates[0], candidates, scores[best]))
        return outputs

    def _compare_lengths(self, searches: list[LengthSearch], excluded: list[int], order: str) -> None:
        """Fill in all candidates in an `order`, without `excluded` ids, and add their scores to each search."""
        settings = {"order": order, "suppress_tokens": excluded or None}
        greedy = AnyOrderGenerationConfig(**settings, do_sample=False, stop_at_eos=False)
        for gaps in zip_longest(*(search.rounds for search in searches), fillvalue=None):
            candidates = [
                (search, lengths)
                for search, compared in zip(searches, gaps, strict=True)
                if compared is not None
                for lengths in search.candidates(compared)
            ]
            texts = [self._insert_masks(search, lengths) for search, lengths in candidates]
            scores = zip(candidates, self._score_texts(texts, greedy), strict=True)
            progress = {"desc": "Comparing lengths", "total": len(texts), "delay": SECONDS_WITHOUT_PROGRESS_BAR}
            for (search, lengths), score in logging.tqdm(scores, **progress):
                search.scores[lengths] = score

    def _score_texts(self, texts: list[torch.LongTensor], greedy: AnyOrderGenerationConfig) -> Iterator[float]:
        """Fill in the masks of each text (n,), and yield the log-likelihood of each text."""
        batch_size = max(ROWS_PER_PASS // max(map(len, texts), default=1), 1)
        for start in range(0, len(texts), batch_size):
            ids, attention_mask = pad_texts(texts[start : start + batch_size])
            filled = self.generate(ids, generation_config=greedy, attention_mask=attention_mask)
            attention_mask = attention_mask.to(filled.device)
            yield from self.log_likelihood(filled, attention_mask=attention_mask).log_likelihood.tolist()


def pad_texts(texts: Sequence[torch.LongTensor], side: str = "right") -> tuple[torch.LongTensor, torch.LongTensor]:
    """Return texts (n,) as one tensor with padding on a side, and their attention mask."""
    return tuple(pad_sequence(part, True, padding_side=side) for part in (texts, [*map(torch.ones_like, texts)]))


def list_lengths(lengths: object) -> object:
    """Return lists instead of other iterables of lengths, such as ranges, sets and tensors."""
    lengths = lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths
    is_iterable = isinstance(lengths, Iterable) and not isinstance(lengths, str)
    return [list_lengths(value) for value in lengths] if is_iterable else lengths


# ------------------------------------------------------------------------------------------------------------- encoding


def encode_parts(parts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids of each of the consecutive parts of one text, without special tokens.

    No token is in two parts. The ids of all parts together decode to the text, or to the same as the ids of the whole
    text. Raise a `ValueError` if the tokenizer has no such ids.
    """
    ids, before = [], ""
    for part in parts:
        ids.append(_encode_after(before, part, tokenizer) if before else _encode(part, tokenizer))
        before += part
    decoded = _decode([token for part in ids for token in part], tokenizer)
    if decoded not in (before, _decode(_encode(before, tokenizer), tokenizer)):
        raise ValueError(
            f"The tokenizer cannot encode the parts {list(parts)} of a text: their tokens decode to {decoded!r}. Use "
            "other parts, for instance whole words."
        )
    return ids


def encode_between_masks(text: str, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids of the parts of a text between its masks.

    If tokens of words include the space before the word, one space before each mask belongs to the gap, not to the
    part. All other whitespace is kept. If the tokenizer adds a start token to texts, the first part begins with it.
    Raise a `ValueError` if the tokenizer has no tokens for a part.
    """
    parts = text.split(tokenizer.mask_token)
    if any(part.endswith(" ") for part in parts[:-1]) and words_include_space(tokenizer):  # reads the vocabulary
        parts[:-1] = (part.removesuffix(" ") for part in parts[:-1])
    segments = [_encode(parts[0], tokenizer), *(_encode_after("", part, tokenizer) for part in parts[1:])]
    _check_decoding(_join(segments, tokenizer), text, tokenizer)
    start = tokenizer(parts[0]).input_ids[:1]
    if start == [tokenizer.bos_token_id] and start != segments[0][:1]:
        segments[0] = start + segments[0]
    return segments


def encode_with_masks(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of a text with masks. [`encode_between_masks`] encodes the parts between the masks."""
    return _join(encode_between_masks(text, tokenizer), tokenizer)


def words_include_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether tokens of words include the space before the word, as in byte-level BPE and SentencePiece."""
    return any(token[0] in "Ġ▁" and token[1:].strip("Ġ▁") for token in tokenizer.get_vocab() if len(token) > 1)


def _encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def _decode(ids: list[int] | torch.LongTensor, tokenizer: PreTrainedTokenizerBase, **options: bool) -> str:
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False, **options)


def _has_unknown(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether ids contain an unknown token. End-of-text, GPT-2's unknown token, does not count."""
    return tokenizer.unk_token_id in set(ids) - {tokenizer.eos_token_id}


def _encode_after(before: str, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of `text`, encoded after `before` or, if they would share a token, after another character."""
    if not text:
        return []
    known = before[-NUM_CHARACTERS_BEFORE:]
    for context in dict.fromkeys((known, *CONTEXTS, *filter(str.isalnum, text))):
        start, whole = _encode(context, tokenizer), _encode(context + text, tokenizer)
        is_lost = len(whole) == len(start) and text.strip()
        has_context = start or (known and context == known)  # which may be whitespace that the tokenizer drops
        if has_context and not _has_unknown(start, tokenizer) and whole[: len(start)] == start and not is_lost:
            return whole[len(start) :]
    raise ValueError(
        f"The tokenizer cannot encode {text!r} as a part of a text, but only at the start of a text or word. Write a "
        "space before it."
    )


def _join(segments: list[list[int]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of segments with a mask between them."""
    first, *others = segments
    return first + [token for ids in others for token in (tokenizer.mask_token_id, *ids)]


def _check_decoding(ids: list[int], text: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` if a text has unknown characters or another model's mask. Warn if the tokenizer changes it.

    Spaces are compared only if words include them. Other tokenizers decode to a text with other spaces.
    """
    if _has_unknown(ids, tokenizer):
        raise ValueError(f"The tokenizer has no tokens for some characters of {text!r}. Remove these characters.")
    mask, special = tokenizer.mask_token, tokenizer.added_tokens_decoder
    for name in {special[token].content for token in special.keys() & set(ids)} - {mask}:
        if name.strip("[<|>]").lower() in ("mask", "mdm_mask"):
            raise ValueError(f"The mask of this model is {mask}, not {name}. Replace {name} in {text!r}.")
    decoded, given = _decode(ids, tokenizer), text.replace(f" {mask}", mask)
    ignored = r"\A +" if words_include_space(tokenizer) else r"[^\S\n]"
    if re.sub(ignored, "", decoded) != re.sub(ignored, "", given):
        logger.warning_once(f"The tokenizer changes the text: {text!r} becomes {decoded!r}.")
