// Models that are handed no pass: `torch_offloader::use` and `tidepool::module`.
#include <optional>

#include "rig.hpp"

namespace tidepool::test {
namespace {

// Its layers know their modules, and nothing of passes.
struct nested_model {
  struct block {
    explicit block(int number) : layer(number) {}
    torch::Tensor forward(const torch::Tensor& x) {
      auto h = tidepool::module("fc1", layer, [&] { return fc1(x); });
      h = tidepool::module("act", layer, [&] { return torch::gelu(h); });
      return tidepool::module("fc2", layer, [&] { return fc2(h); });
    }
    int layer;
    torch::nn::Linear fc1{16, 32};
    torch::nn::Linear fc2{32, 16};
  };

  torch::Tensor forward(torch::Tensor x) {
    for (auto& each : blocks) x = each.forward(x);
    return x.pow(2).mean();
  }
  [[nodiscard]] std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> all;
    for (const auto& each : blocks) {
      for (const auto& part : {each.fc1, each.fc2}) {
        for (const auto& one : part->parameters()) all.push_back(one);
      }
    }
    return all;
  }

  std::vector<block> blocks{block(0), block(1), block(2)};
};

std::uint64_t bits_of(const nested_model& model) {
  bit_sum sum;
  for (const auto& each : model.parameters()) sum.add(each.grad());
  return sum.value();
}

}  // namespace

TEST_CASE("use: a nested model offloads in its pass, validates without one, and has equal bits") {
  torch::manual_seed(3);
  nested_model model;
  const auto batch = torch::rand({8, 16});
  model.forward(batch).backward();
  const auto expected = bits_of(model);
  for (auto& each : model.parameters()) each.mutable_grad().reset();

  torch_desk desk(5);
  desk.off->exclude(model.parameters());
  auto pass = desk.off->begin();
  auto loss = [&] {
    const auto use = desk.off->use(pass);
    return model.forward(batch);
  }();
  const auto out = desk.bytes_out();
  CHECK(out > 0);
  static_cast<void>(model.forward(batch));  // validation, while the pass is open
  CHECK(desk.bytes_out() == out);
  pass.end_forward();
  loss.backward();
  pass.finish();
  desk.off->end_step();
  CHECK(desk.bytes_in() == out);
  CHECK(bits_of(model) == expected);
}

TEST_CASE("use: the innermost pass counts, and the one around it does again behind it") {
  torch_desk desk;
  auto outer = desk.off->begin({.microbatch = 0});
  auto inner = desk.off->begin({.microbatch = 1});
  const auto x = torch::ones({4, 4}, torch::requires_grad());
  const auto saved_in_act = [&] {
    static_cast<void>(tidepool::module("act", 0, [&] { return x * x.tanh(); }));
  };
  const auto use_outer = desk.off->use(outer);
  saved_in_act();
  {
    const auto use_inner = desk.off->use(inner);
    CHECK_NOTHROW(saved_in_act());  // layer 0 of `act` again, but in another pass
  }
  CHECK_THROWS_AS(saved_in_act(), misuse_error);
}

TEST_CASE("use: what is refused, and what simply runs") {
  int runs = 0;
  tidepool::module("none of these", 0, [&] { ++runs; });  // no pass: no name is looked up
  CHECK(runs == 1);
  torch_desk desk;
  auto pass = desk.off->begin();
  {
    const auto use = desk.off->use(pass);
    CHECK_THROWS_AS(tidepool::module("none of these", 0, [&] { ++runs; }), unknown_module);
    pass.end_forward();
    tidepool::module("act", 0, [&] { ++runs; });  // in backward nothing leaves
  }
  CHECK(runs == 2);
  pass.finish();
  CHECK_THROWS_AS(static_cast<void>(desk.off->use(pass)), misuse_error);
  std::optional<torch_desk> brief(std::in_place);
  auto last = brief->off->begin();
  const auto use = brief->off->use(last);
  brief->off.reset();
  tidepool::module("act", 0, [&] { ++runs; });  // its offloader has gone
  CHECK(runs == 3);
}

}  // namespace tidepool::test
