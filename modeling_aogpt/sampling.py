# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Sampling of tokens: logits processors and warpers of Transformers, followed by categorical draws.

A draw is exact for the weights that it gets. Without warpers, these are a softmax in at least float32; otherwise, in
float64. Sums of weights are always in float64 (see section 4.3 of the paper).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.generation import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from .cuda_graphs import Recordings, can_record
from .decoding_state import CachedDecodingState, DecodingState, QueryResult, round_up
from .devices import draw_uniform, rows_per_head_call, to_device

TOP_P_RULES = ("inclusive", "exclusive")

# The top-p warper first sorts only this number of likeliest tokens. If their total probability is less than p, which is
# rare for a trained model, it sorts the whole vocabulary.
NUM_TOP_P_CANDIDATES = 1024
# Sums of probabilities that differ less from p equal p, because rounding could otherwise remove or add a token.
TOP_P_TOLERANCE = 1e-12

# Number of tokens in a chunk of the vocabulary. A draw first chooses a chunk and then a token of the chunk, because a
# cumulative sum over the whole vocabulary is sequential and therefore slow.
CHUNK_SIZE = 128

# Number of distributions that a CPU computes at once. With 32 distributions, allocating their memory can take four
# times as long as the arithmetic.
ROWS_ON_CPU = 16

# Largest number of queries whose logits are in memory at once. With GPT-2's vocabulary, they take 103 MB in float64.
ROWS_PER_HEAD_CALL = 256

# Logits processors of Transformers that depend on the end or the length of `input_ids`. Their `input_ids` must be the
# text before the token to predict.
PREFIX_PROCESSORS = frozenset(
    {
        *("ExponentialDecayLengthPenalty", "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
        *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "NoRepeatNGramLogitsProcessor"),
        *("SuppressTokensAtBeginLogitsProcessor", "WatermarkLogitsProcessor"),
    }
)

# Logits processors of Transformers that need logits with the same number of columns in every call.
SIZED_PROCESSORS = frozenset({"SequenceBiasLogitsProcessor"})

# Logits processors of Transformers that run the model themselves, or use the index of a row of logits as the index of
# its sequence. Here, a call has one row for each predicted position.
UNSUPPORTED_PROCESSORS = frozenset(
    {
        *("EncoderNoRepeatNGramLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor"),
        *("PrefixConstrainedLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"),
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    }
)

# Function measure(logits, probabilities) that returns a dictionary of measures of predictions, such as their entropy.
# Both arguments have shape (queries, vocab_size), and each measure has shape (queries,). `logits` come directly from
# the model. `probabilities` include logits processors, but neither temperature nor truncation (top-k, top-p, min-p).
MeasureFunction = Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]


class PartialTopPWarper(LogitsProcessor):
    """Top-p warper that sorts only the likeliest tokens, or the whole vocabulary if these tokens do not reach p.

    It keeps the same tokens as Transformers' `TopPLogitsWarper` would without rounding. With `keep_crossing=False`, it
    also removes the token at which the cumulative probability first exceeds p, unless this is the likeliest token.
    """

    def __init__(self, top_p: float, keep_crossing: bool = True) -> None:
        self.top_p, self.keep_crossing = top_p, keep_crossing

    def __call__(self, input_ids: torch.LongTensor | None, scores: torch.Tensor) -> torch.Tensor:
        """Return `scores` (queries, vocab_size) with minus infinity at removed tokens."""
        shares, vocab_size = scores.softmax(dim=-1), scores.shape[-1]  # rounds less than a difference of logarithms
        # On an accelerator, sort the whole vocabulary, because the CPU would wait to see if these tokens are enough.
        for num_candidates in (min(NUM_TOP_P_CANDIDATES, vocab_size) if scores.is_cpu else vocab_size, vocab_size):
            candidates, tokens = scores.topk(num_candidates)
            probabilities = shares.gather(-1, tokens)
            cumulative = probabilities.cumsum(dim=-1)
            if num_candidates == vocab_size or (cumulative[:, -1] > self.top_p).all():
                break
        sums = cumulative - probabilities + 2 * TOP_P_TOLERANCE if self.keep_crossing else cumulative
        is_removed = sums > self.top_p + TOP_P_TOLERANCE
        is_removed[:, 0].fill_(False)
        kept = candidates.masked_fill(is_removed, float("-inf"))
        return torch.full_like(scores, float("-inf")).scatter(-1, tokens, kept)


