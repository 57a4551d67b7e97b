/// Many steps of a training over libtorch in which nothing stays as it was: shapes, microbatches in
/// flight, evaluations, passes that are given up, exceptions in the midst of a module, graphs that
/// are read twice. Each step is computed without offload as well, and every gradient must have the
/// same bits. Memory must stay where it was, to the byte, and so must the cost of a step.
///
///     torch_soak --steps 2000 --offload-modules=all
///     torch_soak --steps 10000 --device=cuda --offload-modules=all --poison
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <exception>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autocast.hpp"
#include "command_line.hpp"
#include "model.hpp"
#include "strict_allocator.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/torch.hpp"
#if defined(TIDEPOOL_TORCH_CUDA)
#include "tidepool/device/cuda.hpp"
#endif

namespace {

// What torch and the driver hold, in bytes, once nothing waits for its copy any more.
struct held {
  std::size_t tensors = 0;
  std::size_t allocator = 0;
  std::size_t driver = 0;
};

held held_on(tidepool::virtual_device& dev) {
  static_cast<void>(tidepool::detail::memory_lender::give_back_all());
  const auto driver = dev.memory();
  const auto now = tidepool::test::strict_allocator::get().now;
  return {now, now, driver.total - driver.free};
}

#if defined(TIDEPOOL_TORCH_CUDA)
held held_on(tidepool::cuda_device& dev) {
  static_cast<void>(tidepool::detail::memory_lender::give_back_all());
  torch::cuda::synchronize();
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(dev.ordinal()));
  const auto driver = dev.memory();
  return {static_cast<std::size_t>(stats.allocated_bytes[0].current),
          static_cast<std::size_t>(stats.reserved_bytes[0].current), driver.total - driver.free};
}
#endif

std::size_t resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

struct interrupted : std::exception {};

// What a step does, drawn from its number.
struct drawn {
  int microbatches = 1;
  int in_flight = 1;
  int batch = 4;
  int sequence = 64;
  bool autocast = false;
  bool evaluate = false;
  bool give_up = false;    // a pass whose backward never runs
  bool interrupt = false;  // an exception out of a module
  bool twice = false;      // backward keeps the graph and runs again

  /// As much as any step has, in one type or in two.
  static drawn largest(const gpt::command_line& line, bool autocast) {
    drawn all;
    all.autocast = autocast;
    all.microbatches = all.in_flight = 3;
    all.batch = line.model.batch;
    all.sequence = line.model.sequence;
    all.give_up = all.interrupt = all.evaluate = true;
    return all;
  }
  drawn() = default;
  drawn(int number, const gpt::command_line& line) {
    std::mt19937 random(static_cast<unsigned>(number));
    const auto up_to = [&](int most) { return 1 + static_cast<int>(random() % unsigned(most)); };
    const auto one_of = [&](unsigned n) { return random() % n == 0; };
    microbatches = up_to(3);
    in_flight = up_to(microbatches);
    batch = up_to(line.model.batch);
    sequence = up_to(line.model.sequence);
    autocast = one_of(4);
    evaluate = one_of(5);
    give_up = one_of(7);
    interrupt = one_of(7);
    twice = one_of(5);
  }
};

using clock = std::chrono::steady_clock;

struct step_times {
  double offloaded = 0;  // milliseconds
  double plain = 0;
};

double milliseconds(clock::duration took) {
  return std::chrono::duration<double, std::milli>(took).count();
}

template <class Device>
class training {
 public:
  using offloader = tidepool::torch_offloader<Device>;

  training(Device& dev, const gpt::command_line& line)
      : line_(line),
        where_(tidepool::torch_streams<Device>(dev).device()),
        off_(dev, line.offload, {.planner = tidepool::planner()}),
        model_(seeded(line)),
        optimizer_(on_device(), torch::optim::AdamWOptions(1e-4)) {
    off_.engine().on_report([](std::string_view) {});
    off_.exclude(model_.parameters());
  }

