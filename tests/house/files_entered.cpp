/// Which functions run between `commit` and the device's copy, and between `restore` and the join
/// of who reads. Built with -finstrument-functions; files_entered.py runs it and finds their files.
///
/// Prints a line a call: what was asked, then the functions entered and left (`<`), in order, until
/// the device was given the copy or the join. A call that never came to it prints `nothing`.
#include <array>
#include <cstddef>
#include <cstdio>
#include <tidepool/device/null.hpp>
#include <tidepool/offloader.hpp>

#define UNSEEN __attribute__((no_instrument_function))

namespace {

constexpr std::size_t most = 10000;
// Not std::array, whose operator is a function that would be seen as well.
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

/// Stops the watch at a copy, or at the first join of the stream that computes.
class watched_device : public tidepool::null_device {
 public:
  static constexpr stream_ref compute{7};

  UNSEEN void wait(stream_ref waiter, const event&) {
    if (waiter.key() == compute.key() && !copies) reached();
  }
  UNSEEN void copy(void*, const void*, const tidepool::copy_shape&, tidepool::copy_direction,
                   stream_ref) {
    if (copies) reached();
  }

  bool copies = false;  // a copy is waited for, not a join
  bool there = false;

 private:
  UNSEEN void reached() {
    there = there || watching;
    watching = false;
  }
};

template <class Call>
UNSEEN void watch(watched_device& dev, const char* what, bool told, Call call) {
  dev.copies = what[0] == 'c';
  dev.there = false;
  seen = 0;
  watching = told;
  call();
  watching = false;
  if (!told) return;
  std::printf("%s", what);
  if (!dev.there || seen == most) std::printf(" nothing");
  for (std::size_t i = 0; dev.there && i < seen; ++i) {
    if (functions[i] == nullptr) {
      std::printf(" <");
    } else {
      std::printf(" %p", functions[i]);
    }
  }
  std::printf("\n");
}

}  // namespace

int main() {
  constexpr int layers = 6;
  using offloader = tidepool::offloader<watched_device, tidepool::modules<"core_attn">>;
  watched_device dev;
  tidepool::options opts;
  opts.offload_modules = {"core_attn"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  offloader off(dev, opts);
  const auto stream = watched_device::compute;
  std::array<offloader::buffer, layers> saved;  // one a group: for each it is the same again
  for (int step = 0; step < 3; ++step) {
    const bool told = step == 2;  // what the first steps learn and allocate is over
    auto chunk = off.begin();
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate<float>(1 << 16, stream);
      watch(dev, "commit", told, [&] UNSEEN { chunk.commit<"core_attn">(l, stream, x); });
    }
    chunk.end_forward();
    for (int l = layers - 1; l >= 0; --l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      watch(dev, "restore", told, [&] UNSEEN { chunk.restore<"core_attn">(l, stream, x); });
      x.reset(stream);
    }
    chunk.finish();
    off.end_step();
  }
}
