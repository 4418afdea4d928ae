# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
An accelerator without the hardware: tensors that say they are on a device, or another, and are computed on the CPU.

What a real one refuses, mixing tensors of several places in one operation, raises here too, and whatever makes the CPU
wait for results of the device is counted. `python -m tests.accelerator` runs every scenario below on it and prints,
as JSON, what went wrong or differed from the CPU, and the waits. In a process of its own, since it registers a device.
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

from modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM, MDMEncoderForMaskedLM
from tests.references import random_encoder, random_model
from training.objectives import AnyOrderObjective, MaskedDiffusionObjective, ScoreEntropyObjective
from training.optimization import ExponentialMovingAverage

NAME = "imagined"
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
MASK = 11
ATTENTION = nn.functional.scaled_dot_product_attention


class OnDevice(torch.Tensor):
    """A tensor of the device, around one of the CPU."""

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
    """What autocast asks a device for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Device(TorchDispatchMode):
    """
    While it lasts, tensors can be made on the device; `waits` lists the lines of the package that waited for it, and
    `cudnn` says whether attention might have gone to cuDNN.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.cudnn: set[bool] = set()

    def attention(self, *args: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.cudnn.add(torch.backends.cuda.cudnn_sdp_enabled())
        return ATTENTION(*args, **kwargs)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return compute(function, args, kwargs or {}, self.waits)


def compute(function: Any, args: tuple, kwargs: dict[str, Any], waits: list[str]) -> Any:
    name, target = function._schema.name, kwargs.get("device")
    leaves = [
        leaf for value in (*args, *kwargs.values()) for leaf in (value if isinstance(value, list | tuple) else (value,))
    ]
    tensors = list(filter(is_tensor, leaves))
    on_device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    check_places(name, args, tensors, on_device)
    place = torch.device(target) if target is not None else (on_device or tensors or [torch.empty(0)])[0].device
    if name == "aten::copy_":
        place = args[0].device
    goes_to_device = place.type == NAME
    if (on_device or goes_to_device) and is_waited_for(name, args, kwargs, tensors, goes_to_device):
        waits.append(line_of_package())

    inner = {key: on_cpu(value) for key, value in kwargs.items()} | ({} if target is None else {"device": "cpu"})
    result = function(*map(on_cpu, args), **inner)
    if name.endswith("_") and not name.endswith("__") and isinstance(result, torch.Tensor):
        return args[0]
    if not goes_to_device:
        return result
    return each(result, lambda value: OnDevice(value, place.index or 0) if is_tensor(value) else value)


def each(values: Any, change: Callable[[Any], Any]) -> Any:
    """Operations take and give lists of tensors at most, nothing deeper."""
    return type(values)(map(change, values)) if isinstance(values, list | tuple) else change(values)


def on_cpu(values: Any) -> Any:
    return each(values, lambda value: value.inner if isinstance(value, OnDevice) else value)


def check_places(name: str, args: tuple, tensors: list[torch.Tensor], on_device: list[OnDevice]) -> None:
    """Numbers of the CPU may be anywhere, its indices index the device, and copies go all ways; nothing else mixes."""
    if len({tensor.device for tensor in on_device}) > 1 and name != "aten::copy_":
        raise RuntimeError(f"{name} of tensors on two devices, of {[list(tensor.shape) for tensor in on_device]}.")
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.dim()]
    if on_device and on_cpu and name != "aten::copy_" and not (name in INDEXING and isinstance(args[0], OnDevice)):
        raise RuntimeError(f"{name} of tensors on the device and on the CPU, of {[list(t.shape) for t in on_cpu]}.")


def is_waited_for(name: str, args: tuple, kwargs: dict[str, Any], tensors: list, goes_to_device: bool) -> bool:
    """As CUDA is, also by a copy from the CPU, unless told not to block."""
    if name in ("aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense"):
        comes_from_cpu = not isinstance(tensors[-1], OnDevice) and tensors[-1].dim() > 0  # numbers are no copy
        does_block = not (kwargs.get("non_blocking") or (name == "aten::copy_" and len(args) > 2 and args[2]))
        return not goes_to_device or name == "aten::_local_scalar_dense" or (comes_from_cpu and does_block)
    is_by_mask = name in INDEXING and any(is_tensor(index) and index.dtype == torch.bool for index in args[1])
    return is_by_mask or name in ("aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique_dim")


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def line_of_package() -> str:
    frame = sys._getframe()
    while frame is not None and Path(frame.f_code.co_filename).parent.name != "modeling_aogpt":
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "elsewhere"