def make_processors(config: GenerationConfig, num_valid: int) -> LogitsProcessorList:
    """Return Transformers' logits processors for the settings in `config`, in the order of Transformers.

    Raise a `ValueError` if the id of a token to exclude is `num_valid` or higher, so that it is not an id of text.
    """
    suppressed = [[token] for token in config.suppress_tokens or []]
    for name, sequences in (("suppress_tokens", suppressed), ("bad_words_ids", config.bad_words_ids or [])):
        if not all(ids and all(0 <= token < num_valid for token in ids) for ids in sequences):
            raise ValueError(
                f"`{name}` must contain ids of text, 0 to {num_valid - 1} (config.num_valid_tokens), but is "
                f"{getattr(config, name)!r}."
            )
    processors = LogitsProcessorList()
    if config.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(float(config.repetition_penalty)))
    if config.no_repeat_ngram_size > 0:
        processors.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if config.bad_words_ids:
        # Do not pass `eos_token_id`. The processor would remove these ids from `bad_words_ids`.
        processors.append(NoBadWordsLogitsProcessor(config.bad_words_ids))
    if config.suppress_tokens is not None:
        processors.append(SuppressTokensLogitsProcessor(config.suppress_tokens))
    return processors


def is_any_of(processor: LogitsProcessor, names: frozenset[str]) -> bool:
    """Return whether a processor has one of the classes in `names`, or inherits from one of them."""
    return any(base.__name__ in names for base in type(processor).__mro__)


def reads_prefix(processor: LogitsProcessor) -> bool:
    """Return whether a processor needs the text before a token, and therefore works only from left to right."""
    if is_any_of(processor, PREFIX_PROCESSORS):
        return True
    sequence_bias = getattr(processor, "sequence_bias", None)  # NoBadWordsLogitsProcessor has it, too
    return isinstance(sequence_bias, dict) and any(len(tokens) > 1 for tokens in sequence_bias)


def make_warpers(
    temperature: float, top_k: int, top_p: float, top_p_rule: str = "inclusive", min_p: float = 0.0
) -> LogitsProcessorList:
    """Return warpers for temperature, top-k, top-p and min-p, in this order. Leave out warpers without effect."""
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(PartialTopPWarper(float(top_p), keep_crossing=top_p_rule == "inclusive"))
    if min_p > 0.0:
        warpers.append(MinPLogitsWarper(float(min_p)))
    return warpers


