/// Many steps with shapes that change all the time: memory and the host's cost of a step must stay
/// where they were.
///
///     bench_soak --steps 100000                   on the virtual device
///     bench_soak --steps 1000 --device cuda
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <tidepool/tidepool.hpp>
#include <vector>

namespace {

namespace tp = tidepool;

struct settings {
  std::size_t steps = 1000;
  std::string device = "virtual";
  std::size_t largest = 4096;  // bytes of a tensor
  int layers = 4;
};

// What differs between the devices: a kernel that fills, and a look at the result.
struct virtual_kernels {
  tp::virtual_device dev;
  std::size_t wrong = 0;
  void fill(void* to, std::size_t bytes, int value, tp::virtual_device::stream_ref on) {
    dev.launch(on, 100, [=] { std::memset(to, value, bytes); });
  }
  void check(const void* from, std::size_t bytes, int value, tp::virtual_device::stream_ref on) {
    dev.launch(on, 100, [=, this] {
      const auto* at = static_cast<const unsigned char*>(from);
      wrong += at[0] != value || at[bytes - 1] != value ? 1 : 0;
    });
  }
  void settle() { dev.synchronize(); }
};

#if defined(TIDEPOOL_HAS_CUDA)
struct cuda_kernels {
  tp::cuda_device dev;
  std::size_t wrong = 0;
  std::vector<std::pair<unsigned char*, int>> seen;  // pinned, so that looking does not block
  unsigned char* slots = static_cast<unsigned char*>(dev.try_allocate_host(1 << 16));
  std::size_t used = 0;

  ~cuda_kernels() { dev.deallocate_host(slots); }
  void fill(void* to, std::size_t bytes, int value, tp::cuda_device::stream_ref on) {
    if (cudaMemsetAsync(to, value, bytes, on.get()) != cudaSuccess) ++wrong;
  }
  void check(const void* from, std::size_t bytes, int value, tp::cuda_device::stream_ref on) {
    const auto* at = static_cast<const unsigned char*>(from);
    for (const auto* each : {at, at + bytes - 1}) {
      dev.copy(slots + used, each, {1, 1, 1, 1}, tp::copy_direction::device_to_host, on);
      seen.emplace_back(slots + used++, value);
    }
  }
  void settle() {
    dev.synchronize();
    for (const auto& [where, value] : seen) wrong += *where != value ? 1 : 0;
    seen.clear();
    used = 0;
  }
};
#endif

std::size_t resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

template <class Kernels>
int soak(const settings& run) {
  Kernels kernels;
  auto owned = kernels.dev.make_stream();
  const auto stream = owned.ref();
  tp::options opts;
  opts.offload_modules = {"expert_fc1", "moe_act"};
  opts.min_tensor_elements = 1;
  opts.max_inflight = 2;
  opts.device_step = run.largest;
  opts.host_step = run.largest;
  using device = decltype(kernels.dev);
  tp::offloader<device, tp::modules<"expert_fc1", "moe_act">> off(kernels.dev, opts);
  std::mt19937 random(7);
  std::vector<tp::buffer<device>> x(static_cast<std::size_t>(run.layers));
  std::vector<tp::buffer<device>> y(static_cast<std::size_t>(run.layers));
  std::vector<double> micros;
  std::printf("%10s %12s %12s %12s %12s %10s\n", "step", "device KiB", "pinned KiB", "driver KiB",
              "resident KiB", "us a step");
  std::size_t first_memory = 0;
  double first_cost = 0;
  std::size_t last_memory = 0;
  double last_cost = 0;
  for (std::size_t step = 1; step <= run.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    auto chunk = off.begin();
    const auto bytes = [&] { return 256 + random() % (run.largest - 255); };
    const auto value = static_cast<int>(step % 251);
    for (int l = 0; l < run.layers; ++l) {
      const auto i = static_cast<std::size_t>(l);
      x[i] = off.allocate(bytes(), stream);
      y[i] = off.allocate(bytes(), stream);
      kernels.fill(x[i].data(), x[i].size(), value, stream);
      kernels.fill(y[i].data(), y[i].size(), value + 1, stream);
      chunk.template commit<"expert_fc1">(l, stream, x[i]);
      chunk.template commit<"moe_act">(l, stream, y[i]);
    }
    chunk.end_forward();
    for (int l = run.layers; l-- > 0;) {
      const auto i = static_cast<std::size_t>(l);
      chunk.template restore<"moe_act">(l, stream, y[i]);
      chunk.template restore<"expert_fc1">(l, stream, x[i]);
      kernels.check(y[i].data(), y[i].size(), value + 1, stream);
      kernels.check(x[i].data(), x[i].size(), value, stream);
      y[i].reset(stream);
      x[i].reset(stream);
    }
    chunk.finish();
    off.end_step();
    kernels.settle();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    micros.push_back(took.count());
    const auto tenth = std::max<std::size_t>(1, run.steps / 10);
    if (step % tenth != 0) continue;
    const auto seen = off.counters();
    const auto memory = kernels.dev.memory();
    last_memory = seen.device_reserved + seen.host_reserved;
    last_cost = median(std::move(micros));
    micros.clear();
    std::printf("%10zu %12zu %12zu %12zu %12zu %10.1f\n", step, seen.device_reserved / 1024,
                seen.host_reserved / 1024, (memory.total - memory.free) / 1024, resident_kib(),
                last_cost);
    std::fflush(stdout);
    if (step == 2 * tenth) first_memory = last_memory, first_cost = last_cost;
  }
  const auto growth = static_cast<double>(last_memory) / static_cast<double>(first_memory);
  std::printf(
      "wrong bytes %zu; memory grew by a factor of %.3f, the step by %.3f, since the second"
      " tenth\n",
      kernels.wrong, growth, last_cost / first_cost);
  return kernels.wrong == 0 && growth <= 1.05 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  settings run;
  CLI::App app{"Many steps with changing shapes: memory and step cost must stay flat"};
  app.add_option("--steps", run.steps, "Steps to run, ten or more")->check(CLI::Range(20, 1 << 30));
  app.add_option("--device", run.device, "virtual or cuda")
      ->check(CLI::IsMember({"virtual", "cuda"}));
  app.add_option("--largest", run.largest, "Bytes of the largest tensor")
      ->check(CLI::Range(std::size_t{512}, std::size_t{1} << 32));
  app.add_option("--layers", run.layers, "Layers of the model")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
#if defined(TIDEPOOL_HAS_CUDA)
    if (run.device == "cuda") return soak<cuda_kernels>(run);
#endif
    if (run.device == "cuda") {
      std::fprintf(stderr, "bench_soak: built without the CUDA toolkit; take --device virtual\n");
      return 2;
    }
    return soak<virtual_kernels>(run);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "bench_soak: %s\n", problem.what());
    return 2;
  }
}
