// Places on GPUs: the memory of a second one, where there is a second that the first can reach, and
// a file.
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gpu.hpp"
#include "kernels.hpp"
#include "tidepool/device/cuda.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/places/file.hpp"

namespace {

using namespace tidepool;

// Each step writes a value into the tensor of each layer, saves it, and looks when it is back.
void four_steps(offloader<cuda_device, modules<"fc1">>& off, test::writer_and_reader& kernels,
                cuda_device::stream_ref stream, std::size_t count, int layers) {
  for (int step = 0; step < 4; ++step) {
    auto chunk = off.begin();
    std::vector<buffer<cuda_device>> saved;
    for (int l = 0; l < layers; ++l) {
      auto& x = saved.emplace_back(off.allocate<float>(count, stream));
      kernels.write(stream.get(), x.as<float>(), count, static_cast<float>(l), 200);
      chunk.commit<"fc1">(l, stream, x);
    }
    chunk.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      chunk.restore<"fc1">(l, stream, x);
      kernels.check(stream.get(), x.as<float>(), count, static_cast<float>(l));
      x.reset(stream);
    }
    chunk.finish();
    off.end_step();
  }
}

TIDEPOOL_GPU_TEST("places on a GPU: a neighbour that is none is refused with the reason") {
  cuda_device dev;
  CHECK(dev.why_no_peer(0) == "device 0 is the offloader's own");
  CHECK(dev.why_no_peer(99).find("numbered from 0") != std::string::npos);
  options opts;
  opts.places = {place_kind::peer, place_kind::host};
  opts.peer_device = 99;
  opts.peer_budget = std::size_t{1} << 20;
  using all = offloader<cuda_device, modules<"fc1">>;
  CHECK_THROWS_WITH_AS(all(dev, opts), doctest::Contains("--places=host"), option_error);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TIDEPOOL_GPU_TEST("places on a GPU: groups go to the second one and come back with their values") {
  cuda_device dev;
  if (const auto reason = dev.why_no_peer(1); !reason.empty()) {
    MESSAGE("skipped: " << reason);
    return;
  }
  constexpr std::size_t count = std::size_t{4} << 20;
  constexpr int layers = 6;
  options opts;
  opts.offload_modules = {"fc1"};
  opts.margin = false;
  opts.places = {place_kind::peer, place_kind::host};
  opts.peer_budget = 4 * count * sizeof(float);
  opts.host_step = count * sizeof(float);
  test::writer_and_reader kernels;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  {
    offloader<cuda_device, modules<"fc1">> off(dev, opts);
    four_steps(off, kernels, stream, count, layers);
    int current = -1;
    CHECK(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == 0);
    const auto totals = off.counters();
    REQUIRE(totals.places.size() == 2);
    CHECK(totals.places[0].bytes_reloaded == 4 * 4 * count * sizeof(float));
    CHECK(totals.places[1].bytes_reloaded == 4 * 2 * count * sizeof(float));
  }
  CHECK(kernels.wrong() == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TIDEPOOL_GPU_TEST("places on a GPU: groups go to a file and come back with their values") {
  cuda_device dev;
  constexpr std::size_t count = std::size_t{1} << 20;
  constexpr int layers = 12;
  options opts;
  opts.offload_modules = {"fc1"};
  opts.margin = false;
  opts.places = {place_kind::host, place_kind::file};
  opts.host_step = count * sizeof(float);
  opts.host_budget = 4 * count * sizeof(float);
  opts.file_path = std::filesystem::temp_directory_path();
  opts.file_budget = 16 * count * sizeof(float);
  opts.file_ring = 3 * count;  // less than a tensor
  test::writer_and_reader kernels;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  {
    offloader<cuda_device, modules<"fc1">> off(dev, opts, {.file = file_place()});
    four_steps(off, kernels, stream, count, layers);
    const auto totals = off.counters();
    REQUIRE(totals.places.size() == 2);
    CHECK(totals.places[1].bytes_reloaded == 4 * 8 * count * sizeof(float));
    CHECK_THROWS_AS(static_cast<void>(off.capture(stream, [] {})), misuse_error);
  }
  CHECK(kernels.wrong() == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}

}  // namespace
