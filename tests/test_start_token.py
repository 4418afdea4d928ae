# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""A start token at the beginning of a text is the start row: every result equals that of the text without it."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast, StaticCache, pipeline

from modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM
from modeling_aogpt.causal import CACHE_NAME
from tests.references import random_model, seeded, with_class
from tests.test_convert_causal_lm import LENGTH, START, keep_float64, make_causal
from training.conversion.causal_lm import convert_model

MASK = 16


@pytest.fixture(params=["llama", "gpt2"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """Return a model of Transformers that computes in float64."""
    monkeypatch.setattr(torch.Tensor, "to", keep_float64(torch.Tensor.to))
    model = make_causal(request.param).double()
    if request.param == "llama":
        model.model.rotary_emb.float()  # angles are computed in float32 in both models
    return model


@pytest.fixture
def any_order(source: PreTrainedModel) -> AOGPTForAnyOrderLM:
    return convert_model(source, START).double()


@pytest.fixture
def text() -> torch.LongTensor:
    """Return texts of as many tokens as the model has positions. Id 0 is also used as padding."""
    return torch.randint(1, START, (3, LENGTH), generator=seeded())


def add_start(text: torch.LongTensor) -> torch.LongTensor:
    return torch.nn.functional.pad(text, (1, 0), value=START)


def mix(text: torch.LongTensor) -> tuple[torch.LongTensor, torch.LongTensor, list[slice]]:
    """Return three texts with different padding, two with a start token; their mask, and the columns of each text."""
    ids = torch.nn.functional.pad(text, (2, 1))
    ids[0, 1] = ids[1, 0] = START
    ids[1, 1:-2] = text[1]
    mask = torch.ones_like(ids)
    mask[0, [0, -1]] = mask[1, -2:] = mask[2, [0, 1, -1]] = 0
    return ids, mask, [slice(2, -1), slice(1, -2), slice(2, -1)]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9, equal_nan=True)


@torch.no_grad()
def test_likelihoods_are_those_of_the_source_and_of_the_text_without_the_start_token(
    source: PreTrainedModel, any_order: AOGPTForAnyOrderLM, text: torch.LongTensor
) -> None:
    whole = add_start(text)
    expected = source(whole[:, :-1], use_cache=False).logits.log_softmax(-1).gather(2, text[..., None])[..., 0]
    for ids, options in ((text, {}), (whole, {}), (whole, {"attention_mask": torch.ones_like(whole)})):
        scores = any_order.log_likelihood(ids, **options).token_log_likelihood
        assert_close(scores[:, -LENGTH:], expected)
        assert (scores[:, :-LENGTH] == 0).all()
        logits = any_order(ids, **options).logits.log_softmax(-1)
        assert_close(logits.gather(2, ids[..., None])[..., 0], scores)
    ids, mask, columns = mix(text[:, :-3])
    padded = any_order.log_likelihood(ids, attention_mask=mask)
    for row, column in enumerate(columns):
        assert_close(padded.token_log_likelihood[row, column], expected[row, :-3])
    assert_close(padded.log_likelihood, expected[:, :-3].sum(1))
    empty = any_order.log_likelihood(torch.tensor([[START]]))
    assert empty.log_likelihood.tolist() == [0.0]


@torch.no_grad()
def test_other_likelihoods_do_not_count_the_start_token(any_order: AOGPTForAnyOrderLM, text: torch.LongTensor) -> None:
    text, whole = text[:, :6], add_start(text[:, :6])
    targets = torch.tensor([[0, 1, 0, 0, 1, 0]]).expand(3, 6)
    context = torch.tensor([[1, 0, 0, 1, 0, 1]]).expand(3, 6)
    for given in (None, context):
        expected = any_order.log_likelihood(text, targets=targets, context=given)
        for start in (0, 1):  # the start token may be selected, but is not scored
            sets = {"targets": torch.nn.functional.pad(targets, (1, 0), value=start)}
            if given is not None:
                sets["context"] = torch.nn.functional.pad(context, (1, 0), value=1 - start)
            output = any_order.log_likelihood(whole, **sets)
            assert_close(output.token_log_likelihood[:, 1:], expected.token_log_likelihood)
            assert_close(output.log_likelihood, expected.log_likelihood)
    only_start = any_order.log_likelihood(whole, targets=torch.tensor([[1, *[0] * 6]]).expand(3, 7))
    assert only_start.log_likelihood.tolist() == [0.0] * 3
    orders = any_order.log_likelihood(text, orders=torch.tensor([[5, 1, 0, 3, 4, 2]]).expand(3, 6)).log_likelihood
    shifted = torch.tensor([[6, 0, 2, 1, 4, 5, 3]]).expand(3, 7)
    assert_close(any_order.log_likelihood(whole, orders=shifted).log_likelihood, orders)


def test_losses_and_gradients_do_not_change(any_order: AOGPTForAnyOrderLM, text: torch.LongTensor) -> None:
    whole, gradients = add_start(text), []
    for model, ids in ((any_order, text), (any_order, whole)):
        model.zero_grad()
        model(ids, labels=ids, skip_logits=True).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        assert_close(model(ids, labels=ids).loss, model(ids, labels=ids, skip_logits=True).loss)
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other)
    masked = with_class(any_order, AOGPTForMaskedLM)
    hidden = torch.where(torch.arange(LENGTH) % 3 == 1, MASK, text)
    expected, output = masked(hidden, labels=text), masked(add_start(hidden), labels=whole)
    assert_close(output.logits[:, 1:], expected.logits)
    assert_close(output.loss, expected.loss)
    assert (output.logits[:, 0].argmax(-1) == START).all()
    causal = with_class(any_order, AOGPTForCausalLM)
    loss = -any_order.log_likelihood(text).token_log_likelihood.mean()
    assert_close(causal(whole, labels=whole).loss, loss)
    ids, mask, _ = mix(text[:, :-3])
    labels = ids.masked_fill((mask == 0) | (ids == START), -100)
    for given in (labels, ids.masked_fill(mask == 0, -100)):
        assert_close(causal(ids, mask, labels=given).loss, causal(ids, mask, labels=labels).loss)


