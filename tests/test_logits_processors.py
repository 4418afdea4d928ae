# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Logits processors of the caller: the ids they get, and their effect on samples."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation import logits_process

from modeling_aogpt import AOGPTForCausalLM, sampling
from tests.references import random_encoder, random_model, seeded, with_class

MASK = 11


class ForbidVisibleTokens(LogitsProcessor):
    """Processor that forbids all visible tokens, and records the ids it gets."""

    def __init__(self) -> None:
        self.seen = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids.clone())
        return scores.scatter(1, input_ids, float("-inf"))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"order": "confidence"},
        {"strategy": "speculative", "draft_length": 5},
        {"strategy": "speculative", "draft": "prompt_lookup"},
    ],
)
def test_processors_see_all_tokens_unmasked_before(arguments: dict) -> None:
    """So the 10 tokens of a sequence are different. Verified drafts see the drafts before them."""
    samples = random_model(initializer_range=0.2).generate(
        max_length=10,
        num_return_sequences=20,
        logits_processor=LogitsProcessorList([ForbidVisibleTokens()]),
        generator=seeded(),
        **arguments,
    )
    assert all(len(set(row)) == 10 for row in samples.tolist())


def test_processors_of_encoders_see_all_tokens_unmasked_before() -> None:
    samples = random_encoder(initializer_range=0.2).generate(
        max_length=10, logits_processor=LogitsProcessorList([ForbidVisibleTokens()]), generator=seeded()
    )
    assert len(set(samples[0].tolist())) == 10


