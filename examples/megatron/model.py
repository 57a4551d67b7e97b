"""A stack of layers with attention and a mixture of experts, with Megatron's call sites.

`off` is the class that offloads, Megatron's own or Tidepool's; `modules` says which modules do.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Shape:
    def __init__(self, tokens, hidden, ffn, experts, top_k, heads, head, dtype=torch.float32,
                 device="cpu"):
        self.tokens, self.hidden, self.ffn = tokens, hidden, ffn
        self.experts, self.top_k, self.heads, self.head = experts, top_k, heads, head
        self.dtype, self.device = dtype, device


class GatedAct(torch.autograd.Function):
    """silu(a) * b, which saves its input alone, as a fused kernel does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, -1)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        a, b = x.chunk(2, -1)
        s = torch.sigmoid(a.float())
        return torch.cat([(grad * b) * (s * (1 + a * (1 - s))).to(x.dtype), grad * F.silu(a)], -1)


class Norm(torch.autograd.Function):
    """Root mean square norm, which saves its input and weight, and computes the rest again."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        y, g = x.float(), (grad * weight).float()
        r = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        n = y * r
        d = (g - n * (g * n).mean(-1, keepdim=True)) * r
        return d.to(x.dtype), (grad.float() * n).sum(0).to(weight.dtype)


def attend(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


class Layer(nn.Module):
    def __init__(self, shape, off, modules):
        super().__init__()
        self.shape, self.off, self.modules_on = shape, off, modules
        s, inner = shape, shape.heads * shape.head

        def weight(*size):
            return nn.Parameter(torch.randn(*size, dtype=s.dtype, device=s.device) * 0.02)

        self.norm1 = nn.Parameter(torch.ones(s.hidden, dtype=s.dtype, device=s.device))
        self.norm2 = nn.Parameter(torch.ones(s.hidden, dtype=s.dtype, device=s.device))
        self.qkv, self.proj = weight(s.hidden, 3 * inner), weight(inner, s.hidden)
        self.fc1 = weight(s.experts, s.hidden, 2 * s.ffn)
        self.fc2 = weight(s.experts, s.ffn, s.hidden)

    def scope(self, tensor, name):
        return self.off(name in self.modules_on, tensor, name)

    def attention(self, hidden):
        s = self.shape
        qkv_manager = self.scope(hidden, "qkv_linear")
        with qkv_manager as hidden:
            qkv = hidden @ self.qkv
            q, k, v = qkv.view(s.tokens, 3, s.heads, s.head).permute(1, 2, 0, 3).unbind(0)
        q, k, v = qkv_manager.group_offload((q, k, v), forced_released_tensors=[])
        del qkv
        core_manager = self.scope(q, "core_attn")
        with core_manager as q:
            out = attend(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))[0]
        out = core_manager.group_offload(out, forced_released_tensors=[q, k, v])
        out = out.transpose(0, 1).reshape(s.tokens, s.heads * s.head)
        proj_manager = self.scope(out, "attn_proj")
        with proj_manager as out:
            result = out @ self.proj
        return proj_manager.group_offload(result, forced_released_tensors=[out])

    def experts(self, rows):
        fc1_manager = self.scope(rows, "expert_fc1")
        with fc1_manager as rows:
            inner = torch.bmm(rows, self.fc1)
        inner = fc1_manager.group_offload(inner, forced_released_tensors=[rows])
        act_manager = self.scope(inner, "moe_act")
        with act_manager as inner:
            gated = GatedAct.apply(inner)
        out = torch.bmm(gated, self.fc2)
        return act_manager.group_offload(out, forced_released_tensors=[inner])

    def forward(self, hidden, rows, places):
        s = self.shape
        norm_manager = self.scope(hidden, "attn_norm")
        with norm_manager as hidden:
            normed = Norm.apply(hidden, self.norm1)
        residual = hidden
        hidden = residual + self.attention(normed)
        del normed
        hidden = norm_manager.group_offload(hidden, forced_released_tensors=[residual])
        del residual
        norm_manager = self.scope(hidden, "mlp_norm")
        with norm_manager as hidden:
            normed = Norm.apply(hidden, self.norm2)
        out = self.experts(normed[rows].view(s.experts, -1, s.hidden))
        del normed
        out = out.view(-1, s.hidden)[places].view(s.tokens, s.top_k, s.hidden).sum(1)
        hidden = hidden + out
        return norm_manager.group_offload(hidden, forced_released_tensors=[])


class Stack(nn.Module):
    """Layers, and what a pipeline stage does with them: forward, loss, backward, in 1F1B order."""

    def __init__(self, layers, shape, off, modules, min_elements=1 << 20, max_inflight=None):
        super().__init__()
        self.off, self.min_elements, self.max_inflight = off, min_elements, max_inflight
        self.layers = nn.ModuleList(Layer(shape, off, modules) for _ in range(layers))
        pairs = shape.tokens * shape.top_k
        order = torch.randperm(pairs, device=shape.device)
        self.register_buffer("rows", order // shape.top_k)
        self.register_buffer("places", torch.argsort(order))
        self.marked = False

    def forward(self, hidden, wrap=None):
        self.off.init_chunk_handler(
            pp_rank=0, vp_size=None, vp_stage=None, min_offloaded_tensor_size=self.min_elements,
            delta_offload_bytes_across_pp_ranks=0, activation_offload_fraction=1.0,
            max_inflight_offloads=self.max_inflight)
        if not self.marked:
            self.marked = True
            for parameter in self.parameters():
                self.off.mark_not_offload(parameter)
        for layer in self.layers:
            if wrap is None:
                hidden = layer(hidden, self.rows, self.places)
            else:
                hidden = wrap(layer, hidden, self.rows, self.places)
        return hidden

    def step(self, inputs, depth, wrap=None):
        """One step over `inputs`, at most `depth` microbatches in flight; the losses."""
        losses, waiting = [], []
        for given in inputs:
            hidden = given.detach().requires_grad_(True)
            waiting.append(self(hidden, wrap).float().pow(2).mean())
            del hidden
            if len(waiting) == depth:
                loss = waiting.pop(0)
                loss.backward()
                losses.append(loss.detach())
                del loss
        while waiting:
            loss = waiting.pop(0)
            loss.backward()
            losses.append(loss.detach())
            del loss
        self.off.reset()
        return losses


class Nothing:
    """The interface of a program that offloads nothing."""

    def __init__(self, offload, tensor, name):
        self.tensor = tensor

    def __enter__(self):
        return self.tensor

    def __exit__(self, *args):
        self.tensor = None

    def group_offload(self, tensor, forced_released_tensors=None, delay_offload=False):
        self.tensor = None
        return tensor

    @staticmethod
    def init_chunk_handler(**options):
        pass

    @staticmethod
    def mark_not_offload(tensor):
        pass

    @staticmethod
    def reset(process_group=None):
        pass

    @staticmethod
    def reset_instance():
        pass