CACHES: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=LENGTH + 3),
}


def reset(cache: Any, kind: str, config: Any) -> Any:
    """Return the emptied cache. In old versions of Transformers, `reset` does not empty a dynamic cache."""
    cache.reset()
    return CACHES[kind](config) if cache.get_seq_length() else cache


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_the_causal_view_reads_the_start_token_as_the_start_row(
    any_order: AOGPTForAnyOrderLM, text: torch.LongTensor, kind: str, implementation: str
) -> None:
    causal = with_class(any_order, AOGPTForCausalLM)
    causal.set_attn_implementation(implementation)
    plain, first = causal(text).logits, any_order(text).logits[:, 0]
    first = first.clone()
    ids, mask, columns = mix(text[:, :-3])
    cache = CACHES[kind](causal.config)
    for inputs, keep in ((add_start(text), None), (ids, mask)):
        parts = []
        cache = reset(cache, kind, causal.config)
        for start, end in ((0, 1), (1, 2), (2, 6), (6, 7), (7, inputs.shape[1])):
            options = {} if keep is None else {"attention_mask": keep[:, :end]}
            parts.append(causal(inputs[:, start:end], **options, cache=cache).logits)
            cache = copy.deepcopy(cache)
        for logits in (causal(inputs, attention_mask=keep).logits, torch.cat(parts, dim=1)):
            for row, column in enumerate(columns if keep is not None else [slice(1, None)] * 3):
                assert_close(logits[row, column], plain[row, : len(ids[row, column]) if keep is not None else None])
                assert_close(logits[row, column.start - 1], first[row])  # start token, or padding before the text
    cache = reset(cache, kind, causal.config)
    assert_close(causal(text[:, :5], cache=cache).logits, plain[:, :5])
    # The mask of a later pass hides the first tokens.
    hides, results = torch.tensor([[0] * 3 + [1] * 3]).expand(3, 6), []
    for inputs, keep in ((text, hides), (add_start(text), torch.nn.functional.pad(hides, (1, 0)))):
        cache = reset(cache, kind, causal.config)
        causal(inputs[:, : keep.shape[1] - 1], cache=cache)
        last = inputs[:, keep.shape[1] - 1 : keep.shape[1]]
        results.append(causal(last, attention_mask=keep, cache=cache).logits)
    assert_close(results[0], results[1])


