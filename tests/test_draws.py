# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
import torch

from modeling_aogpt.data_collator import OrderDistribution
from modeling_aogpt.unmasking import MAX_MASKED_FRACTION
from training import draws as module
from training.arguments import TrainingArguments
from training.draws import MaskDraws, OrderDraws

LENGTH = 10
LEFT_TO_RIGHT = torch.arange(LENGTH)


def features(samples: range) -> list[dict[str, Any]]:
    return [{"input_ids": [sample % 7] * LENGTH, "order_seed": sample} for sample in samples]


def order_draws(**arguments: object) -> OrderDraws:
    return OrderDraws(
        TrainingArguments(**({"batch_size": 8, "max_steps": 101, "left_to_right_steps": 100} | arguments))
    )


def mask_draws(objective: str, batch_size: int = 8, **orders: object) -> MaskDraws:
    return MaskDraws(TrainingArguments(objective=objective, batch_size=batch_size, max_steps=101, **orders))


@pytest.mark.parametrize(
    "draws",
    [
        order_draws(block_length=5, left_to_right_fraction=0.0, final_left_to_right_fraction=1.0),
        *map(mask_draws, ("masked_diffusion", "score_entropy", "any_order")),
    ],
)
def test_draws_of_a_sample_do_not_depend_on_the_batch(draws: OrderDraws | MaskDraws) -> None:
    together = draws(features(range(400, 424)))
    together.pop("masked_indices", None)
    for first, last in ((400, 401), (405, 413), (423, 424)):
        part = draws(features(range(first, last)))
        if "is_masked" in part:
            assert torch.equal(part.pop("masked_indices"), part["is_masked"].flatten().nonzero().squeeze(1))
        assert part.keys() == together.keys()
        for key, values in part.items():
            assert torch.equal(values, together[key][first - 400 : last - 400]), key
    assert not torch.equal(together[key], draws(features(range(424, 448)))[key])


@pytest.mark.parametrize(("orders", "block_length"), [("random", None), ("random", 5), ("shared", None), ("shared", 5)])
def test_orders_have_the_given_distribution(orders: str, block_length: int | None) -> None:
    drawn = order_draws(orders=orders, block_length=block_length, left_to_right_fraction=0.0)(features(range(8)))
    expected = OrderDistribution(orders, block_length, left_to_right_fraction=0.0)
    lengths = torch.full((8,), LENGTH)
    assert torch.equal(drawn["orders"], expected.draw(0, torch.arange(8), lengths, LENGTH)[0])


def test_the_fraction_of_left_to_right_sequences_changes_linearly() -> None:
    draws = order_draws(left_to_right_fraction=0.0, final_left_to_right_fraction=1.0, batch_size=1000)
    fractions = [
        (draws(features(range(1000 * step, 1000 * step + 1000)))["orders"] == LEFT_TO_RIGHT).all(1).float().mean()
        for step in (0, 25, 50, 100)
    ]
    assert fractions[0] == 0
    assert fractions[3] == 1
    assert abs(fractions[1] - 0.25) < 4 * (0.1875 / 1000) ** 0.5
    assert abs(fractions[2] - 0.5) < 4 * (0.25 / 1000) ** 0.5


def test_labels_change_with_the_orders() -> None:
    draws = order_draws(orders="context_first", min_context=3, final_left_to_right_fraction=1.0)
    first, last = (draws(features(range(8 * step, 8 * step + 8))) for step in (0, 100))
    assert ((first["labels"] == -100).sum(dim=1) >= 3).all()
    assert (last["orders"] == LEFT_TO_RIGHT).all()
    assert torch.equal(last["labels"], last["input_ids"])


def test_documents_without_marks_have_no_context() -> None:
    row = {"input_ids": [5] * LENGTH, "labels": [5] * LENGTH}
    batch = order_draws(orders="context_first")([row | {"order_seed": sample} for sample in range(8)])
    assert torch.equal(batch["labels"], batch["input_ids"])


def test_the_fraction_of_left_to_right_sequences_may_decrease() -> None:
    draws = order_draws(left_to_right_fraction=1.0, final_left_to_right_fraction=0.0)
    first, last = (draws(features(range(8 * step, 8 * step + 8)))["orders"] for step in (0, 100))
    assert (first == LEFT_TO_RIGHT).all()
    assert not (last == LEFT_TO_RIGHT).all(dim=1).any()


