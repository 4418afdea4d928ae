# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
AO-GPT as one writes it down first: the yardstick of `eval/training_speed.py`.

It computes what the released implementation computes and in its way: n + 1 rows, the last of which is thrown away,
condition and modulation made for every row of every sequence in every layer, all logits in one float32 tensor, AdamW
one tensor after the other. Attention is PyTorch's fused one, as released.
"""

import torch
import torch.nn.functional as F
from torch import nn

CONDITION_SIZE = 128


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = (nn.RMSNorm(width // heads, eps=1e-5) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(CONDITION_SIZE, 6 * width))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)]
        attended = F.scaled_dot_product_attention(
            self.q_norm(heads[0]), self.k_norm(heads[1]), heads[2], is_causal=True
        )
        return self.out(attended.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(condition).chunk(6, dim=-1)
        x = x + gate_1 * self.attend(self.norm_1(x) * (1 + scale_1) + shift_1)
        return x + gate_2 * self.down(F.gelu(self.up(self.norm_2(x) * (1 + scale_2) + shift_2)))


class PlainAOGPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.start = nn.Embedding(vocab_size, width), nn.Embedding(1, width)
        self.positions, self.targets = nn.Embedding(length + 1, width), nn.Embedding(length, CONDITION_SIZE)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm, self.modulation = (
            nn.RMSNorm(width, eps=1e-5),
            nn.Sequential(nn.SiLU(), nn.Linear(CONDITION_SIZE, 2 * width)),
        )
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids: torch.LongTensor, orders: torch.LongTensor) -> torch.Tensor:
        """The loss (Eq. 7) of whole sequences (batch, n) in the given orders."""
        shuffled = input_ids.gather(1, orders)
        before_all = torch.zeros_like(orders[:, :1])
        tokens = torch.cat((self.start(before_all), self.tokens(shuffled)), dim=1)
        x = tokens + self.positions(torch.cat((before_all, orders + 1), dim=1))
        condition = self.targets(orders)
        condition = torch.cat((condition, torch.zeros_like(condition[:, :1])), dim=1)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        logits = self.head(self.norm(x) * (1 + scale) + shift)
        predicted = logits[:, :-1].contiguous().float()
        return F.cross_entropy(predicted.flatten(0, 1), shuffled.flatten())
