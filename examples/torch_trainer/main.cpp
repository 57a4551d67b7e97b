/// A GPT with mixtures of experts in plain torch::nn, trained on real text, whose saved tensors
/// leave by module: `torch_trainer --offload-modules=expert_fc1,moe_act --compare`. See
/// docs/torch.md.
#include <cstdio>
#include <string>

#include "../tools/device_line.hpp"
#include "command_line.hpp"
#include "text.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/places/file.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/torch/declared.hpp"
#include "tidepool/trace/output.hpp"
#include "train.hpp"
#if defined(TIDEPOOL_TORCH_CUDA)
#include "tidepool/device/cuda.hpp"
#endif

namespace {

void print(const char* what, const gpt::run_result& result, const gpt::command_line& line) {
  constexpr double mib = 1048576.0;
  std::printf("%s\n", what);
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    const auto per_step = static_cast<std::size_t>(line.microbatches);
    std::printf("  step %zu microbatch %zu loss %.6f bits %08x\n", i / per_step, i % per_step,
                static_cast<double>(gpt::to_float(result.losses[i])), result.losses[i]);
  }
  std::printf("  parameters %016llx\n  %.2f ms a step at best, %.2f MiB out, %.2f MiB in\n",
              static_cast<unsigned long long>(result.parameters), result.step_ms,
              static_cast<double>(result.bytes_out) / mib,
              static_cast<double>(result.bytes_in) / mib);
}

#if defined(TIDEPOOL_TORCH_CUDA)
// What torch and the driver say of memory, since the last call.
void print_memory(tidepool::cuda_device& dev) {
  using namespace c10::cuda::CUDACachingAllocator;
  const auto index = static_cast<c10::DeviceIndex>(dev.ordinal());
  const auto stats = getDeviceStats(index);
  const auto driver = dev.memory();
  constexpr double mib = 1048576.0;
  std::printf(
      "  memory: %.1f MiB at most in tensors, %.1f MiB at most of the allocator, driver %.1f"
      " MiB\n",
      static_cast<double>(stats.allocated_bytes[0].peak) / mib,
      static_cast<double>(stats.reserved_bytes[0].peak) / mib,
      static_cast<double>(driver.total - driver.free) / mib);
  emptyCache();
  resetPeakStats(index);
}
#endif

// Operators declare what they touch where the device is a checked one.
template <class Device>
struct checking {
  checking(Device& /*dev*/, tidepool::torch_offloader<Device>& /*off*/) {}
  void print() const {}
};
template <class Device>
struct checking<tidepool::checked_device<Device>> {
  using checked = tidepool::checked_device<Device>;
  checking(checked& dev, tidepool::torch_offloader<checked>& off) : operators(dev, off) {}
  void print() const { std::printf("  %zu operators were checked\n", operators.count()); }
  tidepool::torch_declared_operators<checked> operators;
};

template <class Device>
bool train(Device& dev, const gpt::command_line& line) {
  tools::print_device<Device>();
  const gpt::text_sampler text(gpt::load_text(line.data), line.model.sequence);
  const auto where = tidepool::torch_streams<Device>(dev).device();
  [[maybe_unused]] const auto memory = [&] {
#if defined(TIDEPOOL_TORCH_CUDA)
    if constexpr (std::is_base_of_v<tidepool::cuda_device, Device>) print_memory(dev);
#endif
  };
  gpt::run_result plain;
  if (line.compare) {
    plain = gpt::trainer<Device>(line, text, where, nullptr).run();
    print("without offload", plain, line);
    memory();
  }
  gpt::run_result result;
  {
    tidepool::torch_offloader off(dev, line.offload,
                                  {.planner = tidepool::planner(),
                                   .file = tidepool::file_place(),
                                   .output = tidepool::trace_output()});
    const checking<Device> declared(dev, off);
    result = gpt::trainer<Device>(line, text, where, &off).run();
    print("with offload", result, line);
    memory();
    const auto counts = off.counters();
    std::printf("  borrowed: %zu bytes at most, %llu waits to give it back\n", counts.borrowed_peak,
                static_cast<unsigned long long>(counts.borrowed_joins));
    declared.print();
  }
  if (!line.compare) return true;
  const bool same = same_bits(plain, result);
  std::printf("%s\n", same ? "equal bits" : "THE BITS DIFFER");
  return same;
}

// With --check-order on a checked device, and says what that found.
template <class Device, class... Made>
bool train_on(const gpt::command_line& line, const Made&... made) {
  if (!line.check_order) {
    Device dev(made...);
    return train(dev, line);
  }
  tidepool::checked_device<Device> dev(made...);
  const bool same = train(dev, line);
  std::fputs(dev.report().c_str(), stdout);
  return same && dev.findings().empty();
}

bool run(const gpt::command_line& line) {
  at::set_num_threads(1);  // sums in one order
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  if (line.device == "virtual") {
    return train_on<tidepool::virtual_device>(
        line, tidepool::machine{.order_seed = static_cast<std::uint64_t>(line.order)});
  }
  if (line.device == "cuda") {
#if defined(TIDEPOOL_TORCH_CUDA)
    return train_on<tidepool::cuda_device>(line);
#else
    throw tidepool::option_error(
        "--device=cuda: this program's libtorch has no CUDA; build with one"
        " that has (TIDEPOOL_TORCH_ROOT), or take --device=virtual");
#endif
  }
  throw tidepool::option_error("--device=" + line.device + ": it must be virtual or cuda");
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run("torch_trainer",
                    [&] { return run(gpt::read_command_line(argc, argv)) ? 0 : 1; });
}
