// The checked device on a GPU: what is found there is what is found on the virtual device.
#include "../checked/dropped_joins.hpp"
#include "../checked/leaving_device.hpp"
#include "gpu.hpp"

namespace {

using namespace tidepool;
namespace drops = test::drops;

using gpu_desk = test::basic_desk<test::leaving_device>;

}  // namespace

TIDEPOOL_GPU_TEST("checked cuda: without `cap` nothing is out of order, nor with all joins made") {
  drops::without_cap_nothing_is_out_of_order_nor_with_all_joins_made<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `producer` left out") { drops::producer_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `device_reuse` left out") {
  drops::device_reuse_left_out<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `reload_reuse` left out") {
  drops::reload_reuse_left_out<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `own_offload` left out") {
  drops::own_offload_left_out<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `consumer` left out") { drops::consumer_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `host_reuse` left out") { drops::host_reuse_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `peer_reuse` left out of memory that is lent") {
  drops::peer_reuse_of_a_loan_left_out<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `file_write` left out") { drops::file_write_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `file_reuse` left out") { drops::file_reuse_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `row_count` left out") { drops::row_count_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: graphs with all joins have no findings") {
  drops::graphs_with_all_joins_have_no_findings<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `launch` left out") { drops::launch_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `after_launch` left out") {
  drops::after_launch_left_out<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `fork` left out") { drops::fork_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `join_back` left out") { drops::join_back_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `after_capture` left out") {
  drops::after_capture_left_out<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `new_stream` left out") { drops::new_stream_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: memory on loan with all joins has no findings") {
  drops::memory_on_loan_with_all_joins_has_no_findings<gpu_desk>();
}
TIDEPOOL_GPU_TEST("checked cuda: `give_back` left out") { drops::give_back_left_out<gpu_desk>(); }
TIDEPOOL_GPU_TEST("checked cuda: `borrow` left out") { drops::borrow_left_out<gpu_desk>(); }

TIDEPOOL_GPU_TEST("checked cuda: groups of many small tensors, copied as one batch") {
  for (const bool planted : {false, true}) {
    test::basic_desk<checked_device<cuda_device>> at;
    auto opts = test::small_options();
    decltype(at)::offloader off(at.dev, opts);
    auto chunk = off.begin();
    std::vector<decltype(at)::buffer> x(3);
    for (auto& each : x) {
      each = off.allocate(4096, at.compute.ref());
      at.write(each, at.compute.ref());
    }
    chunk.commit<"fc1">(0, planted ? at.side.ref() : at.compute.ref(), x[0], x[1], x[2]);
    chunk.end_forward();
    if (planted) at.join(at.side.ref(), at.compute.ref());
    chunk.restore<"fc1">(0, at.compute.ref(), x[0], x[1], x[2]);
    for (auto& each : x) at.read(each, at.compute.ref());
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::unordered, access_kind::kernel_write, "compute",
                   access_kind::offload, test::out_stream) == planted);
    CHECK(at.dev.findings().empty() == !planted);
  }
}

TIDEPOOL_GPU_TEST("checked cuda: a raw stream and an event of the trainer's own") {
  for (const bool planted : {false, true}) {
    checked_device<cuda_device> dev{0};
    cudaStream_t first = nullptr;
    cudaStream_t second = nullptr;
    cudaEvent_t mark = nullptr;
    cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
    auto* const own = dev.allocate(4096);
    cudaMemsetAsync(own, 0, 4096, first);
    dev.writes(own, 4096, first, "memset");
    cudaEventRecord(mark, first);
    dev.recorded(mark, first);
    if (!planted) {
      cudaStreamWaitEvent(second, mark, 0);
      dev.waited(second, mark);
    }
    cudaMemsetAsync(own, 1, 4096, second);
    dev.writes(own, 4096, second, "memset again");
    CHECK(dev.findings().size() == (planted ? 1U : 0U));
    dev.deallocate(own);
    cudaEventDestroy(mark);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
  }
}
