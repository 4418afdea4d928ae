# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Simulated accelerator: tensors that report to be on one of several devices, and are computed on the CPU.

As on real hardware, an operation that mixes tensors of several devices raises an error. Operations for which the CPU
would wait for results of the device are recorded. `python -m tests.accelerator` runs every scenario below and prints,
as JSON, errors, differences from the CPU, and waits. It runs in its own process, since it registers a device.
"""

import copy
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from transformers import PreTrainedModel

from eval.infilling import Filler, Gap
from modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM, MDMEncoderForMaskedLM
from tests.references import random_encoder, random_model, seeded, with_class
from training.objectives import AnyOrderObjective, MaskedDiffusionObjective, ScoreEntropyObjective
from training.optimization import ExponentialMovingAverage
from training.status import StepStatus

NAME = "simulated"
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
MASK = 11
ATTENTION = nn.functional.scaled_dot_product_attention


class OnDevice(torch.Tensor):
    """Tensor of the simulated device that wraps a CPU tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type["OnDevice"], inner: torch.Tensor, index: int = 0) -> "OnDevice":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, index),
        )

    def __init__(self, inner: torch.Tensor, index: int = 0) -> None:
        self.inner = inner

    def tolist(self) -> list:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return compute(function, args, kwargs or {}, [])