def to_device(value: Any) -> Any:
    """A tensor, or a copy of a model, on the device; anything else as it is."""
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
    """What Accelerate attaches to a module, whose parameters are where they belong."""

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module


def spread(model: PreTrainedModel) -> PreTrainedModel:
    """A copy whose embeddings and first layer are on one device, the other layers and the head on another."""
    model = copy.deepcopy(model)
    for name, module in model.named_modules():
        index = int("embed" not in name and not name.startswith("model.layers.0"))
        move_parameters(module, index)
        if name == "":
            add_hook_to_module(module, PlacedHook(torch.device(NAME, 0), io_same_device=True))
        elif name != "model" and module.state_dict():
            skipped = model._skip_keys_device_placement
            add_hook_to_module(module, PlacedHook(torch.device(NAME, index), skip_keys=skipped))
    return model


# ------------------------------------------------------------------------------------------------------- scenarios

IDS = torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(1))
HOLES = IDS.masked_fill(IDS % 2 == 0, MASK)
ORDERS = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
PADDED = torch.ones(3, 12, dtype=torch.long)
PADDED[1, 8:] = PADDED[2, :3] = 0

GENERATE: dict[str, dict[str, Any]] = {
    "one by one": {},
    "Bernoulli": {"num_steps": 4},
    "fixed": {"num_steps": 4, "reveal": "fixed", "schedule": "cosine"},
    "left to right": {"order": "left_to_right", "do_sample": False},
    "given order": {"order": ORDERS},
    "blocks": {"block_length": 4, "num_steps": 4},
    "padding": {"attention_mask": PADDED, "num_steps": 4},
    "returned twice": {"num_return_sequences": 2, "num_steps": 4},
    "confidence": {"order": "confidence"},
    "margin, window": {"order": "margin", "window": 3},
    "entropy bound": {"reveal": "entropy_bounded", "entropy_bound": 1.0},
    "truncated": {"top_k": 5, "top_p": 0.9, "temperature": 0.7},
    "truncated as released": {"top_p": 0.9, "top_p_rule": "exclusive"},
    "refined": {"refine_rounds": 2, "refine_length": 2, "num_steps": 3},
    "end of text": {"order": "left_to_right", "stop_at_eos": True},
}
SPECULATE: dict[str, dict[str, Any]] = {
    "speculative": {"strategy": "speculative"},
    "speculative, n-grams": {"strategy": "speculative", "draft": "ngram"},
}
SCORE: dict[str, Callable[[Any, Callable], torch.Tensor]] = {
    "likelihood": lambda model, put: (
        model.log_likelihood(put(IDS), attention_mask=put(PADDED), generator=seeded()).log_likelihood
    ),
    "mean likelihood": lambda model, put: (
        model.log_likelihood(put(IDS), num_orders=3, generator=seeded()).log_likelihood
    ),
}
SCORE_IN_ORDER: dict[str, Callable[[Any, Callable], torch.Tensor]] = {
    "likelihood of orders": lambda model, put: model.log_likelihood(put(IDS), orders=put(ORDERS)).log_likelihood,
    "ensemble": lambda model, put: (
        model.log_likelihood(put(IDS), num_context_orders=2, generator=seeded()).log_likelihood
    ),
    "conditional": lambda model, put: (
        model.conditional_log_likelihood(put(IDS), put(IDS % 2 == 0), generator=seeded()).log_likelihood
    ),
    "diffusion bound": lambda model, put: model.diffusion_log_likelihood(put(IDS), generator=seeded()).log_likelihood,
    "training": lambda model, put: gradient(model, put),
    "training step": lambda model, put: averaged(model, put),
}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def gradient(model: AOGPTForAnyOrderLM, put: Callable) -> torch.Tensor:
    model.train()
    model(put(IDS), orders=put(ORDERS), attention_mask=put(PADDED), labels=put(IDS)).loss.backward()
    return model.lm_head.weight.grad


def gradient_of_score(model: MDMEncoderForMaskedLM, put: Callable) -> torch.Tensor:
    model.train()
    model(put(HOLES), labels=put(IDS), sigma=put(torch.tensor([0.1, 1.0, 5.0]))).loss.backward()
    return model.lm_head.weight.grad


def gradient_of_objective(
    objective: type[MaskedDiffusionObjective],
) -> Callable[[MDMEncoderForMaskedLM, Callable], torch.Tensor]:
    def run(model: MDMEncoderForMaskedLM, put: Callable) -> torch.Tensor:
        times = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
        objective(model.train())(put(IDS), put(IDS % 2 == 0), put(times)).backward()
        return model.lm_head.weight.grad

    return run


