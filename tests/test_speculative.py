# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt.sampling import make_warpers
from tests.references import Enumeration, chi_square, conditional, random_model

pytestmark = pytest.mark.usefixtures("large_chunks")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    """Four positions, two tokens, and predictions that change much with every token revealed."""
    model = random_model(vocab_size=2, max_position_embeddings=4, position_encoding="rotary", initializer_range=0.3)
    return Enumeration(model, length=4)


def check_samples(tiny: Enumeration, **arguments: object) -> float:
    """Holds samples against the chain rule in an order; returns the acceptance rate."""
    order = (2, 0, 3, 1)
    output = tiny.model.generate(
        num_return_sequences=20_000,
        order=torch.tensor(order).expand(20_000, -1),
        strategy="speculative",
        generator=seeded(),
        return_dict_in_generate=True,
        **arguments,
    )
    counts = tiny.counts_of(output.sequences)
    assert chi_square(counts, tiny.of_groups(tuple((position,) for position in order))) < 1
    assert chi_square(counts, tiny.of_groups((order[:2], order[2:]))) > 2  # what keeping every draft would sample
    return output.acceptance_rate


@pytest.mark.parametrize("draft_length", [2, 3, 4, 9])
def test_samples_the_chain_rule_exactly(tiny: Enumeration, draft_length: int) -> None:
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
    assert chi_square(tiny.counts_of(samples), torch.tensor(expected, dtype=torch.float64)) < 1


@pytest.mark.parametrize("computes_in_bfloat16", [True, False])
@pytest.mark.parametrize("draft", ["model", "ngram"])
def test_samples_a_bfloat16_model_exactly(
    draft: str, computes_in_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against the predictions that the bfloat16 model itself makes in full forwards, whatever processor."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: computes_in_bfloat16)
    arguments = {"vocab_size": 2, "max_position_embeddings": 4, "position_encoding": "rotary", "initializer_range": 0.3}
    tiny = Enumeration(random_model(**arguments).bfloat16(), length=4)
    assert check_samples(tiny, draft=draft) < 0.98


@pytest.mark.parametrize("truncation", [{"top_p": 0.7}, {"top_k": 3}, {"temperature": 0.7, "top_p": 0.9}])
@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_log_probabilities_are_those_of_full_forwards(order: str, truncation: dict) -> None:
    """In a ragged batch with padding: given tokens from none to all but one."""
    model, mask = random_model(position_encoding="rotary"), 11
    inputs = torch.randint(0, 11, (4, 12), generator=seeded())
    inputs[0] = mask
    inputs[1, 5] = mask
    inputs[2, [0, 3, 4, 8, 11]] = mask
    inputs[3, 2:] = mask
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


@pytest.mark.parametrize("draft_length", [2, 5])
def test_never_takes_more_passes_than_tokens(draft_length: int) -> None:
    model = random_model()
    for length in range(1, 13):
        output = model.generate(
            max_length=length,
            strategy="speculative",
            draft_length=draft_length,
            generator=seeded(length),
            return_dict_in_generate=True,
        )
        assert output.num_forward_passes <= length
        assert (output.sequences < 11).all()
        assert output.reveal_steps.max() <= (length - 1) // 2


def test_where_tokens_do_not_depend_on_each_other_all_drafts_are_accepted() -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()  # the bias alone predicts
        model.lm_head.bias.normal_(generator=seeded())
    output = model.generate(strategy="speculative", draft_length=5, generator=seeded(), return_dict_in_generate=True)
    assert output.acceptance_rate == 1
    assert output.num_forward_passes == 4  # 5 drafts and one more token in each round of two passes
    assert output.num_rows == 4 * 5  # what was verified stays in the cache


def test_runs_in_bfloat16() -> None:
    model = random_model(initializer_range=0.1).bfloat16()
    output = model.generate(
        num_return_sequences=4, strategy="speculative", generator=seeded(), return_dict_in_generate=True
    )
    scores = model.log_likelihood(output.sequences, output.orders).log_likelihood
    torch.testing.assert_close(output.token_logprobs.sum(1), scores, rtol=0, atol=0.2)


@pytest.mark.parametrize("draft", ["model", "ngram"])
def test_non_finite_logits_end_it(draft: str) -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(ValueError, match="logits are not finite"):
        model.generate(strategy="speculative", draft=draft)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "lookahead"}, "strategy='lookahead' is not one of 'parallel', 'speculative'"),
        ({"strategy": "speculative", "num_steps": 3}, "takes neither num_steps nor do_sample=False"),
        ({"strategy": "speculative", "do_sample": False}, "takes neither num_steps nor do_sample=False"),
        ({"strategy": "speculative", "draft_length": 1}, "draft_length=1 must be an integer of at least 2"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)
