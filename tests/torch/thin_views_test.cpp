// Views with gaps: how many bytes leave, and which bits come back.
#include <ATen/native/Resize.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "rig.hpp"

using namespace tidepool;
using namespace tidepool::test;

namespace {

constexpr std::int64_t rows = 512, columns = 512;
constexpr std::size_t one = rows * columns * sizeof(float);  // 1 MiB
constexpr std::size_t column = one / columns;

at::Tensor input() {
  torch::manual_seed(1);
  return torch::randn({rows, columns}, torch::requires_grad());
}

struct outcome {
  std::size_t bytes = 0;
  std::uint64_t bits = 0;
};

using body = std::function<at::Tensor(const at::Tensor&)>;

// `work` gets a storage of one MiB that nobody else has, in a scope of its own.
outcome offloaded(const body& work, std::uint64_t seed = 1) {
  torch_desk desk(seed);
  auto x = input();
  auto pass = desk.off->begin();
  auto y = pass.module("act", 0, [&, whole = x * 2]() mutable {
    auto result = work(whole);
    whole.reset();
    return result;
  });
  outcome result{desk.bytes_out(), 0};
  y.sum().backward();
  pass.finish();
  CHECK(desk.bytes_in() == desk.bytes_out());
  bit_sum sum;
  sum.add(y);
  sum.add(x.grad());
  result.bits = sum.value();
  return result;
}

std::uint64_t plain(const body& work) {
  auto x = input();
  auto y = work(x * 2);
  y.sum().backward();
  bit_sum sum;
  sum.add(y);
  sum.add(x.grad());
  return sum.value();
}

std::size_t bytes_with_equal_bits(const body& work) {
  const auto expected = plain(work);
  std::size_t bytes = 0;
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    const auto now = offloaded(work, seed);
    CHECK(now.bits == expected);
    bytes = now.bytes;
  }
  return bytes;
}

at::Tensor columns_of(const at::Tensor& whole, std::int64_t first, std::int64_t count) {
  return whole.narrow(1, first, count);
}

// Looks at what it saved when backward comes.
struct looks : torch::autograd::Function<looks> {
  static inline std::vector<std::int64_t> strides;
  static inline at::Tensor values;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables()[0];
    strides = saved.strides().vec();
    values = saved.clone();
    return grads;
  }
};

}  // namespace

TEST_CASE("torch: a thin view leaves without the gaps in it") {
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          return torch::sin(columns_of(whole, 8, 16));
        }) == 16 * column);
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          return torch::sin(columns_of(whole, 8, 16).t().unsqueeze(1));
        }) == 16 * column);
}

TEST_CASE("torch: a thin view comes back with its strides, because products depend on them") {
  torch_desk desk;
  auto x = input();
  auto pass = desk.off->begin();
  auto y = pass.module("act", 0, [&] { return looks::apply(columns_of(x * 2, 8, 16).t()); });
  CHECK(desk.bytes_out() == 16 * column);
  y.sum().backward();
  pass.finish();
  CHECK(looks::strides == std::vector<std::int64_t>{1, columns});
  CHECK(looks::values.equal(columns_of(x.detach() * 2, 8, 16).t()));
  looks::values.reset();
}

TEST_CASE("torch: thin views of one storage leave together, and each of them once") {
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          const auto a = columns_of(whole, 0, 4), b = columns_of(whole, 500, 8);
          return torch::cat({torch::sin(a) + torch::cos(a), torch::sin(b)}, 1);
        }) == 12 * column);
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          // Torch expands what it multiplies, and saves it so.
          return torch::sin(columns_of(whole, 3, 1).expand({rows, 5})).mul(2);
        }) == column);
}

TEST_CASE("torch: views that use half of the storage leave with it") {
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          std::vector<at::Tensor> each;
          for (const auto& part : whole.chunk(4, 1)) each.push_back(torch::sin(part));
          return torch::cat(each, 1);
        }) == one);
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          return torch::sin(columns_of(whole, 0, 4)) * torch::sin(whole).sum();
        }) > one);
}

TEST_CASE("torch: overlapping views, and many views, leave with their storage") {
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          return torch::sin(whole.as_strided({rows, 3, 2}, {columns, 1, 1}));
        }) > one / 2);
  CHECK(bytes_with_equal_bits([](const at::Tensor& whole) {
          std::vector<at::Tensor> each;
          for (std::int64_t i = 0; i < 40; ++i) {
            each.push_back(torch::sin(columns_of(whole, i * 8, 1)));
          }
          return torch::cat(each, 1);
        }) > one / 2);
}

TEST_CASE("torch: a thin view of a storage that another module saves as a whole") {
  torch_desk desk;
  auto x = input();
  auto pass = desk.off->begin();
  auto y = [&, whole = x * 2] {
    auto thin = pass.module("act", 0, [&] { return torch::sin(columns_of(whole, 0, 8)); });
    CHECK(desk.bytes_out() == 8 * column);
    auto all = pass.module("fc1", 0, [&] { return torch::cos(whole); });
    CHECK(desk.bytes_out() == 8 * column + one);
    auto again = pass.module("fc2", 0, [&] { return torch::exp2(columns_of(whole, 0, 8)); });
    return thin.sum() + all.sum() + again.sum();
  }();
  y.backward();
  pass.finish();
  const auto grad = x.grad().clone();
  x.mutable_grad().reset();
  const auto whole = x * 2;
  const auto part = columns_of(whole, 0, 8);
  (torch::sin(part).sum() + torch::cos(whole).sum() + torch::exp2(part).sum()).backward();
  CHECK(torch::allclose(grad, x.grad()));
}

TEST_CASE("torch: backward reads the storage of a thin view where it was filled again") {
  torch_desk desk;
  auto x = input();
  auto whole = (x * 2).detach();
  auto weight = torch::ones({rows, 8}, torch::requires_grad());
  auto pass = desk.off->begin();
  auto y = pass.module("act", 0, [&] { return weight * columns_of(whole, 0, 8); });
  CHECK(desk.bytes_out() >= 8 * column);
  auto storage = whole.storage();
  at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), 0);
  at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), one);
  at::empty({0}, whole.options()).set_(storage, 0, {rows, columns}, {columns, 1}).fill_(7);
  // Its owner is gone before backward reads it.
  storage = {};
  whole.reset();
  y.sum().backward();
  CHECK(weight.grad().eq(7).all().item<bool>());
  pass.finish();
}
