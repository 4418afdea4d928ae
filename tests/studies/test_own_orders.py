# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Orders of a model's own decoding, against a loop over its steps, those of the solver, and their use in training."""

from types import SimpleNamespace

import pytest
import torch

from common.tokenizers import train_tokenizer
from eval.studies.own_orders.own_orders import OwnOrderTraining, orders_of_model, orders_of_solver
from eval.studies.sudoku import corpus
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model, seeded
from training.pretrain import Pretraining

MASK = 11


def reference(model: AOGPTForAnyOrderLM, ids: list[int], threshold: float) -> list[int]:
    """Return the order in which a model fills in the masks of a text, with one pass for each masked token and step."""
    order, missing = ([column for column, id in enumerate(ids) if (id == MASK) == is_mask] for is_mask in (False, True))
    while missing:
        likeliest = {}
        for column in missing:
            rest = [other for other in missing if other != column]
            text = torch.tensor([ids]).masked_fill(torch.tensor([ids]) == MASK, 0)  # masks are predicted after `column`
            logits = model(text, orders=torch.tensor([[*order, column, *rest]])).logits[0, column]
            likeliest[column] = logits[: model.config.num_valid_tokens].softmax(dim=0).max(dim=0)
        best = max(missing, key=lambda column: likeliest[column].values)
        chosen = [column for column in missing if column == best or likeliest[column].values >= threshold]
        chosen.sort(key=lambda column: likeliest[column].values, reverse=True)
        ids = [int(likeliest[column].indices) if column in chosen else id for column, id in enumerate(ids)]
        order, missing = order + chosen, [column for column in missing if column not in chosen]
    return order


@pytest.mark.parametrize("threshold", [0.12, 0.99])
def test_orders_are_those_of_the_model(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    input_ids = torch.randint(MASK, (4, 7), generator=seeded())
    labels = input_ids.masked_fill(torch.rand(4, 7, generator=seeded(1)) < 0.3, -100)
    masked = input_ids.masked_fill(labels != -100, MASK)
    with torch.no_grad():
        expected = torch.tensor([reference(model, row, threshold) for row in masked.tolist()])
    result = orders_of_model(model, input_ids, labels != -100, threshold)
    assert torch.equal(result, expected)

    drawn = torch.arange(7).expand(4, -1)
    passes = lambda *_: [{"input_ids": input_ids, "labels": labels, "orders": drawn}]  # noqa: E731
    monkeypatch.setattr(Pretraining, "read_passes", passes)
    run = OwnOrderTraining.__new__(OwnOrderTraining)
    run.model = model.train()
    for source, orders in (("model", expected), ("recipe", drawn)):
        run.training = SimpleNamespace(order_source=source, threshold=threshold)
        assert torch.equal(run.read_passes(None)[0]["orders"], orders)
        assert model.training


def test_orders_of_the_solver() -> None:
    """Clues come first, then the cells of each round in the given order, then the end of the text."""
    tokenizer = train_tokenizer(["text"], 257)
    (puzzle, solution), count = corpus.held_out_puzzles(4, 1)[0], 16
    rounds = [*corpus.solving_rounds(puzzle, solution, 4), count]
    ids = torch.tensor([[*tokenizer.encode(corpus.to_text(solution)), tokenizer.eos_token_id]])
    is_missing = torch.tensor([[not digit for digit in puzzle] + [True]])
    drawn = torch.randperm(count + 1, generator=seeded())[None]
    order = orders_of_solver(ids, is_missing, drawn, tokenizer)[0].tolist()
    assert order == sorted(drawn[0].tolist(), key=lambda column: rounds[column])
    assert max(rounds[:count]) > 1
