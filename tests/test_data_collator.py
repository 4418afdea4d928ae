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
    rounded = DataCollatorForAnyOrderLM(pad_token_id=0, pad_to_multiple_of=3)(features([4, 4]))
    assert rounded["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]] * 2


def test_an_order_depends_on_its_seed_alone() -> None:
    collator, samples = DataCollatorForAnyOrderLM(seed=7), features([20] * 8)
    together = collator(samples)["orders"]
    apart = torch.cat([collator([sample])["orders"] for sample in reversed(samples)]).flip(0)
    assert torch.equal(together, apart)
    assert len({tuple(order) for order in together.tolist()}) > 5
    assert not torch.equal(together, DataCollatorForAnyOrderLM(seed=8)(samples)["orders"])
    large = [sample | {"order_seed": sample["order_seed"] + 2**64} for sample in samples]  # a hash, for instance
    assert torch.equal(together, collator(large)["orders"])


def test_a_tenth_is_left_to_right() -> None:
    orders = DataCollatorForAnyOrderLM()(features([12] * 2000))["orders"]
    share = (orders == torch.arange(12)).all(1).float().mean().item()
    assert abs(share - 0.1) < 4 * (0.09 / 2000) ** 0.5
    assert (DataCollatorForAnyOrderLM(left_to_right_fraction=1)(features([5]))["orders"] == torch.arange(5)).all()


def test_orders_are_drawn_from_what_is_named() -> None:
    orders = DataCollatorForAnyOrderLM(left_to_right_fraction=0, orders="blocks-3")(features([6] * 50))["orders"]
    assert (orders[:, :3] < 3).all()
    assert len({tuple(order) for order in orders.tolist()}) > 10


def test_without_seeds_a_stream_goes_on() -> None:
    samples = [{"input_ids": list(range(30))}]
    first, second = (
        DataCollatorForAnyOrderLM(left_to_right_fraction=0),
        DataCollatorForAnyOrderLM(left_to_right_fraction=0),
    )
    drawn = [first(samples)["orders"] for _ in range(2)]
    assert not torch.equal(*drawn)
    assert all(torch.equal(order, second(samples)["orders"]) for order in drawn)


def test_streams_of_processes_workers_and_epochs_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"input_ids": list(range(30))}] * 8
    drawn = set()
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        torch.manual_seed(0)  # processes share it, and it seeds their loaders' workers
        collator = DataCollatorForAnyOrderLM(left_to_right_fraction=0)
        collator(samples)  # a collator that was used before its loader copies it to the workers
        loader = torch.utils.data.DataLoader(samples, batch_size=4, collate_fn=collator, num_workers=2)
        for _ in range(2):
            drawn |= {tuple(order) for batch in loader for order in batch["orders"].tolist()}
    assert len(drawn) == 2 * 2 * 8


def test_padding_of_features_is_taken_off() -> None:
    padded = [{"input_ids": [0, 5, 6, 0], "attention_mask": [0, 1, 1, 0]}, {"input_ids": [1, 2, 3]}]
    batch = DataCollatorForAnyOrderLM(pad_token_id=0)(padded)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [1, 2, 3]]
    assert batch["labels"].tolist() == [[5, 6, -100], [1, 2, 3]]


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({}, [{"input_ids": [1]}, {"input_ids": [1, 2]}], "give the collator a pad_token_id"),
        ({"pad_token_id": 0}, [{"input_ids": [1]}, {"input_ids": []}], "Sequence 1 of the batch is empty"),
        ({"left_to_right_fraction": 1.5}, [], "must lie between 0 and 1"),
        ({}, {"input_ids": [[1]], "attention_mask": [[1]]}, "Feature 0 is a str, .* give a list of tokenized texts"),
        ({}, [{"text": "A"}], "Feature 0 has text, but must be a mapping with input_ids"),
        ({"pad_token_id": "<pad>"}, [], "pad_token_id is a str, but must be an id"),
        ({"orders": "block-3"}, [], "'block-3' is no distribution of orders"),
        (
            {},
            [{"input_ids": [1, 2, 3], "labels": [1, 2]}],
            r"Feature 0 has input_ids of shape \(3,\), labels of \(2,\)",
        ),
        ({}, [{"input_ids": [[1, 2]]}], "each must be one sequence"),
        ({}, [{"input_ids": [1.7, 2.2]}], "no integers"),
        ({}, [{"input_ids": [1, 2], "labels": [1.0, 2.0]}], "no integers"),
        ({"pad_to_multiple_of": 3}, [{"input_ids": [1, 2]}], "Sequences of 2 to 3 tokens .* give the collator a pad"),
    ],
)
def test_refuses(arguments: dict, samples: list[dict], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCollatorForAnyOrderLM(**arguments)(samples)


@pytest.mark.parametrize("multiple", [0, -8])
def test_the_collator_refuses_a_multiple_that_is_none(multiple: int) -> None:
    with pytest.raises(ValueError, match="pad_to_multiple_of"):
        DataCollatorForAnyOrderLM(pad_token_id=0, pad_to_multiple_of=multiple)


def test_the_collator_refuses_an_empty_batch() -> None:
    with pytest.raises(ValueError, match="no features to make"):
        DataCollatorForAnyOrderLM()([])
