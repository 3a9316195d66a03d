"""Muon for the matrices and AdamW for the rest, with one learning-rate factor for both.

Muon (Jordan 2024; scaled as in Liu et al. 2025, arXiv 2502.16982) orthogonalises the momentum of each
matrix; matrices of one shape are stacked so that the whole model needs a few batched products.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonalise(g: Tensor, iterations: int = 5) -> Tensor:
    """Newton-Schulz on a stack of matrices (n, rows, columns), rows <= columns, in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


class Muon:
    def __init__(self, model: nn.Module, lr: float, adam_lr: float, decay: float):
        self.lr, self.decay = lr, decay
        matrices = [p for n, p in model.named_parameters() if is_matrix(n)]
        routers = [p for n, p in model.named_parameters() if n.endswith("router")]
        others = [
            p for n, p in model.named_parameters() if not is_matrix(n) and not n.endswith("router")
        ]
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for p in matrices:
            self.groups[tuple(p.shape[-2:])].append(p)
        self.momentum = {
            shape: torch.zeros(sum(p.numel() for p in ps) // (shape[0] * shape[1]), *shape)
            for shape, ps in self.groups.items()
        }
        # A router that learns as fast as the embedding collapses onto two experts within ten steps.
        rates = ({"params": others, "peak": adam_lr}, {"params": routers, "peak": adam_lr / 5})
        self.adam = torch.optim.AdamW(rates, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * factor
        self.adam.step()
        lr = self.lr * factor
        for shape, params in self.groups.items():
            grad = torch.cat([p.grad.view(-1, *shape) for p in params])
            momentum = self.momentum[shape].mul_(0.95).add_(grad, alpha=0.05)
            update = orthogonalise(grad.mul_(0.05).add_(momentum, alpha=0.95))
            scale = 0.2 * max(shape) ** 0.5 * lr
            start = 0
            for p in params:
                n = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - lr * self.decay)
                p.add_(update[start : start + n].float().view_as(p), alpha=-scale)
                start += n

    def state(self) -> dict:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load(self, state: dict) -> None:
        for shape, momentum in state["momentum"].items():
            self.momentum[shape].copy_(momentum)
        self.adam.load_state_dict(state["adam"])


def is_matrix(name: str) -> bool:
    return name.split(".")[-1] in ("q", "k", "v", "o", "gate_up", "down")
