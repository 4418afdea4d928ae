# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from transformers import pipeline

from modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM
from tests.references import any_order_methods, conditional, random_model, with_class


def masked_lm(model: AOGPTForAnyOrderLM) -> AOGPTForMaskedLM:
    return with_class(model, AOGPTForMaskedLM)


@pytest.mark.parametrize("encoding", ["learned", "rotary"])
def test_masked_positions_are_predicted_from_the_unmasked_ones(encoding: str) -> None:
    model = random_model(position_encoding=encoding)
    mask = model.config.mask_token_id
    inputs = torch.tensor([[mask, 3, mask, 5, mask], [1, 2, 3, 4, mask], [mask] * 5, [1, 2, 3, 4, 5]])
    probabilities = masked_lm(model)(inputs).logits.softmax(-1)
    for row, ids in zip(probabilities, inputs.tolist(), strict=True):
        context = tuple((position, token) for position, token in enumerate(ids) if token != mask)
        for position, token in enumerate(ids):
            if token == mask:
                expected = conditional(model, context, position, 5)
                torch.testing.assert_close(row[position], expected, rtol=0, atol=1e-12)
            else:
                assert row[position, token] == 1


def test_ids_that_are_not_text_have_no_probability_mass() -> None:
    model = random_model(num_valid_tokens=6)
    probabilities = masked_lm(model)(torch.tensor([[1, 6, 6]])).logits.softmax(-1)
    assert probabilities[..., 6:].sum() == 0
    torch.testing.assert_close(probabilities[0, 1, :6], conditional(model, ((0, 1),), 1, 3), rtol=0, atol=1e-12)


def test_padding_anywhere_changes_no_logits_and_no_loss() -> None:
    model = masked_lm(random_model())
    plain = model(torch.tensor([[3, 11, 5, 11]]), labels=torch.tensor([[-100, 4, -100, 2]]))
    padded = model(
        torch.tensor([[11, 3, 11, 99, 5, 11]]),
        attention_mask=torch.tensor([[0, 1, 1, 0, 1, 1]]),
        labels=torch.tensor([[7, -100, 4, 7, -100, 2]]),
    )
    torch.testing.assert_close(padded.logits[:, [1, 2, 4, 5]], plain.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.loss, plain.loss, rtol=0, atol=1e-12)


def test_the_fill_mask_pipeline_returns_the_likeliest_tokens(folder: str) -> None:
    fill = pipeline("fill-mask", model=folder, trust_remote_code=False)
    assert isinstance(fill.model, AOGPTForMaskedLM)
    predictions = fill("ab<mask>d", top_k=3)
    with torch.no_grad():  # as in the pipeline: with gradients, matrix products on a CPU are rounded differently
        best = fill.model(torch.tensor([[0, 1, 16, 3]])).logits[0, 2].softmax(-1).topk(3)
    assert [prediction["token"] for prediction in predictions] == best.indices.tolist()
    assert [prediction["score"] for prediction in predictions] == pytest.approx(best.values.tolist())


def test_labels_that_differ_from_unmasked_tokens_are_errors() -> None:
    model = masked_lm(random_model())
    ids = torch.tensor([[1, 11, 3]])
    assert model(ids, labels=torch.tensor([[1, 4, 3]])).loss.isfinite()
    with pytest.raises(ValueError, match="`labels` differ from `input_ids` at unmasked"):
        model(ids, labels=torch.tensor([[2, 4, 3]]))


def test_ids_that_are_neither_text_nor_the_mask_are_errors() -> None:
    with pytest.raises(ValueError, match="`input_ids` contains the id 12"):
        masked_lm(random_model())(torch.tensor([[1, 12]]))


def test_methods_of_other_views_are_named() -> None:
    names = any_order_methods(AOGPTForAnyOrderLM).keys()
    for view_class, missing in ((AOGPTForMaskedLM, names), (AOGPTForCausalLM, names - {"generate"})):
        view = view_class(random_model().config)
        for name in missing:
            message = f"{view_class.__name__} has no `{name}`. Load the model folder with AutoModel"
            with pytest.raises(AttributeError, match=message):
                getattr(view, name)
        with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
            view.no_such_thing()
