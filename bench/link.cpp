/// What the link gives and what Tidepool takes of it: whole groups and groups of many small
/// tensors, on one GPU or several at once; and how long pinned memory takes to make.
///
///     bench_link                 one GPU
///     bench_link --gpus 2        two at once, each with a thread and an offloader of its own
///
/// What the planner is to know of a host, raw rates in a file for `plan --machine`:
///
///     for n in 1 2 4; do bench_link --gpus $n --machine h200 --json host.json; done
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "../examples/tools/command_line.hpp"
#include "../examples/tools/device_line.hpp"
#include "link_traffic.hpp"
#include "machine_file.hpp"

namespace {

using namespace bench;

struct settings {
  int gpus = 1;
  int rounds = 5;
  std::size_t group = 256 * mib;
  int groups = 12;
  std::size_t pin = 8192 * mib;
  std::string json;
  std::string machine;
};

/// One GPU's share of the measurement; all of them start each phase together.
struct member {
  std::vector<double> raw_out, raw_in, raw_both, out, in, both;  // GB/s
};

void measure(const settings& run, int gpu, std::barrier<>& together, member& into) {
  check(cudaSetDevice(gpu), "cudaSetDevice");
  tp::cuda_device dev(gpu);
  raw_copies raw(dev, run.group);
  groups_of ours(dev, run.groups, 1, run.group);
  for (int i = 0; i < 2; ++i) {
    ours.forward(0);
    ours.forward(1);
    ours.backward(0);
    ours.backward(1);
    ours.end_step();
  }
  ours.settle();
  raw.run(true, true, 2);
  const auto bytes = static_cast<double>(run.group) * run.groups / 1e9;
  const auto phase = [&](std::vector<double>& rates, double factor, const auto& work) {
    together.arrive_and_wait();
    rates.push_back(factor * bytes / seconds_of(work));
  };
  for (int round = 0; round < run.rounds; ++round) {
    phase(into.raw_out, 1, [&] { raw.run(true, false, run.groups); });
    phase(into.out, 1, [&] { ours.forward(0), ours.settle(); });
    phase(into.raw_in, 1, [&] { raw.run(false, true, run.groups); });
    phase(into.in, 1, [&] { ours.backward(0), ours.settle(); });
    ours.forward(0);
    ours.settle();
    phase(into.raw_both, 2, [&] { raw.run(true, true, run.groups); });
    phase(into.both, 2, [&] {
      ours.forward(1);
      ours.backward(0);
      ours.settle();
    });
    ours.backward(1);
    ours.end_step();
    ours.settle();
  }
}

/// Returns what raw copies give each GPU.
tp::plan::link_rates rates(const settings& run) {
  std::barrier together(run.gpus);
  std::vector<member> all(static_cast<std::size_t>(run.gpus));
  std::vector<std::thread> crew;
  for (int gpu = 0; gpu < run.gpus; ++gpu) {
    crew.emplace_back([&, gpu] {
      try {
        measure(run, gpu, together, all[static_cast<std::size_t>(gpu)]);
      } catch (const std::exception& problem) {
        std::fprintf(stderr, "bench_link: GPU %d: %s\n", gpu, problem.what());
        std::_Exit(tools::failed);
      }
    });
  }
  for (auto& each : crew) each.join();
  const auto line = [&](const char* name, auto raw, auto ours) {
    double sum_raw = 0;
    double sum_ours = 0;
    for (const auto& each : all) sum_raw += median(each.*raw), sum_ours += median(each.*ours);
    std::printf("%-10s raw %7.2f GB/s   tidepool %7.2f GB/s   %6.2f %%\n", name, sum_raw, sum_ours,
                100 * sum_ours / sum_raw);
    return sum_raw / run.gpus;
  };
  std::printf("%d GPU(s) at once, %d groups of %zu MiB each, medians of %d rounds, host clock\n",
              run.gpus, run.groups, run.group / mib, run.rounds);
  tp::plan::link_rates each;
  each.out = line("out", &member::raw_out, &member::out);
  each.in = line("in", &member::raw_in, &member::in);
  each.both = line("both ways", &member::raw_both, &member::both);
  return each;
}

void small_tensors() {
  tp::cuda_device dev;
  groups_of small(dev, 8, 256, 64 * 1024);
  const auto step = [&] {
    small.forward(0);
    small.backward(0);
    small.end_step();
  };
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> out;
  std::vector<double> in;
  for (int i = 0; i < 5; ++i) {
    const auto record = small.traced(step);
    double bytes[2]{};
    double us[2]{};
    for (const auto& span : record.spans) {
      const bool is_out = span.kind == tp::trace::span_kind::offload;
      if (!is_out && span.kind != tp::trace::span_kind::reload) continue;
      bytes[is_out ? 0 : 1] += static_cast<double>(span.bytes);
      us[is_out ? 0 : 1] += span.end - span.start;
    }
    out.push_back(bytes[0] / us[0] / 1e3);
    in.push_back(bytes[1] / us[1] / 1e3);
  }
  std::printf(
      "groups of 256 tensors of 64 KiB: out %.2f GB/s, in %.2f GB/s, by events around each"
      " group\n",
      median(out), median(in));
}

void pinning(std::size_t bytes) {
  tp::cuda_device dev;
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int i = 0; i < 2; ++i) {
    void* pointer = nullptr;
    ours.push_back(seconds_of([&] { pointer = dev.try_allocate_host(bytes); }));
    if (pointer == nullptr) throw tp::out_of_budget("the host cannot give the memory", bytes, 0);
    dev.deallocate_host(pointer);
    theirs.push_back(seconds_of(
        [&] { check(cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable), "cudaHostAlloc"); }));
    check(cudaFreeHost(pointer), "cudaFreeHost");
  }
  std::printf("pinning %zu MiB on %u threads: %.3f s, cudaHostAlloc %.3f s, %.1f times as fast\n",
              bytes / mib, std::min(16U, std::thread::hardware_concurrency()),
              *std::min_element(ours.begin(), ours.end()),
              *std::min_element(theirs.begin(), theirs.end()),
              *std::min_element(theirs.begin(), theirs.end()) /
                  *std::min_element(ours.begin(), ours.end()));
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"bench_link", "What the link gives, and what Tidepool takes of it."};
  return tools::run(me.name, [&] {
    settings run;
    tools::command_line line(me);
    line.add_option("--gpus", run.gpus, "GPUs at once")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    line.add_option("--rounds", run.rounds, "Rounds of each phase")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    line.add_option("--groups", run.groups, "Groups in a pass")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    line.add_size("--pin", run.pin, "Host memory to pin; 0 for none");
    line.add_file("--json", run.json, "Of a machine to which to add the raw rates");
    line.add_option("--machine", run.machine, "What a new file takes over but for the link: h200");
    line.read(argc, argv);
    if (tp::cuda_device::count() < run.gpus) {
      throw tp::option_error("--gpus=" + std::to_string(run.gpus) + ": " +
                             std::to_string(tp::cuda_device::count()) + " were found; give fewer");
    }
    tools::print_device<tp::cuda_device>();
    const auto gpus = static_cast<std::size_t>(run.gpus);
    planning::machine_description host;  // read first: a mistake is told before the work
    if (!run.json.empty()) host = machine_to_add_to(run.json, run.machine, gpus);
    auto each = rates(run);
    if (!run.json.empty()) {
      each.latency_us = host.link.latency_us;  // which this does not measure
      planning::set_link(host, gpus, each);
      planning::save(host, run.json);
      std::printf("wrote %s\n", run.json.c_str());
    }
    if (run.gpus > 1) return 0;
    small_tensors();
    if (run.pin > 0) pinning(run.pin);
    return 0;
  });
}
