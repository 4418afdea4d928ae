# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What may be given as the orders of a likelihood: tensors, names, distributions, functions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .devices import draw_uniform
from .likelihood_output import check_count
from .orders import check_orders, group_order, in_order, left_to_right_orders, random_orders
from .seeded_orders import OrderDistribution

# A tensor (batch, n), a name, a distribution, or what draws a tensor: function(batch, n, generator=generator).
Orders = torch.LongTensor | str | OrderDistribution | Callable[..., torch.LongTensor]


@dataclass
class OrderSource:
    """
    Where orders come from.

    Args:
        orders (`torch.LongTensor` of shape `(batch, n)`, `str`, `OrderDistribution` or `Callable`): Given orders;
            `"left_to_right"`; `"random"` (uniform); another distribution or its name (see
            [`OrderDistribution.named`]); or a function that draws orders, `orders(batch, n, generator=generator)` ->
            (batch, n).
        name (`str`): Of the argument, for errors.
    """

    orders: Orders
    name: str = "orders"

    def __post_init__(self) -> None:
        self.is_uniform = isinstance(self.orders, str) and self.orders in ("random", "uniform")
        self.is_random = not isinstance(self.orders, torch.Tensor) and self.orders != "left_to_right"
        if isinstance(self.orders, str) and self.is_random and not self.is_uniform:
            try:
                self.orders = OrderDistribution.named(self.orders)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error} 'random' is uniform, too.") from None
        # By what it has: the package's own class is not that of a model's remote code.
        self.is_distribution = hasattr(self.orders, "is_fixed")
        if self.is_distribution:
            if self.orders.is_fixed:
                raise ValueError(
                    f"{self.name} is a fixed order, which depends on the seed of a run: give it as a tensor."
                )
        elif not isinstance(self.orders, (torch.Tensor, str)) and not callable(self.orders):
            raise ValueError(
                f"{self.name} is a {type(self.orders).__name__}; give a (batch, n) tensor, a name, a distribution or a "
                "function that draws orders."
            )

    def draw(self, is_token: torch.BoolTensor, generator: torch.Generator | None) -> torch.LongTensor:
        """Orders (batch, n) of what is a token in place, padding last; anew at every call if they are random."""
        (batch_size, length), device = is_token.shape, is_token.device
        if self.is_distribution:
            seed = int(draw_uniform(1, generator=generator) * 2**53)
            samples = torch.arange(batch_size, device=device)
            orders = self.orders.draw(seed, samples, is_token.sum(dim=-1), length)
            places = (~is_token).long().argsort(dim=-1, stable=True)  # of positions, in which padding does not count
            return in_order(places, orders)
        if self.is_uniform:
            orders = random_orders(batch_size, length, generator=generator, device=device)
        elif isinstance(self.orders, str):
            orders = left_to_right_orders(batch_size, length, device=device)
        else:
            is_given = isinstance(self.orders, torch.Tensor)
            orders = self.orders if is_given else self.orders(batch_size, length, generator=generator)
            check_orders(orders, batch_size, length, self.name)
        return group_order(orders.to(device, torch.long), (~is_token).long())


def choose_orders(orders: Orders | None, num_orders: int, may_repeat: bool = False) -> OrderSource:
    """
    Without `orders`: left to right, or random where `num_orders` is above 1.

    Raises:
        ValueError: If `num_orders` is below 1, or above 1 where nothing is random (`may_repeat`: something else is).
    """
    check_count("num_orders", num_orders)
    if orders is None:
        orders = "random" if num_orders > 1 else "left_to_right"
    source = OrderSource(orders)
    if num_orders > 1 and not source.is_random and not may_repeat:
        raise ValueError(
            f"num_orders={num_orders} averages over random orders, but one order is fixed "
            f"({source.orders if isinstance(source.orders, str) else 'given'})."
        )
    return source
