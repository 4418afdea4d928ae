# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pytest
import torch

from modeling_aogpt import DataCollatorForAnyOrderLM
from modeling_aogpt.data_collator import OrderDistribution
from modeling_aogpt.validation import check_orders


def features(lengths: list[int]) -> list[dict]:
    return [{"input_ids": list(range(1, length + 1)), "order_seed": index} for index, length in enumerate(lengths)]


def test_sequences_are_padded_and_padding_has_no_labels() -> None:
    batch = DataCollatorForAnyOrderLM(pad_token_id=0, pad_to_multiple_of=4)(features([3, 5]))
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3] + [-100] * 5, [1, 2, 3, 4, 5] + [-100] * 3]
    assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 5, [1] * 5 + [0] * 3]
    check_orders("orders", batch["orders"], 2, 8)
    assert batch["orders"][0, 3:].tolist() == [3, 4, 5, 6, 7]


def test_there_is_an_attention_mask_only_with_padding() -> None:
    assert set(DataCollatorForAnyOrderLM()(features([4, 4]))) == {"input_ids", "orders", "labels"}
    rounded = DataCollatorForAnyOrderLM(pad_token_id=0, pad_to_multiple_of=3)(features([4, 4]))
    assert rounded["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]] * 2


def test_an_order_depends_only_on_the_seed_and_its_order_seed() -> None:
    collator, samples = DataCollatorForAnyOrderLM(seed=7), features([20] * 8)
    together = collator(samples)["orders"]
    one_by_one = torch.cat([collator([sample])["orders"] for sample in reversed(samples)]).flip(0)
    assert torch.equal(together, one_by_one)
    assert len({tuple(order) for order in together.tolist()}) > 5
    assert not torch.equal(together, DataCollatorForAnyOrderLM(seed=8)(samples)["orders"])
    large = [sample | {"order_seed": sample["order_seed"] + 2**64} for sample in samples]  # a hash, for instance
    assert torch.equal(together, collator(large)["orders"])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"block_length": 3},
        {"stride": 2, "left_to_right_fraction": 0.4},
        {"orders": "shared", "block_length": 3},
        {"orders": "left_to_right"},
        {"orders": "context_first", "min_context": 1, "max_context": 4},
    ],
)
def test_orders_come_from_the_order_distribution_of_the_same_arguments(arguments: dict) -> None:
    orders = DataCollatorForAnyOrderLM(**arguments, seed=3)(features([6] * 50))["orders"]
    expected = OrderDistribution(**arguments).draw(3, torch.arange(50), torch.full((50,), 6), 6)[0]
    assert torch.equal(orders, expected)


def test_changed_settings_apply_to_the_next_batch() -> None:
    collator = DataCollatorForAnyOrderLM(orders="context_first")
    collator.orders, collator.left_to_right_fraction = "random", 1.0
    batch, expected = (
        each(features([6] * 5)) for each in (collator, DataCollatorForAnyOrderLM(left_to_right_fraction=1.0))
    )
    assert all(torch.equal(batch[name], values) for name, values in expected.items())
    collator.left_to_right_fraction = 2.0
    with pytest.raises(ValueError, match="`left_to_right_fraction` must be a number"):
        collator(features([6]))


@pytest.mark.parametrize("orders", ["random", "context_first"])
def test_a_sequence_may_have_its_own_left_to_right_fraction(orders: str) -> None:
    samples = features([9] * 30)
    fractions = [(0.0, 0.5, 1.0, None)[index % 4] for index in range(30)]
    mixed = DataCollatorForAnyOrderLM(orders=orders, left_to_right_fraction=0.2)(
        [{**sample, "left_to_right_fraction": fraction} for sample, fraction in zip(samples, fractions, strict=True)]
    )
    for fraction in set(fractions):
        same = [index for index in range(30) if fractions[index] == fraction]
        collator = DataCollatorForAnyOrderLM(
            orders=orders, left_to_right_fraction=0.2 if fraction is None else fraction
        )
        for name, values in collator([samples[index] for index in same]).items():
            assert torch.equal(mixed[name][same], values), (fraction, name)


def test_without_order_seeds_every_batch_gets_new_orders() -> None:
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
        torch.manual_seed(0)  # the same in all processes; it seeds the workers of their loaders
        collator = DataCollatorForAnyOrderLM(left_to_right_fraction=0)
        collator(samples)  # used before the loader copies it to the workers
        loader = torch.utils.data.DataLoader(
            samples, batch_size=4, collate_fn=collator, num_workers=2, multiprocessing_context="fork"
        )  # forks get the changed variable
        for _ in range(2):
            drawn |= {tuple(order) for batch in loader for order in batch["orders"].tolist()}
    assert len(drawn) == 2 * 2 * 8
    assert b"torch" not in pickle.dumps(collator)  # otherwise, workers can fail to read it in Python 3.14


def test_padding_of_features_is_removed() -> None:
    padded = [{"input_ids": [0, 5, 6, 0], "attention_mask": [0, 1, 1, 0]}, {"input_ids": [1, 2, 3]}]
    batch = DataCollatorForAnyOrderLM(pad_token_id=0)(padded)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [1, 2, 3]]
    assert batch["labels"].tolist() == [[5, 6, -100], [1, 2, 3]]


