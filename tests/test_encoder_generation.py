# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Generation with encoders, against enumerations that use full forward passes only."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from tests.references import Enumeration, chi_square, encoder_conditional, log_score, random_encoder, seeded

pytestmark = pytest.mark.usefixtures("large_chunks")


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
        tiny.model.lm_head.bias -= 0.7  # lowers the score: fewer positions are unmasked, with the same tokens
    return tiny


def draw(tiny: Enumeration, num_samples: int = 20_000, **arguments: object) -> torch.Tensor:
    return tiny.count(tiny.model.generate(num_return_sequences=num_samples, generator=seeded(), **arguments))


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_bernoulli_samples_the_reverse_process(tiny: Enumeration, num_steps: int) -> None:
    expected = tiny.of_bernoulli([1 / num_steps] * num_steps)
    assert chi_square(draw(tiny, num_steps=num_steps), expected) < 1


def test_other_unmasking_rules_fail_the_chi_square_test(tiny: Enumeration) -> None:
    counts = draw(tiny, num_samples=60_000, num_steps=2)
    others = tiny.of_fixed_counts([1, 2]), tiny.of_bernoulli([0.25] * 4)
    assert all(chi_square(counts, other) > 1.5 for other in others)


def test_one_position_at_a_time_and_fixed_counts(tiny: Enumeration) -> None:
    assert chi_square(draw(tiny), tiny.of_fixed_counts([1, 1, 1])) < 1
    assert chi_square(draw(tiny, order="left_to_right"), tiny.of_groups(((0,), (1,), (2,)))) < 1
    assert chi_square(draw(tiny, num_steps=2, unmasking="fixed_count"), tiny.of_fixed_counts([1, 2])) < 1


def test_infilling_samples_the_conditional(tiny: Enumeration) -> None:
    mask = tiny.model.config.mask_token_id
    samples = tiny.model.generate(
        torch.tensor([[mask, 2, mask]]), order="left_to_right", num_return_sequences=10_000, generator=seeded()
    )
    matching = torch.tensor([sequence[1] == 2 for sequence in tiny.sequences])
    expected = tiny.of_groups(((1,), (0,), (2,)))[matching]
    assert chi_square(tiny.count(samples)[matching], expected / expected.sum()) < 1


def test_refinement_log_probabilities_equal_full_forwards() -> None:
    """The context of a token is all that was not re-masked, and what the round unmasked before it."""
    model = random_encoder()
    output = model.generate(refine_rounds=2, refine_length=4, generator=seeded(), return_dict_in_generate=True)
    ids, order = output.sequences[0].tolist(), output.orders[0].tolist()
    for rank in range(8, 12):
        context = tuple((position, ids[position]) for position in order[:rank])
        reference = encoder_conditional(model, context, order[rank], 12)[ids[order[rank]]].log()
        assert abs(output.token_logprobs[0, order[rank]] - reference) < 1e-10


# ------------------------------------------------------------------------------------------------------------ SEDD


def noise_level(time: float) -> float:
    return -math.log1p(-(1 - 1e-3) * time)


def distribution_of_score_steps(sedd: Enumeration, num_steps: int, unmasking: str) -> torch.Tensor:
    """
    Return the distribution of samples that reverse steps from `log_score` give.

    In each step all masked positions independently stay masked or become a token. One more step unmasks the rest.
    """
    model, mask = sedd.model, sedd.model.config.mask_token_id
    times = [1 - (1 - 1e-5) * step / num_steps for step in range(num_steps + 1)]
    states = {(mask,) * 3: 1.0}
    for step, time in enumerate(times):
        next_states: dict[tuple[int, ...], float] = {}
        for state, probability in states.items():
            with torch.no_grad():
                sigma = torch.tensor([noise_level(time)], dtype=torch.float64)
                score = log_score(model, torch.tensor([state]), sigma)[0, :, :mask].exp()
            options = []
            for position, token in enumerate(state):
                if token != mask:
                    options.append([(token, 1.0)])
                    continue
                if step == num_steps:
                    token_chances = score[position] / score[position].sum()
                elif unmasking == "euler":
                    token_chances = score[position] * (time - times[step + 1]) * (1 - 1e-3) / (1 - (1 - 1e-3) * time)
                else:
                    token_chances = score[position] * math.expm1(noise_level(time) - noise_level(times[step + 1]))
                token_chances = token_chances / max(token_chances.sum().item(), 1.0)
                stays = [(mask, 1 - token_chances.sum().item())] if step < num_steps else []
                options.append([*enumerate(token_chances.tolist()), *stays])
            for choices in itertools.product(*options):
                outcome = tuple(token for token, _ in choices)
                weight = math.prod(chance for _, chance in choices)
                next_states[outcome] = next_states.get(outcome, 0.0) + probability * weight
        states = next_states
    return torch.tensor([states[sequence] for sequence in sedd.sequences], dtype=torch.float64)


@pytest.mark.parametrize("unmasking", ["euler", "analytic"])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_score_steps_sample_the_reverse_process_of_sedd(sedd: Enumeration, unmasking: str, num_steps: int) -> None:
    expected = distribution_of_score_steps(sedd, num_steps, unmasking)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert chi_square(draw(sedd, num_steps=num_steps, unmasking=unmasking), expected) < 1


