# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with both kinds of drafts, against the chain rule and full forward passes."""

import pytest
import torch

from modeling_aogpt.sampling import make_warpers
from modeling_aogpt.unmasking import look_up
from tests.references import Enumeration, chi_square, conditional, ragged_inputs, random_model, seeded

pytestmark = pytest.mark.usefixtures("large_chunks")

TINY = {"vocab_size": 2, "position_encoding": "rotary", "initializer_range": 0.3}


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    """Return a model of four positions and two tokens whose predictions depend strongly on every token."""
    return Enumeration(random_model(max_position_embeddings=4, **TINY), length=4)


def check_samples(tiny: Enumeration, **arguments: object) -> float:
    """Compare samples with the chain rule in a fixed order, and return the acceptance rate."""
    order = (2, 0, 3, 1)
    output = tiny.model.generate(
        num_return_sequences=20_000,
        order=torch.tensor(order).expand(20_000, -1),
        strategy="speculative",
        generator=seeded(),
        return_dict_in_generate=True,
        **arguments,
    )
    counts = tiny.count(output.sequences)
    assert chi_square(counts, tiny.of_groups(tuple((position,) for position in order))) < 1
    assert chi_square(counts, tiny.of_groups((order[:2], order[2:]))) > 2  # the result of accepting all drafts
    return output.acceptance_rate


@pytest.mark.parametrize("draft_length", [2, 3, 4, 9])
def test_samples_follow_the_chain_rule_exactly(tiny: Enumeration, draft_length: int) -> None:
    assert 0.1 < check_samples(tiny, draft_length=draft_length) < 0.98


def test_temperature_applies_to_drafts_and_verification(tiny: Enumeration) -> None:
    samples = tiny.model.generate(
        num_return_sequences=20_000, order="left_to_right", strategy="speculative", temperature=2.0, generator=seeded()
    )
    expected = []
    for sequence in tiny.sequences:
        probability = 1.0
        for position in range(4):
            context = tuple((p, sequence[p]) for p in range(position))
            raised = conditional(tiny.model, context, position, 4) ** 0.5
            probability *= (raised / raised.sum())[sequence[position]].item()
        expected.append(probability)
    assert chi_square(tiny.count(samples), torch.tensor(expected, dtype=torch.float64)) < 1


@pytest.mark.parametrize("draft", ["model", "prompt_lookup"])
def test_samples_of_a_bfloat16_model_follow_the_chain_rule(draft: str) -> None:
    """The chain rule of the predictions that the bfloat16 model itself makes in full forward passes."""
    tiny = Enumeration(random_model(max_position_embeddings=4, **TINY).bfloat16(), length=4)
    assert check_samples(tiny, draft=draft) < 0.98


@pytest.mark.parametrize("truncation", [{"top_p": 0.7}, {"top_k": 3}, {"temperature": 0.7, "top_p": 0.9}])
@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_log_probabilities_equal_full_forwards(order: str, truncation: dict) -> None:
    """In a batch with different numbers of masks."""
    model, mask = random_model(position_encoding="rotary"), 11
    inputs = torch.cat((ragged_inputs(), torch.tensor([[4, 7] + [mask] * 10])))
    output = model.generate(
        inputs,
        order=order,
        strategy="speculative",
        draft_length=3,
        generator=seeded(1),
        return_dict_in_generate=True,
        **truncation,
    )
    warpers = make_warpers(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0} | truncation)
    assert torch.equal(output.sequences[inputs != mask], inputs[inputs != mask])
    for ids, ranks, logprobs, given in zip(output.sequences, output.orders, output.token_logprobs, inputs, strict=True):
        context = ()
        for position in ranks.tolist():
            if given[position] == mask:
                reference = warpers(None, conditional(model, context, position, 12).log()[None]).log_softmax(-1)
                assert abs(logprobs[position] - reference[0, ids[position]]) < 1e-10
            context += ((position, ids[position].item()),)


@pytest.mark.parametrize(("draft", "draft_length"), [("model", 2), ("model", 5), ("prompt_lookup", 4)])
def test_never_takes_more_passes_than_tokens(draft: str, draft_length: int) -> None:
    model = random_model()
    for length in range(1, 13):
        output = model.generate(
            max_length=length,
            strategy="speculative",
            draft=draft,
            draft_length=draft_length,
            generator=seeded(length),
            return_dict_in_generate=True,
        )
        assert output.num_forward_passes <= length
        assert (output.sequences < 11).all()
        assert output.unmasking_steps.max() <= (length - 1) // (2 if draft == "model" else 1)


def test_all_drafts_are_accepted_if_tokens_are_independent() -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()  # the bias alone predicts
        model.lm_head.bias.normal_(generator=seeded())
    output = model.generate(strategy="speculative", draft_length=5, generator=seeded(), return_dict_in_generate=True)
    assert output.acceptance_rate == 1
    assert output.num_forward_passes == 4  # each round of two passes unmasks 5 drafts and one more token
    assert output.num_rows == 4 * 5  # verified rows stay in the cache


def test_bfloat16_log_probabilities_are_near_the_likelihood() -> None:
    model = random_model(initializer_range=0.1).bfloat16()
    output = model.generate(
        num_return_sequences=4, strategy="speculative", generator=seeded(), return_dict_in_generate=True
    )
    scores = model.log_likelihood(output.sequences, output.orders).log_likelihood
    torch.testing.assert_close(output.token_logprobs.sum(1), scores, rtol=0, atol=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "lookahead"}, "`strategy` must be one of 'parallel'"),
        ({"strategy": "speculative", "num_steps": 3}, "cannot be combined with `"),
        ({"strategy": "speculative", "do_sample": False}, "cannot be combined with `"),
        ({"strategy": "speculative", "draft_length": 1}, "`draft_length` must be an integer of at least"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)


