// A model in a file of its own, which the offloader of a checked device is given to: the file
// includes the device and the adapter, and no operator is declared.
#include "rig.hpp"
#include "tidepool/device/checked.hpp"

namespace {

using device = tidepool::checked_device<tidepool::virtual_device>;

at::Tensor forward(tidepool::torch_pass<device>& pass, torch::nn::Linear fc, const at::Tensor& x) {
  return pass.module("fc1", 0, [&] { return fc(x); });
}

}  // namespace

TEST_CASE("torch: a model's file needs the checked device's header and the adapter's") {
  device dev;
  tidepool::torch_offloader off(dev, tidepool::test::small_torch_options());
  off.engine().on_report([](std::string_view) {});
  auto x = torch::randn({8, 16}).requires_grad_();
  torch::nn::Linear fc(16, 16);
  auto pass = off.begin();
  forward(pass, fc, x * 1).sum().backward();
  pass.finish();
  CHECK(x.grad().allclose(fc->weight.sum(0).expand({8, 16})));
}
