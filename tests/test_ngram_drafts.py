# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt.ngram_drafts import most_alike
from tests.references import Enumeration, chi_square, conditional, random_model

pytestmark = pytest.mark.usefixtures("large_chunks")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("text", "target", "token"),
    [
        ([5, 6, 7, 5, 6, -1], 5, 7),  # what followed 5 6
        ([-1, 6, 7, 5, 6, 7], 0, 5),  # what came before 6 7
        ([1, 6, 8, 2, 6, 9, 2, 6, -1], 8, 9),  # two tokens agree, not one
        ([6, 8, 0, 6, 9, 0, 6, -1], 7, 9),  # of two as good the last
        ([1, 2, 3, 0, 1, -1, 3], 5, 2),  # on both sides
        ([1, 4, 2, 3, 1, -1, 3], 5, 2),  # one on the right beats none, the later of equals wins
        ([1, 2, 3, -1], 3, None),  # 3 is followed by nothing
        ([-1, -1, -1], 1, None),
        ([1, -1, -1, 1, 2, -1, -1], 5, None),  # what stands after 1 2 is not known
    ],
)
def test_the_place_most_alike(text: list[int], target: int, token: int | None) -> None:
    tokens, is_found = most_alike(torch.tensor([text]), torch.tensor([target]))
    assert is_found.tolist() == [token is not None]
    if token is not None:
        assert tokens.tolist() == [token]


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    model = random_model(vocab_size=2, max_position_embeddings=5, position_encoding="rotary", initializer_range=0.3)
    return Enumeration(model, length=5)


@pytest.mark.parametrize("draft_length", [2, 4])
@pytest.mark.parametrize("order", [(2, 0, 3, 1, 4), (0, 1, 2, 3, 4)])
def test_samples_the_chain_rule_exactly(tiny: Enumeration, order: tuple[int, ...], draft_length: int) -> None:
    output = tiny.model.generate(
        num_return_sequences=20_000,
        order=torch.tensor(order).expand(20_000, -1),
        strategy="speculative",
        draft="ngram",
        draft_length=draft_length,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert chi_square(tiny.counts_of(output.sequences), tiny.of_groups(tuple((p,) for p in order))) < 1
    assert 0.1 < output.acceptance_rate < 0.98


def test_log_probabilities_are_those_of_full_forwards() -> None:
    """In a ragged batch with padding, whose text repeats itself."""
    model, mask = random_model(vocab_size=4, position_encoding="rotary"), 4
    inputs = torch.tensor([[0, 1, 2, 3] * 3, [1, 1] * 6, [2, 3] * 6])
    inputs[0, [3, 5, 6, 7, 11]] = mask
    inputs[1, 4:] = mask
    inputs[2, :9] = mask
    keep = torch.ones_like(inputs)
    keep[2, [4, 9]] = 0
    output = model.generate(
        inputs,
        attention_mask=keep,
        strategy="speculative",
        draft="ngram",
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert output.acceptance_rate > 0
    for row in range(3):
        kept, context = keep[row].bool(), ()
        place = kept.cumsum(0) - 1
        for position in output.orders[row].tolist()[: int(kept.sum())]:
            token = output.sequences[row, position].item()
            if inputs[row, position] == mask:
                prediction = conditional(model, context, place[position].item(), int(kept.sum()))
                assert abs(output.token_logprobs[row, position] - prediction[token].log()) < 1e-10
            context += ((place[position].item(), token),)


def test_passes_are_saved_where_text_repeats_itself() -> None:
    """A model that repeats the token before last: each round keeps all drafts and adds one more."""
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor([200.0] + [0.0] * 10))
    prompt = torch.zeros(1, 4, dtype=torch.long)
    arguments = {"max_length": 12, "order": "left_to_right", "generator": seeded(), "return_dict_in_generate": True}
    output = model.generate(prompt, strategy="speculative", draft="ngram", draft_length=3, **arguments)
    assert output.acceptance_rate == 1
    assert output.num_forward_passes == 2  # of 4 tokens each
    assert model.generate(prompt, **arguments).num_forward_passes == 8


def test_never_takes_more_passes_than_tokens() -> None:
    model = random_model()
    for length in range(1, 13):
        output = model.generate(
            max_length=length, strategy="speculative", draft="ngram", generator=seeded(), return_dict_in_generate=True
        )
        assert output.num_forward_passes <= length
