#include <torch/torch.h>

#include <iostream>
#include <tidepool/tidepool.hpp>
#include <tidepool/torch.hpp>

int main(int argc, char** argv) {
  tidepool::options base{.own_modules = {"fc1", "act", "fc2"}};
  tidepool::virtual_device device;  // on a GPU: tidepool::cuda_device
  tidepool::torch_offloader off(device, tidepool::take_options(argc, argv, base));

  torch::nn::Linear fc1(64, 256), fc2(256, 64);
  torch::nn::Sequential model(fc1, fc2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  off.exclude(model->parameters());  // the optimizer writes to them

  for (int step = 0; step < 3; ++step) {
    auto x = torch::ones({32, 64}, torch::requires_grad());
    auto pass = off.begin();
    auto h = pass.module("fc1", 0, [&] { return fc1(x); });  // what autograd saves here, leaves
    h = pass.module("act", 0, [&] { return torch::gelu(h); });
    auto loss = pass.module("fc2", 0, [&] { return fc2(h); }).pow(2).mean();
    pass.end_forward();
    loss.backward();  // and is back before its node runs
    pass.finish();
    off.end_step();
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& module : off.counters().modules) {
    if (module.enabled)
      std::cout << module.name << ": " << module.bytes_offloaded << " bytes left\n";
  }
}