@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
def test_a_processor_may_forbid_every_token_after_the_end_of_the_text(strategy: str) -> None:
    """Drafts after a drafted end-of-text token have no distribution, and are erased."""
    model = random_model()

    def forbid(text: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill(torch.isin(text, torch.tensor([5, 6])).any(dim=1, keepdim=True), float("-inf"))

    for seed in range(10):
        arguments = {"eos_token_id": [5, 6], "max_new_tokens": 8, "strategy": strategy}
        model.generate(torch.tensor([[1, 2]]), logits_processor=[forbid], generator=seeded(seed), **arguments)


def test_processors_get_masks_at_masked_positions_and_padding() -> None:
    processor = ForbidVisibleTokens()
    inputs = torch.tensor([[1, MASK, 2, MASK, 9]])
    filled = random_model().generate(
        inputs,
        attention_mask=torch.tensor([[1, 1, 1, 1, 0]]),
        order="left_to_right",
        logits_processor=LogitsProcessorList([processor]),
    )
    seen = [[1, MASK, 2, MASK, MASK]], [[1, filled[0, 1].item(), 2, MASK, MASK]]
    assert [ids.tolist() for ids in processor.seen] == list(seen)


def test_processors_get_the_text_before_the_token_left_to_right() -> None:
    processor = ForbidVisibleTokens()
    inputs = torch.tensor([[9, 1, 2], [3, 9, 9]])
    filled = random_model().generate(
        inputs,
        attention_mask=torch.tensor([[0, 1, 1], [1, 0, 0]]),
        max_new_tokens=2,
        logits_processor=[processor],
    )
    (a, b), (c, _) = filled[:, 3:].tolist()
    assert [ids.tolist() for ids in processor.seen] == [[[3]], [[1, 2]], [[3, c]], [[1, 2, a]]]
    assert b not in (1, 2, a)


@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
@pytest.mark.parametrize("padding", [-100, 3, 999])
def test_ids_at_padding_do_not_affect_processors(padding: int, strategy: str) -> None:
    def generate(ids: torch.LongTensor, attention_mask: torch.Tensor | None = None) -> torch.LongTensor:
        processors = [RepetitionPenaltyLogitsProcessor(3.0)]
        return random_model(initializer_range=0.2).generate(
            ids,
            attention_mask=attention_mask,
            logits_processor=processors,
            strategy=strategy,
            order="left_to_right",
            generator=seeded(),
        )

    ids = torch.tensor([[5, MASK, MASK, MASK, MASK, MASK]])
    padded = torch.nn.functional.pad(ids, (2, 0), value=padding)
    assert torch.equal(generate(padded, padded != padding)[:, 2:], generate(ids))


@pytest.mark.parametrize("make", [SequenceBiasLogitsProcessor, NoBadWordsLogitsProcessor])
def test_a_processor_can_be_used_for_a_prompt_and_for_masked_text(make: Callable) -> None:
    """It keeps the number of columns of its first call."""
    processor = make({(5,): -50.0} if make is SequenceBiasLogitsProcessor else [[5]])
    for inputs in ([[1, 2, MASK]], [[1, MASK, 2]], [[1, 2, MASK]]):
        filled = random_model().generate(
            torch.tensor(inputs), order="left_to_right", num_return_sequences=20, logits_processor=[processor]
        )
        assert not (filled == 5).any()


def test_processors_of_transformers_apply() -> None:
    model = random_model()
    samples = model.generate(
        num_return_sequences=50,
        logits_processor=LogitsProcessorList(
            [SuppressTokensLogitsProcessor([2, 5]), RepetitionPenaltyLogitsProcessor(1.2)]
        ),
        generator=seeded(),
    )
    assert not torch.isin(samples, torch.tensor([2, 5])).any()


def test_processors_get_logits_of_at_least_single_precision() -> None:
    dtypes = []

    def record(input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        dtypes.append(scores.dtype)
        return scores

    random_model().bfloat16().generate(max_length=2, logits_processor=[record], generator=seeded())
    assert set(dtypes) == {torch.float32}


@pytest.mark.parametrize(
    "make_model",
    [partial(random_model, vocab_size=16, num_valid_tokens=MASK), random_encoder],
    ids=["decoder", "encoder"],
)
def test_processors_cannot_draw_ids_that_are_not_text(make_model: Callable) -> None:
    samples = make_model().generate(
        max_length=10,
        num_return_sequences=50,
        logits_processor=[lambda input_ids, scores: torch.zeros_like(scores)],
        generator=seeded(),
    )
    assert set(samples.flatten().tolist()) == set(range(MASK))


def test_processors_may_be_a_plain_list() -> None:
    assert (random_model().generate(logits_processor=[SuppressTokensLogitsProcessor([*range(10)])]) == 10).all()


@pytest.mark.parametrize("arguments", [{}, {"strategy": "speculative"}, {"unmasking": "entropy_bound"}])
def test_processors_that_forbid_every_token_are_reported(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"logits are not finite .* that no logits"):
        random_model().generate(logits_processor=[SuppressTokensLogitsProcessor([*range(11)])], **arguments)


# ---------------------------------------------------------------------------------------------- processors of prefixes

EOS = 4

# Settings and processors that need the text before a token, for a prompt of two tokens.
PREFIX_PROCESSORS = {
    "n-grams": NoRepeatNGramLogitsProcessor(1),
    "min length": MinLengthLogitsProcessor(6, EOS),
    "min new tokens": MinNewTokensLengthLogitsProcessor(2, 3, EOS),
    "bad words": NoBadWordsLogitsProcessor([[5, 6], [4, 1], [5, 5]], eos_token_id=[EOS]),
    "bias": SequenceBiasLogitsProcessor([[[5, 6], -50.0], [[4, 1], -50.0], [[5, 5], -50.0]]),
    "forced eos": ForcedEOSTokenLogitsProcessor(6, EOS),
    "forced bos": ForcedBOSTokenLogitsProcessor(5),
    "length penalty": ExponentialDecayLengthPenalty((1, 3.0), EOS, 2),
    "begin": SuppressTokensAtBeginLogitsProcessor([*range(9)], 2),
}
# Processors that need one row for each sequence.
ROW_PROCESSORS = {
    "encoder n-grams": EncoderNoRepeatNGramLogitsProcessor(1, torch.tensor([[5, 6]])),
    "encoder penalty": EncoderRepetitionPenaltyLogitsProcessor(2.0, torch.tensor([[5, 6]])),
    "allowed tokens": PrefixConstrainedLogitsProcessor(lambda batch, ids: [len(ids), len(ids) + 1 + batch], 1),
}
PREFIX_SETTINGS = {
    "n-grams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5, 5], [3, 1], [7]]},
    "min length": {"min_length": 6, "eos_token_id": EOS},
    "min new tokens": {"min_new_tokens": 3, "eos_token_id": EOS},
    "penalty": {"repetition_penalty": 1.7},
    "suppressed": {"suppress_tokens": [1, 5]},
    "all": {"no_repeat_ngram_size": 1, "repetition_penalty": 0.5, "min_length": 5, "eos_token_id": EOS, "min_p": 0.2},
}

# Processors of Transformers that do not depend on the end or the length of the text.
OTHER_PROCESSORS = {
    *("LogitsProcessor", "LogitNormalization", "InfNanRemoveLogitsProcessor"),
    *("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "TopHLogitsWarper", "MinPLogitsWarper"),
    *("TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "SuppressTokensLogitsProcessor"),
    "RepetitionPenaltyLogitsProcessor",
    *("SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"),  # depends on their arguments
}
# Parts of the names of processors that work only with other models.
OTHER_MODELS = ("Whisper", "Bark", "Dia", "AlternatingCodebooks", "ClassifierFreeGuidance")


def test_every_processor_of_transformers_is_known() -> None:
    names = {name for name, value in vars(logits_process).items() if isinstance(value, type)}
    names = {name for name in names if issubclass(getattr(logits_process, name), LogitsProcessor)}
    names = {name for name in names if not any(part in name for part in OTHER_MODELS)}
    known = (OTHER_PROCESSORS, sampling.PREFIX_PROCESSORS, sampling.UNSUPPORTED_PROCESSORS)
    assert names <= set().union(*known)
    assert sum(map(len, known)) == len(set().union(*known))


def biased_model() -> torch.nn.Module:
    """Return a model that repeats tokens and likes EOS, so that every processor has something to change."""
    model = random_model(initializer_range=0.3)
    with torch.no_grad():
        model.lm_head.bias[[EOS, 5]] += 2.0
    return model


@pytest.mark.parametrize("strategy", [{}, {"block_length": 4}, {"strategy": "speculative", "draft_length": 3}])
@pytest.mark.parametrize("name", PREFIX_PROCESSORS)
def test_left_to_right_processors_work_as_in_transformers(name: str, strategy: dict) -> None:
    model, processors = biased_model(), [PREFIX_PROCESSORS[name]]
    inputs = torch.tensor([[5, 6], [1, 5]])
    greedy = {"do_sample": False} if "strategy" not in strategy else {"top_k": 1}
    common = {"max_new_tokens": 5, "logits_processor": processors}
    found = model.generate(inputs, order="left_to_right", **greedy, **common, **strategy)
    assert found.tolist() == with_class(model, AOGPTForCausalLM).generate(inputs, do_sample=False, **common).tolist()
    plain = model.generate(inputs, order="left_to_right", max_new_tokens=5, do_sample=False)
    assert name == "forced bos" or not torch.equal(found, plain)  # it applies to texts of one token only


@pytest.mark.parametrize("name", ROW_PROCESSORS)
def test_processors_of_rows_are_refused(name: str) -> None:
    processor = ROW_PROCESSORS[name]
    with pytest.raises(ValueError, match=f"{type(processor).__name__} .* one row of logits"):
        biased_model().generate(torch.tensor([[5, 6]]), max_new_tokens=5, logits_processor=[processor])


@pytest.mark.parametrize("name", PREFIX_SETTINGS)
def test_settings_of_processors_work_as_in_transformers(name: str) -> None:
    model, settings = biased_model(), PREFIX_SETTINGS[name]
    inputs, arguments = torch.tensor([[5, 6], [1, 5]]), {"max_new_tokens": 6, "do_sample": False, **settings}
    found = model.generate(inputs, pad_token_id=0, **arguments)
    if "min_p" in settings:
        arguments.pop("min_p")  # changes nothing in greedy decoding, and Transformers warns
    expected = with_class(model, AOGPTForCausalLM).generate(inputs, pad_token_id=0, **arguments)
    assert found[:, : expected.shape[1]].tolist() == expected.tolist()
    assert (found[:, expected.shape[1] :] == 0).all()  # Transformers leaves out columns of padding


@pytest.mark.parametrize(
    "settings",
    [
        *({"order": "random"}, {"num_steps": 3, "order": "left_to_right"}, {"order": "margin"}, {"block_length": 3}),
        {"order": "left_to_right", "refine_rounds": 1, "refine_length": 1},
    ],
)
@pytest.mark.parametrize("name", PREFIX_PROCESSORS)
def test_processors_of_prefixes_are_refused_in_other_orders(name: str, settings: dict) -> None:
    processor = PREFIX_PROCESSORS[name]
    message = rf"{type(processor).__name__} needs the text before each token, .* Set `order='left_to_right'` without"
    with pytest.raises(ValueError, match=message):
        random_model().generate(logits_processor=[processor], **settings)


@pytest.mark.parametrize(
    "settings", [{"suppress_tokens": [1, 11]}, {"bad_words_ids": [[3, 77]]}, {"bad_words_ids": [[1], []]}]
)
def test_excluded_tokens_must_be_ids_of_text(settings: dict) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=rf"`{name}` must contain ids of text, 0 to 10"):
        random_model().generate(order="left_to_right", **settings)


@pytest.mark.parametrize("value", [[1, 2], [["a"]], [[True]], [(1,)], 3])
def test_bad_words_must_be_lists_of_ids(value: object) -> None:
    with pytest.raises(ValueError, match="`bad_words_ids` must be a list of lists of"):
        random_model().generate(order="left_to_right", bad_words_ids=value)


@pytest.mark.parametrize("name", ["bad_words_ids", "suppress_tokens"])
def test_an_empty_list_excludes_nothing(name: str) -> None:
    expected = random_model().generate(generator=seeded())
    assert torch.equal(random_model().generate(generator=seeded(), **{name: []}), expected)


def test_settings_of_prefixes_are_refused_by_name_in_other_orders() -> None:
    for name, value in (("no_repeat_ngram_size", 2), ("bad_words_ids", [[1, 2]])):
        with pytest.raises(ValueError, match=rf"or remove .*`{name}`"):
            random_model().generate(order="random", **{name: value})
    samples = random_model().generate(order="random", bad_words_ids=[[1], [2]], repetition_penalty=2.0)
    assert not torch.isin(samples, torch.tensor([1, 2])).any()


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_end_of_text_can_be_a_bad_word_in_every_order(order: str) -> None:
    """In Transformers, it would have no effect."""
    model = biased_model()
    arguments = {"order": order, "num_return_sequences": 20, "eos_token_id": EOS, "min_length": 1}
    assert (model.generate(**arguments, generator=seeded()) == EOS).any()
    assert not (model.generate(**arguments, bad_words_ids=[[EOS]], generator=seeded()) == EOS).any()


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_a_processor_that_runs_the_model_is_refused(order: str) -> None:
    model = random_model()
    processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, with_class(model, AOGPTForCausalLM))
    with pytest.raises(ValueError, match="UnbatchedClassifierFreeGuidanceLogitsProcessor runs the model itself"):
        model.generate(logits_processor=[processor], order=order)


def test_processors_of_prefixes_apply_to_masked_text_that_is_filled_in_left_to_right() -> None:
    inputs = torch.tensor([[5, MASK, MASK, 5, MASK, MASK, MASK]])
    filled = biased_model().generate(inputs, order="left_to_right", no_repeat_ngram_size=2, do_sample=False)[0]
    bigrams = [tuple(filled[i : i + 2].tolist()) for i in range(6)]
    # The pair that ends with a given token is not chosen, and so not checked.
    chosen = [pair for index, pair in enumerate(bigrams) if inputs[0, index + 1] == MASK]
    assert all(pair not in bigrams[: bigrams.index(pair)] for pair in chosen)
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize("strategy", [{}, {"strategy": "speculative"}])
def test_min_p_keeps_tokens_relative_to_the_likeliest(strategy: dict) -> None:
    model = random_model()
    output = model.generate(
        num_return_sequences=50,
        order="left_to_right",
        min_p=0.5,
        generator=seeded(),
        return_dict_in_generate=True,
        **strategy,
    )
    probabilities = model(output.sequences).logits[..., :11].softmax(-1)
    chosen = probabilities.gather(2, output.sequences[..., None]).squeeze(2)
    assert (chosen >= 0.5 * probabilities.amax(-1) - 1e-12).all()
    assert (chosen < probabilities.amax(-1) - 1e-6).any()
