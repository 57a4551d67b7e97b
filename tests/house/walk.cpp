/// Which functions one call of a training loop runs in its steady state, in order: of `allocate`,
/// `commit`, `restore` and `reset`. Built with -finstrument-functions; walk.py names what it
/// prints.
///
/// Prints a line a call: its name, how many copies the device was given, then the address of each
/// function that was entered and `<` for each that was left.
#include <array>
#include <cstddef>
#include <cstdio>
#include <tidepool/device/virtual.hpp>
#include <tidepool/offloader.hpp>

#define UNSEEN __attribute__((no_instrument_function))

namespace {

constexpr std::size_t most = 10000;
// A plain array, because the operator of std::array is a function that would be seen as well.
void* functions[most];  // entered; null: one was left
std::size_t seen = 0;
bool watching = false;

UNSEEN void note(void* function) {
  if (watching && seen < most) functions[seen++] = function;
}

}  // namespace

extern "C" {
UNSEEN void __cyg_profile_func_enter(void* function, void*) { note(function); }
UNSEEN void __cyg_profile_func_exit(void*, void*) { note(nullptr); }
}

namespace {

class counting_device : public tidepool::virtual_device {
 public:
  UNSEEN void copy(void* target, const void* source, const tidepool::copy_shape& shape,
                   tidepool::copy_direction direction, stream_ref on) {
    ++copies;
    virtual_device::copy(target, source, shape, direction, on);
  }

  int copies = 0;
};

// Calls, and prints the walk if it is `told`.
template <class Call>
UNSEEN void watch(counting_device& dev, bool told, const char* what, Call call) {
  const int before = dev.copies;
  seen = 0;
  watching = told;
  call();
  watching = false;
  if (!told) return;
  std::printf("%s %d", what, dev.copies - before);
  for (std::size_t i = 0; i < seen; ++i) {
    if (functions[i] == nullptr) {
      std::printf(" <");
    } else {
      std::printf(" %p", functions[i]);
    }
  }
  std::printf("%s\n", seen == most ? " cut" : "");
}

}  // namespace

int main() {
  constexpr int steps = 4;  // the first ones learn, and allocate
  constexpr int layers = 16;
  using offloader = tidepool::offloader<counting_device, tidepool::modules<"core_attn">>;
  counting_device dev;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  tidepool::options opts;
  opts.offload_modules = {"core_attn"};
  opts.max_inflight = 2;
  offloader off(dev, opts);
  std::array<offloader::buffer, layers> saved;
  for (int step = 0; step < steps; ++step) {
    // A layer in the middle: its restore finds its reload issued, and issues that of the layer
    // below.
    const auto told = [&] UNSEEN(int layer) { return step == steps - 1 && layer == layers / 2; };
    auto chunk = off.begin();
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      watch(dev, told(l), "allocate", [&] UNSEEN { x = off.allocate<float>(1 << 20, stream); });
      watch(dev, told(l), "commit", [&] UNSEEN { chunk.commit<"core_attn">(l, stream, x); });
    }
    chunk.end_forward();
    for (int l = layers - 1; l >= 0; --l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      watch(dev, told(l), "restore", [&] UNSEEN { chunk.restore<"core_attn">(l, stream, x); });
      watch(dev, told(l), "reset", [&] UNSEEN { x.reset(stream); });
    }
    chunk.finish();
    off.end_step();
  }
}