  /// How long it took with offload and without.
  step_times step(int number, const drawn& now) {
    const auto begin = clock::now();
    run_plain(number, now);
    std::vector<at::Tensor> expected;
    for (const auto& each : model_.parameters()) expected.push_back(each.grad().clone());
    const auto losses = std::exchange(losses_, {});

    const auto between = clock::now();
    run_offloaded(number, now);
    const step_times took{milliseconds(clock::now() - between), milliseconds(between - begin)};
    const auto parameters = model_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].grad().equal(expected[i])) ++wrong_;
    }
    for (std::size_t i = 0; i < losses.size(); ++i) wrong_ += losses[i].equal(losses_[i]) ? 0 : 1;
    losses_.clear();
    optimizer_.step();
    return took;
  }

  /// Gradients and losses with other bits than without offload.
  [[nodiscard]] std::size_t wrong() const { return wrong_; }
  /// What the counters have to say, and say otherwise.
  [[nodiscard]] std::size_t miscounted() const {
    const auto seen = off_.counters();
    std::uint64_t groups = 0, decided = 0, out = 0, in = 0;
    for (const auto& each : seen.modules) {
      groups += each.groups;
      decided += each.groups_resident + each.groups_offloaded;
      out += each.bytes_offloaded;
      in += each.bytes_reloaded;
    }
    return (seen.steps != steps_) + (groups != decided) + (in > out) + (out == 0);
  }
  [[nodiscard]] tidepool::trace::counters counters() const { return off_.counters(); }

 private:
  struct open_microbatch {
    typename offloader::pass pass;
    at::Tensor loss;
  };

  static gpt::sizes seeded(const gpt::command_line& line) {
    torch::manual_seed(1234);
    return line.model;
  }
  std::vector<at::Tensor> on_device() {
    model_.to(where_);
    return model_.parameters();
  }

  void clear_gradients() {
    for (auto& each : model_.parameters()) each.mutable_grad() = torch::zeros_like(each);
  }
  // The same tokens each time that this is called for a microbatch.
  template <class Run>
  at::Tensor loss(int number, int microbatch, const drawn& now, Run&& run) {
    torch::manual_seed(static_cast<std::uint64_t>(number) * 16 + static_cast<unsigned>(microbatch));
    const auto tokens =
        torch::randint(gpt::sizes::vocabulary, {now.batch, now.sequence + 1}, torch::kLong)
            .to(where_);
    const auto seen = tokens.narrow(1, 0, now.sequence);
    const auto next = tokens.narrow(1, 1, now.sequence);
    if (!now.autocast) return model_.loss(seen, next, run);
    const gpt::autocast narrow(where_.is_cuda());
    return model_.loss(seen, next, run);
  }
  void backward(const at::Tensor& loss, const drawn& now) {
    if (now.twice) loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    losses_.push_back(loss.detach());
  }

  void run_plain(int number, const drawn& now) {
    auto plain = [](const char*, int, auto&& body) { return body(); };
    clear_gradients();
    std::deque<at::Tensor> open;
    for (int m = 0; m < now.microbatches; ++m) {
      open.push_back(loss(number, m, now, plain));
      if (static_cast<int>(open.size()) < now.in_flight) continue;
      backward(open.front(), now);
      open.pop_front();
    }
    for (const auto& each : open) backward(each, now);
  }

  void run_offloaded(int number, const drawn& now) {
    clear_gradients();
    if (now.evaluate) evaluate(number, now);
    if (now.interrupt) interrupt(number, now);
    std::deque<open_microbatch> open;
    const auto close = [&] {
      backward(open.front().loss, now);
      open.front().pass.finish();
      open.pop_front();
    };
    for (int m = 0; m < now.microbatches; ++m) {
      open.push_back({off_.begin({.microbatch = m}), {}});
      open.back().loss = loss(number, m, now, in(open.back().pass));
      open.back().pass.end_forward();
      if (now.give_up && m == 0) give_up(number, now);
      if (static_cast<int>(open.size()) == now.in_flight) close();
    }
    while (!open.empty()) close();
    off_.end_step();
    ++steps_;
  }
  static auto in(typename offloader::pass& pass) {
    return [&pass](const char* name, int layer, auto&& body) {
      return pass.module(name, layer, body);
    };
  }
  void evaluate(int number, const drawn& now) {
    const torch::NoGradGuard none;
    auto pass = off_.begin({.forward_only = true});
    static_cast<void>(loss(number, 7, now, in(pass)));
    pass.end_forward();
    pass.finish();
  }
  // Half of the time the graph goes before its pass.
  void give_up(int number, const drawn& now) {
    auto pass = off_.begin({.microbatch = now.microbatches});
    auto unused = loss(number, 8, now, in(pass));
    if (number % 2 == 0) unused.reset();
  }
  void interrupt(int number, const drawn& now) {
    auto pass = off_.begin({.microbatch = now.microbatches + 1});
    int modules = 1 + number % 20;
    try {
      static_cast<void>(loss(number, 9, now, [&](const char* name, int layer, auto&& body) {
        return pass.module(name, layer, [&] {
          if constexpr (std::is_void_v<decltype(body())>) {
            body();
            if (--modules == 0) throw interrupted();
          } else {
            auto result = body();
            if (--modules == 0) throw interrupted();
            return result;
          }
        });
      }));
    } catch (const interrupted&) {
    }
  }

  const gpt::command_line& line_;
  c10::Device where_;
  offloader off_;
  gpt::model model_;
  torch::optim::AdamW optimizer_;
  std::vector<at::Tensor> losses_;
  std::size_t wrong_ = 0;
  std::uint64_t steps_ = 0;
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What is held behind a tenth of the run, and what its steps took against those without offload.
struct reading {
  held memory;
  std::size_t host = 0;  // pinned bytes, and the most that were in use at once
  std::size_t host_peak = 0;
  double ratio = 0;
};

