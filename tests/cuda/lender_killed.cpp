// Two processes: one lends memory of the last GPU there is, the other borrows it for the first, and
// the lender is killed with copies under way. What lies there comes back, and the next step begins
// with an error that names it. With one GPU both use that one.
// Exits with 77 where there is no GPU, unless TIDEPOOL_REQUIRE_GPU is set.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "tidepool/places/lending.hpp"
#include "tidepool/tidepool.hpp"

namespace {

using namespace tidepool;
using gpu_offloader = offloader<cuda_device, modules<"core_attn">>;

constexpr std::size_t floats = std::size_t{8} << 20;
constexpr int layers = 4;
constexpr std::size_t lent_bytes = 3 * floats * sizeof(float);  // the fourth goes to the host

// CUDA does not work on both sides of a fork: the process that forks has not called it yet.
int count_gpus() {
  const auto asks = ::fork();
  if (asks == 0) {
    int count = 0;
    ::_exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  int status = 0;
  ::waitpid(asks, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

[[noreturn]] void lend_until_killed(int gpu, int tell) {
  try {
    cuda_device dev(gpu);
    const auto lent = lend(dev, lent_bytes, "the other");
    if (::write(tell, &lent.handle(), sizeof(loan_handle)) == sizeof(loan_handle)) ::pause();
  } catch (const error& problem) {
    std::fprintf(stderr, "lender: %s\n", problem.what());
  }
  ::_exit(1);
}

// One step; `away` is called while all is away.
template <class Away>
void step(gpu_offloader& off, test::writer_and_reader& work, cuda_device::stream_ref on,
          const Away& away) {
  work.next_round(on.get());
  auto chunk = off.begin();
  std::vector<gpu_offloader::buffer> saved;
  for (int l = 0; l < layers; ++l) {
    auto& x = saved.emplace_back(off.allocate<float>(floats, on));
    work.write(on.get(), x.as<float>(), floats, static_cast<float>(l), 100);
    chunk.commit<"core_attn">(l, on, x);
  }
  away();
  chunk.end_forward();
  for (int l = layers; l-- > 0;) {
    auto& x = saved[static_cast<std::size_t>(l)];
    chunk.restore<"core_attn">(l, on, x);
    work.check(on.get(), x.as<float>(), floats, static_cast<float>(l));
    x.reset(on);
  }
  chunk.finish();
  off.end_step();
}

bool borrow_and_lose(const loan_handle& handle, pid_t lender) {
  cuda_device dev;
  options opts;
  opts.offload_modules = {"core_attn"};
  opts.margin = false;
  test::writer_and_reader work;
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, opts);
  off.borrow(handle);
  for (int i = 0; i < 3; ++i) step(off, work, stream.ref(), [] {});
  step(off, work, stream.ref(), [&] {
    ::kill(lender, SIGKILL);
    ::waitpid(lender, nullptr, 0);
  });
  const auto places = off.counters().places;
  bool named = false;
  try {
    step(off, work, stream.ref(), [] {});
  } catch (const lender_error& problem) {
    named = std::string(problem.what()).find("the other") != std::string::npos;
    std::printf("%s\n", problem.what());
  }
  off.return_loan();
  step(off, work, stream.ref(), [] {});
  dev.synchronize();
  const auto wrong = work.wrong();
  std::printf("%u values wrong, %llu bytes went to the lender\n", wrong,
              static_cast<unsigned long long>(places.front().bytes_reloaded));
  return named && wrong == 0 && places.front().bytes_reloaded == 4 * lent_bytes &&
         cudaGetLastError() == cudaSuccess;
}

}  // namespace

int main() {
  const int gpus = count_gpus();
  if (gpus == 0) {
    std::puts("no GPU");
    return std::getenv("TIDEPOOL_REQUIRE_GPU") == nullptr ? 77 : 1;
  }
  int ends[2];
  if (::pipe(ends) != 0) return 1;
  const auto lender = ::fork();
  if (lender < 0) return 1;
  if (lender == 0) lend_until_killed(gpus - 1, ends[1]);
  ::close(ends[1]);
  loan_handle handle;
  if (::read(ends[0], &handle, sizeof handle) != sizeof handle) return 1;
  try {
    return borrow_and_lose(handle, lender) ? 0 : 1;
  } catch (const error& problem) {
    std::fprintf(stderr, "borrower: %s\n", problem.what());
    ::kill(lender, SIGKILL);
    return 1;
  }
}
