# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Gaps of unknown length."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from common.tokenizers import train_tokenizer
from modeling_aogpt import AnyOrderGenerationConfig, AOGPTForAnyOrderLM, infill
from modeling_aogpt.infill import encode_with_masks
from tests.references import conditional, random_model, seeded

MASK, EOS = 11, 0


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    return random_model(eos_token_id=EOS)


def log_likelihood_of_filled(model: AOGPTForAnyOrderLM, row: list[int], excluded: list[int]) -> float:
    """Fill in the masks of a row by confidence, and return the log-likelihood from left to right, by full passes."""
    context = tuple((position, token) for position, token in enumerate(row) if token != MASK)
    while len(context) < len(row):
        masked = set(range(len(row))) - {position for position, _ in context}
        predictions = {position: conditional(model, context, position, len(row)) for position in masked}
        for probabilities in predictions.values():
            probabilities[excluded] = 0
            probabilities /= probabilities.sum()
        position = max(masked, key=lambda position: predictions[position].max())
        context += ((position, int(predictions[position].argmax())),)
    text = tuple(sorted(context))
    return sum(
        conditional(model, text[:position], position, len(row))[token].log().item() for position, token in text
    )  # fmt: skip


def expected_log_probs(
    model: AOGPTForAnyOrderLM, rows: Iterable[list[int]], excluded: Sequence[int] = ()
) -> torch.Tensor:
    scores = [log_likelihood_of_filled(model, row, list(excluded)) for row in rows]
    return torch.tensor(scores, dtype=torch.float64).log_softmax(0)


def test_filled_texts_are_compared(model: AOGPTForAnyOrderLM) -> None:
    output = model.infill(torch.tensor([3, 1, MASK, 4, 5]), lengths=[1, 2, 4])
    expected = expected_log_probs(model, ([3, 1, *[MASK] * length, 4, 5] for length in (1, 2, 4)))
    assert output.candidates.tolist() == [[1], [2], [4]]
    torch.testing.assert_close(output.log_probs, expected)
    assert output.log_probs.exp().sum().item() == pytest.approx(1)


def test_the_comparison_ignores_the_settings_of_the_model(
    model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.tensor([3, 1, MASK, 4, 5])
    expected = model.infill(ids).log_probs
    model.generation_config.update(order="random", num_steps=1, temperature=0.5, num_return_sequences=3, top_k=2)
    monkeypatch.setattr(infill, "ROWS_PER_PASS", 40)  # few candidates at a time
    state = torch.get_rng_state()
    assert model.infill(ids, generator=seeded()).sequences.shape[0] == 3
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.infill(ids).log_probs, expected)


@pytest.mark.parametrize(("eos_token_id", "excluded"), [(EOS, [EOS]), ([EOS, 9], [EOS, 9])])
def test_padding_is_part_of_the_text(eos_token_id: int | list[int], excluded: list[int]) -> None:
    """It ends the text, so a longer gap leaves less of it, and contains no end-of-text."""
    model = random_model(eos_token_id=eos_token_id)
    output = model.infill(torch.tensor([[MASK, 4, 5]]), lengths=[1, 3], padded_length=7)
    rows = ([MASK, 4, 5, EOS, EOS, EOS, EOS], [MASK, MASK, MASK, 4, 5, EOS, EOS])
    torch.testing.assert_close(output.log_probs, expected_log_probs(model, rows, excluded))
    assert output.sequences.shape == (1, 7)


@pytest.mark.parametrize("source", ["argument", "generation_config", "model.generation_config"])
def test_gaps_of_padded_texts_contain_no_end_of_text(source: str, model: AOGPTForAnyOrderLM) -> None:
    kwargs = {"num_return_sequences": 200, "temperature": 5.0}
    if source == "argument":
        kwargs["suppress_tokens"] = [7, 8]
    elif source == "generation_config":
        kwargs["generation_config"] = AnyOrderGenerationConfig(suppress_tokens=[7, 8])
    else:
        model.generation_config.suppress_tokens = [7, 8]
    ids = torch.tensor([3, MASK])
    padded = model.infill(ids, lengths=[3], padded_length=6, generator=seeded(), **kwargs).sequences
    assert set(padded[:, 1:4].flatten().tolist()) == set(range(MASK)) - {EOS, 7, 8}
    packed = model.infill(ids, lengths=[3], generator=seeded(), **kwargs).sequences
    assert set(packed[:, 1:].flatten().tolist()) == set(range(MASK)) - {7, 8}