def test_texts_in_a_cache_are_known_or_refused(any_order: AOGPTForAnyOrderLM, text: torch.LongTensor) -> None:
    causal = with_class(any_order, AOGPTForCausalLM)
    filled = causal(text[:, :4], use_cache=True)[CACHE_NAME]
    other = DynamicCache(config=causal.config)
    for layer in range(2):
        other.update(filled.layers[layer].keys, filled.layers[layer].values, layer)
    with pytest.raises(ValueError, match="`cache` was not filled by"):
        causal(text[:, 4:5], cache=other)
    quantized = DynamicCache(config=causal.config)
    quantized.layers[0]._quantize = None
    with pytest.raises(ValueError, match="quantized cache"):
        causal(torch.stack((text[0], add_start(text)[1, :-1])), cache=quantized)
    with pytest.raises(ValueError, match="`position_ids` must be 0 at the start token"):
        causal(add_start(text[:, :4]), position_ids=torch.arange(1, 6))


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_texts_in_a_cache_may_be_reordered(any_order: AOGPTForAnyOrderLM, text: torch.LongTensor, kind: str) -> None:
    """Loops of users do so, with texts that begin with the start token and others."""
    causal, (ids, mask, _) = with_class(any_order, AOGPTForCausalLM), mix(text[:, :4])
    last, keep = text[:1, 4:6], torch.ones(1, 2, dtype=torch.long)
    operations: list[tuple[list[int], Callable[[Any], object]]] = [
        ([2, 0, 1], lambda cache: cache.reorder_cache(torch.tensor([2, 0, 1]))),
        ([1, 1, 2], lambda cache: [layer.reorder_cache(torch.tensor([1, 1, 2])) for layer in cache.layers]),
    ]
    if kind == "dynamic":
        operations += [
            ([0, 0, 1, 1, 2, 2], lambda cache: cache.batch_repeat_interleave(2)),
            ([0], lambda cache: cache.batch_select_indices(torch.tensor([0]))),
        ]
    for rows, change in operations:
        for inputs, seen in ((ids, mask), (ids[:, 1:], None)):
            cache = CACHES[kind](causal.config)
            causal(inputs, seen, cache=cache)
            change(cache)
            new = last.expand(len(rows), -1)
            seen = None if seen is None else torch.cat((seen[rows], keep.expand(len(rows), -1)), dim=1)
            expected = causal(torch.cat((inputs[rows], new), dim=1), seen).logits[:, -2:]
            assert_close(causal(new, seen, cache=cache).logits, expected)


GENERATIONS: dict[str, dict[str, Any]] = {
    "dynamic cache": {},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "chunks": {"prefill_chunk_size": 2},
    "beams": {"num_beams": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 10},
}


@pytest.mark.parametrize("kind", [*GENERATIONS, "assistant"])
@torch.no_grad()
def test_generation_continues_as_the_source_does(
    source: PreTrainedModel, any_order: AOGPTForAnyOrderLM, text: torch.LongTensor, kind: str
) -> None:
    causal, options = with_class(any_order, AOGPTForCausalLM), GENERATIONS.get(kind, {})
    if kind == "assistant":
        options = {"assistant_model": with_class(any_order, AOGPTForCausalLM)}
    prompts = add_start(text[: 1 if kind in ("assistant", "prompt lookup") else 3, :4])
    mask, common = torch.ones_like(prompts), {"do_sample": False, "eos_token_id": None, "pad_token_id": 15}
    beams = {"num_beams": 3} if kind == "beams" else {}
    # The positions of the source include that of the start token.
    expected = source.generate(prompts, attention_mask=mask, max_new_tokens=7, **common, **beams)
    result = causal.generate(prompts, attention_mask=mask, max_new_tokens=7, **common, **options)
    assert torch.equal(result, expected)
    longest = causal.generate(prompts, attention_mask=mask, max_new_tokens=8, **common, **options)
    without = causal.generate(prompts[:, 1:], attention_mask=mask[:, 1:], max_new_tokens=8, **common, **options)
    assert torch.equal(longest[:, 1:], without)
    with pytest.raises(ValueError, match="Generate fewer tokens"):
        causal.generate(prompts, attention_mask=mask, max_new_tokens=9, **common, **options)


