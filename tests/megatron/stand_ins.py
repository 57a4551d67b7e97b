"""Layers in place of Transformer Engine's, by torch alone, for Megatron-core's specs of GPT layers.

They take the arguments of Megatron's wrappers and, as Transformer Engine does, keep weights out of
what autograd saves. Experts save their rows whole, and weight gradients can be delayed.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch.nn import Parameter


def weight_gradient(x, grad):
    return grad.flatten(0, -2).t() @ x.flatten(0, -2)


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module, weight, bias):
        ctx.save_for_backward(x)
        ctx.module, ctx.weight = module, weight
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        of_weight = None
        if ctx.module.delayed:
            ctx.module.pending.append((x, grad))
        else:
            of_weight = weight_gradient(x, grad)
        of_bias = grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[3] else None
        return grad @ ctx.weight, None, of_weight, of_bias


class GroupedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module, rows, *parameters):
        ctx.save_for_backward(x)
        ctx.module, ctx.rows = module, rows
        weights, biases = module.split(parameters)
        ctx.weights = weights
        return torch.cat([F.linear(part, weight, bias)
                          for part, weight, bias in zip(x.split(rows), weights, biases)])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        parts, grads = x.split(ctx.rows), grad.split(ctx.rows)
        of_weights = [None] * len(parts)
        if ctx.module.delayed:
            ctx.module.pending.append((x, grad, ctx.rows))
        else:
            of_weights = [weight_gradient(part, each) for part, each in zip(parts, grads)]
        with_biases = len(ctx.needs_input_grad) > 3 + len(parts)
        of_biases = [each.sum(0) for each in grads] if with_biases else []
        back = torch.cat([each @ weight for each, weight in zip(grads, ctx.weights)])
        return back, None, None, *of_weights, *of_biases


def add_gradient(parameter, grad):
    parameter.grad = grad if parameter.grad is None else parameter.grad + grad


class Layer(torch.nn.Module):
    def __init__(self, config, has_bias, skip_bias_add):
        super().__init__()
        self.config, self.has_bias = config, has_bias
        self.returns_bias = has_bias and skip_bias_add
        self.delayed, self.pending = config.delay_wgrad_compute, []
        self.save_original_input = True  # Megatron sets it

    def parameter(self, *size, init):
        made = Parameter(torch.empty(*size, dtype=self.config.params_dtype))
        with torch.no_grad():
            init(made)
        return made


class Linear(Layer):
    def __init__(self, input_size, output_size, *, config, init_method, bias, skip_bias_add,
                 norm=False, **others):
        super().__init__(config, bias, skip_bias_add)
        self.weight = self.parameter(output_size, input_size, init=init_method)
        self.bias = self.parameter(output_size, init=torch.nn.init.zeros_) if bias else None
        self.norm = norm
        if norm:
            self.layer_norm_weight = self.parameter(input_size, init=torch.nn.init.ones_)
            self.layer_norm_bias = self.parameter(input_size, init=torch.nn.init.zeros_)

    def forward(self, x):
        if self.norm:
            x = F.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias,
                             self.config.layernorm_epsilon)
        bias = None if self.returns_bias else self.bias
        return LinearFunction.apply(x, self, self.weight, bias), (
            self.bias if self.returns_bias else None)

    def backward_dw(self):
        if self.delayed:
            add_gradient(self.weight, weight_gradient(*self.pending.pop(0)))


class GroupedLinear(Layer):
    def __init__(self, experts, input_size, output_size, *, config, init_method, bias,
                 skip_bias_add, **others):
        super().__init__(config, bias, skip_bias_add)
        self.experts = experts
        for i in range(experts):
            setattr(self, f"weight{i}", self.parameter(output_size, input_size, init=init_method))
            if bias:
                setattr(self, f"bias{i}", self.parameter(output_size, init=torch.nn.init.zeros_))

    def all_of(self, name):
        return [getattr(self, f"{name}{i}") for i in range(self.experts)]

    def split(self, parameters):
        weights, biases = parameters[: self.experts], parameters[self.experts :]
        return weights, biases or [None] * self.experts

    def forward(self, x, tokens_per_expert):
        rows = [int(each) for each in tokens_per_expert]
        biases = self.all_of("bias") if self.has_bias else []
        inner = [] if self.returns_bias else biases
        out = GroupedFunction.apply(x, self, rows, *self.all_of("weight"), *inner)
        return out, (biases if self.returns_bias else None)

    def backward_dw(self):
        if self.delayed:
            x, grad, rows = self.pending.pop(0)
            for weight, part, each in zip(self.all_of("weight"), x.split(rows), grad.split(rows)):
                add_gradient(weight, weight_gradient(part, each))


class InOneOrder(torch.autograd.Function):
    """Between two of these, forward and backward, torch's attention adds in one order."""

    @staticmethod
    def forward(ctx, begins, *tensors):
        ctx.begins = begins
        torch.use_deterministic_algorithms(begins)
        return tuple(each.view_as(each) for each in tensors)

    @staticmethod
    def backward(ctx, *grads):
        torch.use_deterministic_algorithms(not ctx.begins)
        return None, *grads


class Attention(torch.nn.Module):
    """Causal, by torch's kernels."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type,
                 attention_dropout=None, softmax_scale=None, **others):
        super().__init__()
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask, **others):
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        if k.shape[1] != q.shape[1]:
            k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
        q, k, v = InOneOrder.apply(True, q, k, v)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0)
        (out,) = InOneOrder.apply(False, out)
        return out.permute(2, 0, 1, 3).flatten(2)


def provider():
    """In place of TESpecProvider, once Megatron-core can be imported."""
    from megatron.core.models.backends import BackendSpecProvider
    from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, TEGroupedMLP
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    class NormLinear(Linear):
        def __init__(self, *sizes, **options):
            super().__init__(*sizes, norm=True, **options)

    class Provider(BackendSpecProvider):
        def linear(self):
            return Linear

        column_parallel_linear = row_parallel_linear = linear

        def fuse_layernorm_and_linear(self):
            return True

        def column_parallel_layer_norm_linear(self):
            return NormLinear

        def layer_norm(self, rms_norm=False, for_qk=False, has_residual=False):
            return WrappedTorchNorm

        def core_attention(self):
            return Attention

        def grouped_mlp_modules(self, moe_use_grouped_gemm):
            return partial(TEGroupedMLP, submodules=GroupedMLPSubmodules(
                linear_fc1=GroupedLinear, linear_fc2=GroupedLinear))

        def activation_func(self):
            return None

    return Provider