# ----------------------------------------------------------------------------------------------------- prompt lookup


@pytest.mark.parametrize(
    ("text", "target", "token"),
    [
        ([5, 6, 7, 5, 6, -1], 5, 7),  # the token after 5 6
        ([-1, 6, 7, 5, 6, 7], 0, 5),  # the token before 6 7
        ([1, 6, 8, 2, 6, 9, 2, 6, -1], 8, 9),  # two equal neighbours win over one
        ([6, 8, 0, 6, 9, 0, 6, -1], 7, 9),  # the last of two equally good positions
        ([1, 2, 3, 0, 1, -1, 3], 5, 2),  # neighbours on both sides
        ([1, 4, 2, 3, 1, -1, 3], 5, 2),  # an equal neighbour on the right, and the last of equally good ones
        ([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3, -1], 11, 9),  # three equal neighbours win over two
        ([4, 1, 2, 3, 9, 5, 1, 2, 3, 8, 4, 1, 2, 3, -1], 14, 8),  # a fourth neighbour does not count
        ([1, 2, 3, -1], 3, None),  # nothing follows 3
        ([-1, -1, -1], 1, None),
        ([1, -1, -1, 1, 2, -1, -1], 5, None),  # the token after 1 2 is masked
    ],
)
def test_prompt_lookup_finds_the_token_whose_neighbours_agree_best(
    text: list[int], target: int, token: int | None
) -> None:
    tokens, is_found = look_up(torch.tensor([text]), torch.tensor([target]))
    assert is_found.tolist() == [token is not None]
    if token is not None:
        assert tokens.tolist() == [token]


@pytest.fixture(scope="module")
def tiny_of_five() -> Enumeration:
    return Enumeration(random_model(max_position_embeddings=5, **TINY), length=5)


@pytest.mark.parametrize("draft_length", [2, 4])
@pytest.mark.parametrize("order", [(2, 0, 3, 1, 4), (0, 1, 2, 3, 4)])
def test_prompt_lookup_samples_follow_the_chain_rule_exactly(
    tiny_of_five: Enumeration, order: tuple[int, ...], draft_length: int
) -> None:
    output = tiny_of_five.model.generate(
        num_return_sequences=20_000,
        order=torch.tensor(order).expand(20_000, -1),
        strategy="speculative",
        draft="prompt_lookup",
        draft_length=draft_length,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    expected = tiny_of_five.of_groups(tuple((p,) for p in order))
    assert chi_square(tiny_of_five.count(output.sequences), expected) < 1
    assert 0.1 < output.acceptance_rate < 0.98


def test_prompt_lookup_log_probabilities_equal_full_forwards() -> None:
    """The texts of the batch are repetitive, and differ in their numbers of masks and in their padding."""
    model, mask = random_model(vocab_size=4, position_encoding="rotary"), 4
    inputs = torch.tensor([[0, 1, 2, 3] * 3, [1, 1] * 6, [2, 3] * 6])
    inputs[0, [3, 5, 6, 7, 11]] = mask
    inputs[1, 4:] = mask
    inputs[2, :9] = mask
    attention_mask = torch.ones_like(inputs)
    attention_mask[2, [4, 9]] = 0
    output = model.generate(
        inputs,
        attention_mask=attention_mask,
        strategy="speculative",
        draft="prompt_lookup",
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert output.acceptance_rate > 0
    for row in range(3):
        is_token, context = attention_mask[row].bool(), ()
        positions = is_token.cumsum(0) - 1  # without padding
        for position in output.orders[row].tolist()[: int(is_token.sum())]:
            token = output.sequences[row, position].item()
            if inputs[row, position] == mask:
                prediction = conditional(model, context, positions[position].item(), int(is_token.sum()))
                assert abs(output.token_logprobs[row, position] - prediction[token].log()) < 1e-10
            context += ((positions[position].item(), token),)


def test_prompt_lookup_saves_passes_for_repetitive_text() -> None:
    """The model always predicts token 0: each round accepts three drafts and adds one more token."""
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor([200.0] + [0.0] * 10))
    prompt = torch.zeros(1, 4, dtype=torch.long)
    arguments = {"max_length": 12, "order": "left_to_right", "generator": seeded(), "return_dict_in_generate": True}
    output = model.generate(prompt, strategy="speculative", draft="prompt_lookup", draft_length=3, **arguments)
    assert output.acceptance_rate == 1
    assert output.num_forward_passes == 2  # of 4 tokens each
    assert model.generate(prompt, **arguments).num_forward_passes == 8


def test_without_drafts_there_is_no_acceptance_rate() -> None:
    """One masked token needs no draft that could be rejected."""
    output = random_model().generate(max_length=1, strategy="speculative", return_dict_in_generate=True)
    assert output.acceptance_rate is None


def test_finished_sequences_do_not_change_the_acceptance_rate() -> None:
    model = random_model()
    torch.nn.init.zeros_(model.lm_head.weight)  # the bias alone predicts, so all drafts are accepted
    output = model.generate(ragged_inputs(), strategy="speculative", generator=seeded(), return_dict_in_generate=True)
    assert output.acceptance_rate == 1