def test_the_fraction_of_left_to_right_sequences_may_change_in_the_first_part_of_a_run() -> None:
    draws = order_draws(
        left_to_right_fraction=1.0, final_left_to_right_fraction=0.0, left_to_right_steps=30, batch_size=1000
    )
    fractions = [
        (draws(features(range(1000 * step, 1000 * step + 1000)))["orders"] == LEFT_TO_RIGHT).all(1).float().mean()
        for step in (0, 15, 30, 100)
    ]
    assert (fractions[0], fractions[2], fractions[3]) == (1, 0, 0)
    assert abs(fractions[1] - 0.5) < 4 * (0.25 / 1000) ** 0.5


@pytest.mark.parametrize("batch_size", [1, 2, 8, 30])
def test_times_of_a_step_are_evenly_spaced(batch_size: int) -> None:
    draws = mask_draws("masked_diffusion", batch_size)
    for step in range(20):
        times = draws.draw_times(torch.arange(step * batch_size, (step + 1) * batch_size))
        assert 0 < times.min() <= times.max() <= 1
        gaps = times.sort().values.diff(append=times.min()[None] + 1)
        torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / batch_size))
        if batch_size > 2:  # so are those of half a batch
            assert abs(times[: batch_size // 2].mean() - 0.5) < 0.2
    every = draws.draw_times(torch.arange(0, 3000 * batch_size, batch_size))
    assert abs(every.mean() - 0.5) < 4 * (1 / 12 / 3000) ** 0.5


def test_no_time_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "uniform_numbers", lambda *_: torch.zeros(4, 1, dtype=torch.float64))
    assert mask_draws("masked_diffusion", 4).draw_times(torch.arange(4)).sort().values.tolist() == [0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize(("objective", "is_masked"), [("masked_diffusion", True), ("score_entropy", False)])
def test_the_noise_of_sedd_leaves_one_token_in_a_thousand_unmasked_at_time_one(
    objective: str, is_masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest(seed: int, stream: int, samples: torch.LongTensor, count: int) -> torch.Tensor:
        return torch.full((len(samples), count), 0.0 if stream == module.TIMES else 0.9995, dtype=torch.float64)

    monkeypatch.setattr(module, "uniform_numbers", largest)
    batch = mask_draws(objective, 1)(features(range(3)))
    assert (batch["times"] == 1).all()
    assert (batch["is_masked"] == is_masked).all()


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize(
    ("objective", "max_fraction"), [("masked_diffusion", 1.0), ("score_entropy", MAX_MASKED_FRACTION)]
)
def test_tokens_are_masked_independently_with_the_probability_of_the_time(
    objective: str, max_fraction: float, batch_size: int
) -> None:
    batch = mask_draws(objective, batch_size)(features(range(4000)))
    assert torch.equal(batch["input_ids"][:, 0], torch.arange(4000) % 7)
    difference = batch["is_masked"].double().mean(1) - max_fraction * batch["times"]
    assert abs(difference.mean()) < 4 * (1 / 6 / 4000 / LENGTH) ** 0.5
    assert 0.8 < difference.var() / (1 / 6 / LENGTH) < 1.2  # independent of each other
    differences = batch["is_masked"].double() - max_fraction * batch["times"][:, None]
    assert ((differences.var(0) * 6 - 1).abs() < 0.2).all()  # and of the time


def test_the_any_order_objective_masks_the_end_of_an_order() -> None:
    batch = mask_draws("any_order", left_to_right_fraction=1.0)(features(range(1000)))
    num_masked = batch["is_masked"].sum(1)
    assert torch.equal(batch["is_masked"], LENGTH - num_masked[:, None] <= LEFT_TO_RIGHT)
    torch.testing.assert_close(batch["times"], num_masked / LENGTH, check_dtype=False)
    counts = num_masked.bincount(minlength=LENGTH + 1)
    assert counts[0] == 0
    assert ((counts[1:] - 100).abs() < 25).all()
    is_masked = mask_draws("any_order", left_to_right_fraction=0.0)(features(range(1000)))["is_masked"]
    assert (is_masked.double().mean(0) - 0.55).abs().max() < 4 * (0.25 / 1000) ** 0.5
