# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Block-Gibbs refinement: the distribution of samples, the cache after re-masking, and the positions to re-mask."""

import pytest
import torch

from modeling_aogpt.decoding_state import CachedDecodingState
from modeling_aogpt.generation import choose_refined_positions
from modeling_aogpt.generation_config import AnyOrderGenerationConfig
from tests.references import (
    Enumeration,
    chi_square,
    conditional,
    encoder_conditional,
    random_encoder,
    random_model,
    seeded,
)

pytestmark = pytest.mark.usefixtures("large_chunks")


# Encoders have no speculative decoding.
MODELS_AND_STRATEGIES = pytest.mark.parametrize(
    ("tiny", "strategy"),
    [("decoder", "parallel"), ("decoder", "speculative"), ("encoder", "parallel")],
    indirect=["tiny"],
)


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest) -> Enumeration:
    """Return a model of four positions and two tokens."""
    shape = {"max_position_embeddings": 4, "initializer_range": 0.4}
    if request.param == "decoder":
        return Enumeration(random_model(vocab_size=2, position_encoding="rotary", **shape), length=4)
    return Enumeration(random_encoder(vocab_size=3, **shape), length=4, conditional=encoder_conditional)


def distribution_after_one_round(tiny: Enumeration, order: tuple[int, ...], length: int) -> torch.Tensor:
    """Return p(x) under `order` after `length` neighbours, starting anywhere, are drawn again given all others."""
    first = dict(zip(tiny.sequences, tiny.of_groups(tuple((p,) for p in order)).tolist(), strict=True))
    total = torch.zeros(len(tiny.sequences), dtype=torch.float64)
    for start in range(4):
        block = {(start + offset) % 4 for offset in range(length)}
        for number, sequence in enumerate(tiny.sequences):
            context = tuple((p, sequence[p]) for p in order if p not in block)
            probability = sum(
                probability
                for other, probability in first.items()
                if all(other[p] == sequence[p] for p in order if p not in block)
            )
            for position in (p for p in order if p in block):
                probability *= tiny.conditional(tiny.model, context, position, 4)[sequence[position]].item()
                context += ((position, sequence[position]),)
            total[number] += probability / 4
    return total


@pytest.mark.parametrize("length", [1, 2, 3])
@MODELS_AND_STRATEGIES
def test_a_round_draws_neighbours_again_given_all_other_tokens(tiny: Enumeration, strategy: str, length: int) -> None:
    order = (2, 0, 3, 1)
    samples = tiny.model.generate(
        order=torch.tensor(order).expand(10_000, -1),
        num_return_sequences=10_000,
        refine_rounds=1,
        refine_length=length,
        strategy=strategy,
        generator=seeded(),
    )
    expected = distribution_after_one_round(tiny, order, length)
    assert chi_square(tiny.count(samples), expected) < 1
    assert (expected - tiny.of_groups(tuple((p,) for p in order))).abs().sum() > 0.01


def distribution_after_refining_the_least_likely(
    tiny: Enumeration, order: tuple[int, ...], length: int, rounds: int
) -> torch.Tensor:
    """Return p(x) under `order` after rounds that each draw the `length` tokens again that were the least likely."""

    def draw(context: tuple, masked: tuple[int, ...], probability: float, drawn: dict) -> list[tuple]:
        """Return (probability, tokens and their probabilities) of every way to fill in the masked positions."""
        if not masked:
            return [(probability, drawn)]
        predicted = tiny.conditional(tiny.model, context, masked[0], 4).tolist()
        return [
            outcome
            for token, p in enumerate(predicted)
            for outcome in draw(
                (*context, (masked[0], token)), masked[1:], probability * p, drawn | {masked[0]: (token, p)}
            )
        ]

    outcomes = draw((), order, 1.0, {})
    for _ in range(rounds):
        refined = []
        for probability, drawn in outcomes:
            masked = sorted(drawn, key=lambda position: drawn[position][1])[:length]
            # The context keeps its order, and the masked positions follow in `order`.
            drawn = {position: value for position, value in drawn.items() if position not in masked}
            context = tuple((position, token) for position, (token, _) in drawn.items())
            refined += draw(context, tuple(p for p in order if p in masked), probability, drawn)
        outcomes = refined
    total = dict.fromkeys(tiny.sequences, 0.0)
    for probability, drawn in outcomes:
        total[tuple(drawn[position][0] for position in range(4))] += probability
    return torch.tensor(list(total.values()), dtype=torch.float64)


