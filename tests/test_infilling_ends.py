# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Gaps whose end a model predicts: additional slots in training, and infilling until the end."""

import itertools
from collections import Counter

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM
from modeling_aogpt.data_collator import draw_slots, make_streams
from modeling_aogpt.validation import check_orders
from tests.references import conditional, random_model, seeded

END, MASK = 0, 3
PARTS = [[2], [1, 2], [2]]


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    return random_model(vocab_size=3, max_gap_length=3, eos_token_id=END)


def log_prob(model: AOGPTForAnyOrderLM, fillings: tuple[tuple[int, ...], ...], num_slots: tuple[int, ...]) -> float:
    """Return the log-probability of fillings of the gaps between PARTS, each with its end, by full passes."""
    context, starts, position = [], [], 0
    for part, slots in itertools.zip_longest(PARTS, num_slots, fillvalue=0):
        context += enumerate(part, position)
        starts.append(position + len(part))
        position += len(part) + slots
    total = 0.0
    for start, filling, slots in zip(starts, fillings, num_slots, strict=False):
        for place in enumerate((*filling, END)[:slots], start):
            total += conditional(model, tuple(context), place[0], position)[place[1]].log().item()
            context.append(place)
    return total


def list_fillings(num_slots: int) -> list[tuple[int, ...]]:
    return [tokens for length in range(num_slots + 1) for tokens in itertools.product((1, 2), repeat=length)]


def test_the_probabilities_of_all_fillings_add_up_to_1(model: AOGPTForAnyOrderLM) -> None:
    fillings = itertools.product(list_fillings(1), list_fillings(2))
    expected = {filling: log_prob(model, filling, (1, 2)) for filling in fillings}
    assert torch.tensor([*expected.values()]).exp().sum().item() == pytest.approx(1)
    ids = torch.tensor([2, MASK, 1, 2, MASK, 2])
    output = model.infill(ids, lengths=[range(2), range(3)], num_return_sequences=400, generator=seeded())
    seen: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for ids, (one, two), score in zip(output.sequences, output.candidates, output.log_probs, strict=True):
        row, end = ids.tolist(), 3 + one
        filling = tuple(row[1 : 1 + one]), tuple(row[end : end + two])
        assert row == [2, *filling[0], 1, 2, *filling[1], 2, *[END] * (len(row) - 4 - one - two)]
        assert score.item() == pytest.approx(expected[filling])
        seen[filling] += 1
    for filling, score in expected.items():
        mean = 400 * torch.tensor(score).exp().item()
        assert abs(seen[filling] - mean) < 5 * max(mean, 1) ** 0.5
    assert output.log_probs.diff().max() <= 0
    assert torch.equal(output.lengths, output.candidates[0])


def test_texts_of_a_batch_are_filled_in_as_alone(model: AOGPTForAnyOrderLM) -> None:
    texts = [torch.tensor(ids) for ids in ([2, MASK, 1], [MASK, 2, 2, MASK, 1, 2], [1, 1, MASK, 2])]
    for options in ({}, {"padded_length": 11}, {"lengths": range(2, 4)}):
        together = model.infill(texts, do_sample=False, **options)
        for text, output in zip(texts, together, strict=True):
            alone = model.infill(text, do_sample=False, **options)
            assert torch.equal(output.sequences, alone.sequences)
            torch.testing.assert_close(output.log_probs, alone.log_probs)
            assert output.lengths.min() >= min(options.get("lengths", [1]))
            assert output.sequences.shape[1] == options.get("padded_length", len(text) + sum(output.lengths - 1))


