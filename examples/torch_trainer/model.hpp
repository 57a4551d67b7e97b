/// A GPT whose layers are dense and mixtures of experts in turn, in plain torch::nn. It names its
/// modules, by `run(name, layer, body)`, and knows nothing else of offloading.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace gpt {

struct sizes {
  int layers = 4;
  int hidden = 64;
  int heads = 4;
  int ffn = 256;
  int experts = 4;
  int top_k = 2;
  int sequence = 64;
  int batch = 4;
  static constexpr int vocabulary = 256;
};

struct dense_mlp : torch::nn::Module {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};

  explicit dense_mlp(const sizes& s) {
    fc1 = register_module("fc1", torch::nn::Linear(s.hidden, s.ffn));
    fc2 = register_module("fc2", torch::nn::Linear(s.ffn, s.hidden));
  }
  template <class Run>
  at::Tensor forward(const at::Tensor& x, int layer, Run& run) {
    auto h = run("fc1", layer, [&] { return fc1->forward(x); });
    h = run("act", layer, [&] { return torch::gelu(h); });
    return run("fc2", layer, [&] { return fc2->forward(h); });
  }
};

// Every token goes to the `top_k` experts that its router likes best; no token is dropped.
struct expert_mlp : torch::nn::Module {
  torch::nn::Linear router{nullptr};
  std::vector<torch::nn::Linear> fc1, fc2;
  int top_k;

  explicit expert_mlp(const sizes& s) : top_k(s.top_k) {
    router = register_module("router", torch::nn::Linear(s.hidden, s.experts));
    for (int e = 0; e < s.experts; ++e) {
      const auto number = std::to_string(e);
      fc1.push_back(register_module("fc1_" + number, torch::nn::Linear(s.hidden, 2 * s.ffn)));
      fc2.push_back(register_module("fc2_" + number, torch::nn::Linear(s.ffn, s.hidden)));
    }
  }
  template <class Run>
  at::Tensor forward(const at::Tensor& x, int layer, Run& run) {
    const auto flat = x.reshape({-1, x.size(-1)});
    const auto chosen = torch::softmax(router->forward(flat), -1).topk(top_k, -1);
    const auto weights = std::get<0>(chosen).to(flat.scalar_type());
    // Rows sorted by expert; how many each has must be known on the host.
    const auto sorted = std::get<1>(chosen).reshape(-1).sort(/*stable=*/true, 0, false);
    const auto order = std::get<1>(sorted);
    const auto counts =
        torch::bincount(std::get<0>(sorted), {}, static_cast<std::int64_t>(fc1.size())).cpu();
    std::vector<std::int64_t> rows(counts.data_ptr<std::int64_t>(),
                                   counts.data_ptr<std::int64_t>() + counts.numel());
    auto part = flat.index_select(0, order.div(top_k, "floor")).split_with_sizes(rows);

    run("expert_fc1", layer, [&] {
      for (std::size_t e = 0; e < part.size(); ++e) part[e] = fc1[e]->forward(part[e]);
    });
    run("moe_act", layer, [&] {
      for (auto& each : part) {
        const auto halves = each.chunk(2, -1);
        each = torch::silu(halves[0]) * halves[1];
      }
    });
    run("expert_fc2", layer, [&] {
      for (std::size_t e = 0; e < part.size(); ++e) part[e] = fc2[e]->forward(part[e]);
    });
    const auto back = torch::cat(part).index_select(0, order.argsort());
    return (back.view({-1, top_k, x.size(-1)}) * weights.unsqueeze(-1)).sum(1).view_as(x);
  }
};

struct block : torch::nn::Module {
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr};
  std::shared_ptr<dense_mlp> dense;
  std::shared_ptr<expert_mlp> experts;
  int heads;

  block(const sizes& s, bool mixture) : heads(s.heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.hidden})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.hidden})));
    qkv = register_module("qkv", torch::nn::Linear(s.hidden, 3 * s.hidden));
    proj = register_module("proj", torch::nn::Linear(s.hidden, s.hidden));
    if (mixture) {
      experts = register_module("experts", std::make_shared<expert_mlp>(s));
    } else {
      dense = register_module("dense", std::make_shared<dense_mlp>(s));
    }
  }
  template <class Run>
  at::Tensor forward(at::Tensor x, const at::Tensor& mask, int layer, Run& run) {
    auto h = run("attn_norm", layer, [&] { return norm1->forward(x); });
    h = run("qkv_linear", layer, [&] { return qkv->forward(h); });
    h = run("core_attn", layer, [&] { return attention(h, mask); });
    x = x + run("attn_proj", layer, [&] { return proj->forward(h); });
    h = run("mlp_norm", layer, [&] { return norm2->forward(x); });
    return x + (experts ? experts->forward(h, layer, run) : dense->forward(h, layer, run));
  }

 private:
  [[nodiscard]] at::Tensor attention(const at::Tensor& qkv_rows, const at::Tensor& mask) const {
    const auto batch = qkv_rows.size(0), rows = qkv_rows.size(1), hidden = qkv_rows.size(2) / 3;
    const auto width = hidden / heads;
    const auto split = qkv_rows.view({batch, rows, 3, heads, width}).permute({2, 0, 3, 1, 4});
    const auto scores =
        split[0].matmul(split[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width));
    const auto share = torch::softmax(scores + mask, -1);
    return share.matmul(split[2]).transpose(1, 2).reshape({batch, rows, hidden});
  }
};

struct model : torch::nn::Module {
  torch::nn::Embedding token{nullptr}, place{nullptr};
  std::vector<std::shared_ptr<block>> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor mask;

  explicit model(const sizes& s) {
    token = register_module("token", torch::nn::Embedding(sizes::vocabulary, s.hidden));
    place = register_module("place", torch::nn::Embedding(s.sequence, s.hidden));
    for (int l = 0; l < s.layers; ++l) {
      blocks.push_back(register_module("block" + std::to_string(l),
                                       std::make_shared<block>(s, s.experts > 0 && l % 2 == 1)));
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.hidden})));
    head = register_module("head", torch::nn::Linear(s.hidden, sizes::vocabulary));
    mask =
        register_buffer("mask", torch::full({s.sequence, s.sequence}, -1e9F).triu(/*diagonal=*/1));
  }
  template <class Run>
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& next, Run& run) {
    const auto places = torch::arange(tokens.size(1), tokens.options());
    auto x = token->forward(tokens) + place->forward(places);
    const auto shown = mask.narrow(0, 0, tokens.size(1)).narrow(1, 0, tokens.size(1));
    for (std::size_t l = 0; l < blocks.size(); ++l) {
      x = blocks[l]->forward(x, shown, static_cast<int>(l), run);
    }
    const auto logits = head->forward(norm->forward(x)).to(torch::kFloat);
    return torch::nn::functional::cross_entropy(logits.view({-1, sizes::vocabulary}),
                                                next.reshape(-1));
  }
};

}  // namespace gpt
