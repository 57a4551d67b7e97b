/// Offloading beside NCCL: how much longer collectives take while every GPU copies both ways, and
/// what the copies lose.
///
///     bench_nccl --gpus 4
#include <nccl.h>

#include <barrier>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "../examples/tools/command_line.hpp"
#include "../examples/tools/device_line.hpp"
#include "link_traffic.hpp"

namespace {

using namespace bench;

struct settings {
  int gpus = 2;
  int rounds = 7;
  int groups = 12;
  std::size_t group = 256 * mib;
};

/// One kind of traffic: `count` collectives of `bytes` on each GPU.
struct collective {
  const char* name;
  bool all_to_all;
  std::size_t bytes;
  int count;
};

constexpr collective kinds[]{{"all-reduce, 128 MiB", false, 128 * mib, 60},
                             {"all-reduce, 256 KiB", false, mib / 4, 1000},
                             {"all-to-all, 64 MiB", true, 64 * mib, 150},
                             {"all-to-all, 1 MiB", true, mib, 1000}};

void check_nccl(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(code));
}

/// One GPU's end of the communicator, with buffers of its own.
class rank {
 public:
  rank(tp::cuda_device& dev, ncclComm_t comm, int size)
      : dev_(&dev),
        comm_(comm),
        size_(size),
        stream_(dev.make_stream()),
        from_(dev.allocate(most)),
        to_(dev.allocate(most)) {}
  rank(const rank&) = delete;
  rank& operator=(const rank&) = delete;
  ~rank() {
    dev_->deallocate(from_);
    dev_->deallocate(to_);
  }

  /// Seconds until all of them are over.
  double run(const collective& what) {
    return seconds_of([&] {
      for (int i = 0; i < what.count; ++i) what.all_to_all ? exchange(what) : reduce(what);
      dev_->synchronize(stream_.ref());
    });
  }

 private:
  static constexpr std::size_t most = 128 * mib;

  void reduce(const collective& what) {
    check_nccl(
        ncclAllReduce(from_, to_, what.bytes / 2, ncclBfloat16, ncclSum, comm_, stream_.get()),
        "ncclAllReduce");
  }
  void exchange(const collective& what) {
    const auto part = what.bytes / static_cast<std::size_t>(size_);
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < size_; ++peer) {
      const auto at = part * static_cast<std::size_t>(peer);
      check_nccl(
          ncclSend(static_cast<char*>(from_) + at, part, ncclInt8, peer, comm_, stream_.get()),
          "ncclSend");
      check_nccl(ncclRecv(static_cast<char*>(to_) + at, part, ncclInt8, peer, comm_, stream_.get()),
                 "ncclRecv");
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }

  tp::cuda_device* dev_;
  ncclComm_t comm_;
  int size_;
  tp::cuda_device::stream stream_;
  void* from_;
  void* to_;
};

/// Of one GPU: seconds of each kind of collective alone and beside copies, GB/s of the copies.
struct member {
  std::vector<double> alone[std::size(kinds)];
  std::vector<double> beside[std::size(kinds)];
  std::vector<double> copies;                           // with nothing beside them
  std::vector<double> copies_beside[std::size(kinds)];  // until both are over
};