def test_the_context_has_no_labels() -> None:
    batch = DataCollatorForAnyOrderLM(pad_token_id=0, orders="context_first", min_context=2, max_context=2, seed=3)(
        features([5, 4] * 10)
    )
    columns = batch["input_ids"], batch["labels"], batch["orders"], [5, 4] * 10
    for ids, labels, order, length in zip(*columns, strict=True):
        assert (labels[order[:2]] == -100).all()
        assert torch.equal(labels[order[2:length]], ids[order[2:length]])
        assert (labels[length:] == -100).all()


def test_positions_without_labels_are_the_context() -> None:
    given = [
        {"input_ids": [1, 2, 3, 4, 5, 6], "labels": [1, -100, 3, 4, -100, 6], "order_seed": seed} for seed in (0, 1)
    ]
    batch = DataCollatorForAnyOrderLM(orders="context_first")(given)
    assert batch["orders"][:, :2].tolist() == [[1, 4]] * 2
    assert sorted(batch["orders"][0, 2:].tolist()) == [0, 2, 3, 5]
    assert not torch.equal(*batch["orders"])
    assert batch["labels"].tolist() == [[1, -100, 3, 4, -100, 6]] * 2
    random = DataCollatorForAnyOrderLM(left_to_right_fraction=0.0)(given)  # other orders do not depend on labels
    without = DataCollatorForAnyOrderLM(left_to_right_fraction=0.0)([row | {"labels": [0] * 6} for row in given])
    assert torch.equal(random["orders"], without["orders"])


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({}, [{"input_ids": [1]}, {"input_ids": [1, 2]}], "Sequences of 1 tokens need padding to 2. Set"),
        ({"pad_token_id": 0}, [{"input_ids": [1]}, {"input_ids": []}], "Feature 1 has no tokens. Remove empty texts"),
        ({}, [{"input_ids": [1], "left_to_right_fraction": -1}], "`left_to_right_fraction` must be a number"),
        ({}, [{"input_ids": [1, 2], "attention_mask": [0.0, -1e9]}], r"`attention_mask` .* additive"),
        ({}, {"input_ids": [[1]], "attention_mask": [[1]]}, "Feature 0 must be a mapping with `input_ids`"),
        ({}, [{"text": "A"}], "Feature 0 must be a mapping with `input_ids`"),
        ({}, [{"input_ids": [1], "order_seed": 0.5}], "`order_seed` must be an integer, but is 0.5"),
        ({"seed": 0.5}, [], "`seed` must be an integer, but is 0.5"),
        ({"pad_token_id": "<pad>"}, [], "`pad_token_id` must be an integer, .* but has"),
        ({"orders": "blocks-3"}, [], "`orders` must be one of 'left_to_right'"),
        ({}, [{"input_ids": [1, 2, 3], "labels": [1, 2]}], "Feature 0 must be one sequence.* `input_ids`"),
        ({}, [{"input_ids": [[1, 2]]}], "Feature 0 must be one sequence"),
        ({}, [{"input_ids": [1, 2], "orders": [1, 0]}], "Feature 0 contains `orders`, but the collator"),
        ({}, [{"input_ids": [1.7, 2.2]}], "Feature 0 must hold integers"),
        ({}, [{"input_ids": [1, 2], "labels": [1.0, 2.0]}], "Feature 0 must hold integers"),
        ({"pad_to_multiple_of": 3}, [{"input_ids": [1, 2]}], "Sequences of 2 tokens need padding to 3. Set"),
    ],
)
def test_values_that_are_not_allowed_are_errors(arguments: dict, samples: list[dict], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCollatorForAnyOrderLM(**arguments)(samples)


@pytest.mark.parametrize("mask", ["assistant_masks", "completion_mask"])
def test_a_mask_of_answers_without_labels_gives_a_warning(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr("modeling_aogpt.validation.logger.warning_once", messages.append)
    DataCollatorForAnyOrderLM()([{"input_ids": [1, 2], "labels": [-100, 2], mask: [0, 1]}])
    assert not messages
    DataCollatorForAnyOrderLM()([{"input_ids": [1, 2], mask: [0, 1]}])
    assert len(messages) == 1
    assert mask in messages[0]


def test_features_that_are_none_are_absent() -> None:
    names = ("labels", "attention_mask", "order_seed")
    collator = DataCollatorForAnyOrderLM(seed=np.int64(1))
    batch = collator([{"input_ids": [1, 2, 3]} | dict.fromkeys(names)])
    assert batch["labels"].tolist() == [[1, 2, 3]]
    assert "attention_mask" not in batch


@pytest.mark.parametrize("multiple", [0, -8])
def test_a_multiple_below_one_is_an_error(multiple: int) -> None:
    with pytest.raises(ValueError, match="`pad_to_multiple_of` must be an integer of at"):
        DataCollatorForAnyOrderLM(pad_token_id=0, pad_to_multiple_of=multiple)


def test_an_empty_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"The batch has no features\. Pass at least one"):
        DataCollatorForAnyOrderLM()([])
