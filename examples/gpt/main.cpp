/// A GPT over bytes of a text, in the style of llm.c: one allocation, pointers by offset, kernels
/// by hand, and its arrays of layers by `layers.hpp`.
///
///     gpt [--device virtual|cuda] [--compare] [--check-gradients] [--data FILE] [Tidepool's
///     options]
///
/// `--compare` trains three times from the same weights: with plain arrays, with saved arrays of
/// which nothing leaves, and with Tidepool's options. All losses and weights must be equal to the
/// bit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <tidepool/plan.hpp>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "../tools/command_line.hpp"
#include "../tools/device_line.hpp"
#include "model.hpp"

namespace tp = tidepool;

namespace {

using bytes = std::vector<unsigned char>;

struct settings {
  gpt::shape shape;
  int steps = 8;
  float rate = 1e-3F;
  std::string device = "virtual", data;
  bool compare = false, check_gradients = false;
};

struct outcome {
  std::vector<double> losses;
  std::vector<float> weights;
};

bytes read_text(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw tp::option_error("--data: cannot read " + file);
  return bytes(std::istreambuf_iterator<char>(in), {});
}

/// The batch of a step: rows of the text, and after them the same rows one byte later.
bytes batch_of(const bytes& text, const gpt::shape& of, int step) {
  const auto length = static_cast<std::size_t>(of.length);
  if (text.size() < length + 2) throw tp::option_error("--data: the text is shorter than --length");
  bytes result(2 * of.rows());
  for (std::size_t row = 0; row < of.rows(); row += length) {
    const auto number = static_cast<std::size_t>(step) * of.rows() + row;
    const auto begin = number * 7919 % (text.size() - length - 1);
    std::copy_n(text.data() + begin, length, result.data() + row);
    std::copy_n(text.data() + begin + 1, length, result.data() + of.rows() + row);
  }
  return result;
}

template <class Device, class Arrays>
outcome train(Device& dev, const settings& with, const bytes& text, const char* name,
              Arrays& arrays) {
  using clock = std::chrono::steady_clock;
  const auto stream = dev.make_stream();
  gpt::model<Device> model(dev, stream.ref(), with.shape);
  outcome result;
  std::vector<double> times;
  std::size_t used = 0;
  for (int step = 0; step < with.steps; ++step) {
    model.give(batch_of(text, with.shape, step));
    const auto began = clock::now();
    model.forward(arrays);
    model.backward(arrays);
    model.update(with.rate, step + 1);
    dev.synchronize();
    times.push_back(std::chrono::duration<double, std::milli>(clock::now() - began).count());
    result.losses.push_back(model.loss());
    const auto memory = dev.memory();
    used = std::max(used, memory.total - memory.free);
  }
  result.weights = read_back(dev, stream.ref(), model.weights(), model.size());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  std::printf("%-20s loss %.6f to %.6f", name, result.losses.front(), result.losses.back());
  if constexpr (!tools::simulated<Device>) std::printf("   %9.2f ms a step", *middle);
  std::printf("   %9.1f MiB of the device\n", static_cast<double>(used) / 1048576);
  return result;
}

template <class Device>
outcome train_plain(Device& dev, const settings& with, const bytes& text) {
  gpt::plain_arrays<Device> arrays(dev, with.shape);
  return train(dev, with, text, "plain arrays", arrays);
}
template <class Device>
outcome train_saved(Device& dev, const settings& with, const bytes& text, const char* name,
                    const tp::options& options, bool tells) {
  typename gpt::saved_arrays<Device>::offloader off(dev, options, {.planner = tp::planner()});
  gpt::saved_arrays<Device> arrays(off);
  auto result = train(dev, with, text, name, arrays);
  for (const auto& each : off.counters().modules) {
    if (!tells || !each.enabled) continue;
    std::printf("  %-12s %10.3f MiB left a step\n", each.name.c_str(),
                static_cast<double>(each.bytes_offloaded) / 1048576 / with.steps);
  }
  return result;
}

bool equal(const outcome& a, const outcome& b) {
  return a.losses.size() == b.losses.size() && a.weights.size() == b.weights.size() &&
         std::memcmp(a.losses.data(), b.losses.data(), a.losses.size() * sizeof(double)) == 0 &&
         std::memcmp(a.weights.data(), b.weights.data(), a.weights.size() * sizeof(float)) == 0;
}

template <class Device, class... On>
int compare(const settings& with, const bytes& text, const tp::options& options, const On&... on) {
  const auto run = [&](const auto& body) {
    Device dev{on...};  // each has the device to itself
    return body(dev);
  };
  const auto plain = run([&](Device& dev) { return train_plain(dev, with, text); });
  const auto kept =
      run([&](Device& dev) { return train_saved(dev, with, text, "nothing leaves", {}, false); });
  const auto left = run(
      [&](Device& dev) { return train_saved(dev, with, text, "with the options", options, true); });
  const bool same = equal(plain, kept) && equal(plain, left);
  std::printf("%zu losses, %zu weights: %s\n", plain.losses.size(), plain.weights.size(),
              same ? "equal to the bit" : "DIFFER");
  return same ? 0 : 1;
}

/// The gradient of each tensor's steepest weight, against the difference of two losses.
template <class Device>
int check_gradients(const settings& with, const bytes& text) {
  Device dev;
  const auto stream = dev.make_stream();
  gpt::plain_arrays<Device> arrays(dev, with.shape);
  gpt::model<Device> model(dev, stream.ref(), with.shape);
  model.give(batch_of(text, with.shape, 0));
  model.forward(arrays);
  model.backward(arrays);
  const auto grads = read_back(dev, stream.ref(), model.gradients(), model.size());
  double worst = 0;
  int count = 0;
  gpt::parameters tensors{};
  tensors.lay_out(with.shape, nullptr, [&](std::size_t begin, std::size_t size, char) {
    std::size_t at = begin;
    for (auto i = begin; i < begin + size; ++i) {
      if (std::abs(grads[i]) > std::abs(grads[at])) at = i;
    }
    float* const weight = model.weights() + at;
    const float before = read_back(dev, stream.ref(), weight, 1).front();
    const auto loss_at = [&](float value) {
      dev.copy(weight, &value, {.width = sizeof value}, tp::copy_direction::host_to_device,
               stream.ref());
      dev.synchronize();
      model.forward(arrays);
      return model.loss();
    };
    constexpr float step = 0.01F;
    const double slope = (loss_at(before + step) - loss_at(before - step)) / (2 * double{step});
    static_cast<void>(loss_at(before));
    worst = std::max(worst, std::abs(slope - double{grads[at]}) / std::abs(double{grads[at]}));
    ++count;
  });
  std::printf("%d gradients: at most %.3f %% from the difference of losses\n", count, 100 * worst);
  return worst < 0.02 ? 0 : 1;
}

template <class Device, class... On>
int run(const settings& with, const tp::options& options, const On&... on) {
  const auto text = read_text(with.data);
  if (with.check_gradients) return check_gradients<Device>(with, text);
  if (with.compare) return compare<Device>(with, text, options, on...);
  Device dev{on...};
  train_saved(dev, with, text, "with the options", options, true);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"gpt", "Trains a GPT over bytes, whose arrays of layers leave the device."};
  return tools::run(me.name, [&] {
    const auto options = tp::take_options(argc, argv);
    settings with;
    unsigned long long order = 0;
    tools::command_line line(me);
    line.add_library();
    line.add_option("--device", with.device, "virtual or cuda")
        ->check(CLI::IsMember({"virtual", "cuda"}))
        ->capture_default_str();
    line.add_file("--data", with.data, "Text to train on")->required();
    line.add_option("--layers", with.shape.layers, "Layers")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    line.add_option("--width", with.shape.width, "Channels")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    line.add_option("--heads", with.shape.heads, "Heads of attention")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    line.add_option("--length", with.shape.length, "Bytes in a row")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    line.add_option("--batch", with.shape.batch, "Rows in a step")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    line.add_option("--steps", with.steps, "Steps")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    line.add_option("--rate", with.rate, "Rate of Adam")->capture_default_str();
    line.add_option("--order", order, "Order seed of the virtual device")->capture_default_str();
    line.add_flag("--compare", with.compare, "Compare with plain arrays, to the bit");
    line.add_flag("--check-gradients", with.check_gradients, "Compare gradients with differences");
    line.read(argc, argv);
    if (with.shape.width % with.shape.heads != 0) {
      throw tp::option_error("--heads: " + std::to_string(with.shape.heads) +
                             " do not divide --width");
    }
    if (with.device == "virtual") {
      tools::print_device<tp::virtual_device>();
      return run<tp::virtual_device>(with, options, tp::machine{.order_seed = order});
    }
#if defined(__CUDACC__)
    tools::print_device<tp::cuda_device>();
    return run<tp::cuda_device>(with, options);
#else
    throw tp::option_error("--device=cuda: this build has no CUDA; take --device=virtual");
#endif
  });
}
