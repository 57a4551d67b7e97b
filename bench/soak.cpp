/// Many steps with shapes that change all the time: memory and the host's cost of a step must stay
/// where they were.
///
///     bench_soak --steps 100000                   on the virtual device
///     bench_soak --steps 1000000 --mixed          evaluations, plans and graphs as well
///     bench_soak --steps 1000 --device cuda
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <tidepool/places/file.hpp>
#include <tidepool/plan.hpp>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "../examples/tools/command_line.hpp"
#include "../examples/tools/device_line.hpp"

namespace {

namespace tp = tidepool;

struct settings {
  std::size_t steps = 1000;
  std::string device = "virtual";
  std::size_t largest = 4096;  // bytes of a tensor
  int layers = 4;
  bool mixed = false;
  double slowest = 1.5;  // of a step in the last three tenths, against those of the second
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

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// A training whose steps differ: shapes, microbatches in flight, evaluations, plans and graphs.
template <class Kernels>
class training {
 public:
  using device = decltype(Kernels::dev);
  using offloader = tp::offloader<device, tp::modules<"expert_fc1", "moe_act">>;
  using stream_ref = typename device::stream_ref;

  explicit training(const settings& run)
      : run_(run),
        owned_(kernels.dev.make_stream()),
        stream_(owned_.ref()),
        off(kernels.dev, options_of(run), {.planner = tp::planner(), .file = tp::file_place()}) {
    off.on_report([](std::string_view) {});
    for (auto& each : flying_) each.tensors.resize(2 * static_cast<std::size_t>(run.layers));
  }

  Kernels kernels;

  void step(std::size_t number) {
    value_ = static_cast<int>(number % 249);
    if (!run_.mixed) {
      train(1, 0);
    } else if (number % 100 == 50) {
      follow(number / 100 % 3);
      train(2, run_.largest);
    } else if (number % 64 == 0) {
      replay();
    } else {
      if (number % 5 == 0) forward(flying_[0], true, 0);
      // The plan of two microbatches is for these; the others have less than it.
      train(number <= 2 || number % 3 == 0 ? 2 : 1, number <= 2 ? run_.largest : 0);
    }
    kernels.settle();
  }

  // What the counters have to say, and say otherwise.
  [[nodiscard]] std::size_t miscounted() const {
    const auto seen = off.counters();
    std::size_t groups = 0;
    std::uint64_t out = 0;
    std::uint64_t in = 0;
    std::uint64_t kept = 0;
    for (const auto& each : seen.modules) {
      groups += each.groups;
      out += each.bytes_offloaded;
      in += each.bytes_reloaded;
      kept += each.groups_resident + each.groups_offloaded;
    }
    return (seen.steps != steps_) + (groups != groups_) + (kept != groups_) + (out != in) +
           (out > bytes_ || (!run_.mixed && out != bytes_));
  }

 private:
  struct in_flight {
    typename offloader::chunk chunk;
    std::vector<tp::buffer<device>> tensors;
  };

  static tp::options options_of(const settings& run) {
    tp::options opts;
    opts.offload_modules = {"expert_fc1", "moe_act"};
    opts.min_tensor_elements = 1;
    opts.max_inflight = 2;
    opts.device_step = run.largest;
    opts.host_step = run.largest;
    opts.margin = false;
    return opts;
  }

  // `bytes` of 0: any.
  void forward(in_flight& at, bool evaluation, std::size_t bytes) {
    at.chunk = off.begin({.microbatch = 0, .forward_only = evaluation});
    for (std::size_t i = 0; i < at.tensors.size(); ++i) {
      auto& x = at.tensors[i];
      const auto layer = static_cast<int>(i / 2);
      x = off.allocate(bytes > 0 ? bytes : 256 + random_() % (run_.largest - 255), stream_);
      kernels.fill(x.data(), x.size(), value_ + static_cast<int>(i % 2), stream_);
      if (!evaluation) bytes_ += x.size(), ++groups_;
      i % 2 == 0 ? at.chunk.template commit<"expert_fc1">(layer, stream_, x)
                 : at.chunk.template commit<"moe_act">(layer, stream_, x);
    }
    at.chunk.end_forward();
    if (!evaluation) return;
    for (auto& x : at.tensors) x.reset(stream_);
    at.chunk.finish();
  }
  void backward(in_flight& at) {
    for (std::size_t i = at.tensors.size(); i-- > 0;) {
      auto& x = at.tensors[i];
      const auto layer = static_cast<int>(i / 2);
      i % 2 == 0 ? at.chunk.template restore<"expert_fc1">(layer, stream_, x)
                 : at.chunk.template restore<"moe_act">(layer, stream_, x);
      kernels.check(x.data(), x.size(), value_ + static_cast<int>(i % 2), stream_);
      x.reset(stream_);
    }
    at.chunk.finish();
  }
  void train(int microbatches, std::size_t bytes) {
    for (int m = 0; m < microbatches; ++m) forward(flying_[m], false, bytes);
    for (int m = 0; m < microbatches; ++m) backward(flying_[m]);
    off.end_step();
    ++steps_;
  }

