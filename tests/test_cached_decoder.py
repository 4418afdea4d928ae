# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.references import conditional, random_model


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("encoding", ["learned", "rotary"])
@pytest.mark.parametrize("injection", ["adaln", "input", "shared", "per_layer"])
def test_rows_that_only_enter_the_cache_leave_out_the_last_layer(injection: str, encoding: str, attention: str) -> None:
    """Two sequences alike, 4 steps of 3 tokens: a pass enters two of the last three, of which nothing is asked."""
    model = random_model(target_injection=injection, position_encoding=encoding)
    model.set_attn_implementation(attention)
    rows = []
    model.model.layers[-1].register_forward_hook(
        lambda module, arguments, output: rows.append((arguments[0].shape[1], output.shape[1]))
    )
    output = model.generate(num_return_sequences=2, num_steps=4, reveal="fixed", return_dict_in_generate=True)
    assert rows == [(3, 3), (5, 3), (5, 3), (5, 3)]
    found = zip(output.sequences, output.orders, output.reveal_steps, output.token_logprobs, strict=True)
    for ids, order, steps, logprobs in found:
        for target in range(12):
            context = tuple((p, ids[p].item()) for p in order.tolist() if steps[p] < steps[target])
            reference = conditional(model, context, target, 12)[ids[target]].log()
            assert abs(logprobs[target] - reference) < 1e-10