def test_ids_of_end_of_text_that_are_not_text_need_not_be_excluded() -> None:
    model, ids = random_model(vocab_size=13, num_valid_tokens=11, eos_token_id=[EOS, 12]), torch.tensor([3, MASK])
    expected = random_model(vocab_size=13, num_valid_tokens=11, eos_token_id=EOS).infill(ids, [1, 2], 6).log_probs
    assert torch.equal(model.infill(ids, [1, 2], padded_length=6).log_probs, expected)


def test_lengths_of_several_holes_are_chosen_together(model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([3, MASK, 4, MASK, 5])
    output = model.infill(ids, lengths=[[1, 3], [2, 4]])
    rows = [[3, *[MASK] * one, 4, *[MASK] * other, 5] for one, other in ((1, 2), (1, 4), (3, 2), (3, 4))]
    expected = expected_log_probs(model, rows)
    assert output.candidates.tolist() == [[1, 2], [1, 4], [3, 2], [3, 4]]
    torch.testing.assert_close(output.log_probs, expected)
    assert output.lengths.tolist() == output.candidates[expected.argmax()].tolist()
    assert model.infill(ids, lengths=[1, 2]).candidates.tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]


def test_the_likeliest_length_is_filled_in(model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([3, 1, MASK, 4, 5])
    output = model.infill(ids, lengths=[1, 2, 3, 4], num_return_sequences=3, order="random", generator=seeded())
    length = int(output.log_probs.argmax()) + 1
    assert output.lengths.tolist() == [length]
    masked = torch.tensor([[3, 1, *[MASK] * length, 4, 5]])
    expected = model.generate(masked, num_return_sequences=3, order="random", generator=seeded())
    assert torch.equal(output.sequences, expected)


def test_the_output_of_a_tokenizer_can_be_passed(model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([[3, 1, MASK, 4, 5]])
    for length in (1, 3):  # with and without as many columns as the attention mask
        arguments = {"input_ids": ids, "lengths": [length]}
        output = model.infill(**arguments, attention_mask=torch.ones_like(ids), generator=seeded())
        assert torch.equal(output.sequences, model.infill(**arguments, generator=seeded()).sequences)


@pytest.mark.parametrize("padded_length", [None, 9])
def test_several_texts_are_filled_in_as_each_alone(model: AOGPTForAnyOrderLM, padded_length: int | None) -> None:
    texts = [torch.tensor(ids) for ids in ([3, 1, MASK, 4, 5], [7, MASK, 2], [6, MASK, 3, MASK, 8])]
    settings = {"lengths": [1, 2], "padded_length": padded_length, "order": "confidence", "do_sample": False}
    together = model.infill(texts, num_return_sequences=2, **settings)
    for text, output in zip(texts, together, strict=True):
        alone = model.infill(text, **settings)
        assert torch.equal(output.sequences, alone.sequences.expand(2, -1))
        assert torch.equal(output.lengths, alone.lengths)
        assert torch.equal(output.candidates, alone.candidates)
        torch.testing.assert_close(output.log_probs, alone.log_probs, rtol=0, atol=1e-10)


def test_errors_name_the_text_of_a_list(model: AOGPTForAnyOrderLM) -> None:
    good, bad = torch.tensor([3, MASK, 4]), torch.tensor([3, 4])
    with pytest.raises(ValueError, match="Text 1 of the list: `input_ids` has no gap"):
        model.infill([good, bad])
    with pytest.raises(ValueError, match=r"^`input_ids` has no gap"):
        model.infill(bad)
    with pytest.raises(ValueError, match="`input_ids` is an empty list"):
        model.infill([])


@pytest.mark.parametrize("setting", ["max_length", "max_new_tokens"])
def test_no_text_is_appended(model: AOGPTForAnyOrderLM, setting: str) -> None:
    setattr(model.generation_config, setting, 10)
    assert model.infill(torch.tensor([3, 1, MASK, 4, 5]), lengths=[2]).sequences.shape == (1, 6)


def test_combinations_that_do_not_fit_are_not_enumerated(model: AOGPTForAnyOrderLM) -> None:
    """Most of the 8^6 combinations do not fit."""
    ids = torch.tensor([3, MASK] * 5 + [3])
    candidates = model.infill(ids, lengths=range(1, 9)).candidates
    assert candidates.tolist()[0] == [1] * 5
    assert candidates.sum(dim=1).max() == 6
    assert len(candidates) <= 6


def test_many_lengths_are_chosen_one_gap_after_another(
    model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infill, "MAX_COMBINATIONS", 4)
    ids, lengths, chosen = torch.tensor([3, MASK, 4, MASK, 5, MASK, 6]), [[2, 1], [1, 3], [1, 2]], [1, 1, 1]
    compared: dict[tuple[int, ...], None] = {}
    for gap, choices in enumerate(lengths):
        rows = [[*chosen[:gap], length, *chosen[gap + 1 :]] for length in choices]
        compared |= dict.fromkeys(map(tuple, rows))
        text = [[3, *[MASK] * one, 4, *[MASK] * two, 5, *[MASK] * three, 6] for one, two, three in rows]
        chosen = rows[int(expected_log_probs(model, text).argmax())]
    _, short = model.infill([ids, torch.tensor([3, MASK, 1])], lengths=[2, 1])
    assert short.candidates.tolist() == [[2], [1]]  # has fewer rounds
    output = model.infill(ids, lengths=lengths)
    assert set(map(tuple, output.candidates.tolist())) == set(compared)
    assert output.lengths.tolist() == chosen
    rows = [[3, *[MASK] * one, 4, *[MASK] * two, 5, *[MASK] * three, 6] for one, two, three in output.candidates]
    torch.testing.assert_close(output.log_probs, expected_log_probs(model, rows))


@pytest.mark.parametrize("gaps", [3, 6])
def test_time_is_proportional_to_the_number_of_gaps(gaps: int) -> None:
    model = random_model(max_position_embeddings=64)
    ids = torch.tensor([3, MASK] * gaps + [3])
    assert len(model.infill(ids, lengths=range(1, 9)).candidates) == 7 * gaps + 1


def test_candidates_that_do_not_fit_are_left_out(model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([3, 1, MASK, 4, 5])
    assert model.infill(ids, lengths=range(6, 20)).candidates.flatten().tolist() == [6, 7, 8]
    assert model.infill(ids, lengths=range(1, 20), padded_length=6).candidates.flatten().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("ids", "arguments", "message"),
    [
        ([3, 1], {}, r"`input_ids` has no gap. Put the mask token \(id 11\) where text is missing"),
        ([3, MASK, MASK, 1], {}, "`input_ids` has adjacent masks. Put one mask for each gap"),
        ([MASK], {}, "`input_ids` has no text around the gap"),
        ([[3, MASK], [3, MASK]], {}, r"must be a string, a tensor .* of one text, or .*, but has shape \(2, 2\)"),
        ([3, MASK], {"lengths": [0, 1]}, r"`lengths\[...\]` must be an integer of at least 1, but is 0"),
        ([3, MASK], {"lengths": [[[1]]]}, r"`lengths\[...\]` must be an integer of at least 1, but is \[1\]"),
        ([3, MASK], {"lengths": []}, r"`lengths` must be a list of numbers of tokens, or .* for each gap \(here 1\)"),
        ([3, MASK], {"lengths": [[1], [2]]}, r"for each gap \(here 1\)"),
        ([3, MASK], {"lengths": [12]}, "With the smallest of `lengths`, the text has 13 tokens, .* at most 12"),
        ([3, MASK], {"padded_length": 1}, "With the smallest of `lengths`, the text has 2 tokens, .* at most 1"),
        ([3, MASK], {}, r"^The text ends with a gap, .* Append end-of-text to the text, set `padded_length`, or pass"),
        ([MASK, 3, MASK], {"lengths": [[1], [2, 3]]}, "^The text ends with a gap"),
        ([MASK, 3], {"lengths": "12"}, "`lengths` must be a list of numbers of tokens, or .*, but is '12'"),
        ([MASK, 3], {"lengths": torch.tensor(5)}, "`lengths` must be a list of numbers of tokens, or .*, but is 5"),
        ([MASK, 3], {"lengths": 5}, "`lengths` must be a list of numbers of tokens, or .*, but is 5"),
        ([MASK, 3], {"attention_mask": torch.tensor([[0, 1]])}, "`attention_mask` marks padding, but `infill` needs"),
        ([MASK, 3], {"padded_length": 13}, "`padded_length` must be an integer from 1 to 12, but is 13"),
        ([MASK, 3], {"stop_at_eos": True}, "^`infill` does not accept the argument `stop_at_eos` of `generate`"),
        ([MASK, 3], {"inputs": torch.tensor([[MASK]])}, "does not accept the argument `inputs`"),
        ([MASK, 3], {"seed": 1}, "`generate` takes no `seed`"),
        ([MASK, 3], {"max_length": 4}, "^`infill` does not accept the argument `max_length` of `generate`"),
        ([MASK, 3], {"max_new_tokens": 1}, "^`infill` does not accept the argument `max_new_tokens` of `generate`"),
        ([MASK, 3], {"return_dict_in_generate": True}, "does not accept the argument `return_dict_in_generate`"),
    ],
)
def test_wrong_arguments_are_errors(model: AOGPTForAnyOrderLM, ids: list, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.infill(torch.tensor(ids), **arguments)


def test_repeated_lengths_count_once(model: AOGPTForAnyOrderLM) -> None:
    once, twice = (model.infill(torch.tensor([3, MASK, 4]), lengths=lengths) for lengths in ([1, 2], [1, 2, 2]))
    assert once.candidates.tolist() == twice.candidates.tolist()
    assert torch.equal(once.log_probs, twice.log_probs)
    assert model.infill(torch.tensor([3, MASK]), lengths=[2, 2]).candidates.tolist() == [[2]]


def test_a_gap_at_the_end_does_not_stop_at_end_of_text() -> None:
    """Otherwise, padding would make the gap shorter than its length."""
    arguments = {"lengths": [3], "order": "left_to_right", "suppress_tokens": list(range(EOS + 1, MASK))}
    output = random_model(eos_token_id=EOS, pad_token_id=5).infill(torch.tensor([3, MASK]), **arguments)
    assert output.sequences.tolist() == [[3, EOS, EOS, EOS]]


def test_a_gap_at_the_end_may_have_one_length(model: AOGPTForAnyOrderLM) -> None:
    assert model.infill(torch.tensor([MASK, 3, MASK]), lengths=[[1, 2], [3]]).sequences.shape[1] in (5, 6)
    assert model.infill(torch.tensor([3, MASK]), lengths=[1, 2], padded_length=5).sequences.shape == (1, 5)


def test_padding_needs_an_end_of_text(model: AOGPTForAnyOrderLM) -> None:
    model.config.eos_token_id = None
    with pytest.raises(ValueError, match=r"`padded_length` needs `config.eos_token_id`"):
        model.infill(torch.tensor([3, MASK]), padded_length=8)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ab <|mask|> cd<|mask|>", ["ab", " cd", ""]),  # the token of a word includes the space before it
        ("def f():\n    <|mask|>\n", ["def f():\n   ", "\n"]),
        ("a\n\n<|mask|> b <|mask|>", ["a\n\n", " b", ""]),
        ("<|mask|>  <|mask|>", ["", " ", ""]),
    ],
)
def test_whitespace_before_a_gap_is_kept_except_for_one_space(text: str, parts: list[str]) -> None:
    tokenizer = train_tokenizer(["def f():\n    ab cd"], 265)
    first, *others = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
    expected = first + [token for part in others for token in (tokenizer.mask_token_id, *part)]
    assert encode_with_masks(text, tokenizer) == expected


def test_the_text_after_a_gap_does_not_begin_like_a_new_text() -> None:
    """Tokenizers like Llama's put a space before the first word of a text, but not before a part of it."""
    words = {word: index for index, word in enumerate(["<unk>", "▁a", "a", "▁b", "b", "\n", "▁"])}
    tokenizer = Tokenizer(models.BPE(words, [("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True, special=True)})
    tokens = fast.convert_ids_to_tokens(encode_with_masks("a\n<mask>b<mask> a", fast))
    assert tokens == ["▁a", "\n", "<mask>", "b", "<mask>", "▁a"]


def test_arguments_are_checked_before_candidates_are_scored(
    model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_compare_lengths", None)
    with pytest.raises(ValueError, match=r"the unknown argument `temperatur`\. Did you"):
        model.infill(torch.tensor([3, MASK, 4]), temperatur=0.7)
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator, but"):
        model.infill(torch.tensor([3, MASK, 4]), generator=5)


def test_a_text_is_filled_in_with_its_tokenizer(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_model.config, "eos_token_id", tiny_tokenizer.eos_token_id)
    text, arguments = (
        "ab<mask>c<mask>",
        {"lengths": [1, 2], "padded_length": 8, "order": "confidence", "do_sample": False},
    )
    ids = tiny_tokenizer(text, return_tensors="pt").input_ids
    output = tiny_model.infill(text, tokenizer=tiny_tokenizer, **arguments)
    expected = tiny_model.infill(ids, **arguments)
    assert torch.equal(output.sequences, expected.sequences)
    assert output.texts == tiny_tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    assert expected.texts is None
    (listed,) = tiny_model.infill([text], tokenizer=tiny_tokenizer, **arguments)
    assert listed.texts == output.texts
    monkeypatch.setattr(tiny_model.config, "mask_token_id", 77)
    with pytest.raises(ValueError, match=r"The mask token of `tokenizer` .* has id \d+, but the model's is 77"):
        tiny_model.infill(text, tokenizer=tiny_tokenizer)
    with pytest.raises(ValueError, match="`input_ids` is a string, but `tokenizer` is"):
        tiny_model.infill(text)


@pytest.mark.parametrize(
    "lengths",
    [
        iter([1, 2]),
        {1, 2},
        torch.tensor([1, 2]),
        np.array([1, 2]),
        [{1, 2}],
        torch.tensor([[1, 2]]),
        [*torch.tensor([1, 2])],
    ],
)
def test_lengths_can_be_any_iterable(model: AOGPTForAnyOrderLM, lengths: object) -> None:
    outputs = model.infill([torch.tensor([3, MASK, 1]), torch.tensor([2, MASK, 1])], lengths=lengths)
    assert [output.candidates.flatten().tolist() for output in outputs] == [[1, 2], [1, 2]]


def test_other_types_of_tokenizers_are_errors(model: AOGPTForAnyOrderLM) -> None:
    with pytest.raises(TypeError, match="`tokenizer` must be a tokenizer of"):
        model.infill(torch.tensor([3, MASK, 1]), tokenizer=5)


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ({}, "confidence"),
        ({"order": "left_to_right"}, "left_to_right"),
        ({"order": "left_to_right", "stride": 2}, "left_to_right"),
        ({"order": "left_to_right", "unmasking": "threshold"}, "left_to_right"),
        ({"order": "random"}, "confidence"),
        ({"generation_config": GenerationConfig(do_sample=False)}, "confidence"),
        ({"generation_config": AnyOrderGenerationConfig(order="left_to_right")}, "left_to_right"),
    ],
)
def test_candidates_are_filled_in_from_left_to_right_if_this_is_the_order(
    model: AOGPTForAnyOrderLM, arguments: dict, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, orders = model._compare_lengths, []

    def record(*given: Any) -> Any:
        orders.append(given[-1])
        return score(*given)

    monkeypatch.setattr(model, "_compare_lengths", record)
    model.infill(torch.tensor([3, MASK, 5]), [1, 2], **arguments)
    assert orders == [order]
    model.generation_config.order = "left_to_right"
    model.infill(torch.tensor([3, MASK, 5]), [1, 2])
    assert orders[1:] == ["left_to_right"]


def test_the_likeliest_filling_is_the_same_in_every_call(model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([3, MASK, 5])
    expected = model.infill(ids, [6], do_sample=False, order="confidence").sequences
    assert all(torch.equal(model.infill(ids, [6], do_sample=False).sequences, expected) for _ in range(8))
