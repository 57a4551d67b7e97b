// Device classes over a checked device that do one call wrongly, as careless wrappers do, and
// others that look wrong and are right.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "checked_desk.hpp"

namespace {

using namespace tidepool;
using test::checked;
using test::in_stream, test::out_stream;
using lane = checked::stream_ref;

// One copy, to be passed on, changed or kept.
struct request {
  void* target;
  const void* source;
  copy_shape shape;
  copy_direction direction;
  lane on;
};

// A device with a stream of its own, which has its copies made by `make`.
template <class Own>
struct wrapper : checked {
  wrapper() { name_stream(own.ref(), "own"); }
  void join(lane from, lane to) {
    auto mark = checked::make_event();
    checked::record(mark, from);
    checked::wait(to, mark);
  }
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            lane on) {
    static_cast<Own&>(*this).make({target, source, shape, direction, on});
  }
  void make(const request& what) { make_on(what, what.on); }
  void make_on(const request& what, lane on) {
    checked::copy(what.target, what.source, what.shape, what.direction, on);
  }
  checked::stream own = checked::make_stream();
};

// Trains with several tensors, two microbatches in flight and little memory.
template <class Device>
struct training : test::basic_desk<Device> {
  using desk = test::basic_desk<Device>;
  using offloader = tidepool::offloader<Device, modules<"fc1", "act">>;
  using desk::dev;

  explicit training(const options& opts = test::arena_options(32 * 1024)) : off(dev, opts) {
    off.on_report([](std::string_view) {});
  }
  ~training() {
    dev.deallocate(weights);
    dev.deallocate_host(loss);
  }

  struct layer {
    typename desk::buffer x, h, a;
  };
  struct pass {
    typename offloader::chunk chunk;
    std::array<layer, 4> layers;
  };

  void forward(pass& p, int mb) {
    p.chunk = off.begin({.microbatch = mb});
    for (int l = 0; l < 4; ++l) {
      auto& [x, h, a] = p.layers[static_cast<std::size_t>(l)];
      x = off.allocate(4096, on);
      h = off.allocate(2048, on);
      a = off.allocate(3072, on);
      dev.reads(weights, weight_bytes, on, "fc1");
      dev.writes(x, on, "fc1");
      dev.writes(h, on, "fc1");
      dev.writes(a, on, "act");
      p.chunk.template commit<"fc1">(l, on, x, h);
      p.chunk.template commit<"act">(l, on, a);
    }
    p.chunk.end_forward();
  }
  void backward(pass& p) {
    for (int l = 3; l >= 0; --l) {
      auto& [x, h, a] = p.layers[static_cast<std::size_t>(l)];
      auto sums = off.allocate(1024, on, fill::zero);
      p.chunk.template restore<"act">(l, on, a);
      dev.reads(a, on, "act_grad");
      dev.reads(sums, on, "act_grad");
      a.reset(on);
      p.chunk.template restore<"fc1">(l, on, x, h);
      dev.reads(x, on, "fc1_grad");
      dev.reads(h, on, "fc1_grad");
      x.reset(on);
      h.reset(on);
      sums.reset(on);
    }
    p.chunk.finish();
  }
  void step() {
    std::array<pass, 2> passes;
    forward(passes[0], 0);
    forward(passes[1], 1);
    backward(passes[0]);
    backward(passes[1]);
    if (!update) {
      dev.begin_capture(on);
      dev.launch(on, 1000, [] {}, "update",
                 {{weights, weight_bytes, false}, {weights, weight_bytes, true}});
      update.emplace(dev.end_capture(on));
    }
    dev.replay(*update, on);
    off.end_step();
  }
  void train(int steps = 4) {
    dev.fill_bytes(weights, 0, weight_bytes, on);
    for (int s = 0; s < steps; ++s) step();
    // The host looks at the loss once, which lies in the first bytes here.
    dev.copy(loss, weights, {4, 1, 4, 4}, copy_direction::device_to_host, on);
    dev.synchronize(on);
    dev.host_reads(loss, 4, "print");
    step();
  }

  static constexpr std::size_t weight_bytes = 1024;
  lane on = desk::compute.ref();
  void* weights = dev.allocate(weight_bytes);
  void* loss = dev.try_allocate_host(64);
  offloader off;
  std::optional<typename Device::graph> update;
};

// Both sides of a finding, and the module that one of them is about.
struct expected {
  access_kind first;
  std::string_view stream;
  access_kind second;
  std::string_view then_on;
  std::string_view module;
  std::optional<join_site> missing;
  finding_kind kind = finding_kind::unordered;

  template <class Desk>
  [[nodiscard]] bool is_in(const Desk& at) const {
    return std::ranges::any_of(at.dev.findings(), [&](const finding& each) {
      return each.kind == kind && each.missing == missing &&
             Desk::about(each.first, first, stream) && Desk::about(each.second, second, then_on) &&
             (each.first.module == module || each.second.module == module);
    });
  }
};

