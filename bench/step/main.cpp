/// What offloading costs: a DeepSeek-V3-like MoE stack on one GPU, in many arrangements of memory,
/// each measured in turn with the others.
///
/// What plans predict where the host waits for the whole device twice a step:
///   bench_step --depth 1 --pairs 3 --steps 3 --synchronise 2 --no-recompute --no-floor
///     --case "plan: --offload-modules=expert_fc1,moe_act --memory=arena --device-budget=40%
///     --policy=automatic --timed-step=3"
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <tidepool/pack.hpp>

#include "../../examples/tools/device_line.hpp"
#include "../../examples/tools/json_file.hpp"
#include "../../examples/tools/voice.hpp"
#include "check.hpp"
#include "command_line.hpp"
#include "contest.hpp"
#include "report.hpp"

namespace {

std::string dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string first_line_of(const char* path, const std::string& with) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find(with) != std::string::npos) return line.substr(line.find(with) + with.size());
  }
  return {};
}

bench::hardware describe(bench::cuda_device& dev, int blas_version) {
  bench::hardware found;
  cudaDeviceProp gpu{};
  bench::check(cudaGetDeviceProperties(&gpu, dev.ordinal()), "cudaGetDeviceProperties");
  found.gpu = gpu.name;
  found.device_bytes = static_cast<double>(gpu.totalGlobalMem);
  int version = 0;
  bench::check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  found.driver = "CUDA " + dotted(version);
  const auto module = first_line_of("/proc/driver/nvidia/version", "NVRM version: ");
  if (!module.empty()) found.driver += "; " + module;
  bench::check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  found.runtime = dotted(version);
  found.blas = std::to_string(blas_version);
  found.host = first_line_of("/proc/cpuinfo", "model name\t: ") + ", " +
               std::to_string(std::thread::hardware_concurrency()) + " threads";
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  if (std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now)) > 0) {
    found.date = text;
  }
  return found;
}

bench::raw_rates measure(bench::side_traffic& traffic, const char* what) {
  const auto rates = traffic.measure(0.6);
  std::printf("%s: out %.2f GB/s, in %.2f GB/s, both ways %.2f GB/s in total\n", what, rates.out,
              rates.in, rates.both);
  return rates;
}

int compare(bench::cuda_device& dev, const bench::settings& run) {
  tools::json_file json(run.json == "-" ? run.json : "");  // a file grows with every turn
  // Mistakes in --case are told before minutes pass.
  const auto peer = bench::peer_of(bench::plan_cases(run));
  tools::print_device<bench::cuda_device>(dev.ordinal());
  bench::results all;
  all.run = run;
  const auto stream = dev.make_stream();
  const auto fresh = dev.memory();
  bench::side_traffic traffic(dev, stream.ref(), run.sizes.fc1_bytes());
  all.rates = measure(traffic, "raw copies");
  std::optional<bench::side_traffic> to_peer;
  std::optional<bench::lender_work> lender;
  if (peer >= 0) {
    to_peer.emplace(dev, stream.ref(), run.sizes.fc1_bytes(), peer);
    all.peer_rates = measure(*to_peer, "raw copies to the neighbour");
    if (run.lender) lender.emplace(peer);
  }

  bench::model model(dev, stream.get(), run.sizes, run.depth);
  {
    // Loads every kernel, so that the baseline holds what they take.
    bench::session warm(dev, {}, true);
    bench::run_step(model, warm, run, stream.ref());
    dev.synchronize();
  }
  all.machine = describe(dev, model.blas_version());
  const auto memory = dev.memory();
  all.baseline_bytes = static_cast<double>(memory.total - memory.free);
  std::printf("%s, %s; baseline %.2f GiB of the driver's (%.2f GiB before anything was made)\n",
              all.machine.gpu.c_str(), all.machine.driver.c_str(),
              all.baseline_bytes / bench::gibibyte,
              static_cast<double>(fresh.total - fresh.free) / bench::gibibyte);

  // The files grow with every turn of a case, so that a run that is cut short leaves what it has.
  const auto keep = [&] { static_cast<void>(bench::write_files(all)); };
  const bench::surroundings beside{&traffic, to_peer ? &*to_peer : nullptr,
                                   lender ? &*lender : nullptr};
  bench::contest(dev, stream.ref(), model, beside, all).run(keep);
  bench::print(all);
  bench::print_predictions(all);
  if (run.json == "-") bench::fill(json, all);
  return bench::write_files(all) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16));
  const std::string me = "bench_step";
  return tools::run(me, [&] {
    const auto run = bench::read_command_line(me, argc, argv);
    bench::cuda_device dev{0};
    dev.use(tidepool::cuda_packer());
    bench::check(cudaSetDevice(dev.ordinal()), "cudaSetDevice");
    if (!run.check) return compare(dev, run);
    tools::print_device<bench::cuda_device>(dev.ordinal());
    const auto stream = dev.make_stream();
    return bench::check_gradients(dev, stream.ref(), run) == 0 ? 0 : 1;
  });
}