class Backend(_DummyBackendModule):
    """Backend with the one function that autocast needs."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Device(TorchDispatchMode):
    """
    Dispatch mode in which tensors can be created on the device.

    Attributes:
        waits (`list` of `str`): Lines of the package that waited for the device.
        cudnn (`set` of `bool`): Whether cuDNN was enabled in calls of attention.
        slow_masks (`set` of `str`): Attention masks that PyTorch would convert or copy in every layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.cudnn: set[bool] = set()
        self.slow_masks: set[str] = set()

    def attention(self, query: torch.Tensor, *args: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.cudnn.add(torch.backends.cuda.cudnn_sdp_enabled())
        mask = kwargs["attn_mask"]
        if mask is not None and (mask.dtype != query.dtype or any(stride % 8 for stride in mask.stride()[:-1])):
            self.slow_masks.add(f"{mask.dtype} with strides {mask.stride()}")
        return ATTENTION(query, *args, **kwargs)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return compute(function, args, kwargs or {}, self.waits)


def compute(function: Any, args: tuple, kwargs: dict[str, Any], waits: list[str]) -> Any:
    """Run an operation on the wrapped CPU tensors, and record in `waits` if it waits for the device."""
    name, target = function._schema.name, kwargs.get("device")
    leaves = [
        leaf for value in (*args, *kwargs.values()) for leaf in (value if isinstance(value, list | tuple) else (value,))
    ]
    tensors = list(filter(is_tensor, leaves))
    on_device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    check_devices(name, args, tensors, on_device)
    device = torch.device(target) if target is not None else (on_device or tensors or [torch.empty(0)])[0].device
    if name == "aten::copy_":
        device = args[0].device
    goes_to_device = device.type == NAME
    if (on_device or goes_to_device) and waits_for_device(name, args, kwargs, tensors, goes_to_device):
        waits.append(line_of_package())

    inner = {key: unwrap(value) for key, value in kwargs.items()} | ({} if target is None else {"device": "cpu"})
    result = function(*map(unwrap, args), **inner)
    if name.endswith("_") and not name.endswith("__") and isinstance(result, torch.Tensor):
        return args[0]
    if not goes_to_device:
        return result
    return map_values(result, lambda value: OnDevice(value, device.index or 0) if is_tensor(value) else value)


def map_values(values: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a value or to all values of a list; operations take and return no deeper structures."""
    return type(values)(map(change, values)) if isinstance(values, list | tuple) else change(values)


def unwrap(values: Any) -> Any:
    return map_values(values, lambda value: value.inner if isinstance(value, OnDevice) else value)


def check_devices(name: str, args: tuple, tensors: list[torch.Tensor], on_device: list[OnDevice]) -> None:
    """Raise an error for mixed devices, except for copies, numbers on the CPU, and CPU indices of device tensors."""
    if len({tensor.device for tensor in on_device}) > 1 and name != "aten::copy_":
        raise RuntimeError(f"{name} of tensors on two devices, with shapes {[list(t.shape) for t in on_device]}.")
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.dim()]
    if on_device and on_cpu and name != "aten::copy_" and not (name in INDEXING and isinstance(args[0], OnDevice)):
        raise RuntimeError(f"{name} of device tensors and CPU tensors with shapes {[list(t.shape) for t in on_cpu]}.")


def waits_for_device(name: str, args: tuple, kwargs: dict[str, Any], tensors: list, goes_to_device: bool) -> bool:
    """Return whether the CPU waits, as with CUDA: also for a copy from the CPU, unless it is non-blocking."""
    if name in ("aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense"):
        comes_from_cpu = (
            not isinstance(tensors[-1], OnDevice) and tensors[-1].dim() > 0
        )  # numbers are passed as arguments
        is_blocking = not (kwargs.get("non_blocking") or (name == "aten::copy_" and len(args) > 2 and args[2]))
        return not goes_to_device or name == "aten::_local_scalar_dense" or (comes_from_cpu and is_blocking)
    if name in INDEXING:
        has_boolean_index = any(is_tensor(index) and index.dtype == torch.bool for index in args[1])
        # On a GPU, a number that is assigned to several elements is copied from the CPU.
        has_several = any(is_tensor(index) and index.numel() > 1 for index in args[1])
        return has_boolean_index or (has_several and len(args) > 2 and args[2].dim() == 0)
    return name in ("aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique_dim")


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def line_of_package() -> str:
    """Return the innermost line of the package on the stack."""
    frame = sys._getframe()
    while frame is not None and Path(frame.f_code.co_filename).parent.name != "modeling_aogpt":
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "elsewhere"


def to_device(value: Any) -> Any:
    """Return a tensor or a copy of a model on the device, and anything else unchanged."""
    if isinstance(value, nn.Module):
        moved = copy.deepcopy(value)
        for module in moved.modules():
            move_parameters(module, index=0)
        return moved
    return OnDevice(value) if isinstance(value, torch.Tensor) else value


def move_parameters(module: nn.Module, index: int) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = nn.Parameter(OnDevice(parameter.data, index))


class PlacedHook(AlignDevicesHook):
    """Hook of Accelerate for a module whose parameters are already on their device."""

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module


def spread(model: PreTrainedModel) -> PreTrainedModel:
    """
    Return a copy with embeddings and first layer on one device, and the other layers and the head on another.

    The modulation of the final norm is not on the device of the final norm.
    """
    model = copy.deepcopy(model)
    for name, module in model.named_modules():
        is_embedding = "embed" in name and "layers" not in name
        index = int(not is_embedding and not name.startswith(("model.layers.0", "model.modulation")))
        move_parameters(module, index)
        if name == "":
            add_hook_to_module(module, PlacedHook(torch.device(NAME, 0), io_same_device=True))
        elif name != "model" and module.state_dict():
            skipped = model._skip_keys_device_placement
            add_hook_to_module(module, PlacedHook(torch.device(NAME, index), skip_keys=skipped))
    return model


# ------------------------------------------------------------------------------------------------------- scenarios

IDS = torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(1))
PARTLY_MASKED = IDS.masked_fill(IDS % 2 == 0, MASK)
ORDERS = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
ATTENTION_MASK = torch.ones(3, 12, dtype=torch.long)
ATTENTION_MASK[1, 8:] = ATTENTION_MASK[2, :3] = 0

GENERATE: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "Bernoulli": {"num_steps": 4},
    "fixed counts": {"num_steps": 4, "unmasking": "fixed_count", "schedule": "cosine"},
    "left to right": {"order": "left_to_right", "do_sample": False},
    "given order": {"order": ORDERS},
    "blocks": {"block_length": 4, "num_steps": 4},
    "padding": {"attention_mask": ATTENTION_MASK, "num_steps": 4},
    "returned twice": {"num_return_sequences": 2, "num_steps": 4},
    "confidence": {"order": "confidence"},
    "margin, window": {"order": "margin", "window": 3},
    "entropy bound": {"unmasking": "entropy_bound", "entropy_bound": 1.0},
    "threshold": {"unmasking": "threshold", "threshold": 0.95},
    "truncated": {"top_k": 5, "top_p": 0.9, "temperature": 0.7},
    "truncated as released": {"top_p": 0.9, "top_p_rule": "exclusive"},
    "refined": {"refine_rounds": 2, "refine_length": 2, "num_steps": 3},
    "end of text": {"order": "left_to_right", "stop_at_eos": True},
}
SPECULATE: dict[str, dict[str, Any]] = {
    "speculative": {"strategy": "speculative"},
    "speculative, prompt lookup": {"strategy": "speculative", "draft": "prompt_lookup"},
}
SCORE: dict[str, Callable[[Any, Callable], torch.Tensor]] = {
    "likelihood": lambda model, put: (
        model.log_likelihood(put(IDS), attention_mask=put(ATTENTION_MASK), generator=seeded()).log_likelihood
    ),
    "mean likelihood": lambda model, put: (
        model.log_likelihood(put(IDS), num_orders=3, generator=seeded()).log_likelihood
    ),
}
SCORE_ORDERS: dict[str, Callable[[Any, Callable], torch.Tensor]] = {
    "likelihood of orders": lambda model, put: model.log_likelihood(put(IDS), orders=put(ORDERS)).log_likelihood,
    "ensemble": lambda model, put: model.log_likelihood(put(IDS), ensemble_size=2, generator=seeded()).log_likelihood,
    "conditional": lambda model, put: (
        model.log_likelihood(put(IDS), targets=put(IDS % 2 == 0), generator=seeded()).log_likelihood
    ),
    "training": lambda model, put: gradient(model, put),
    "training step": lambda model, put: average_after_a_step(model, put),
}


def gradient(model: AOGPTForAnyOrderLM, put: Callable) -> torch.Tensor:
    model.train()
    model(put(IDS), orders=put(ORDERS), attention_mask=put(ATTENTION_MASK), labels=put(IDS)).loss.backward()
    return model.lm_head.weight.grad


def gradient_of_score(model: MDMEncoderForMaskedLM, put: Callable) -> torch.Tensor:
    model.train()
    model(put(PARTLY_MASKED), labels=put(IDS), sigma=put(torch.tensor([0.1, 1.0, 5.0]))).loss.backward()
    return model.lm_head.weight.grad


def gradient_of_objective(
    objective: type[MaskedDiffusionObjective],
) -> Callable[[MDMEncoderForMaskedLM, Callable], torch.Tensor]:
    def run(model: MDMEncoderForMaskedLM, put: Callable) -> torch.Tensor:
        is_masked, times = IDS % 2 == 0, torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
        indices = is_masked.flatten().nonzero().squeeze(1)
        objective(model.train())(put(IDS), put(is_masked), put(indices), put(times)).backward()
        return model.lm_head.weight.grad

    return run


def average_after_a_step(model: AOGPTForAnyOrderLM, put: Callable) -> torch.Tensor:
    """Return the moving averages after a training step as in `training/pretrain.py`, with plain gradient descent."""
    averages = ExponentialMovingAverage(model, decay=0.9)
    loss = AnyOrderObjective(model.train())(put(IDS), put(ORDERS))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    StepStatus(0, torch.stack([loss.detach(), norm, torch.full_like(norm, 15.0)])[None])
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(weight.grad)
    averages.update(model)
    return averages.weights["lm_head.weight"]


def make_generation(arguments: dict[str, Any]) -> Callable[[Any, Callable], torch.Tensor]:
    def generate(model: PreTrainedModel, put: Callable) -> torch.Tensor:
        model.generation_config.eos_token_id = 5
        moved = {name: put(value) for name, value in arguments.items()}
        return model.generate(put(PARTLY_MASKED), generator=seeded(), **moved)

    return generate


def fill_gap(model: PreTrainedModel, put: Callable) -> torch.Tensor:
    filler, gap = Filler(model, padded_length=None, max_length=3), Gap(IDS[0].tolist(), start=4, length=2)
    tokens = [token for fill in filler.methods().values() for token in fill(gap)]
    return put(torch.tensor([*tokens, filler.nats(gap, only_before=True)], dtype=torch.float64))


Scenario = tuple[PreTrainedModel, Callable[[Any, Callable], torch.Tensor]]


def scenarios() -> dict[str, Scenario]:
    decoder, encoder = random_model(position_encoding="rotary"), random_encoder()
    generate = {name: make_generation(arguments) for name, arguments in GENERATE.items()}
    encoder_runs = {name: generate[name] for name in ("Bernoulli", "padding", "confidence", "entropy bound", "refined")}
    speculate = {name: make_generation(arguments) for name, arguments in SPECULATE.items()}
    found = {f"decoder: {name}": (decoder, run) for name, run in (generate | speculate | SCORE | SCORE_ORDERS).items()}
    found |= {f"encoder: {name}": (encoder, run) for name, run in (encoder_runs | SCORE).items()}
    found["evaluation: infilling"] = decoder, fill_gap
    found["encoder: conditional"] = encoder, SCORE_ORDERS["conditional"]
    score_network = random_encoder(target_injection="sigma")
    found["encoder: training"] = score_network, gradient_of_score
    found["encoder: masked diffusion"] = encoder, gradient_of_objective(MaskedDiffusionObjective)
    found["encoder: score entropy"] = score_network, gradient_of_objective(ScoreEntropyObjective)
    found["decoder: infill of a text on the CPU"] = (
        random_model(),
        lambda model, put: put(
            model.infill(torch.tensor([3, 1, MASK, 4, 5]), lengths=[1, 2, 4], generator=seeded()).sequences
        ),
    )
    texts = [torch.tensor([3, 1, MASK, 4, 5, MASK, 2]), torch.tensor([MASK, 4])]
    found["decoder: infill until the ends of gaps"] = (
        random_model(max_gap_length=3, eos_token_id=0),
        lambda model, put: put(model.infill(texts, lengths=range(4), do_sample=False)[0].log_probs),
    )
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 |= {"rope_theta": 1e4, "original_max_position_embeddings": 8}
    for name, make in (("decoder", random_model), ("encoder", random_encoder)):
        model = make(position_encoding="rotary", rope_parameters=llama3)
        found[f"{name}: frequencies of Llama 3"] = model, generate["Bernoulli"]
    found["learned positions"] = random_model(), generate["Bernoulli"]
    found["masked language model"] = (
        with_class(random_model(), AOGPTForMaskedLM),
        lambda model, put: model(put(PARTLY_MASKED), put(ATTENTION_MASK)).logits,
    )
    found["causal language model"] = (
        with_class(random_model(), AOGPTForCausalLM),
        lambda model, put: model(put(IDS), put(ATTENTION_MASK)).logits,
    )
    return found


def scenarios_of_two_devices() -> dict[str, Scenario]:
    kinds = ("one at a time", "Bernoulli", "padding", "margin, window", "refined", "speculative")
    generate = {name: make_generation((GENERATE | SPECULATE)[name]) for name in kinds}
    scored = {name: run for name, run in (SCORE | SCORE_ORDERS).items() if not name.startswith("training")}
    decoder, encoder = random_model(), random_encoder(target_injection="sigma")
    decoder_runs = generate | scored | {"loss": loss}
    encoder_runs = {"Bernoulli": generate["Bernoulli"], "loss": loss} | SCORE
    found = {f"decoder: {name}": (decoder, run) for name, run in decoder_runs.items()}
    found |= {f"encoder: {name}": (encoder, run) for name, run in encoder_runs.items()}
    found["causal language model"] = with_class(random_model(), AOGPTForCausalLM), loss
    for injection in ("shared", "per_layer"):
        found[f"target_injection={injection}, loss"] = (
            random_model(target_injection=injection, num_hidden_layers=3),
            loss,
        )
    return found


def loss(model: PreTrainedModel, put: Callable) -> torch.Tensor:
    return model(put(IDS), attention_mask=put(ATTENTION_MASK), labels=put(IDS)).loss


def run_scenario(
    model: PreTrainedModel,
    run: Callable[[Any, Callable], torch.Tensor],
    move: Callable[[PreTrainedModel], PreTrainedModel],
) -> dict[str, Any]:
    """Return the error, or whether the result equals that on the CPU, the waits, and the state of cuDNN."""
    expected = run(copy.deepcopy(model), lambda value: value)
    moved = move(model)
    device = Device()
    try:
        with device, patch.object(nn.functional, "scaled_dot_product_attention", device.attention):
            found = run(moved, to_device)
    except Exception:
        return {"error": traceback.format_exc()}
    assert isinstance(found, OnDevice)
    # The causal model has no prediction (NaN) after its last position.
    is_equal = torch.allclose(found.inner, expected, rtol=1e-10, atol=1e-10, equal_nan=True)
    attention = {"cudnn": sorted(device.cudnn), "slow_masks": sorted(device.slow_masks)}
    return {"is_equal": is_equal, "waits": device.waits} | attention


def register_device() -> None:
    """Register the simulated device, once in a process."""
    _setup_privateuseone_for_python_backend(NAME, Backend())


if __name__ == "__main__":
    register_device()
    outcomes = {name: run_scenario(*scenario, to_device) for name, scenario in scenarios().items()}
    for name, scenario in scenarios_of_two_devices().items():
        outcomes[f"two devices: {name}"] = run_scenario(*scenario, spread)
    print(json.dumps(outcomes))
