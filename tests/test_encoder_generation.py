# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The encoder behind the same `generate`, against enumerations that use its forward pass alone."""

import itertools
import math

import pytest
import torch

from tests.references import Context, Enumeration, chi_square, encoder_conditional, random_encoder

pytestmark = pytest.mark.usefixtures("large_chunks")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_encoder(head_scale: float, **arguments: object) -> Enumeration:
    model = random_encoder(vocab_size=4, max_position_embeddings=3, initializer_range=0.5, **arguments)
    with torch.no_grad():
        model.lm_head.weight *= head_scale  # so that no sequence is too rare to be counted
    return Enumeration(model, 3, encoder_conditional)


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    return tiny_encoder(0.5)


@pytest.fixture(scope="module")
def sedd() -> Enumeration:
    tiny = tiny_encoder(0.12, target_injection="sigma", position_encoding="rotary")
    with torch.no_grad():
        tiny.model.lm_head.bias -= 0.7  # a score that is too low: what is drawn stays the same, but less is revealed
    return tiny


def draw(tiny: Enumeration, num_samples: int = 20_000, **arguments: object) -> torch.Tensor:
    return tiny.counts_of(tiny.model.generate(num_return_sequences=num_samples, generator=seeded(), **arguments))


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_bernoulli_samples_the_reverse_process(tiny: Enumeration, num_steps: int) -> None:
    expected = tiny.of_bernoulli([1 / num_steps] * num_steps)
    assert chi_square(draw(tiny, num_steps=num_steps), expected) < 1


def test_the_test_tells_the_rules_apart(tiny: Enumeration) -> None:
    counts = draw(tiny, num_steps=2)
    assert all(chi_square(counts, other) > 1.5 for other in (tiny.of_fixed([1, 2]), tiny.of_bernoulli([0.25] * 4)))


def test_one_at_a_time_and_fixed_counts(tiny: Enumeration) -> None:
    assert chi_square(draw(tiny), tiny.of_fixed([1, 1, 1])) < 1
    assert chi_square(draw(tiny, order="left_to_right"), tiny.of_groups(((0,), (1,), (2,)))) < 1
    assert chi_square(draw(tiny, num_steps=2, reveal="fixed"), tiny.of_fixed([1, 2])) < 1


def test_infilling_samples_the_conditional(tiny: Enumeration) -> None:
    mask = tiny.model.config.mask_token_id
    samples = tiny.model.generate(
        torch.tensor([[mask, 2, mask]]), order="left_to_right", num_return_sequences=10_000, generator=seeded()
    )
    matching = torch.tensor([sequence[1] == 2 for sequence in tiny.sequences])
    expected = tiny.of_groups(((1,), (0,), (2,)))[matching]
    assert chi_square(tiny.counts_of(samples)[matching], expected / expected.sum()) < 1


# ------------------------------------------------------------------------------------------------------------ SEDD


def noise(time: float) -> float:
    return -math.log1p(-(1 - 1e-3) * time)


def of_score_steps(sedd: Enumeration, num_steps: int, rule: str) -> torch.Tensor:
    """
    The distribution that reverse steps from `log_score` give: of every state, all masked positions at once and each on
    its own stay masked or become a token; a last step reveals what is left.
    """
    model, mask = sedd.model, sedd.model.config.mask_token_id
    times = [1 - (1 - 1e-5) * step / num_steps for step in range(num_steps + 1)]
    states = {(mask,) * 3: 1.0}
    for step, time in enumerate(times):
        later: dict[Context, float] = {}
        for state, probability in states.items():
            with torch.no_grad():
                sigma = torch.tensor([noise(time)], dtype=torch.float64)
                score = model.log_score(torch.tensor([state]), sigma)[0, :, :mask].exp()
            options = []
            for position, token in enumerate(state):
                if token != mask:
                    options.append([(token, 1.0)])
                    continue
                if step == num_steps:
                    becomes = score[position] / score[position].sum()
                elif rule == "euler":
                    becomes = score[position] * (time - times[step + 1]) * (1 - 1e-3) / (1 - (1 - 1e-3) * time)
                else:
                    becomes = score[position] * math.expm1(noise(time) - noise(times[step + 1]))
                becomes = becomes / max(becomes.sum().item(), 1.0)
                stays = [(mask, 1 - becomes.sum().item())] if step < num_steps else []
                options.append([*enumerate(becomes.tolist()), *stays])
            for outcome in itertools.product(*options):
                state_after = tuple(token for token, _ in outcome)
                weight = math.prod(chance for _, chance in outcome)
                later[state_after] = later.get(state_after, 0.0) + probability * weight
        states = later
    return torch.tensor([states[sequence] for sequence in sedd.sequences], dtype=torch.float64)


@pytest.mark.parametrize("rule", ["euler", "analytic"])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_score_steps_of_sedd(sedd: Enumeration, rule: str, num_steps: int) -> None:
    expected = of_score_steps(sedd, num_steps, rule)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert chi_square(draw(sedd, num_steps=num_steps, reveal=rule), expected) < 1


