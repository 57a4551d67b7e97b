/// graph_moe: a mixture of experts that drops no token, and whose whole step is one CUDA graph.
///
/// Only the device counts the rows of an expert. What is saved of them is offloaded, and a step
/// with more rows than planned is repeated eagerly.
///
///   graph_moe                             eager and graph, without and with offloads, side by side
///   graph_moe --offload-modules=moe_act   other options of Tidepool
#include <string>
#include <tidepool/device/virtual.hpp>
#include <vector>

#include "cpu_kernels.hpp"
#include "train.hpp"
#if defined(TIDEPOOL_HAS_CUDA)
#include "cuda_kernels.hpp"
#endif

namespace graph_moe {
namespace {

/// All trainings of a device, in turn.
template <class Kernels>
std::vector<run_result> train_all(typename Kernels::device& dev, const command_line& line,
                                  const moe::corpus& text) {
  tools::print_device_of(dev);
  const row_limits rows = line.limits();
  std::printf("of %lld tokens an expert has room for %lld rows, copies move %lld\n",
              static_cast<long long>(line.run.model.tokens()), static_cast<long long>(rows.room),
              static_cast<long long>(rows.planned));
  constexpr auto host = rows_known::to_host, exactly = rows_known::to_host_exactly;
  std::vector<run_result> runs;
  for (int round = 0; round < line.rounds; ++round) {
    for (const way& how :
         {way{"eager", false, false, host}, way{"graph", true, false, host},
          way{"eager, offloads", false, true, host}, way{"graph, offloads", true, true, host},
          way{"eager, exact", false, false, exactly},
          way{"eager, exact, offloads", false, true, exactly}}) {
      runs.push_back(train<Kernels>(dev, line, text, how));
    }
  }
  return runs;
}

std::vector<run_result> train_anywhere(const command_line& line, const moe::corpus& text) {
#if defined(TIDEPOOL_HAS_CUDA)
  if (tidepool::cuda_device::count() > 0 && line.device != "virtual") {
    tidepool::cuda_device dev{0};
    return train_all<cuda_kernels>(dev, line, text);
  }
#endif
  if (line.device == "cuda") {
    throw tidepool::option_error(
        "--device=cuda: no GPU, or no CUDA in this build; use --device=virtual");
  }
  tidepool::virtual_device dev{tidepool::machine{.order_seed = line.order}};
  return train_all<cpu_kernels>(dev, line, text);
}

}  // namespace
}  // namespace graph_moe

int main(int argc, char** argv) {
  return tools::run("graph_moe", [&] {
    const graph_moe::command_line line = graph_moe::read_command_line(argc, argv);
    const moe::corpus text = moe::load_corpus(line.data, line.run.model);
    return graph_moe::print_table(graph_moe::train_anywhere(line, text)) ? tools::done
                                                                         : tools::failed;
  });
}