template <class Device>
void is_wrong(const expected& pair, int steps = 4) {
  training<Device> at;
  at.train(steps);
  INFO(at.dev.report());
  CHECK(pair.is_in(at));
}
template <class Device>
void is_right() {
  training<Device> at;
  at.train();
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
  for (const auto& module : at.off.counters().modules) CHECK(module.bytes_offloaded > 0);
}

// A wait that was made before is not made again; only a careful one sees that the event moved.
template <bool Careful>
struct waits_once : checked {
  void record(event& target, lane on) {
    if (Careful) std::erase_if(made, [&](const auto& each) { return each.second == &target; });
    checked::record(target, on);
  }
  void wait(lane waiter, const event& until) {
    const auto key = std::pair(waiter.key(), &until);
    if (std::ranges::find(made, key) != made.end()) return;
    made.push_back(key);
    checked::wait(waiter, until);
  }
  std::vector<std::pair<std::uint64_t, const event*>> made;
};
// Events of a ring: who is recorded takes the next, whoever still waits for it or not.
template <std::size_t Count>
struct ring_of_events : checked {
  struct event {
    event() = default;
    event(event&& other) noexcept : slot(std::exchange(other.slot, Count)) {}
    event& operator=(event&& other) noexcept {
      std::swap(slot, other.slot);
      return *this;
    }
    std::size_t slot = Count;
  };
  ring_of_events() {
    for (std::size_t i = 0; i < Count; ++i) ring.push_back(checked::make_event());
  }
  [[nodiscard]] static event make_event(bool /*timing*/ = false) { return {}; }
  void record(event& target, lane on) {
    target.slot = next++ % Count;
    checked::record(ring[target.slot], on);
  }
  void wait(lane waiter, const event& until) {
    if (until.slot < Count) checked::wait(waiter, ring[until.slot]);
  }
  [[nodiscard]] static double elapsed_us(const event&, const event&) { return 0; }
  std::vector<checked::event> ring;
  std::size_t next = 0;
};
// "All copies are on one stream": the marks of offloads are put behind the reloads.
struct records_elsewhere : wrapper<records_elsewhere> {
  void make(const request& what) {
    (what.direction == copy_direction::host_to_device ? in : out) = what.on;
    make_on(what, what.on);
  }
  void record(event& target, lane on) {
    checked::record(target, in && out && on.key() == out->key() ? *in : on);
  }
  std::optional<lane> out, in;
};
// Copies are kept until there are four; only a careful one makes them ahead of an event.
template <bool Careful>
struct copies_late : wrapper<copies_late<Careful>> {
  void make(const request& what) {
    kept.push_back(what);
    if (kept.size() >= 4) flush();
  }
  void flush() {
    for (const auto& each : std::exchange(kept, {})) this->make_on(each, each.on);
  }
  void record(checked::event& target, lane on) {
    if (Careful) flush();
    checked::record(target, on);
  }
  std::vector<request> kept;
};
// Every second copy of a batch goes by a stream of its own, which nobody may wait for again.
template <bool Joined>
struct batches_spread : wrapper<batches_spread<Joined>> {
  [[nodiscard]] bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                lane on) {
    this->join(on, this->own.ref());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto& [to, from, bytes] = items[i];
      checked::copy(to, from, {bytes, 1, bytes, bytes}, direction,
                    i % 2 == 0 ? on : this->own.ref());
    }
    if (Joined) this->join(this->own.ref(), on);
    return true;
  }
};
// Each copy goes by a stream of its own, which may not have waited for the writer.
template <bool Joined>
struct copies_aside : wrapper<copies_aside<Joined>> {
  void make(const request& what) {
    if (Joined) this->join(what.on, this->own.ref());
    this->make_on(what, this->own.ref());
    this->join(this->own.ref(), what.on);
  }
};
// Memory is filled, what is handed out is poisoned, and graphs run, each beside the work.
template <bool Joined>
struct works_aside : wrapper<works_aside<Joined>> {
  void aside(lane on, const auto& work) {
    if (Joined) this->join(on, this->own.ref());
    work(this->own.ref());
    if (Joined) this->join(this->own.ref(), on);
  }
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, lane on) {
    aside(on, [&](lane by) { checked::fill_bytes(pointer, byte, bytes, by); });
  }
  bool poison(void* pointer, std::size_t bytes, lane on) {
    aside(on, [&](lane by) { static_cast<void>(checked::poison(pointer, bytes, by)); });
    return true;
  }
  void replay(checked::graph& which, lane on) {
    aside(on, [&](lane by) { checked::replay(which, by); });
  }
};
// "The copy blocks anyway."
struct does_not_synchronize : checked {
  void synchronize(lane /*which*/) {}
  void synchronize() {}
};
// The block that was freed last is handed out again; only a careful one waits first.
template <bool Careful>
struct keeps_a_block : checked {
  ~keeps_a_block() { checked::deallocate(kept); }
  [[nodiscard]] void* allocate(std::size_t bytes) {
    return kept != nullptr ? std::exchange(kept, nullptr) : checked::allocate(bytes);
  }
  void deallocate(void* pointer) noexcept {
    if (Careful) checked::synchronize();
    checked::deallocate(std::exchange(kept, pointer));
  }
  void* kept = nullptr;
};

