# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Adaptive orders, the entropy bound and the threshold.

Samples are compared with an enumeration that follows the same policy with full forward passes.
"""

import math
from collections.abc import Callable

import pytest
import torch

from modeling_aogpt.unmasking import CERTAINTY_MEASURES
from tests.references import (
    Context,
    Enumeration,
    chi_square,
    encoder_conditional,
    random_encoder,
    random_model,
    seeded,
)

pytestmark = pytest.mark.usefixtures("large_chunks")

CERTAINTY = {
    "confidence": lambda p: p.max(),
    "margin": lambda p: p.sort().values[-1] - p.sort().values[-2],
    "entropy": lambda p: (p * p.log()).sum(),
}


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def tiny(request: pytest.FixtureRequest) -> Enumeration:
    """Return a model of four positions and three tokens for which each measure gives another order."""
    shape = {"max_position_embeddings": 4, "initializer_range": 0.45}
    if request.param == "decoder":
        model = random_model(vocab_size=3, position_encoding="rotary", **shape)
        tiny = Enumeration(model, length=4)
    else:
        model = random_encoder(vocab_size=4, **shape)
        tiny = Enumeration(model, length=4, conditional=encoder_conditional)
    with torch.no_grad():
        model.lm_head.weight *= 0.4  # so that no sequence is too rare to be counted
    return tiny


def draw(tiny: Enumeration, **arguments: object) -> torch.Tensor:
    samples = tiny.model.generate(num_return_sequences=10_000, generator=seeded(), **arguments)
    return tiny.count(samples)


def most_certain(measure: str, count: int, block_length: int = 4, window: int = 4) -> Callable[..., list[int]]:
    """Return the policy that unmasks `count` positions per step, in order of blocks and then of certainty."""

    def policy(context: Context, predictions: dict[int, torch.Tensor]) -> list[int]:
        masked = sorted(predictions)
        candidates = [p for p in masked if p // block_length <= masked[:count][-1] // block_length][:window]
        ranked = sorted(candidates, key=lambda p: (p // block_length, -CERTAINTY[measure](predictions[p])))
        return ranked[:count]

    return policy


@pytest.mark.parametrize("measure", CERTAINTY)
def test_the_most_certain_position_is_unmasked_first(tiny: Enumeration, measure: str) -> None:
    expected = tiny.of_policy(most_certain(measure, 1))
    assert chi_square(draw(tiny, order=measure), expected) < 1
    others = [tiny.of_policy(most_certain(other, 1)) for other in CERTAINTY if other != measure]
    assert any((expected - other).abs().sum() > 0.02 for other in others)  # the measures give different distributions


def test_the_most_certain_positions_are_unmasked_together(tiny: Enumeration) -> None:
    expected = tiny.of_policy(most_certain("confidence", 2))
    assert chi_square(draw(tiny, order="confidence", num_steps=2, unmasking="fixed_count"), expected) < 1


def test_window_limits_candidates_to_the_first_masked_positions(tiny: Enumeration) -> None:
    expected = tiny.of_policy(most_certain("margin", 1, window=2))
    assert chi_square(draw(tiny, order="margin", window=2), expected) < 1
    assert (expected - tiny.of_policy(most_certain("margin", 1))).abs().sum() > 0.02


@pytest.mark.parametrize("count", [1, 2])
def test_blocks_are_unmasked_one_after_another(tiny: Enumeration, count: int) -> None:
    """Two positions per step and blocks of three: a step takes the last of a block and the best of the next."""
    expected = tiny.of_policy(most_certain("entropy", count, block_length=3))
    arguments = {"num_steps": 2, "unmasking": "fixed_count"} if count == 2 else {}
    assert chi_square(draw(tiny, order="entropy", block_length=3, **arguments), expected) < 1


def within_bound(bound: float, rank: Callable[[dict[int, torch.Tensor]], list[int]]) -> Callable[..., list[int]]:
    """Return the policy that unmasks as many of the ranked positions as the entropy bound allows."""

    def policy(context: Context, predictions: dict[int, torch.Tensor]) -> list[int]:
        ranked = rank(predictions)
        entropies = [-CERTAINTY["entropy"](predictions[p]).item() for p in ranked]
        counts = [k for k in range(2, len(ranked) + 1) if sum(entropies[:k]) - max(entropies[:k]) <= bound]
        return ranked[: max(counts, default=1)]

    return policy


@pytest.mark.parametrize("bound", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("order", ["left_to_right", "entropy"])
def test_steps_unmask_as_many_positions_as_the_bound_allows(tiny: Enumeration, order: str, bound: float) -> None:
    def by_certainty(predictions: dict[int, torch.Tensor]) -> list[int]:
        return sorted(predictions, key=lambda p: -CERTAINTY["entropy"](predictions[p]))

    expected = tiny.of_policy(within_bound(bound, sorted if order == "left_to_right" else by_certainty))
    assert chi_square(draw(tiny, order=order, unmasking="entropy_bound", entropy_bound=bound), expected) < 1


def test_entropy_bound_unmasks_one_block_per_step_at_most() -> None:
    """Even a large bound: three blocks of four positions take three passes, each of which queries one block."""
    output = random_model().generate(
        order="entropy", block_length=4, unmasking="entropy_bound", entropy_bound=1e3, return_dict_in_generate=True
    )
    assert output.num_forward_passes == 3
    assert (output.unmasking_steps == torch.arange(12) // 4).all()
    assert output.num_rows <= 4 + (4 + 4) + (4 + 4)


def reaching(threshold: float, measure: str, block_length: int = 4) -> Callable[..., list[int]]:
    """Return the policy that unmasks the positions of a block that reach the threshold, or the most certain one."""

    def policy(context: Context, predictions: dict[int, torch.Tensor]) -> list[int]:
        block = min(predictions) // block_length
        candidates = [position for position in predictions if position // block_length == block]
        ranked = sorted(candidates, key=lambda position: -CERTAINTY[measure](predictions[position]))
        return [position for position in ranked if predictions[position].max() >= threshold] or ranked[:1]

    return policy


@pytest.mark.parametrize("block_length", [None, 2])
@pytest.mark.parametrize(("threshold", "order"), [(0.45, None), (0.6, "confidence"), (0.6, "margin")])
def test_steps_unmask_the_positions_that_reach_the_threshold(
    tiny: Enumeration, threshold: float, order: str | None, block_length: int | None
) -> None:
    expected = tiny.of_policy(reaching(threshold, order or "confidence", block_length or 4))
    drawn = draw(tiny, order=order, unmasking="threshold", threshold=threshold, block_length=block_length)
    assert chi_square(drawn, expected) < 1


@pytest.mark.parametrize("make", [random_model, random_encoder])
def test_the_threshold_determines_the_number_of_passes(make: Callable) -> None:
    model = make()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias[:11] = torch.tensor([4.7] + [0.0] * 10)  # a probability of 0.917
    arguments = {"unmasking": "threshold", "return_dict_in_generate": True}
    passes = [
        model.generate(**arguments, **threshold).num_forward_passes
        for threshold in ({"threshold": 0.0}, {}, {"threshold": 0.9}, {"threshold": 0.92}, {"threshold": 1.0})
    ]
    assert passes == [1, 1, 1, 12, 12]
    assert model.generate(**arguments, block_length=4).unmasking_steps.tolist() == [[0] * 4 + [1] * 4 + [2] * 4]
    one_by_one = model.generate(**arguments, threshold=1.0, order="left_to_right")
    assert one_by_one.unmasking_steps.tolist() == [list(range(12))]


def test_sequences_reach_the_threshold_independently() -> None:
    """A sequence without masks or with few of them takes no part in later steps."""
    model = random_model()
    inputs = torch.full((3, 12), model.config.mask_token_id)
    inputs[0] = 3
    inputs[1, 1:] = 4
    output = model.generate(inputs, unmasking="threshold", threshold=0.5, do_sample=False, return_dict_in_generate=True)
    alone = model.generate(
        inputs[2:], unmasking="threshold", threshold=0.5, do_sample=False, return_dict_in_generate=True
    )
    assert output.unmasking_steps[1].tolist() == [0] + [-1] * 11
    assert torch.equal(output.unmasking_steps[2:], alone.unmasking_steps)
    assert 1 < alone.num_forward_passes < 12


def test_only_candidates_are_queried() -> None:
    output = random_model().generate(order="margin", block_length=1, return_dict_in_generate=True)
    assert output.num_rows == 12
    output = random_encoder().generate(
        num_return_sequences=4, order="margin", num_steps=30, generator=seeded(), return_dict_in_generate=True
    )
    # Sequences that unmask nothing in a step are not computed.
    assert output.num_rows == 12 * sum(len(steps.unique()) for steps in output.unmasking_steps)
    output = random_model().generate(
        unmasking="entropy_bound", entropy_bound=0.0, window=2, return_dict_in_generate=True
    )
    assert output.num_rows == 2 * 11 + 1  # the first query of a step is also the row of the last token


def test_window_is_at_least_the_number_of_positions_to_unmask() -> None:
    output = random_model().generate(
        order="margin", window=1, num_steps=2, unmasking="fixed_count", return_dict_in_generate=True
    )
    assert output.num_forward_passes == 2
    assert (output.sequences < 11).all()


@pytest.mark.parametrize(
    "settings", [{"order": "confidence"}, {"unmasking": "entropy_bound"}, {"unmasking": "threshold", "threshold": 0.5}]
)
def test_certainty_does_not_depend_on_temperature_and_truncation(settings: dict) -> None:
    """With `top_k=1`, the truncated distributions of all positions are equally certain."""
    model = random_model()
    arguments = {"return_dict_in_generate": True, "do_sample": False, **settings}
    plain = model.generate(generator=seeded(), **arguments)
    for truncation in ({"top_k": 1}, {"temperature": 0.1}, {"top_p": 0.5}):
        truncated = model.generate(generator=seeded(), **arguments, **truncation)
        assert torch.equal(truncated.unmasking_steps, plain.unmasking_steps)
        assert torch.equal(truncated.sequences, plain.sequences)
    assert len(plain.unmasking_steps.unique()) > 1


def test_certainty_measures() -> None:
    probabilities = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])
    measured = {name: measure(probabilities).tolist() for name, measure in CERTAINTY_MEASURES.items()}
    assert measured["confidence"] == [1, 0.5, 0.5]
    assert measured["margin"] == [1, 0, 0.25]
    assert measured["entropy"] == pytest.approx([0, -math.log(2), -1.5 * math.log(2)])


@pytest.mark.parametrize("order", CERTAINTY_MEASURES)
def test_step_finishes_a_block_before_the_next(order: str) -> None:
    output = random_model().generate(
        num_return_sequences=8,
        order=order,
        block_length=5,
        num_steps=3,
        unmasking="fixed_count",
        generator=seeded(),
        return_dict_in_generate=True,
    )
    steps = output.unmasking_steps
    assert (steps[:, :5].sort().values == torch.tensor([0, 0, 0, 0, 1])).all()
    assert (steps[:, 5:10].sort().values == torch.tensor([1, 1, 1, 2, 2])).all()


def test_entropy_bound_determines_the_number_of_passes() -> None:
    model = random_model()
    passes = [
        model.generate(
            unmasking="entropy_bound", entropy_bound=bound, generator=seeded(), return_dict_in_generate=True
        ).num_forward_passes
        for bound in (0.0, 2.0, 1000.0)
    ]
    assert passes[0] == 12
    assert 1 < passes[1] < 12
    assert passes[2] == 1


def test_default_entropy_bound_is_a_tenth_of_a_nat() -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor([6.0] + [0.0] * 10))  # an entropy of 0.17 nats
    passes = [
        model.generate(unmasking="entropy_bound", return_dict_in_generate=True, **bound).num_forward_passes
        for bound in ({}, {"entropy_bound": 0.1}, {"entropy_bound": 0.2})
    ]
    assert passes == [12, 12, 6]


@pytest.mark.parametrize("make", [random_model, random_encoder])
@pytest.mark.parametrize(
    ("order", "arguments"),
    [
        *((order, {"num_steps": 4}) for order in CERTAINTY_MEASURES),
        ("entropy", {"unmasking": "entropy_bound", "entropy_bound": 2}),
        ("random", {"unmasking": "threshold", "threshold": 0.5}),
    ],
)
def test_log_probabilities_equal_full_forwards(make: Callable, order: str, arguments: dict) -> None:
    """In a batch with different numbers of masks and padding, where each sequence has its own order."""
    model = make(position_encoding="rotary")
    mask = model.config.mask_token_id
    inputs = torch.randint(0, 11, (3, 9), generator=seeded())
    inputs[0] = mask
    inputs[1, [0, 4, 5]] = mask
    inputs[2, 2:] = mask
    attention_mask = torch.ones_like(inputs)
    attention_mask[2, [0, 3]] = 0
    output = model.generate(
        inputs,
        attention_mask=attention_mask,
        order=order,
        generator=seeded(),
        return_dict_in_generate=True,
        **arguments,
    )
    reference = Enumeration(model, 0, encoder_conditional) if make is random_encoder else Enumeration(model, 0)
    for row in range(3):
        is_token = attention_mask[row].bool()
        positions = is_token.cumsum(0) - 1  # without padding
        ids, steps = output.sequences[row], output.unmasking_steps[row]
        assert torch.equal(ids[~is_token], inputs[row, ~is_token])
        for target in (is_token & (inputs[row] == mask)).nonzero().flatten().tolist():
            context = tuple(
                (positions[p].item(), ids[p].item())
                for p in output.orders[row].tolist()
                if is_token[p] and steps[p] < steps[target]
            )
            prediction = reference.conditional(model, context, positions[target].item(), int(is_token.sum()))
            assert abs(output.token_logprobs[row, target] - prediction[ids[target]].log()) < 1e-10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 3}, "`window` has no effect without an adaptive"),
        ({"window": 0, "order": "margin"}, "`window` must be an integer of at least 1"),
        ({"block_length": 2, "stride": 2}, r"`block_length` \(2\) and `stride` \(2\)"),
        ({"block_length": 2, "order": torch.arange(12)[None]}, "`block_length` and `stride` cannot be"),
        ({"unmasking": "entropy_bound", "num_steps": 3}, r"`num_steps` \(3\) cannot be combined with"),
        ({"unmasking": "threshold", "num_steps": 3}, r"`num_steps` \(3\) cannot be .* many steps as"),
        ({"unmasking": "threshold", "threshold": 1.5}, "`threshold` must be a number"),
        ({"threshold": 0.5}, "`threshold` has no effect without"),
        ({"strategy": "speculative", "unmasking": "threshold"}, "cannot be combined with"),
        ({"unmasking": "entropy_bound", "entropy_bound": -1.0}, "`entropy_bound` must be a number .* but is"),
        ({"strategy": "speculative", "order": "entropy"}, "cannot be combined with `order="),
        ({"strategy": "speculative", "unmasking": "entropy_bound"}, "cannot be combined with `unmasking="),
        ({"unmasking": "euler", "num_steps": 3}, "`unmasking='euler'` needs a model that"),
        ({"unmasking": "analytic"}, "`unmasking='analytic'` needs `num_steps`"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)