@pytest.mark.parametrize("rule", ["euler", "analytic"])
def test_a_step_reveals_as_many_as_the_score_says(sedd: Enumeration, rule: str) -> None:
    """Each position of its own, with the probability that it turns into any token; most are left to the last step."""
    output = sedd.model.generate(
        num_return_sequences=5000, num_steps=2, reveal=rule, generator=seeded(), return_dict_in_generate=True
    )
    with torch.no_grad():
        masked = torch.full((1, 3), sedd.model.config.mask_token_id)
        score = sedd.model.log_score(masked, torch.tensor([noise(1.0)], dtype=torch.float64))[0, :, :-1].exp().sum(-1)
    middle = 1 - (1 - 1e-5) / 2
    rate = (1 - middle) * (1 - 1e-3) / 1e-3 if rule == "euler" else math.expm1(noise(1.0) - noise(middle))
    expected = (rate * score).clamp(max=1)
    found = (output.reveal_steps == 0).double().mean(dim=0)
    assert ((found - expected).abs() < 4 * (expected * (1 - expected) / 5000) ** 0.5 + 1e-9).all()
    assert (expected < 0.9).all()
    assert output.reveal_steps.max() == 2


def test_score_steps_of_a_ragged_batch_leave_alone_what_is_given(sedd: Enumeration) -> None:
    mask = sedd.model.config.mask_token_id
    inputs = torch.tensor([[mask, mask, mask], [1, mask, 2], [0, 1, mask]])
    keep = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1]])
    filled = sedd.model.generate(inputs, attention_mask=keep, num_steps=3, reveal="euler", generator=seeded())
    assert torch.equal(filled[inputs != mask], inputs[inputs != mask])
    assert (filled < mask).all()


def test_processors_change_which_tokens_are_revealed_and_not_how_many(sedd: Enumeration) -> None:
    arguments = {"num_return_sequences": 50, "num_steps": 3, "reveal": "euler", "return_dict_in_generate": True}
    steps = [
        sedd.model.generate(logits_processor=processors, generator=seeded(), **arguments).reveal_steps
        for processors in ([], [lambda ids, scores: scores + 5])
    ]
    assert torch.equal(*steps)


@pytest.mark.parametrize(
    "arguments",
    [{"order": "left_to_right"}, {"block_length": 2}, {"stride": 2}, {"refine_rounds": 1, "refine_length": 1}],
)
def test_score_steps_take_no_other_order(arguments: dict, sedd: Enumeration) -> None:
    with pytest.raises(ValueError, match=r"needs num_steps, and decides itself|begins with all hidden"):
        sedd.model.generate(num_steps=3, reveal="euler", **arguments)


def test_sedd_as_a_denoiser_takes_the_noise_level_from_the_masks(sedd: Enumeration) -> None:
    assert chi_square(draw(sedd, num_steps=2), sedd.of_bernoulli([0.5, 0.5])) < 1


# ------------------------------------------------------------------------------------------------------- passes


def test_a_step_that_reveals_nothing_costs_nothing() -> None:
    model = random_encoder()
    output = model.generate(num_steps=1000, generator=seeded(), return_dict_in_generate=True)
    assert output.num_forward_passes == len(output.reveal_steps.unique()) == 12
    assert output.num_rows == 12 * 12


def test_only_sequences_that_reveal_something_are_computed() -> None:
    model = random_encoder()
    inputs = torch.full((2, 12), model.config.mask_token_id)
    inputs[1, 2:] = 3
    output = model.generate(inputs, generator=seeded(), return_dict_in_generate=True)
    assert output.num_forward_passes == 12
    assert output.num_rows == 12 * 12 + 2 * 12


def test_padding_changes_nothing() -> None:
    model = random_encoder(position_encoding="rotary")
    mask = model.config.mask_token_id
    plain = torch.tensor([[1, mask, mask, 4]])
    padded, keep = torch.tensor([[-1, 1, mask, 99, mask, 4, mask]]), torch.tensor([[0, 1, 1, 0, 1, 1, 0]])
    first = model.generate(plain, do_sample=False, order="left_to_right", return_dict_in_generate=True)
    second = model.generate(
        padded, attention_mask=keep, do_sample=False, order="left_to_right", return_dict_in_generate=True
    )
    assert torch.equal(second.sequences[:, keep[0].bool()], first.sequences)
    assert torch.equal(second.sequences[keep == 0], padded[keep == 0])
    torch.testing.assert_close(second.token_logprobs[:, keep[0].bool()], first.token_logprobs, rtol=0, atol=1e-12)


def test_an_encoder_cannot_verify_drafts() -> None:
    with pytest.raises(ValueError, match="verifies drafts as a causal chain in one pass, which only a decoder can"):
        random_encoder().generate(strategy="speculative")


def test_generates_after_being_saved(tmp_path: object) -> None:
    model = random_encoder()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    expected = model.generate(num_steps=4, generator=seeded())
    assert torch.equal(loaded.double().generate(num_steps=4, generator=seeded()), expected)