def test_a_filling_is_empty_only_if_lengths_contain_0(model: AOGPTForAnyOrderLM) -> None:
    with torch.no_grad():
        model.lm_head.bias[END] = 50.0
    model.generation_config.suppress_tokens = [END]  # has an effect only on other calls
    ids = torch.tensor([2, MASK, 1])
    assert model.infill(ids).lengths.tolist() == [1]
    assert model.infill(ids, lengths=range(4)).lengths.tolist() == [0]
    assert model.infill(ids, lengths=range(4)).sequences.tolist() == [[2, 1]]
    assert model.infill(ids, lengths=[3]).lengths.tolist() == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1, 3]}, "`lengths` .*consecutive"),
        ({"lengths": [0]}, "`lengths` .*consecutive"),
        ({"lengths": range(1, 5)}, r"`lengths\[...\]` .*from 0 to 3"),
        ({"padded_length": 4}, "largest of `lengths`"),
        ({"order": "random"}, "`order`"),
        ({"order": "left_to_right", "num_steps": 2}, "`num_steps`"),
        ({"strategy": "speculative"}, "`strategy`"),
        ({"refine_rounds": 1, "refine_length": 1}, "`refine_rounds`"),
        ({"min_new_tokens": 1}, "`min_new_tokens`"),
        ({"repetition_penalty": 1.5}, "`repetition_penalty`"),
        ({"bad_words_ids": [[1, 2]]}, "`bad_words_ids`"),
        ({"logits_processor": [RepetitionPenaltyLogitsProcessor(1.5)]}, "processors"),
        ({"streamer": object()}, "`streamer`"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(
    arguments: dict[str, object], message: str, model: AOGPTForAnyOrderLM
) -> None:
    with pytest.raises(ValueError, match=message):
        model.infill(torch.tensor([2, MASK, 1]), **arguments)


@pytest.mark.parametrize("settings", [{"max_gap_length": 0, "eos_token_id": 0}, {"max_gap_length": 3}])
def test_a_model_needs_a_token_that_ends_a_gap(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="`max_gap_length`"):
        AOGPTConfig(vocab_size=3, **settings)


# ------------------------------------------------------------------------------------------------------------ training


def collate(count: int, length: int, most: int | None = None, **settings: object) -> dict[str, torch.Tensor]:
    settings = {"orders": "gaps_last", "max_gap_length": most, "eos_token_id": 0} | settings
    features = [{"input_ids": range(1, length + 1), "order_seed": seed} for seed in range(count)]
    return DataCollatorForAnyOrderLM(**settings)(features)


def test_gaps_get_slots_and_an_end() -> None:
    batch = collate(300, 16, 3, left_to_right_fraction=0.2)
    check_orders("orders", batch["orders"], 300, 16)
    num_ends = num_random = 0
    for ids, labels, order in zip(*(batch[name].tolist() for name in ("input_ids", "labels", "orders")), strict=True):
        text = [token for token in labels if token > 0]
        assert text == list(range(1, len(text) + 1))  # the end is cut off
        assert ids == [max(label, 0) for label in labels]
        num_unused = labels.count(-100)
        assert all(labels[column] == -100 for column in order[16 - num_unused :])
        assert all(0 in labels[:column] for column in range(16) if labels[column] == -100)
        assert labels[-1] > 0  # there is text after each gap
        if 0 not in labels:  # left to right, in random order, or with gaps without additional slots
            num_random += sum(order[rank] < order[rank - 1] for rank in range(1, 16)) > 4
            continue
        context = order[: next((rank for rank in range(1, 16) if order[rank] < order[rank - 1]), 16)]
        ends = [column for column, label in enumerate(labels) if label == 0]
        assert order[: 16 - num_unused] == context + sorted(set(order[: 16 - num_unused]) - set(context))
        assert set(ends).isdisjoint(context)
        num_ends += len(ends)
    assert num_ends > 50
    assert 40 < num_random < 80  # of 300 x 0.8 x 0.25, on average
    assert collate(300, 16, None)["labels"].min() > 0


def test_end_of_text_is_not_part_of_gaps() -> None:
    may_be_missing = torch.arange(16) != 7
    streams, is_example = make_streams(0, torch.arange(300)), torch.tensor(False)
    is_gap, slots = draw_slots(streams, torch.full((300,), 16), may_be_missing[None], 3, is_example)
    assert not is_gap[:, 7].any()
    assert is_gap[:, 6].any()
    assert not slots[~is_gap].any()


def test_the_number_of_slots_says_nothing_about_the_length() -> None:
    """Otherwise, `infill` would prefer some lengths."""
    count, most = 100000, 4
    samples, lengths = torch.arange(count), torch.full((count,), 24)
    streams, may_be_missing = make_streams(0, samples), torch.ones(count, 24, dtype=torch.bool)
    is_gap, slots = draw_slots(streams, lengths, may_be_missing, most, torch.tensor(False))
    starts = is_gap.long().argmax(dim=1, keepdim=True)
    is_first = is_gap & (((~is_gap) & (torch.arange(24) > starts)).cumsum(dim=1) == 0)
    first, added = is_first.sum(dim=1), (slots * is_first).sum(dim=1)
    first[(starts[:, 0] > 8) | ~is_gap.any(dim=1)] = 0  # others are near the end, where fewer slots fit
    for length in (1, 2, 3, 4):
        counts = added[first == length].bincount(minlength=most + 1)
        assert len(counts) == most + 1
        assert (counts - counts.sum() / 5).abs().max() < 4 * (counts.sum() / 5) ** 0.5
        assert counts.min() > 500


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orders": "random"}, "`max_gap_length` has no effect"),
        ({"max_gap_length": 0}, "`max_gap_length` must"),
        ({"eos_token_id": None}, "`eos_token_id`"),
    ],
)
def test_wrong_settings_of_the_collator_are_errors(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCollatorForAnyOrderLM(**{"orders": "gaps_last", "max_gap_length": 2, "eos_token_id": 0} | settings)


def test_a_gap_of_an_example_has_no_end_of_text() -> None:
    collator = DataCollatorForAnyOrderLM(orders="gaps_last", max_gap_length=3, eos_token_id=0, pad_token_id=0)
    outside = {"input_ids": [1, 2, 0], "labels": [-100, 2, -100]}
    collator([outside, {"input_ids": [1, 0], "labels": [1, 0]}])
    with pytest.raises(ValueError, match="`eos_token_id` as a label"):
        collator([outside, {"input_ids": [1, 2, 0, 3], "labels": [-100, 2, 0, -100]}])


@pytest.mark.parametrize("suffix", [0, 1, 2, 9])
def test_gaps_of_examples_get_slots_that_fit(suffix: int) -> None:
    """The context has no labels, and is read first. The gap is never lost, and its end is always followed by text."""
    ids, num_given = [*range(1, 7 + suffix)], 4 + suffix
    feature = {"input_ids": ids, "labels": [-100] * 4 + [5, 6] + [-100] * suffix}
    collator = DataCollatorForAnyOrderLM(orders="gaps_last", max_gap_length=3, eos_token_id=0, pad_token_id=0)
    batch = collator([feature | {"order_seed": seed} for seed in range(200)] + [{"input_ids": [1], "labels": [1]}])
    counts = [0] * 4
    for labels, order, row in zip(
        *(batch[name].tolist()[:200] for name in ("labels", "orders", "input_ids")), strict=True
    ):
        slots = row[6:].count(0)
        counts[slots] += 1
        assert row == [*range(1, 7), *[0] * slots, *range(7, 7 + suffix - slots)]
        assert labels == [-100] * 4 + [5, 6] + [0] * (slots > 0) + [-100] * (suffix - (slots > 0))
        after = list(range(6 + slots, len(ids)))
        assert order[: num_given + 2 - slots + (slots > 0)] == [*range(4), *after, 4, 5, *[6] * (slots > 0)]
    assert sum(count > 0 for count in counts) == min(max(suffix, 1), 4)
    with pytest.raises(ValueError, match="`in_turns`"):
        collator([feature | {"in_turns": True}])


def test_slots_do_not_depend_on_other_sequences_of_the_batch() -> None:
    collator = DataCollatorForAnyOrderLM(orders="gaps_last", max_gap_length=3, eos_token_id=0, pad_token_id=0)
    for seed in range(20):
        feature = {"input_ids": [*range(1, 9)], "order_seed": seed}
        alone, padded = collator([feature]), collator([feature, {"input_ids": [1] * 30}])
        for name in ("input_ids", "labels", "orders"):
            assert padded[name][0, :8].tolist() == alone[name][0].tolist()


def test_the_slots_of_several_given_gaps_fit_together() -> None:
    collator = DataCollatorForAnyOrderLM(orders="gaps_last", max_gap_length=6, eos_token_id=0, pad_token_id=0)
    feature = {"input_ids": [*range(1, 13)], "labels": [-100, 2, 3, -100, -100, 6, -100, 8] + [-100] * 4}
    batch = collator([feature | {"order_seed": seed} for seed in range(50)] + [{"input_ids": [1] * 30}])
    labels = batch["labels"][:50]
    assert (labels[:, 12:] == -100).all()
    assert all([label for label in row if label > 0] == [2, 3, 6, 8] for row in labels.tolist())
    assert (labels == 0).any()
