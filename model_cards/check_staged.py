# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Script that tests a model folder in a separate process.

    python -I check_staged.py FOLDER EXPECTED.safetensors

The script loads the tokenizer, and the model through each Auto class that the folder's configuration lists. It runs
each model, and generates text or fills in masks. EXPECTED contains `input_ids`, and the `logits` that the model must
compute for them. The script prints the outcome of each check. At the first failure, it stops with an error.
"""

import sys

import torch
import transformers
from safetensors.torch import load_file


def check(folder: str, expected: str) -> None:
    """Load and use the tokenizer and all models of a folder, and print the outcome of each check."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert tokenizer.mask_token_id == config.mask_token_id, "the mask ids of the tokenizer and of the model differ"
    text = tokenizer.decode([config.num_valid_tokens - 1])
    print(f"AutoTokenizer: {len(tokenizer)} tokens, mask {tokenizer.mask_token}")
    inputs = load_file(expected)
    ids = inputs["input_ids"]

    for name in sorted(config.auto_map.keys() - {"AutoConfig"}):
        model, info = getattr(transformers, name).from_pretrained(
            folder, trust_remote_code=True, output_loading_info=True
        )
        assert type(model).__module__.startswith("transformers_modules."), "the code does not come from the folder"
        assert not any(info.values()), f"weights are missing or unused: {info}"
        with torch.no_grad():
            logits = model(ids).logits
        assert all(x.isfinite().all() for x in (logits, *model.parameters())), "logits or weights are not finite"
        if name == "AutoModel":
            torch.testing.assert_close(logits, inputs["logits"])
        if name == "AutoModelForCausalLM":
            filled = model.generate(ids[:, :1], attention_mask=ids[:, :1] * 0 + 1, max_new_tokens=2, do_sample=False)
        elif hasattr(model, "generate"):
            generator = torch.Generator().manual_seed(0)
            filled = model.generate(max_length=min(config.max_position_embeddings, 16), generator=generator)
        else:
            masked = ids.masked_fill(torch.arange(ids.shape[1]) == 1, config.mask_token_id)
            filled = model(masked).logits.argmax(-1)
        assert not (filled == config.mask_token_id).any(), "masks were not filled in"
        assert filled.max() < config.num_valid_tokens, "generated ids are not ids of text"
        print(f"{name} -> {type(model).__name__}: {tokenizer.decode(filled[0], skip_special_tokens=True)!r}")

    if "AutoModelForMaskedLM" in config.auto_map:
        pipe = transformers.pipeline("fill-mask", model=folder, trust_remote_code=True)
        print(f"pipeline('fill-mask'): {pipe(f'{tokenizer.mask_token}{text}', top_k=1)[0]['sequence']!r}")
    if "AutoModelForCausalLM" in config.auto_map:
        pipe = transformers.pipeline("text-generation", model=folder, trust_remote_code=True)
        outputs = pipe(text, max_new_tokens=2, do_sample=False)
        print(f"pipeline('text-generation'): {outputs[0]['generated_text']!r}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("error: Usage: python -I check_staged.py FOLDER EXPECTED.safetensors")
    check(*sys.argv[1:])