// A wait is left out where the event has passed, if the device says so.
struct waits_for_what_is_not_over : checked {
  void wait(lane waiter, const event& until) {
    if (!checked::passed(until)) checked::wait(waiter, until);
  }
};
struct waits_on_host : checked {
  void wait(lane /*waiter*/, const event& /*until*/) { checked::synchronize(); }
};
// Marks are made on a stream of its own, which has waited.
struct records_aside : wrapper<records_aside> {
  void record(event& target, lane on) {
    join(on, own.ref());
    checked::record(target, own.ref());
  }
};
// There are two streams: each copy stream is one that the trainer has as well.
struct pools_streams : checked {
  struct stream {
    explicit stream(lane which) : at(which) {}
    stream(stream&&) = default;
    stream& operator=(stream&&) = default;
    [[nodiscard]] lane ref() const { return at; }
    lane at;
  };
  [[nodiscard]] stream make_stream() {
    if (pool.size() < 2) pool.push_back(checked::make_stream());
    return stream(pool[next++ % 2].ref());
  }
  std::vector<checked::stream> pool;
  std::size_t next = 0;
};

}  // namespace

TEST_CASE("checked devices: waits that are left out, or are for another event") {
  using enum access_kind;
  is_wrong<waits_once<false>>(
      {kernel_write, "compute", offload, out_stream, "fc1", join_site::producer}, 100);
  is_wrong<ring_of_events<5>>(
      {reload, in_stream, kernel_read, "compute", "act", join_site::consumer});
}
TEST_CASE("checked devices: marks on another stream, or too early") {
  using enum access_kind;
  is_wrong<records_elsewhere>(
      {offload, out_stream, handed_out, "compute", "fc1", join_site::device_reuse});
  is_wrong<copies_late<false>>(
      {given_back, out_stream, offload, out_stream, "fc1", {}, finding_kind::given_back});
}
TEST_CASE("checked devices: copies on another stream") {
  using enum access_kind;
  is_wrong<batches_spread<false>>({copy, "own", kernel_read, "compute", "fc1", {}});
  is_wrong<copies_aside<false>>({kernel_write, "compute", copy, "own", "act", {}});
}
TEST_CASE("checked devices: fills, poison and graphs on another stream") {
  using enum access_kind;
  const auto is_aside = [](const expected& pair) { is_wrong<works_aside<false>>(pair); };
  is_aside({fill, "own", kernel_read, "compute", "", {}});
  is_aside({handed_out, "own", kernel_write, "compute", "", {}});
  is_aside({handed_out, "own", reload, in_stream, "act", join_site::reload_reuse});
  is_aside({kernel_write, "own", kernel_read, "compute", "", join_site::after_launch});
}
TEST_CASE("checked devices: the host does not wait") {
  using enum access_kind;
  is_wrong<does_not_synchronize>({copy, "compute", host_read, "", "", {}});
}
TEST_CASE_TEMPLATE("checked devices: freed memory is handed out again", Device,
                   keeps_a_block<false>, keeps_a_block<true>) {
  training<Device> at;
  void* const block = at.dev.allocate(512);
  at.dev.writes(block, 512, at.side.ref(), "sums");
  at.dev.deallocate(block);
  REQUIRE(at.dev.allocate(512) == block);
  at.dev.writes(block, 512, at.on, "norms");
  at.dev.deallocate(block);
  INFO(at.dev.report());
  using enum access_kind;
  const expected pair{kernel_write, "side", kernel_write, "compute", "", {}};
  CHECK(pair.is_in(at) == std::is_same_v<Device, keeps_a_block<false>>);
  CHECK(at.dev.findings().size() == (pair.is_in(at) ? 1 : 0));
}

TEST_CASE("checked devices: what looks wrong and is right") {
  is_right<waits_once<true>>();
  is_right<copies_late<true>>();
  is_right<batches_spread<true>>();
  is_right<copies_aside<true>>();
  is_right<works_aside<true>>();
  is_right<waits_for_what_is_not_over>();
  is_right<waits_on_host>();
  is_right<records_aside>();
  is_right<pools_streams>();
}
