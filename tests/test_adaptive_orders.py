# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Orders that the model's certainty decides, against an enumeration that follows the same policy with full forwards."""

import math
from collections.abc import Callable

import pytest
import torch

from modeling_aogpt.certainty import CERTAINTIES, negative_entropy
from tests.references import (
    Context,
    Enumeration,
    chi_square,
    encoder_conditional,
    random_encoder,
    random_model,
)

pytestmark = pytest.mark.usefixtures("large_chunks")

CERTAINTY = {
    "confidence": lambda p: p.max(),
    "margin": lambda p: p.sort().values[-1] - p.sort().values[-2],
    "entropy": lambda p: (p * p.log()).sum(),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def tiny(request: pytest.FixtureRequest) -> Enumeration:
    """Four positions and three tokens, of which the measures make different orders."""
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
    return tiny.counts_of(samples)


def most_certain(measure: str, count: int, block_length: int = 4, window: int = 4) -> Callable[..., list[int]]:
    def policy(context: Context, predictions: dict[int, torch.Tensor]) -> list[int]:
        hidden = sorted(predictions)
        candidates = [p for p in hidden if p // block_length <= hidden[:count][-1] // block_length][:window]
        ranked = sorted(candidates, key=lambda p: (p // block_length, -CERTAINTY[measure](predictions[p])))
        return ranked[:count]

    return policy


@pytest.mark.parametrize("measure", CERTAINTY)
def test_the_most_certain_position_is_revealed_first(tiny: Enumeration, measure: str) -> None:
    expected = tiny.of_policy(most_certain(measure, 1))
    assert chi_square(draw(tiny, order=measure), expected) < 1
    others = [tiny.of_policy(most_certain(other, 1)) for other in CERTAINTY if other != measure]
    assert any((expected - other).abs().sum() > 0.02 for other in others)  # so the measures are told apart


def test_several_positions_at_once(tiny: Enumeration) -> None:
    expected = tiny.of_policy(most_certain("confidence", 2))
    assert chi_square(draw(tiny, order="confidence", num_steps=2, reveal="fixed"), expected) < 1


def test_a_window_holds_the_first_hidden_positions(tiny: Enumeration) -> None:
    expected = tiny.of_policy(most_certain("margin", 1, window=2))
    assert chi_square(draw(tiny, order="margin", window=2), expected) < 1
    assert (expected - tiny.of_policy(most_certain("margin", 1))).abs().sum() > 0.02


@pytest.mark.parametrize("count", [1, 2])
def test_blocks_are_revealed_one_after_the_other(tiny: Enumeration, count: int) -> None:
    """With two positions per step and blocks of three, a step takes the last of a block and the best of the next."""
    expected = tiny.of_policy(most_certain("entropy", count, block_length=3))
    arguments = {"num_steps": 2, "reveal": "fixed"} if count == 2 else {}
    assert chi_square(draw(tiny, order="entropy", block_length=3, **arguments), expected) < 1


def bounded(bound: float, rank: Callable[[dict[int, torch.Tensor]], list[int]]) -> Callable[..., list[int]]:
    def policy(context: Context, predictions: dict[int, torch.Tensor]) -> list[int]:
        ranked = rank(predictions)
        entropies = [-CERTAINTY["entropy"](predictions[p]).item() for p in ranked]
        counts = [k for k in range(2, len(ranked) + 1) if sum(entropies[:k]) - max(entropies[:k]) <= bound]
        return ranked[: max(counts, default=1)]

    return policy


@pytest.mark.parametrize("bound", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("order", ["left_to_right", "entropy"])
def test_as_many_positions_as_the_entropy_bound_allows(tiny: Enumeration, order: str, bound: float) -> None:
    def by_certainty(predictions: dict[int, torch.Tensor]) -> list[int]:
        return sorted(predictions, key=lambda p: -CERTAINTY["entropy"](predictions[p]))

    expected = tiny.of_policy(bounded(bound, sorted if order == "left_to_right" else by_certainty))
    assert chi_square(draw(tiny, order=order, reveal="entropy_bounded", entropy_bound=bound), expected) < 1


def test_an_entropy_bound_stays_within_its_block() -> None:
    """However large it is: three blocks of four take three passes, which query no more than a block."""
    output = random_model().generate(
        order="entropy", block_length=4, reveal="entropy_bounded", entropy_bound=1e3, return_dict_in_generate=True
    )
    assert output.num_forward_passes == 3
    assert (output.reveal_steps == torch.arange(12) // 4).all()
    assert output.num_rows <= 4 + (4 + 4) + (4 + 4)


def test_no_more_is_queried_than_may_be_revealed() -> None:
    output = random_model().generate(order="margin", block_length=1, return_dict_in_generate=True)
    assert output.num_rows == 12
    output = random_encoder().generate(
        num_return_sequences=4, order="margin", num_steps=30, generator=seeded(), return_dict_in_generate=True
    )
    assert output.num_rows == 12 * sum(len(steps.unique()) for steps in output.reveal_steps)  # not of who waits
    output = random_model().generate(
        reveal="entropy_bounded", entropy_bound=0.0, window=2, return_dict_in_generate=True
    )
    assert output.num_rows == 2 * 11 + 1  # the first of a step is the last that entered


def test_a_window_that_is_too_small_for_a_step_is_widened() -> None:
    output = random_model().generate(
        order="margin", window=1, num_steps=2, reveal="fixed", return_dict_in_generate=True
    )
    assert output.num_forward_passes == 2
    assert (output.sequences < 11).all()


def test_certainty_is_that_of_the_distribution_that_is_drawn_from() -> None:
    """Of one token all positions are equally certain: the first comes first."""
    output = random_model().generate(order="confidence", top_k=1, return_dict_in_generate=True)
    assert output.orders.tolist() == [list(range(12))]
    assert negative_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist() == pytest.approx([0, -math.log(2)])


@pytest.mark.parametrize("order", CERTAINTIES)
def test_a_step_finishes_a_block_before_it_begins_the_next(order: str) -> None:
    output = random_model().generate(
        num_return_sequences=8,
        order=order,
        block_length=5,
        num_steps=3,
        reveal="fixed",
        generator=seeded(),
        return_dict_in_generate=True,
    )
    steps = output.reveal_steps
    assert (steps[:, :5].sort().values == torch.tensor([0, 0, 0, 0, 1])).all()
    assert (steps[:, 5:10].sort().values == torch.tensor([1, 1, 1, 2, 2])).all()


def test_the_bound_decides_the_number_of_passes() -> None:
    model = random_model()
    passes = [
        model.generate(
            reveal="entropy_bounded", entropy_bound=bound, generator=seeded(), return_dict_in_generate=True
        ).num_forward_passes
        for bound in (0.0, 2.0, 1000.0)
    ]
    assert passes[0] == 12
    assert 1 < passes[1] < 12
    assert passes[2] == 1


def test_the_bound_is_a_tenth_of_a_nat_unless_given() -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor([6.0] + [0.0] * 10))  # 0.17 nats
    passes = [
        model.generate(reveal="entropy_bounded", return_dict_in_generate=True, **bound).num_forward_passes
        for bound in ({}, {"entropy_bound": 0.1}, {"entropy_bound": 0.2})
    ]
    assert passes == [12, 12, 6]


@pytest.mark.parametrize("make", [random_model, random_encoder])
@pytest.mark.parametrize(
    ("order", "rule"),
    [
        *((order, {"num_steps": 4}) for order in CERTAINTIES),
        ("entropy", {"reveal": "entropy_bounded", "entropy_bound": 2}),
    ],
)
def test_log_probabilities_are_those_of_full_forwards(make: Callable, order: str, rule: dict) -> None:
    """In a ragged batch with padding, where every sequence takes an order of its own."""
    model = make(position_encoding="rotary")
    mask = model.config.mask_token_id
    inputs = torch.randint(0, 11, (3, 9), generator=seeded())
    inputs[0] = mask
    inputs[1, [0, 4, 5]] = mask
    inputs[2, 2:] = mask
    keep = torch.ones_like(inputs)
    keep[2, [0, 3]] = 0
    output = model.generate(
        inputs, attention_mask=keep, order=order, generator=seeded(), return_dict_in_generate=True, **rule
    )
    reference = Enumeration(model, 0, encoder_conditional) if make is random_encoder else Enumeration(model, 0)
    for row in range(3):
        kept = keep[row].bool()
        place = kept.cumsum(0) - 1  # positions without padding
        ids, steps = output.sequences[row], output.reveal_steps[row]
        assert torch.equal(ids[~kept], inputs[row, ~kept])
        for target in (kept & (inputs[row] == mask)).nonzero().flatten().tolist():
            context = tuple(
                (place[p].item(), ids[p].item())
                for p in output.orders[row].tolist()
                if kept[p] and steps[p] < steps[target]
            )
            prediction = reference.conditional(model, context, place[target].item(), int(kept.sum()))
            assert abs(output.token_logprobs[row, target] - prediction[ids[target]].log()) < 1e-10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 3}, "window=3 says how many positions are candidates"),
        ({"window": 0, "order": "margin"}, "window=0 must be an integer of at least 1"),
        ({"block_length": 2, "stride": 2}, "block_length=2 .* and stride=2 .* are both given"),
        ({"block_length": 2, "order": torch.arange(12)[None]}, "A given order says all"),
        ({"reveal": "entropy_bounded", "num_steps": 3}, "takes as many steps as entropy_bound makes it"),
        ({"reveal": "entropy_bounded", "entropy_bound": -1.0}, r"entropy_bound=-1\.0 must be at least 0"),
        ({"strategy": "speculative", "order": "entropy"}, r"samples p\(x \| order\), which order='entropy'"),
        ({"strategy": "speculative", "reveal": "entropy_bounded"}, r"with reveal='entropy_bounded' does not leave"),
        ({"reveal": "euler", "num_steps": 3}, "samples from the score of a SEDD, and this model gives none"),
        ({"reveal": "analytic"}, "reveal='analytic' needs num_steps"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)