@pytest.mark.parametrize("kind", ["dynamic cache", "static cache"])
@torch.no_grad()
def test_padded_prompts_are_continued_as_without_padding_and_start_token(
    any_order: AOGPTForAnyOrderLM, text: torch.LongTensor, kind: str
) -> None:
    ids, mask, columns = mix(text[:, :4])
    ids, mask, columns = ids[:, :-1].roll(1, 0), mask[:, :-1].roll(1, 0), [columns[index] for index in (2, 0)]
    ids[1], mask[1] = ids[2].roll(1), mask[2].roll(1)
    ids[2] = torch.nn.functional.pad(torch.tensor([START]), (5, 0))
    mask[2] = torch.tensor([0, 0, 0, 0, 0, 1])
    texts = [row[keep != 0][row[keep != 0] != START] for row, keep in zip(ids, mask, strict=True)]
    assert [len(row) for row in texts] == [4, 4, 0]
    common = {"max_new_tokens": 4, "do_sample": False}
    expected = [any_order.generate(row[None], **common, stop_at_eos=False)[0, -4:] for row in texts]
    options = {"attention_mask": mask, "stop_at_eos": False, "order": "left_to_right"}
    output = any_order.generate(ids, **common, **options, return_dict_in_generate=True)
    assert torch.equal(output.sequences[:, -4:], torch.stack(expected))
    assert torch.equal(output.sequences[:, :-4], ids)
    assert (output.token_logprobs[:, :-4] == 0).all()
    causal = with_class(any_order, AOGPTForCausalLM)
    result = causal.generate(
        ids, attention_mask=mask, **common, eos_token_id=None, pad_token_id=15, **GENERATIONS[kind]
    )
    assert torch.equal(result[:, -4:], torch.stack(expected))


def test_generation_fills_all_positions_after_a_start_token(any_order: AOGPTForAnyOrderLM) -> None:
    prompt, options = torch.tensor([[START, 3, 1]]), {"stop_at_eos": False, "generator": seeded()}
    output = any_order.generate(prompt, max_length=LENGTH + 1, num_steps=4, **options, return_dict_in_generate=True)
    options["generator"] = seeded()
    plain = any_order.generate(prompt[:, 1:], max_length=LENGTH, num_steps=4, **options)
    assert output.sequences.shape == (1, LENGTH + 1)
    assert plain.shape == (1, LENGTH)
    assert output.orders[0, -1] == 0
    scores = any_order.log_likelihood(output.sequences).token_log_likelihood
    assert_close(scores[:, 1:], any_order.log_likelihood(output.sequences[:, 1:]).token_log_likelihood)
    with pytest.raises(ValueError, match="this model takes at most 13 in all"):
        any_order.generate(prompt, max_length=LENGTH + 2)
    with pytest.raises(ValueError, match="`input_ids` has 13 tokens"):
        any_order(torch.zeros(1, LENGTH + 1, dtype=torch.long))


def test_infill_reads_the_start_token_as_the_start_row(any_order: AOGPTForAnyOrderLM) -> None:
    for gap in ([3, MASK, 4, 5], [MASK, 7, 2]):
        plain, whole = (
            any_order.infill(torch.tensor(ids), lengths=[1, 2, 3], do_sample=False, order="left_to_right")
            for ids in (gap, [START, *gap])
        )
        assert torch.equal(whole.sequences[:, 1:], plain.sequences)
        assert_close(whole.log_probs, plain.log_probs)
    any_order.config.eos_token_id = 2
    padded = any_order.infill(torch.tensor([START, 3, MASK, 4]), lengths=[1, 2], padded_length=LENGTH)
    assert padded.sequences.shape == (1, LENGTH + 1)
    with pytest.raises(ValueError, match="no text around the gap"):
        any_order.infill(torch.tensor([START, MASK]), lengths=[1])


def test_infill_puts_no_start_token_into_a_gap() -> None:
    """At the beginning of a text, it would not be scored."""
    model = random_model(start_token_id=3)
    with torch.no_grad():
        model.lm_head.bias[3] += 30.0
    output = model.infill(torch.tensor([11, 7, 2, 11, 5]), lengths=[1, 2])
    assert 3 not in output.sequences