  // Another plan of two microbatches; every third group stays, every second, or none.
  void follow(std::size_t which) {
    tp::plan::profile recorded;
    tp::plan::step_plan made;
    recorded.modules = {"expert_fc1", "moe_act"};
    for (std::size_t m = 0; m < 2; ++m) {
      auto& groups = recorded.chunks.emplace_back().groups;
      auto& row = made.what.emplace_back();
      recorded.passes.push_back({m, false});
      for (std::size_t i = 0; i < flying_[0].tensors.size(); ++i) {
        groups.push_back({tp::module_id(i % 2), static_cast<int>(i / 2), run_.largest});
        const bool stays = which > 0 && i % (which + 1) == 0;
        row.push_back(stays ? tp::plan::action::keep : tp::plan::action::offload);
      }
    }
    for (std::size_t m = 0; m < 2; ++m) recorded.passes.push_back({m, true});
    off.follow(made, recorded);
  }

  void replay() {
    auto graph = off.capture(stream_, [&] { train(1, run_.largest); });
    for (int i = 0; i < 3; ++i) graph.launch(stream_);
    kernels.settle();
  }

  settings run_;
  typename device::stream owned_;
  stream_ref stream_;

 public:
  offloader off;

 private:
  in_flight flying_[2];
  std::mt19937 random_{7};
  int value_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t groups_ = 0;
  std::uint64_t bytes_ = 0;
};

template <class Kernels>
int soak(const settings& run) {
  tools::print_device<decltype(Kernels::dev)>();
  training<Kernels> all(run);
  const auto tenth = std::max<std::size_t>(1, run.steps / 10);
  std::vector<double> micros;
  micros.reserve(tenth);
  std::printf("%10s %12s %12s %12s %12s %10s\n", "step", "device bytes", "pinned bytes",
              "driver KiB", "resident KiB", "us a step");
  std::size_t first_memory = 0;
  double first_cost = 0;
  std::size_t last_memory = 0;
  double late_cost = 0;  // the least of the last three tenths: other processes disturb one of them
  for (std::size_t step = 1; step <= run.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    all.step(step);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    micros.push_back(took.count());
    if (step % tenth != 0) continue;
    const auto seen = all.off.counters();
    const auto memory = all.kernels.dev.memory();
    last_memory = seen.device_reserved + seen.host_reserved;
    const auto cost = median(micros);
    micros.clear();
    std::printf("%10zu %12zu %12zu %12zu %12zu %10.1f\n", step, seen.device_reserved,
                seen.host_reserved, (memory.total - memory.free) / 1024, resident_kib(), cost);
    std::fflush(stdout);
    if (step == 2 * tenth) first_memory = last_memory, first_cost = cost;
    if (step > 7 * tenth) late_cost = step == 8 * tenth ? cost : std::min(late_cost, cost);
  }
  const auto grown = static_cast<double>(last_memory) - static_cast<double>(first_memory);
  const auto slower = late_cost / first_cost;
  const auto miscounted = all.miscounted();
  std::printf(
      "wrong bytes %zu, counters that are wrong %zu; memory grew by %.0f bytes, the step by a"
      " factor of %.3f, since the second tenth\n",
      all.kernels.wrong, miscounted, grown, slower);
  return all.kernels.wrong == 0 && miscounted == 0 && grown == 0 && slower <= run.slowest ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"bench_soak",
                        "Many steps with changing shapes: memory and step cost must stay flat."};
  return tools::run(me.name, [&] {
    settings run;
    tools::command_line line(me);
    line.add_option("--steps", run.steps, "Steps to run")
        ->check(CLI::Range(20, 1 << 30))
        ->capture_default_str();
    line.add_option("--device", run.device, "virtual or cuda")
        ->check(CLI::IsMember({"virtual", "cuda"}))
        ->capture_default_str();
    line.add_size("--largest", run.largest, "Of the largest tensor; 512B to 4GiB");
    line.add_option("--layers", run.layers, "Layers of the model")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    line.add_flag("--mixed", run.mixed,
                  "Microbatches in flight, evaluations, plans from elsewhere and graphs as well");
    line.add_option("--slowest", run.slowest, "Factor by which a step may become slower")
        ->capture_default_str();
    line.read(argc, argv);
    if (run.largest < 512 || run.largest > std::size_t{1} << 32) {
      throw tp::option_error("--largest: the tensor is outside 512B to 4GiB; give 4KiB");
    }
    if (run.device == "virtual") return soak<virtual_kernels>(run);
#if defined(TIDEPOOL_HAS_CUDA)
    return soak<cuda_kernels>(run);
#else
    throw tp::option_error("--device=cuda: this build has no CUDA; take --device=virtual");
#endif
  });
}