template <class Device>
reading read(Device& dev, const training<Device>& of, std::vector<double>& ratios) {
  const auto totals = of.counters();
  const reading now{held_on(dev), totals.host_reserved, totals.host_peak, median(ratios)};
  ratios.clear();
  return now;
}

std::size_t growth(const reading& since, const reading& now) {
  const auto grown = [](std::size_t from, std::size_t to) { return std::max(from, to) - from; };
  return grown(since.memory.tensors, now.memory.tensors) + grown(since.host, now.host);
}

// Memory is looked at behind the last step of each tenth. Those do the same, so the same tensors
// are alive then. The first two steps take the most memory that any step takes. A cost that grows
// shows in each of the last three tenths; another process that takes the processor rarely does.
template <class Device>
bool soak(Device& dev, const gpt::command_line& line) {
  constexpr double slowest = 1.5;  // the last three tenths' ratios, against that of the second
  training<Device> all(dev, line);
  const int tenth = std::max(3, line.steps / 10);
  std::printf("%8s %14s %14s %14s %14s %12s %12s %10s %10s\n", "step", "tensors", "torch reserved",
              "pinned", "pinned in use", "driver KiB", "resident KiB", "x without", "wrong bits");
  reading second, last;
  std::size_t grown = 0;
  double late = 0;  // the least ratio of the last three tenths
  std::vector<double> ratios;
  for (int number = 1; number <= tenth * 10; ++number) {
    const bool measured = number % tenth == 0;
    const auto took = all.step(
        number, measured || number <= 2 ? drawn::largest(line, number == 2) : drawn(number, line));
    ratios.push_back(took.offloaded / took.plain);
    if (!measured) continue;
    last = read(dev, all, ratios);
    std::printf("%8d %14zu %14zu %14zu %14zu %12zu %12zu %10.3f %10zu\n", number,
                last.memory.tensors, last.memory.allocator, last.host, last.host_peak,
                last.memory.driver / 1024, resident_kib(), last.ratio, all.wrong());
    std::fflush(stdout);
    if (number == 2 * tenth) second = last;
    if (number > 2 * tenth) grown = std::max(grown, growth(second, last));
    if (number > 7 * tenth) late = number == 8 * tenth ? last.ratio : std::min(late, last.ratio);
  }
  std::printf(
      "gradients and losses with other bits %zu, counters that are wrong %zu; tensors and pinned"
      " memory grew by %zu bytes, the step by a factor of %.3f, since the second tenth\n",
      all.wrong(), all.miscounted(), grown, late / second.ratio);
  return all.wrong() == 0 && all.miscounted() == 0 && grown == 0 && late <= slowest * second.ratio;
}

bool run(const gpt::command_line& line) {
  at::set_num_threads(1);  // sums in one order
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  if (line.device == "virtual") {
    static_cast<void>(tidepool::test::strict_allocator::get());
    tidepool::virtual_device dev(
        tidepool::machine{.poison = true, .order_seed = static_cast<std::uint64_t>(line.order)});
    return soak(dev, line);
  }
#if defined(TIDEPOOL_TORCH_CUDA)
  tidepool::cuda_device dev;
  return soak(dev, line);
#else
  throw tidepool::option_error("--device=" + line.device + ": this libtorch has no CUDA");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run("torch_soak", [&] { return run(gpt::read_command_line(argc, argv)) ? 0 : 1; });
}