def start_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one letter for each id below 13 that adds the start token to each text."""
    vocabulary = {letter: index for index, letter in enumerate("abcdefghijklm")} | {"<s>": START, "<n>": 14, "<p>": 15}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<n>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", START)])
    special = {"bos_token": "<s>", "eos_token": "<n>", "pad_token": "<p>", "unk_token": "<n>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def test_pipelines_and_the_harness_score_as_the_source_does(
    source: PreTrainedModel, any_order: AOGPTForAnyOrderLM
) -> None:
    lm_eval = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    tokenizer, causal = start_tokenizer(), with_class(any_order, AOGPTForCausalLM)
    assert tokenizer("ab").input_ids == [START, 0, 1]
    # In the last pair, the harness cuts the start token off.
    pairs, scores = [("abc", "def"), ("", "ab"), ("abcdefgh", "abc"), ("a", "b"), ("abcdefghijkl", "abc")], []
    for model in (source, causal):
        harness = lm_eval.HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=2)
        requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
        *whole, cut = (score for score, _ in harness.loglikelihood(requests, disable_tqdm=True))
        rolling = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in ("abcd", "abcdefghijkl")]
        scores.append(whole + harness.loglikelihood_rolling(rolling, disable_tqdm=True))
        assert math.isnan(cut) == (model is causal and source.config.model_type == "gpt2")
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
    generate = pipeline("text-generation", model=causal, tokenizer=tokenizer)
    for prompt, ids in (("abc", [0, 1, 2]), ("", [])):
        given = torch.tensor([ids], dtype=torch.long)
        expected = any_order.generate(given, max_new_tokens=3, do_sample=False, stop_at_eos=False)[0, len(ids) :]
        result = generate(prompt, max_new_tokens=3, do_sample=False, eos_token_id=None, return_full_text=False)
        assert result[0]["generated_text"].replace(" ", "") == tokenizer.decode(expected, True).replace(" ", "")
    fill = pipeline("fill-mask", model=with_class(any_order, AOGPTForMaskedLM), tokenizer=tokenizer)
    logits = with_class(any_order, AOGPTForMaskedLM)(torch.tensor([[0, MASK, 2]])).logits[0, 1].softmax(-1)
    assert fill("a<mask>c")[0]["score"] == pytest.approx(float(logits.max()), abs=1e-6)


# --------------------------------------------------------------------------------------------- learned start rows


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr("modeling_aogpt.causal.logger.warning_once", messages.append)
    return messages


@pytest.mark.parametrize("shape", [None, (1, 0), (2, 0)])
def test_without_a_prompt_the_causal_view_begins_after_the_start_row(
    shape: tuple[int, int] | None, messages: list[str]
) -> None:
    model = random_model(bos_token_id=2, eos_token_id=2)
    causal = with_class(model, AOGPTForCausalLM)
    expected = model.generate(max_new_tokens=6, order="left_to_right", do_sample=False, stop_at_eos=False)
    inputs = None if shape is None else torch.zeros(shape, dtype=torch.long)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for extra in ({}, {"use_cache": False}, GENERATIONS["static cache"], {"prompt_lookup_num_tokens": 3}):
        if "prompt_lookup_num_tokens" in extra and shape == (2, 0):  # Transformers allows only one sequence
            continue
        result = causal.generate(inputs, **options, **extra)
        assert result[:, 0].tolist() == [2] * len(result)
        assert torch.equal(result[:, 1:], expected.expand(len(result), -1))
    prompts, mask = torch.tensor([[0, 0], [5, 6]]), torch.tensor([[0, 0], [1, 1]])  # the first prompt is empty
    for extra in ({}, GENERATIONS["static cache"], {"num_beams": 1, "use_cache": False}):
        result = causal.generate(prompts, attention_mask=mask, **options, **extra)
        assert torch.equal(result[:1, 2:], expected)
        assert torch.equal(result[1:], causal.generate(prompts[1:], attention_mask=mask[1:], **options))
    assert not messages
    with pytest.raises(ValueError, match="`input_ids` has no tokens"):
        causal(torch.zeros(1, 0, dtype=torch.long))


def test_a_special_token_at_the_beginning_is_text_and_gives_a_warning(messages: list[str]) -> None:
    model = random_model(bos_token_id=2, eos_token_id=[3, 4])
    causal = with_class(model, AOGPTForCausalLM)
    for ids in ([[1, 2, 3]], [[1]]):
        causal(torch.tensor(ids))
    causal(torch.tensor([[2, 1]]), attention_mask=torch.tensor([[0, 1]]))
    causal.train()(torch.tensor([[2, 1]]))
    causal.eval()
    assert not messages
    for ids in ([[1, 5], [2, 1]], [[4]]):
        causal(torch.tensor(ids))
        assert "add_special_tokens=False" in messages.pop()
    # A tokenizer without a beginning-of-text token, whose end-of-text is not the start token (Qwen's chat models).
    with_start = with_class(random_model(start_token_id=2, bos_token_id=2, eos_token_id=[3, 2]), AOGPTForCausalLM)
    with_start(torch.tensor([[2, 1], [1, 3]]))
    assert not messages
    with_start(torch.tensor([[2, 1], [3, 1]]))
    assert "(one of [3]). It is treated as text, because the model adds the start token 2." in messages.pop()
    logits, ids = causal(torch.tensor([[2, 1, 5]])).logits, torch.tensor([[2, 1, 5]])
    assert_close(logits[:, :-1], model(ids).logits[:, 1:])


# ---------------------------------------------------------------------------------------------- the last position


@torch.no_grad()
def test_logits_that_no_position_is_left_for_are_those_of_the_source_or_nan(
    source: PreTrainedModel, any_order: AOGPTForAnyOrderLM, text: torch.LongTensor, messages: list[str]
) -> None:
    causal, whole = with_class(any_order, AOGPTForCausalLM), add_start(text)
    is_rotary = source.config.model_type == "llama"
    for ids in (text, whole):
        logits = causal(ids, labels=ids).logits
        assert logits[:, :-1].isfinite().all()
        assert logits[:, -1].isnan().all() == (not is_rotary)
        assert bool(messages) != is_rotary
        states = causal.model(ids).last_hidden_state
        assert states.isnan().all(dim=-1).equal(logits.isnan().all(dim=-1))
        messages.clear()
        for last in causal(ids, logits_to_keep=1).logits, causal(ids, logits_to_keep=torch.tensor([0, -1])).logits:
            assert_close(last[:, -1], logits[:, -1])
        messages.clear()
        if is_rotary:
            expected = source(whole, use_cache=False).logits[:, -1]
            assert_close(logits[:, -1, :MASK], expected)
    keep = torch.ones_like(text)
    keep[:2, :2] = 0
    messages.clear()
    assert causal(text[:2], attention_mask=keep[:2]).logits.isfinite().all()
    assert not messages


def test_a_loss_of_full_sequences_is_finite_with_the_same_gradients(messages: list[str]) -> None:
    causal = with_class(random_model(), AOGPTForCausalLM)
    ids, gradients = torch.randint(0, 11, (2, 12), generator=seeded()), []
    for model in (causal, causal.train()):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.eval()
    for one, other in zip(*gradients, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("do_sample", [False, True])
def test_prompt_lookup_fills_the_last_positions(do_sample: bool) -> None:
    causal = with_class(random_model(max_position_embeddings=24), AOGPTForCausalLM)
    prompt = torch.tensor([[1, 2, 3, 4, 5] * 4])
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 4, "pad_token_id": 0}
    torch.manual_seed(0)
    result = causal.generate(prompt, **options, do_sample=do_sample, prompt_lookup_num_tokens=10)
    assert result.shape == (1, 24)
    if not do_sample:
        assert torch.equal(result, causal.generate(prompt, **options, do_sample=False))
    with pytest.raises(ValueError, match="Generate fewer tokens"):
        causal.generate(prompt, **options | {"max_new_tokens": 5}, do_sample=False, prompt_lookup_num_tokens=10)


def test_passes_with_start_tokens_compile_without_graph_breaks() -> None:
    model = random_model(start_token_id=3, position_encoding="rotary")
    causal, ids = with_class(model, AOGPTForCausalLM), torch.tensor([[3, 1, 4, 1, 5], [2, 6, 3, 3, 8]])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits, rtol=0, atol=1e-12)
    compiled = torch.compile(causal, backend="eager", fullgraph=True, dynamic=False)
    cache = StaticCache(config=causal.config, max_cache_len=8)
    cache.early_initialization(2, 2, 8, torch.float64, torch.device("cpu"))
    for _ in range(2):  # a second time after a reset, with other texts
        cache.reset()
        parts = [compiled(ids[:, start:end], cache=cache).logits for start, end in ((0, 3), (3, 4), (4, 5))]
        torch.testing.assert_close(torch.cat(parts, dim=1), causal(ids).logits, rtol=0, atol=1e-12)
        ids = ids.flip(0)


def test_trajectories_after_a_given_start_token_equal_those_of_generation(any_order: AOGPTForAnyOrderLM) -> None:
    prompts = torch.tensor([[START, 3, 1], [START, MASK, 2], [4, MASK, 2]])
    output = any_order.generate(
        prompts, max_length=8, num_steps=3, order="random", generator=seeded(), return_dict_in_generate=True
    )
    log_probs = any_order.trajectory_log_probs(output.sequences, output.orders, output.unmasking_steps)
    assert_close(log_probs.double(), output.token_logprobs)
    # A start token that was generated is text.
    output.sequences[2, 0], output.unmasking_steps[2] = START, 0
    orders = torch.arange(8).expand(3, 8)
    log_probs = any_order.trajectory_log_probs(output.sequences[2:], orders[2:], output.unmasking_steps[2:])
    assert (log_probs < 0).all()
