"""The demo model in PyTorch, shaped for fast training on a CPU, and its export to Hugging Face form.

It is not an inference path: no cache, no padding, whole windows only. The arithmetic is that of
transformers' Qwen3MoeForCausalLM with tied embeddings.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass
class Shape:
    vocab: int = 4096
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 8
    top_k: int = 2
    expert_width: int = 256
    rope_theta: float = 10000.0
    eps: float = 1e-6


class Dropout:
    """Masks cut at random places from one pool: far cheaper on a CPU than fresh random numbers."""

    def __init__(self, rate: float, dtype: torch.dtype, pool_size: int = 1 << 24):
        self.pool = (torch.rand(pool_size) >= rate).to(dtype) / (1 - rate) if rate > 0 else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.pool is None:
            return x
        start = int(torch.randint(self.pool.numel() - x.numel(), ()))
        return x * self.pool[start : start + x.numel()].view_as(x)


class GroupedMatmul(torch.autograd.Function):
    """rows (n, in) sorted by expert times weights (experts, out, in): one product per expert."""

    @staticmethod
    def forward(ctx, rows: Tensor, weights: Tensor, bounds: list[int]) -> Tensor:
        ctx.save_for_backward(rows, weights)
        ctx.bounds = bounds
        out = rows.new_empty(rows.shape[0], weights.shape[1])
        for e, (a, b) in enumerate(zip(bounds, bounds[1:])):
            if b > a:
                torch.mm(rows[a:b], weights[e].t(), out=out[a:b])
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        rows, weights = ctx.saved_tensors
        grad = grad.contiguous()
        grad_rows = torch.empty_like(rows)
        grad_weights = torch.zeros_like(weights)
        for e, (a, b) in enumerate(zip(ctx.bounds, ctx.bounds[1:])):
            if b > a:
                torch.mm(grad[a:b], weights[e], out=grad_rows[a:b])
                torch.mm(grad[a:b].t(), rows[a:b], out=grad_weights[e])
        return grad_rows, grad_weights, None


class Dispatch(torch.autograd.Function):
    """x (n, hidden) to (n * top_k, hidden) sorted by expert; backward gathers, never scatters."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, inverse: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.top_k = top_k
        return x.index_select(0, order // top_k)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (inverse,) = ctx.saved_tensors
        back = grad.index_select(0, inverse)
        return back.view(-1, ctx.top_k, back.shape[-1]).sum(1), None, None, None


class Unsort(torch.autograd.Function):
    """The inverse permutation of Dispatch's rows."""

    @staticmethod
    def forward(ctx, y: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return y.index_select(0, inverse)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (order,) = ctx.saved_tensors
        return grad.index_select(0, order), None, None


def matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.shape = s
        self.attention_norm = nn.Parameter(torch.ones(s.hidden))
        self.q = matrix(s.heads * s.head_dim, s.hidden)
        self.k = matrix(s.kv_heads * s.head_dim, s.hidden)
        self.v = matrix(s.kv_heads * s.head_dim, s.hidden)
        self.o = matrix(s.hidden, s.heads * s.head_dim)
        self.q_norm = nn.Parameter(torch.ones(s.head_dim))
        self.k_norm = nn.Parameter(torch.ones(s.head_dim))
        self.ffn_norm = nn.Parameter(torch.ones(s.hidden))
        self.router = matrix(s.experts, s.hidden)
        self.gate_up = matrix(s.experts, 2, s.expert_width, s.hidden)
        self.down = matrix(s.experts, s.hidden, s.expert_width)
        with torch.no_grad():  # each layer starts close to the identity
            self.o *= 0.1
            self.down *= 0.1

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, (b, t, _) = self.shape, x.shape
        qkv = F.linear(x, torch.cat((self.q, self.k, self.v)).to(x.dtype))
        qkv = qkv.view(b, t, s.heads + 2 * s.kv_heads, s.head_dim)
        q, k, v = qkv.split((s.heads, s.kv_heads, s.kv_heads), dim=2)
        q = rotate(F.rms_norm(q, (s.head_dim,), self.q_norm.to(x.dtype), s.eps), cos, sin)
        k = rotate(F.rms_norm(k, (s.head_dim,), self.k_norm.to(x.dtype), s.eps), cos, sin)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(y.transpose(1, 2).reshape(b, t, -1), self.o.to(x.dtype))

    def experts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (n, hidden); returns the output, the balance loss and each expert's share of tokens."""
        s = self.shape
        logits = F.linear(x.float(), self.router)
        probabilities = logits.softmax(-1)
        weights, chosen = probabilities.topk(s.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel())
        counts = torch.bincount(flat, minlength=s.experts)
        bounds = [0, *counts.cumsum(0).tolist()]
        rows = Dispatch.apply(x, order, inverse, s.top_k)
        gate_up = self.gate_up.flatten(1, 2).to(x.dtype)
        gate, up = GroupedMatmul.apply(rows, gate_up, bounds).chunk(2, dim=-1)
        rows = GroupedMatmul.apply(F.silu(gate) * up, self.down.to(x.dtype), bounds)
        out = Unsort.apply(rows, order, inverse).view(-1, s.top_k, s.hidden)
        out = (out * weights.to(x.dtype).unsqueeze(-1)).sum(1)
        share = counts / flat.numel()
        balance = s.experts * (share * probabilities.mean(0)).sum()
        router_z = logits.logsumexp(-1).square().mean()
        return out, torch.stack((balance, router_z)), share

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, dropout):
        s = self.shape
        y = F.rms_norm(x, (s.hidden,), self.attention_norm.to(x.dtype), s.eps)
        x = x + dropout(self.attention(y, cos, sin))
        y = F.rms_norm(x, (s.hidden,), self.ffn_norm.to(x.dtype), s.eps)
        y, losses, share = self.experts(y.view(-1, s.hidden))
        return x + dropout(y.view_as(x)), losses, share


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, positions, heads, head_dim), rotated by halves as in Hugging Face's Qwen3."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class DemoModel(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocab, shape.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))

    def forward(self, ids: Tensor, dtype: torch.dtype, dropout=lambda x: x):
        """ids (batch, positions); returns the final states (batch * positions, hidden), the summed
        balance and router z losses and the shares (layers, experts)."""
        s = self.shape
        frequency = s.rope_theta ** (-torch.arange(0, s.head_dim, 2) / s.head_dim)
        angle = torch.outer(torch.arange(ids.shape[1]), frequency).unsqueeze(1)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        x = dropout(F.embedding(ids, self.embedding).to(dtype))
        losses, shares = [], []
        for layer in self.layers:
            x, loss, share = layer(x, cos, sin, dropout)
            losses.append(loss)
            shares.append(share)
        x = F.rms_norm(x, (s.hidden,), self.norm.to(dtype), s.eps).view(-1, s.hidden)
        return x, torch.stack(losses).sum(0), torch.stack(shares)

    def token_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of targets (n) after states (n, hidden)."""
        return F.cross_entropy(F.linear(states, self.embedding.to(states.dtype)).float(), targets)


def export(model: DemoModel, folder: Path, max_positions: int, end_id: int, pad_id: int) -> None:
    """Writes config.json, generation_config.json and bf16 model.safetensors."""
    s = model.shape
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    for i, layer in enumerate(model.layers):
        p = f"model.layers.{i}."
        tensors[p + "input_layernorm.weight"] = layer.attention_norm
        for name in ("q", "k", "v", "o"):
            tensors[p + f"self_attn.{name}_proj.weight"] = getattr(layer, name)
        tensors[p + "self_attn.q_norm.weight"] = layer.q_norm
        tensors[p + "self_attn.k_norm.weight"] = layer.k_norm
        tensors[p + "post_attention_layernorm.weight"] = layer.ffn_norm
        tensors[p + "mlp.gate.weight"] = layer.router
        for e in range(s.experts):
            q = p + f"mlp.experts.{e}."
            tensors[q + "gate_proj.weight"] = layer.gate_up[e, 0]
            tensors[q + "up_proj.weight"] = layer.gate_up[e, 1]
            tensors[q + "down_proj.weight"] = layer.down[e]
    tensors = {k: v.detach().to(torch.bfloat16).contiguous().clone() for k, v in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
        "decoder_sparse_step": 1,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "hidden_size": s.hidden,
        "initializer_range": 0.02,
        "intermediate_size": s.expert_width * s.top_k,
        "max_position_embeddings": max_positions,
        "max_window_layers": s.layers,
        "mlp_only_layers": [],
        "moe_intermediate_size": s.expert_width,
        "norm_topk_prob": True,
        "num_attention_heads": s.heads,
        "num_experts": s.experts,
        "num_experts_per_tok": s.top_k,
        "num_hidden_layers": s.layers,
        "num_key_value_heads": s.kv_heads,
        "output_router_logits": False,
        "rms_norm_eps": s.eps,
        "rope_scaling": None,
        "rope_theta": s.rope_theta,
        "router_aux_loss_coef": 0.01,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": s.vocab,
    }
    generation = {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