@pytest.mark.parametrize("unmasking", ["euler", "analytic"])
def test_score_steps_unmask_with_the_probability_of_the_total_score(sedd: Enumeration, unmasking: str) -> None:
    """Each position independently. The last step unmasks the rest, which are most positions here."""
    output = sedd.model.generate(
        num_return_sequences=5000, num_steps=2, unmasking=unmasking, generator=seeded(), return_dict_in_generate=True
    )
    with torch.no_grad():
        masked = torch.full((1, 3), sedd.model.config.mask_token_id)
        sigma = torch.tensor([noise_level(1.0)], dtype=torch.float64)
        score = log_score(sedd.model, masked, sigma)[0, :, :-1].exp().sum(-1)
    middle = 1 - (1 - 1e-5) / 2
    rate = (
        (1 - middle) * (1 - 1e-3) / 1e-3 if unmasking == "euler" else math.expm1(noise_level(1.0) - noise_level(middle))
    )
    expected = (rate * score).clamp(max=1)
    found = (output.unmasking_steps == 0).double().mean(dim=0)
    assert ((found - expected).abs() < 4 * (expected * (1 - expected) / 5000) ** 0.5 + 1e-9).all()
    assert (expected < 0.9).all()
    assert output.unmasking_steps.max() == 2


def test_score_steps_keep_prompts_and_padding(sedd: Enumeration) -> None:
    mask = sedd.model.config.mask_token_id
    inputs = torch.tensor([[mask, mask, mask], [1, mask, 2], [0, 1, mask]])
    attention_mask = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1]])
    filled = sedd.model.generate(
        inputs, attention_mask=attention_mask, num_steps=3, unmasking="euler", generator=seeded()
    )
    assert torch.equal(filled[inputs != mask], inputs[inputs != mask])
    assert (filled < mask).all()


def test_logits_processors_do_not_change_the_number_of_unmasked_positions(sedd: Enumeration) -> None:
    arguments = {"num_return_sequences": 50, "num_steps": 3, "unmasking": "euler", "return_dict_in_generate": True}
    steps = [
        sedd.model.generate(logits_processor=processors, generator=seeded(), **arguments).unmasking_steps
        for processors in ([], [lambda ids, scores: scores + 5])
    ]
    assert torch.equal(*steps)


@pytest.mark.parametrize("arguments", [{"order": "left_to_right"}, {"block_length": 2}, {"stride": 2}])
def test_score_steps_refuse_other_orders(arguments: dict, sedd: Enumeration) -> None:
    message = "`unmasking='euler'` needs `num_steps`. It"
    with pytest.raises(ValueError, match=message):
        sedd.model.generate(num_steps=3, unmasking="euler", **arguments)


def test_score_steps_refuse_refinement(sedd: Enumeration) -> None:
    with pytest.raises(ValueError, match="`unmasking='euler'` needs"):
        sedd.model.generate(num_steps=3, unmasking="euler", refine_rounds=1, refine_length=1)


def test_sedd_with_bernoulli_steps_takes_the_noise_level_from_the_masks(sedd: Enumeration) -> None:
    assert chi_square(draw(sedd, num_steps=2), sedd.of_bernoulli([0.5, 0.5])) < 1


# ------------------------------------------------------------------------------------------------------- passes


def test_steps_that_unmask_nothing_take_no_pass() -> None:
    model = random_encoder()
    output = model.generate(num_steps=1000, generator=seeded(), return_dict_in_generate=True)
    assert output.num_forward_passes == len(output.unmasking_steps.unique()) == 12
    assert output.num_rows == 12 * 12


def test_only_sequences_that_unmask_something_are_computed() -> None:
    model = random_encoder()
    inputs = torch.full((2, 12), model.config.mask_token_id)
    inputs[1, 2:] = 3
    output = model.generate(inputs, generator=seeded(), return_dict_in_generate=True)
    assert output.num_forward_passes == 12
    assert output.num_rows == 12 * 12 + 2 * 12


def test_modulations_are_computed_once_for_all_steps() -> None:
    """Targets are the same in every step. The last call also checks that the table gives the same tokens."""
    model = random_encoder(vocab_size=20, max_position_embeddings=12, target_injection="adaln")
    calls: list[int] = []
    for module in (model.model.modulation, *(layer.modulation for layer in model.model.layers)):
        module.proj.register_forward_hook(lambda *_: calls.append(1))
    samples = model.generate(max_length=12, num_steps=6, unmasking="fixed_count", generator=seeded())
    assert len(calls) == len(model.model.layers) + 1
    precompute = model.model.precompute
    model.model.precompute = lambda device, *_, **__: precompute(device)
    assert (model.generate(max_length=12, num_steps=6, unmasking="fixed_count", generator=seeded()) == samples).all()
    assert len(calls) == 7 * (len(model.model.layers) + 1)


def test_padding_anywhere_does_not_change_the_result() -> None:
    model = random_encoder(position_encoding="rotary")
    mask = model.config.mask_token_id
    plain = torch.tensor([[1, mask, mask, 4]])
    padded, attention_mask = torch.tensor([[-1, 1, mask, 99, mask, 4, mask]]), torch.tensor([[0, 1, 1, 0, 1, 1, 0]])
    is_token = attention_mask[0].bool()
    arguments = {"do_sample": False, "order": "left_to_right", "return_dict_in_generate": True}
    first = model.generate(plain, **arguments)
    second = model.generate(padded, attention_mask=attention_mask, **arguments)
    assert torch.equal(second.sequences[:, is_token], first.sequences)
    assert torch.equal(second.sequences[:, ~is_token], padded[:, ~is_token])
    torch.testing.assert_close(second.token_logprobs[:, is_token], first.token_logprobs, rtol=0, atol=1e-12)


def test_encoders_refuse_speculative_decoding() -> None:
    with pytest.raises(ValueError, match="`strategy='speculative'` needs a decoder"):
        random_encoder().generate(strategy="speculative")


def test_saved_encoder_generates_the_same(tmp_path: Path) -> None:
    model = random_encoder()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    expected = model.generate(num_steps=4, generator=seeded())
    assert torch.equal(loaded.double().generate(num_steps=4, generator=seeded()), expected)
