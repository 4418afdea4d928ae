# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt.cached_decoder import CachedDecoder
from modeling_aogpt.refinement import draw_blocks
from tests.references import Enumeration, chi_square, conditional, random_model

pytestmark = pytest.mark.usefixtures("large_chunks")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    model = random_model(vocab_size=2, max_position_embeddings=4, position_encoding="rotary", initializer_range=0.4)
    return Enumeration(model, length=4)


def of_one_round(tiny: Enumeration, order: tuple[int, ...], length: int) -> torch.Tensor:
    """p(x) of the order, then one of the four blocks, each as likely, drawn again given the others in their order."""
    first = dict(zip(tiny.sequences, tiny.of_groups(tuple((p,) for p in order)).tolist(), strict=True))
    total = torch.zeros(len(tiny.sequences), dtype=torch.float64)
    for start in range(4):
        block = {(start + offset) % 4 for offset in range(length)}
        for number, sequence in enumerate(tiny.sequences):
            context = tuple((p, sequence[p]) for p in order if p not in block)
            kept = sum(
                probability
                for other, probability in first.items()
                if all(other[p] == sequence[p] for p in order if p not in block)
            )
            for position in (p for p in order if p in block):
                kept *= conditional(tiny.model, context, position, 4)[sequence[position]].item()
                context += ((position, sequence[position]),)
            total[number] += kept / 4
    return total


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
def test_a_round_draws_a_block_again_given_the_rest(tiny: Enumeration, strategy: str, length: int) -> None:
    order = (2, 0, 3, 1)
    samples = tiny.model.generate(
        order=torch.tensor(order).expand(10_000, -1),
        num_return_sequences=10_000,
        refine_rounds=1,
        refine_length=length,
        strategy=strategy,
        generator=seeded(),
    )
    expected = of_one_round(tiny, order, length)
    assert chi_square(tiny.counts_of(samples), expected) < 1
    assert (expected - tiny.of_groups(tuple((p,) for p in order))).abs().sum() > 0.01


@pytest.mark.parametrize("position_encoding", ["learned", "rotary"])
@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
def test_log_probabilities_are_those_of_the_last_draw(strategy: str, position_encoding: str) -> None:
    """Each is that of a full forward with what was revealed before its step, or kept: so the cache was cut aright."""
    model = random_model(position_encoding=position_encoding)
    inputs = torch.full((4, 12), 11)
    inputs[1, 3:6] = torch.tensor([1, 2, 3])
    inputs[2, :7] = 5
    keep = torch.ones_like(inputs)
    keep[3, [0, 4, 11]] = 0
    output = model.generate(
        inputs,
        attention_mask=keep,
        refine_rounds=4,
        refine_length=4,
        strategy=strategy,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    for ids, ranks, steps, logprobs, kept in zip(
        output.sequences, output.orders.tolist(), output.reveal_steps, output.token_logprobs, keep, strict=True
    ):
        length, place = int(kept.sum()), (kept.cumsum(0) - 1).tolist()  # positions without padding
        order = ranks[:length]
        assert kept[order].all()
        last_round = order[-4:]
        for rank, position in enumerate(order):
            if position in last_round:
                context = tuple((place[p], ids[p].item()) for p in order[:rank])
                reference = conditional(model, context, place[position], length)[ids[position]].log()
                assert abs(logprobs[position] - reference) < 1e-10
        assert steps[last_round].min() > steps[order[:-4]].max()


def test_every_round_draws_in_the_order_of_the_first() -> None:
    output = random_model().generate(
        order="left_to_right",
        num_return_sequences=8,
        refine_rounds=5,
        refine_length=4,
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert (output.orders[:, -4:].diff() > 0).all()


def test_every_round_draws_a_random_order_anew() -> None:
    arguments = {"max_length": 12, "generator": seeded(), "return_dict_in_generate": True}
    first = random_model().generate(**arguments)
    arguments["generator"] = seeded()
    assert not torch.equal(random_model().generate(refine_rounds=1, refine_length=12, **arguments).orders, first.orders)


def test_every_round_draws_block_after_block() -> None:
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
    assert (output.orders[:, -7:].diff() < 0).any()  # the most certain first


def test_blocks_are_generated_positions_in_a_row_and_all_equally_likely() -> None:
    model = random_model()
    ids = torch.full((6000, 8), 11)
    ids[:, [0, 4]] = 1
    canvas = CachedDecoder(
        model, ids, torch.arange(8).expand(6000, -1), torch.zeros_like(ids), torch.zeros_like(ids).bool()
    )
    blocks = draw_blocks(canvas, 3, seeded())
    generated = [1, 2, 3, 5, 6, 7]
    allowed = {tuple(sorted(generated[(start + offset) % 6] for offset in range(3))) for start in range(6)}
    drawn = [tuple(row.nonzero().flatten().tolist()) for row in blocks]
    assert set(drawn) == allowed
    counts = torch.tensor([drawn.count(block) for block in sorted(allowed)]).double()
    assert chi_square(counts, torch.full((6,), 1 / 6, dtype=torch.float64)) < 1


def test_the_cache_of_what_comes_before_the_block_is_kept() -> None:
    """A round over one of 12 tokens takes as many rows as come after it in the order: 1 to 12, 6.5 on average."""
    model = random_model()
    first = model.generate(generator=seeded(), return_dict_in_generate=True)
    rows = [
        model.generate(refine_rounds=1, refine_length=1, generator=seeded(seed), return_dict_in_generate=True).num_rows
        for seed in range(40)
    ]
    assert set(rows) <= set(range(first.num_rows + 1, first.num_rows + 13))
    assert abs(sum(rows) / 40 - first.num_rows - 6.5) < 4 * 3.5 / 40**0.5


def test_parallel_refinement_takes_its_share_of_the_steps() -> None:
    output = random_model().generate(
        num_steps=6, reveal="fixed", refine_rounds=3, refine_length=4, generator=seeded(), return_dict_in_generate=True
    )
    assert output.num_forward_passes == 6 + 3 * 2


@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
def test_a_sequence_without_holes_is_left_alone(strategy: str) -> None:
    inputs = torch.tensor([[1, 2, 3, 4], [11, 5, 11, 11]])
    filled = random_model().generate(
        inputs, refine_rounds=3, refine_length=2, strategy=strategy, generator=seeded(), return_dict_in_generate=True
    )
    assert torch.equal(filled.sequences[inputs != 11], inputs[inputs != 11])
    assert (filled.reveal_steps[0] == -1).all()
    assert (filled.sequences < 11).all()


def test_a_length_that_is_too_long_is_told_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedDecoder, "query", lambda *arguments: pytest.fail("computed before it was checked"))
    with pytest.raises(ValueError, match="refine_length=3, but a sequence has 2 generated tokens"):
        random_model().generate(torch.tensor([[11, 1, 11]]), refine_rounds=1, refine_length=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refine_rounds": 2}, "refine_rounds=2 and refine_length=None go together"),
        ({"refine_length": 2}, "refine_rounds=0 and refine_length=2 go together"),
        ({"refine_rounds": -1}, "refine_rounds=-1 must be"),
        ({"refine_rounds": 1, "refine_length": 13}, "refine_length=13, but a sequence has 12 generated tokens"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)
