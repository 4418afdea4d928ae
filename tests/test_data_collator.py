# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt import DataCollatorForAnyOrderLM
from modeling_aogpt.orders import check_orders


def features(lengths: list[int]) -> list[dict]:
    return [{"input_ids": list(range(1, length + 1)), "order_seed": index} for index, length in enumerate(lengths)]


def test_pads_and_labels() -> None:
    batch = DataCollatorForAnyOrderLM(pad_token_id=0, pad_to_multiple_of=4)(features([3, 5]))
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3] + [-100] * 5, [1, 2, 3, 4, 5] + [-100] * 3]
    assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 5, [1] * 5 + [0] * 3]
    check_orders(batch["orders"], 2, 8)
    assert batch["orders"][0, 3:].tolist() == [3, 4, 5, 6, 7]


def test_no_mask_without_padding() -> None:
    assert set(DataCollatorForAnyOrderLM()(features([4, 4]))) == {"input_ids", "orders", "labels"}


def test_an_order_depends_on_its_seed_alone() -> None:
    collator, samples = DataCollatorForAnyOrderLM(seed=7), features([20] * 8)
    together = collator(samples)["orders"]
    apart = torch.cat([collator([sample])["orders"] for sample in reversed(samples)]).flip(0)
    assert torch.equal(together, apart)
    assert len({tuple(order) for order in together.tolist()}) > 5
    assert not torch.equal(together, DataCollatorForAnyOrderLM(seed=8)(samples)["orders"])


def test_a_tenth_is_left_to_right() -> None:
    orders = DataCollatorForAnyOrderLM(left_to_right_fraction=0.1)(features([12] * 2000))["orders"]
    share = (orders == torch.arange(12)).all(1).float().mean().item()
    assert abs(share - 0.1) < 4 * (0.09 / 2000) ** 0.5
    assert (DataCollatorForAnyOrderLM(left_to_right_fraction=1)(features([5]))["orders"] == torch.arange(5)).all()


def test_without_seeds_a_stream_goes_on() -> None:
    samples = [{"input_ids": list(range(30))}]
    first, second = (
        DataCollatorForAnyOrderLM(left_to_right_fraction=0),
        DataCollatorForAnyOrderLM(left_to_right_fraction=0),
    )
    drawn = [first(samples)["orders"] for _ in range(2)]
    assert not torch.equal(*drawn)
    assert all(torch.equal(order, second(samples)["orders"]) for order in drawn)


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({}, [{"input_ids": [1]}, {"input_ids": [1, 2]}], "give the collator a pad_token_id"),
        ({"pad_token_id": 0}, [{"input_ids": [1]}, {"input_ids": []}], "Sequence 1 of the batch is empty"),
        ({"left_to_right_fraction": 1.5}, [], "must lie between 0 and 1"),
    ],
)
def test_refuses(arguments: dict, samples: list[dict], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCollatorForAnyOrderLM(**arguments)(samples)