@pytest.mark.parametrize(("length", "rounds"), [(2, 1), (1, 2)])
@MODELS_AND_STRATEGIES
def test_a_round_draws_the_least_likely_tokens_again(
    tiny: Enumeration, strategy: str, length: int, rounds: int
) -> None:
    order = (2, 0, 3, 1)
    samples = tiny.model.generate(
        order=torch.tensor(order).expand(10_000, -1),
        num_return_sequences=10_000,
        refine_rounds=rounds,
        refine_length=length,
        refine_selection="least_likely",
        strategy=strategy,
        generator=seeded(),
    )
    expected = distribution_after_refining_the_least_likely(tiny, order, length, rounds)
    assert chi_square(tiny.count(samples), expected) < 1
    assert (expected - distribution_after_one_round(tiny, order, length)).abs().sum() > 0.01


def test_only_generated_tokens_are_chosen_as_the_least_likely() -> None:
    """The probabilities of the prompt and of padding are not compared."""
    inputs, attention_mask = torch.full((3, 8), 11), torch.ones(3, 8, dtype=torch.long)
    inputs[0, [0, 4]] = 1
    inputs[1] = 5
    attention_mask[2, :3] = 0
    arguments = {"attention_mask": attention_mask, "do_sample": False, "return_dict_in_generate": True}
    arguments["order"] = torch.arange(8).expand(3, -1)
    before = random_model().generate(inputs, **arguments)
    refinement = {"refine_rounds": 1, "refine_length": 2, "refine_selection": "least_likely"}
    after = random_model().generate(inputs, **arguments, **refinement)
    is_generated = (inputs == 11) & (attention_mask != 0)
    assert torch.equal(after.sequences[~is_generated], before.sequences[~is_generated])
    for row in (0, 2):
        chosen = (after.unmasking_steps[row] >= before.unmasking_steps.max() + 1).nonzero().flatten().tolist()
        logprobs = before.token_logprobs[row].masked_fill(~is_generated[row], float("inf"))
        assert sorted(chosen) == sorted(logprobs.argsort()[:2].tolist())
    assert (after.unmasking_steps[1] == -1).all()