def compute_probabilities(
    logits: torch.Tensor, warpers: LogitsProcessorList, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Return the distributions (queries, vocab_size) to draw from, in at least `dtype`, and in float64 with warpers."""
    if warpers:
        logits = warpers(None, logits.double())
    return logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, dtype))


def draw_tokens(weights: torch.Tensor, generator: torch.Generator | None = None) -> torch.LongTensor:
    """Draw one token per query, with probabilities proportional to the `weights` (queries, vocab_size)."""
    uniform = draw_uniform(len(weights), 1, generator=generator, device=weights.device)
    return invert_weights(weights, uniform)[0]


def choose_tokens(weights: torch.Tensor, uniform: torch.Tensor | None) -> tuple[torch.LongTensor, torch.Tensor]:
    """Return tokens (queries,), and their log-probabilities in proportion to `weights` (queries, vocab_size).

    The tokens are those at which cumulative weights reach fractions `uniform` (queries, 1) of the sum or, without
    `uniform`, the likeliest ones. If a weight is NaN, the log-probability is NaN.
    """
    if uniform is None:
        tokens, total = weights.argmax(dim=-1), weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    else:
        tokens, total = invert_weights(weights, uniform)
    return tokens, (weights.gather(1, tokens[:, None]) / total).log().squeeze(1)


def invert_weights(weights: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.LongTensor, torch.Tensor]:
    """Return the tokens (queries,) at fractions `uniform` of the cumulative weights, and the totals (queries, 1)."""
    num_missing = -weights.shape[1] % CHUNK_SIZE
    chunks = F.pad(weights, (0, num_missing)) if num_missing else weights  # F.pad with 0 columns would copy
    chunks = chunks.unflatten(1, (-1, CHUNK_SIZE))
    cumulative = chunks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Weight between the drawn point and the end of each chunk. The point is below the total, so the last chunk ends
    # above it, and the first chunk that does so has positive weight. For NaN, which the caller reports, it is chunk 0.
    excess = torch.addcmul(cumulative, uniform, total, value=-1)
    chunk = (excess <= 0).sum(dim=-1, keepdim=True)
    within = chunks.gather(1, chunk[..., None].expand(-1, -1, CHUNK_SIZE)).squeeze(1)
    within = within.cumsum(dim=-1, dtype=torch.float64)
    # Rounding can put the point at an end of the chunk. Even then, the token has positive weight, because the point is
    # at most at the end of the last such token, and at least behind all tokens without weight at the beginning.
    point = (within[:, -1:] - excess.gather(1, chunk)).clamp(min=torch.finfo(torch.float64).tiny)
    return torch.add((within < point).sum(dim=-1), chunk.squeeze(1), alpha=CHUNK_SIZE), total


@dataclass
class SampledTokens:
    """Tokens, and measures of the distributions from which they were drawn. All tensors have shape (queries,)."""

    tokens: torch.LongTensor
    logprobs: torch.Tensor  # in nats
    measures: dict[str, torch.Tensor]  # results of the measure function, by name


class TokenSampler:
    """Sampler of tokens: computes logits of queries, applies logits processors and warpers, and draws tokens.

    `is_left_to_right` is True if all tokens to the left of each predicted position are known. `eos_ban` is the result
    of `make_eos_ban`.
    """

    def __init__(
        self,
        state: DecodingState,
        processors: LogitsProcessorList,
        warpers: LogitsProcessorList,
        do_sample: bool,
        generator: torch.Generator | None,
        is_left_to_right: bool,
        eos_ban: tuple[torch.BoolTensor, torch.LongTensor] | None,
    ) -> None:
        self.state, self.processors, self.warpers = state, processors, warpers
        self.do_sample, self.generator, self.eos_ban = do_sample, generator, eos_ban
        is_continuation = bool(state.continues_prompt.all())
        self.get_prefix = [is_left_to_right and (is_continuation or reads_prefix(item)) for item in processors]
        # Logits processors may make the CPU wait for a GPU, so draws with them are not recorded.
        self._can_record = not processors and eos_ban is None and can_record(state.model, state.ids.device)
        self._recordings = Recordings(state.model, state.ids.device)

    def sample(self, result: QueryResult, measure: MeasureFunction | None = None) -> SampledTokens:
        """Return one token for each entry of `result`, and the values of `measure`. The next call overwrites both."""
        if measure is None and self._can_record and self.state.expects_recordings:
            count = len(result.ranks)
            num_repeated = round_up(count) - count  # so that there are few shapes
            values = result.hidden_states, self._draw_numbers(count)
            padded = (torch.cat((part, part[-1:].expand(num_repeated, -1))) for part in values)
            tokens, logprobs = self._recordings.call(self._draw, *padded)
            return SampledTokens(tokens[:count], logprobs[:count], {})
        parts = []
        for logits, processed in self._compute_logits(result):
            num_rows = ROWS_ON_CPU if logits.is_cpu else max(len(logits), 1)
            for raw, rows in zip(logits.split(num_rows), processed.split(num_rows), strict=True):
                parts.append(self._sample_rows(raw, rows, measure))
        tokens, logprobs, measures = zip(*parts, strict=True)
        return SampledTokens(
            torch.cat(tokens),
            torch.cat(logprobs),
            {name: torch.cat([values[name] for values in measures]) for name in measures[0]},
        )

    def fill_in(self, num_queries: torch.LongTensor, step: int) -> None:
        """Predict the next `num_queries[b]` ranks of each sequence b, draw their tokens, and commit them."""
        may_record = self._can_record and isinstance(self.state, CachedDecodingState)
        if may_record and self.state.fill_in(num_queries, step, self._draw_numbers, self._draw):
            return
        result = self.state.query(num_queries)
        sampled = self.sample(result)
        self.state.commit(sampled.tokens, result.indices, num_queries, sampled.logprobs, step)

    def _draw_numbers(self, count: int) -> torch.Tensor:
        """Return the random numbers (count, 1) of `count` draws, on the device of the generator."""
        unused = torch.zeros(count, 1, dtype=torch.float64, device="cpu")
        return draw_uniform(count, 1, generator=self.generator) if self.do_sample else unused

    def _draw(self, hidden_states: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.LongTensor, torch.Tensor]:
        """Return tokens and their log-probabilities (queries,). Contains only operations on the device."""
        parts = []
        for states, numbers in zip(hidden_states.split(self._num_rows), uniform.split(self._num_rows), strict=True):
            weights = compute_probabilities(self.state.compute_logits(states), self.warpers, torch.float32)
            parts.append(choose_tokens(weights, numbers if self.do_sample else None))
        return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))

    @property
    def _num_rows(self) -> int:
        """Return how many rows of logits may be in memory at once."""
        return rows_per_head_call(ROWS_PER_HEAD_CALL, self.state.model.config.vocab_size)

    def _sample_rows(
        self, raw: torch.Tensor, processed: torch.Tensor, measure: MeasureFunction | None
    ) -> tuple[torch.LongTensor, torch.Tensor, dict[str, torch.Tensor]]:
        probabilities = compute_probabilities(processed, self.warpers, torch.float64 if measure else torch.float32)
        uniform = self._draw_numbers(len(raw)) if self.do_sample else None
        tokens, logprobs = choose_tokens(probabilities, uniform if uniform is None else to_device(uniform, raw.device))
        if measure is None:
            return tokens, logprobs, {}
        if self.warpers:
            probabilities = processed.double().softmax(dim=-1)
        return tokens, logprobs, measure(raw, probabilities)

    def distributions(self, result: QueryResult, num_visible: torch.LongTensor | None = None) -> torch.Tensor:
        """Return the float64 distributions (queries, vocab_size) to draw from.

        For query q, logits processors see the tokens of the first `num_visible[q]` ranks (by default, all unmasked).
        """
        chunks = self._compute_logits(result, num_visible)
        return torch.cat([compute_probabilities(processed, self.warpers) for _, processed in chunks])

    def _compute_logits(
        self, result: QueryResult, num_visible: torch.LongTensor | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the logits of `result`, before and after processors, in chunks that limit the use of memory."""
        if num_visible is None:
            num_visible = to_device(self.state.num_context, result.ranks.device)[result.sequences]
        for queries, visible in zip(result.split(self._num_rows), num_visible.split(self._num_rows), strict=True):
            logits = self.state.compute_logits(queries.hidden_states)
            yield logits, self._process(logits, queries, visible)

    def _process(self, logits: torch.Tensor, queries: QueryResult, num_visible: torch.LongTensor) -> torch.Tensor:
        state = self.state
        if self.processors:  # as in Transformers, they never compute in bfloat16
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        for processor, gets_prefix in zip(self.processors, self.get_prefix, strict=True):
            columns = state.positions if gets_prefix else state.orders
            text = state.visible_ids(queries.sequences, num_visible, columns)
            if gets_prefix:
                lengths = (text != state.model.config.mask_token_id).long().cumprod(dim=1).sum(dim=1)
                given, logits = logits, logits.clone()
                for length in lengths.unique().tolist():  # texts of equal length share a call
                    rows = lengths == length
                    logits[rows] = processor(text[rows, :length], given[rows])
            else:
                # Processors look up the scores of all ids in the text. If the mask id has no column in the logits,
                # columns are added for the call.
                num_columns = 0 if is_any_of(processor, SIZED_PROCESSORS) else state.model.config.mask_token_id + 1
                padded = F.pad(logits, (0, max(num_columns - logits.shape[1], 0)), value=float("-inf"))
                logits = processor(text, padded)[:, : logits.shape[1]]
        if self.processors:  # they may have changed the logits of ids that are not text
            ids = torch.arange(logits.shape[1], device=logits.device)
            logits = logits.masked_fill(ids >= state.model.config.num_valid_tokens, float("-inf"))
        if self.eos_ban is not None:
            is_banned, eos_token_ids = self.eos_ban
            is_eos = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
            is_eos[eos_token_ids] = True
            columns = state.orders[queries.indices]
            logits = logits.masked_fill(is_banned[queries.sequences, columns][:, None] & is_eos, float("-inf"))
        return logits
