"""A causal Llama of plain PyTorch, for machines without `transformers`: the same submodules by the same names."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x, angles):
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, angles):
        batch, tokens, width = x.shape
        split = lambda y, n: y.view(batch, tokens, n, self.head).transpose(1, 2)
        q, k = turned(split(self.q_proj(x), self.heads), angles), turned(split(self.k_proj(x), self.kv_heads), angles)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1)
                for y in (k, split(self.v_proj(x), self.kv_heads)))
        return self.o_proj(attend(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width, inner, heads, kv_heads):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(width), Attention(width, heads, kv_heads)
        self.post_attention_layernorm, self.mlp = Norm(width), Mlp(width, inner)
        self.checkpointing = None  # the options of torch's checkpoint

    def __call__(self, *args):
        if self.checkpointing is None or not torch.is_grad_enabled():
            return super().__call__(*args)
        return checkpoint(super().__call__, *args, **self.checkpointing)

    def forward(self, x, angles):
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, vocabulary, layers, width, inner, heads, kv_heads):
        super().__init__()
        self.head = width // heads
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Layer(width, inner, heads, kv_heads) for _ in range(layers)])
        self.norm, self.lm_head = Norm(width), nn.Linear(width, vocabulary, bias=False)

    def gradient_checkpointing_enable(self, options):
        for layer in self.layers:
            layer.checkpointing = options

    def gradient_checkpointing_disable(self):
        self.gradient_checkpointing_enable(None)

    def forward(self, input_ids, labels):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device, dtype=torch.float32)
        steps = torch.arange(0, self.head, 2, device=input_ids.device, dtype=torch.float32)
        angles = positions[:, None] * 10000.0 ** (-steps / self.head)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, angles)
        logits = self.lm_head(self.norm(x)).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