@pytest.mark.parametrize("position_encoding", ["learned", "rotary"])
@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
def test_log_probabilities_of_the_last_round_equal_full_forwards(strategy: str, position_encoding: str) -> None:
    """The context of a token is all that was not re-masked, and what the round unmasked before it."""
    model = random_model(position_encoding=position_encoding)
    inputs = torch.full((4, 12), 11)
    inputs[1, 3:6] = torch.tensor([1, 2, 3])
    inputs[2, :7] = 5
    attention_mask = torch.ones_like(inputs)
    attention_mask[3, [0, 4, 11]] = 0
    output = model.generate(
        inputs,
        attention_mask=attention_mask,
        refine_rounds=4,
        refine_length=4,
        strategy=strategy,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    for ids, order, steps, logprobs, is_token in zip(
        output.sequences,
        output.orders.tolist(),
        output.unmasking_steps,
        output.token_logprobs,
        attention_mask,
        strict=True,
    ):
        length, positions = int(is_token.sum()), (is_token.cumsum(0) - 1).tolist()  # without padding
        order = order[:length]
        assert is_token[order].all()
        last_round = order[-4:]
        for rank, position in enumerate(order):
            if position in last_round:
                context = tuple((positions[p], ids[p].item()) for p in order[:rank])
                reference = conditional(model, context, positions[position], length)[ids[position]].log()
                assert abs(logprobs[position] - reference) < 1e-10
        assert steps[last_round].min() > steps[order[:-4]].max()


def test_rounds_keep_a_left_to_right_order() -> None:
    output = random_model().generate(
        order="left_to_right",
        num_return_sequences=8,
        refine_rounds=5,
        refine_length=4,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert (output.orders[:, -4:].diff() > 0).all()


def test_rounds_draw_new_random_orders() -> None:
    model, arguments = random_model(), {"max_length": 12, "return_dict_in_generate": True}
    first = model.generate(generator=seeded(), **arguments)
    refined = model.generate(refine_rounds=1, refine_length=12, generator=seeded(), **arguments)
    assert not torch.equal(refined.orders, first.orders)


def test_rounds_keep_the_order_of_blocks() -> None:
    output = random_model().generate(
        order="confidence",
        block_length=3,
        num_return_sequences=8,
        refine_rounds=3,
        refine_length=7,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert (output.orders[:, -7:].div(3, rounding_mode="floor").diff() >= 0).all()
    assert (output.orders[:, -7:].diff() < 0).any()  # within a block the most certain first


def test_all_sets_of_neighbouring_generated_positions_are_equally_likely() -> None:
    model = random_model()
    ids = torch.full((6000, 8), 11)
    ids[:, [0, 4]] = 1
    zeros = torch.zeros_like(ids)
    state = CachedDecodingState(model, ids, torch.arange(8).expand(6000, -1), zeros, zeros == 0)
    selected = choose_refined_positions(state, AnyOrderGenerationConfig(refine_rounds=1, refine_length=3), seeded())
    generated = [1, 2, 3, 5, 6, 7]
    allowed = {tuple(sorted(generated[(start + offset) % 6] for offset in range(3))) for start in range(6)}
    drawn = [tuple(row.nonzero().flatten().tolist()) for row in selected]
    assert set(drawn) == allowed
    counts = torch.tensor([drawn.count(positions) for positions in sorted(allowed)]).double()
    assert chi_square(counts, torch.full((6,), 1 / 6, dtype=torch.float64)) < 1


def test_cache_is_kept_up_to_the_first_remasked_rank() -> None:
    """Re-masking one of 12 tokens takes one row for it and each rank after it: 1 to 12 rows, 6.5 on average."""
    model = random_model()
    first = model.generate(generator=seeded(), return_dict_in_generate=True)
    num_rows = [
        model.generate(refine_rounds=1, refine_length=1, generator=seeded(seed), return_dict_in_generate=True).num_rows
        for seed in range(40)
    ]
    assert set(num_rows) <= set(range(first.num_rows + 1, first.num_rows + 13))
    assert abs(sum(num_rows) / 40 - first.num_rows - 6.5) < 4 * 3.5 / 40**0.5


@pytest.mark.parametrize(("length", "num_steps"), [(4, 2), (5, 3)])
def test_a_round_takes_steps_in_proportion_to_the_remasked_tokens(length: int, num_steps: int) -> None:
    output = random_model().generate(
        num_steps=6,
        unmasking="fixed_count",
        refine_rounds=3,
        refine_length=length,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert output.num_forward_passes == 6 + 3 * num_steps


@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
def test_sequences_without_masks_do_not_change(strategy: str) -> None:
    inputs = torch.tensor([[1, 2, 3, 4], [11, 5, 11, 11]])
    filled = random_model().generate(
        inputs, refine_rounds=3, refine_length=2, strategy=strategy, generator=seeded(), return_dict_in_generate=True
    )
    assert torch.equal(filled.sequences[inputs != 11], inputs[inputs != 11])
    assert (filled.unmasking_steps[0] == -1).all()
    assert (filled.sequences < 11).all()


def test_too_long_refine_length_is_refused_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedDecodingState, "query", lambda *arguments: pytest.fail("computed before it was checked"))
    with pytest.raises(ValueError, match=r"`refine_length` \(3\) is more than the 2"):
        random_model().generate(torch.tensor([[11, 1, 11]]), refine_rounds=1, refine_length=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refine_rounds": 2}, r"`refine_rounds` \(2\) and `refine_length`"),
        ({"refine_length": 2}, r"`refine_rounds` \(0\) and `refine_length`"),
        ({"refine_selection": "least_likely"}, "`refine_selection` has no effect without"),
        ({"refine_rounds": 1, "refine_length": 2, "refine_selection": "worst"}, "`refine_selection` must be one of"),
        ({"refine_rounds": -1}, "`refine_rounds` must be an integer of at"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)