void measure(const settings& run, int gpu, ncclComm_t comm, std::barrier<>& together,
             member& into) {
  check(cudaSetDevice(gpu), "cudaSetDevice");
  tp::cuda_device dev(gpu);
  rank nccl(dev, comm, run.gpus);
  groups_of ours(dev, run.groups, 1, run.group);
  for (int i = 0; i < 2; ++i) {
    ours.forward(0);
    ours.forward(1);
    ours.backward(0);
    ours.backward(1);
    ours.end_step();
  }
  ours.settle();
  for (const auto& kind : kinds) nccl.run(kind);

  const auto bytes = 2 * static_cast<double>(run.group) * run.groups / 1e9;
  // Both directions at once: one microbatch leaves while another comes back.
  const auto both_ways = [&](const auto& beside) {
    ours.forward(0);
    ours.settle();
    together.arrive_and_wait();
    const auto seconds = seconds_of([&] {
      ours.forward(1);
      ours.backward(0);
      beside();
      ours.settle();
    });
    together.arrive_and_wait();
    ours.backward(1);
    ours.end_step();
    ours.settle();
    return bytes / seconds;
  };
  for (int round = 0; round < run.rounds; ++round) {
    into.copies.push_back(both_ways([] {}));
    for (std::size_t k = 0; k < std::size(kinds); ++k) {
      together.arrive_and_wait();
      into.alone[k].push_back(nccl.run(kinds[k]));
      double seconds = 0;
      const auto rate = both_ways([&] {
        together.arrive_and_wait();  // so that nobody waits for a rank that still queues copies
        seconds = nccl.run(kinds[k]);
      });
      into.copies_beside[k].push_back(rate);
      into.beside[k].push_back(seconds);
    }
  }
}

void report(const settings& run, const std::vector<member>& all) {
  double copies = 0;
  for (const auto& each : all) copies += median(each.copies);
  std::printf(
      "%d GPU(s), %d groups of %zu MiB out and in at once, medians of %d rounds, host clock\n",
      run.gpus, run.groups, run.group / mib, run.rounds);
  std::printf("copies with nothing beside them: %.1f GB/s in total\n", copies);
  std::printf("%-22s %12s %12s %9s %14s\n", "beside the copies", "alone, us", "beside, us",
              "longer", "copies, GB/s");
  for (std::size_t k = 0; k < std::size(kinds); ++k) {
    double alone = 0;
    double beside = 0;
    double rate = 0;
    for (const auto& each : all) {  // a collective is over when the last of them is
      alone = std::max(alone, median(each.alone[k]));
      beside = std::max(beside, median(each.beside[k]));
      rate += median(each.copies_beside[k]);
    }
    const auto us = 1e6 / kinds[k].count;
    std::printf("%-22s %12.1f %12.1f %+8.2f%% %14.1f\n", kinds[k].name, alone * us, beside * us,
                100 * (beside / alone - 1), rate);
  }
}

int measure_all(const settings& run) {
  const auto size = static_cast<std::size_t>(run.gpus);
  std::vector<ncclComm_t> comms(size);
  check_nccl(ncclCommInitAll(comms.data(), run.gpus, nullptr), "ncclCommInitAll");
  std::barrier together(run.gpus);
  std::vector<member> all(size);
  std::vector<std::thread> crew;
  for (std::size_t gpu = 0; gpu < size; ++gpu) {
    crew.emplace_back([&, gpu] {
      try {
        measure(run, static_cast<int>(gpu), comms[gpu], together, all[gpu]);
      } catch (const std::exception& problem) {
        std::fprintf(stderr, "bench_nccl: GPU %zu: %s\n", gpu, problem.what());
        std::_Exit(tools::failed);
      }
    });
  }
  for (auto& each : crew) each.join();
  for (auto* each : comms) check_nccl(ncclCommDestroy(each), "ncclCommDestroy");
  report(run, all);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"bench_nccl", "How much longer collectives take beside offloading."};
  return tools::run(me.name, [&] {
    settings run;
    tools::command_line line(me);
    line.add_option("--gpus", run.gpus, "GPUs at once")
        ->check(CLI::Range(2, 64))
        ->capture_default_str();
    line.add_option("--rounds", run.rounds, "Rounds")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    line.add_option("--groups", run.groups, "Groups in a pass")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    line.read(argc, argv);
    if (tp::cuda_device::count() < run.gpus) {
      throw tp::option_error("--gpus=" + std::to_string(run.gpus) + ": " +
                             std::to_string(tp::cuda_device::count()) + " were found; give fewer");
    }
    tools::print_device<tp::cuda_device>();
    return measure_all(run);
  });
}