def averaged(model: AOGPTForAnyOrderLM, put: Callable) -> torch.Tensor:
    """The averages after a step of `training/pretrain.py`, with plain gradient descent."""
    averages = ExponentialMovingAverage(model, decay=0.9)
    AnyOrderObjective(model.train())(put(IDS), put(ORDERS)).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(weight.grad)
    averages.update(model)
    return averages.weights["lm_head.weight"]


def generating(arguments: dict[str, Any]) -> Callable[[Any, Callable], torch.Tensor]:
    def generate(model: PreTrainedModel, put: Callable) -> torch.Tensor:
        model.generation_config.eos_token_id = 5
        moved = {name: put(value) for name, value in arguments.items()}
        return model.generate(put(HOLES), generator=seeded(), **moved)

    return generate


def view(kind: type[PreTrainedModel]) -> PreTrainedModel:
    base = random_model()
    model = kind(base.config).double().eval()
    model.load_state_dict(base.state_dict())
    return model


Scenario = tuple[PreTrainedModel, Callable[[Any, Callable], torch.Tensor]]


def scenarios() -> dict[str, Scenario]:
    decoder, encoder = random_model(position_encoding="rotary"), random_encoder()
    generate = {name: generating(arguments) for name, arguments in GENERATE.items()}
    of_encoder = {name: generate[name] for name in ("Bernoulli", "padding", "confidence", "entropy bound", "refined")}
    speculate = {name: generating(arguments) for name, arguments in SPECULATE.items()}
    found = {
        f"decoder: {name}": (decoder, run) for name, run in (generate | speculate | SCORE | SCORE_IN_ORDER).items()
    }
    found |= {f"encoder: {name}": (encoder, run) for name, run in (of_encoder | SCORE).items()}
    found["encoder: conditional"] = encoder, SCORE_IN_ORDER["conditional"]
    score_network = random_encoder(target_injection="sigma")
    found["encoder: training"] = score_network, gradient_of_score
    found["encoder: masked diffusion"] = encoder, gradient_of_objective(MaskedDiffusionObjective)
    found["encoder: score entropy"] = score_network, gradient_of_objective(ScoreEntropyObjective)
    found["learned positions"] = random_model(), generate["Bernoulli"]
    found["masked language model"] = view(AOGPTForMaskedLM), lambda model, put: model(put(HOLES), put(PADDED)).logits
    found["causal language model"] = view(AOGPTForCausalLM), lambda model, put: model(put(IDS), put(PADDED)).logits
    return found


def scenarios_of_two_devices() -> dict[str, Scenario]:
    kinds = ("one by one", "Bernoulli", "padding", "margin, window", "refined", "speculative")
    generate = {name: generating((GENERATE | SPECULATE)[name]) for name in kinds}
    scored = {name: run for name, run in (SCORE | SCORE_IN_ORDER).items() if not name.startswith("training")}
    decoder, encoder = random_model(), random_encoder(target_injection="sigma")
    of_decoder = generate | scored | {"loss": loss}
    of_encoder = {"Bernoulli": generate["Bernoulli"], "loss": loss} | SCORE
    found = {f"decoder: {name}": (decoder, run) for name, run in of_decoder.items()}
    found |= {f"encoder: {name}": (encoder, run) for name, run in of_encoder.items()}
    found["causal language model"] = view(AOGPTForCausalLM), loss
    return found


def loss(model: PreTrainedModel, put: Callable) -> torch.Tensor:
    return model(put(IDS), attention_mask=put(PADDED), labels=put(IDS)).loss


def outcome(
    model: PreTrainedModel,
    run: Callable[[Any, Callable], torch.Tensor],
    move: Callable[[PreTrainedModel], PreTrainedModel],
) -> dict[str, Any]:
    expected = run(copy.deepcopy(model), lambda value: value)
    moved = move(model)
    device = Device()
    try:
        with device, patch.object(nn.functional, "scaled_dot_product_attention", device.attention):
            found = run(moved, to_device)
    except Exception:
        return {"error": traceback.format_exc()}
    assert isinstance(found, OnDevice)
    is_equal = torch.allclose(found.inner, expected, rtol=1e-10, atol=1e-10)
    return {"is_equal": is_equal, "waits": device.waits, "cudnn": sorted(device.cudnn)}


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(NAME, Backend())
    outcomes = {name: outcome(*scenario, to_device) for name, scenario in scenarios().items()}
    for name, scenario in scenarios_of_two_devices().items():
        outcomes[f"two devices: {name}"] = outcome(*scenario, spread)
    print(json.dumps(outcomes))
