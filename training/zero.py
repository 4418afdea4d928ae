# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed ZeRO 1 and 2: every process has all weights, and its part of the optimizer's state (2: and gradients)."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from training.checkpoints import OptimizerState


class ZeroOptimizer:
    """
    Tells DeepSpeed what the run asks for, and knows which part of the optimizer's state this process has.

    To be made before `accelerator.prepare`, which lets each group of `optimizer` hold one flat float32 tensor: a part,
    of the same size in every process, of the group's weights end to end, with zeros behind them.

    Raises:
        ValueError: for another stage of ZeRO than 1 and 2, an optimizer that is offloaded, and mixed precision in fp16.
    """

    def __init__(self, accelerator: Accelerator, optimizer: Optimizer, sequences: int, max_grad_norm: float) -> None:
        plugin = accelerator.state.deepspeed_plugin
        offload = plugin.deepspeed_config["zero_optimization"].get("offload_optimizer", {}).get("device", "none")
        if plugin.zero_stage not in (1, 2) or offload not in (None, "none") or accelerator.mixed_precision == "fp16":
            raise ValueError(
                f"DeepSpeed is asked for zero_stage={plugin.zero_stage}, offload_optimizer_device={offload} and "
                f"mixed_precision={accelerator.mixed_precision}. Stages 1 and 2 without offloading are supported, in "
                "no or bf16. What stage 3 does, FSDP2 does too: training/accelerate/fsdp2.yaml."
            )
        plugin.deepspeed_config |= {
            "train_micro_batch_size_per_gpu": sequences,
            "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
            "gradient_clipping": max_grad_norm,
            # Weights stay in float32, as without DeepSpeed, whose own way is to round them.
            "bf16": {"enabled": False},
            "torch_autocast": {"enabled": accelerator.mixed_precision == "bf16", "dtype": "bfloat16"},
        }
        self.accelerator, self.optimizer = accelerator, optimizer
        self.groups: list[list[nn.Parameter]] = [list(group["params"]) for group in optimizer.param_groups]

    def parts(self) -> list[nn.Parameter]:
        return [group["params"][0] for group in self.optimizer.param_groups]

    def whole_state(self) -> OptimizerState:
        """The state of every weight, on the CPU. To be called by all processes at once."""
        state: OptimizerState = {weight: {} for weights in self.groups for weight in weights}
        for weights, part in zip(self.groups, self.parts(), strict=True):
            for key, tensor in self.optimizer.state[part].items():
                if not tensor.dim():  # AdamW counts its steps in a scalar
                    pieces = [tensor] * len(weights)
                else:
                    sizes = [weight.numel() for weight in weights]
                    flat = self.accelerator.gather(tensor).cpu()
                    pieces = flat[: sum(sizes)].split(sizes)
                for weight, piece in zip(weights, pieces, strict=True):
                    state[weight][key] = piece.clone().view_as(weight) if piece.dim() else piece.clone()
        return state

    @torch.no_grad()
    def put_back(self, state: OptimizerState) -> None:
        """Undoes `whole_state`, and takes over the weights as they are."""
        for weights, part in zip(self.groups, self.parts(), strict=True):
            part.copy_(self._part_of([weight.detach() for weight in weights], part))
            self.optimizer.state[part] = {
                key: self._part_of([state[weight][key] for weight in weights], part) if value.dim() else value.clone()
                for key, value in state[weights[0]].items()
            }

    def _part_of(self, tensors: list[torch.Tensor], part: torch.Tensor) -> torch.Tensor:
        """This process's part of tensors end to end."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        padding = part.numel() * self.accelerator.num_processes - flat.numel()
        flat = nn.functional.pad(flat, (0, padding))
        start = part.numel() * self.accelerator.process_index
        return flat[start : start + part.numel()].to(part.device, copy=True)
