// Arrays of layers: a trainer with one array for all layers, and the same with few of them on the
// device. Bits, and what is refused.
#include "tidepool/layers.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "messages.hpp"
#include "rig.hpp"

namespace {

using tidepool::fill;
using tidepool::join_site;
using tidepool::machine;
using tidepool::memory_kind;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "mlp">>;
using group = tidepool::layer_group<offloader>;
using array = tidepool::saved_layers<float, offloader>;

constexpr int layers = 6;
constexpr std::size_t width = 96;
constexpr std::size_t square = width * width / 8;

/// What a pass saves of each layer: two arrays that attention saves, and one of its own.
struct saved_arrays {
  explicit saved_arrays(offloader& with) : off(&with) {}
  offloader* off;
  offloader::chunk pass;
  group attention{*off, pass, "core_attn"};
  array qkv{attention}, att{attention};
  array fch{*off, pass, "mlp"};
};

/// How the trainer gets at a layer of an array: by an offset, or through `saved_layers`.
struct plain_arrays {
  std::vector<float> qkv = std::vector<float>(layers * width);
  std::vector<float> att = std::vector<float>(layers * square);
  std::vector<float> fch = std::vector<float>(layers * 4 * width);
};

// Stand for kernels. Attention writes every other number of `att`, and all of it is read.
void forward_attention(float* qkv, float* att, const float* in, int layer) {
  for (std::size_t i = 0; i < width; ++i) qkv[i] = 0.5F * in[i] + static_cast<float>(layer);
  for (std::size_t i = 0; i < square; i += 2) att[i] = 0.25F * qkv[i % width];
}
void forward_mlp(float* fch, float* out, const float* qkv, const float* att) {
  float sum = 0;
  for (std::size_t i = 0; i < square; ++i) sum += att[i];
  for (std::size_t i = 0; i < 4 * width; ++i) fch[i] = qkv[i % width] + sum / float{square};
  for (std::size_t i = 0; i < width; ++i) out[i] = 0.3F * fch[i];
}
void backward(float* grad, const float* qkv, const float* att, const float* fch) {
  float sum = 0;
  for (std::size_t i = 0; i < square; ++i) sum += att[i];
  for (std::size_t i = 0; i < width; ++i) {
    grad[i] = 0.5F * grad[i] + 0.1F * qkv[i] + 0.01F * fch[i] + sum / float{square};
  }
}

struct result {
  std::vector<std::uint32_t> bits;  // of what was learnt and evaluated
  tidepool::trace::counters seen;
  bool operator==(const result& other) const { return bits == other.bits; }
};

class trainer {
 public:
  explicit trainer(const machine& model = {}) : desk_(model) {}
  rig& desk() { return desk_; }
  fill of_att = fill::zero;
  bool reads_early = false;  // a pointer of forward, in backward

  result plain(int steps) {
    plain_arrays on;
    const auto stream = desk_.stream();
    const auto pass = [&](bool trains) {
      start();
      for (int l = 0; l < layers; ++l) {
        auto* const qkv = on.qkv.data() + static_cast<std::size_t>(l) * width;
        auto* const att = on.att.data() + static_cast<std::size_t>(l) * square;
        auto* const fch = on.fch.data() + static_cast<std::size_t>(l) * 4 * width;
        forward(stream, qkv, att, fch, l);
      }
      note(stream, out_);
      for (int l = layers - 1; trains && l >= 0; --l) {
        const auto* const qkv = on.qkv.data() + static_cast<std::size_t>(l) * width;
        const auto* const att = on.att.data() + static_cast<std::size_t>(l) * square;
        const auto* const fch = on.fch.data() + static_cast<std::size_t>(l) * 4 * width;
        go_back(stream, qkv, att, fch);
      }
    };
    for (int step = 0; step < steps; ++step) {
      pass(false);
      pass(true);
    }
    return finish({});
  }

  result with_layers(int steps, const options& opts) {
    offloader off(desk_.dev, opts);
    off.on_report([](std::string_view) {});
    saved_arrays on(off);
    const auto stream = desk_.stream();
    std::array<const float*, layers> early{};
    const auto pass = [&](bool trains) {
      start();
      on.pass = off.begin({.forward_only = !trains, .release = !trains});
      for (int l = 0; l < layers; ++l) {
        auto* const qkv = on.qkv.fresh(l, width, stream);
        auto* const att = on.att.fresh(l, square, stream, of_att);
        auto* const fch = on.fch.fresh(l, 4 * width, stream);
        early[static_cast<std::size_t>(l)] = qkv;
        forward(stream, qkv, att, fch, l);
        on.attention.done(l, stream);
        on.fch.done(l, stream);
      }
      on.pass.end_forward();
      note(stream, out_);
      for (int l = layers - 1; trains && l >= 0; --l) {
        const auto* qkv = on.qkv.back(l, stream);
        const auto* const att = on.att.back(l, stream);
        const auto* const fch = on.fch.back(l, stream);
        if (reads_early) qkv = early[static_cast<std::size_t>(l)];
        go_back(stream, qkv, att, fch);
        on.attention.release(l, stream);
        on.fch.release(l, stream);
      }
      on.pass.finish();
      if (trains) off.end_step();
    };
    for (int step = 0; step < steps; ++step) {
      pass(false);
      pass(true);
    }
    desk_.dev.synchronize();
    return finish(off.counters());
  }

 private:
  void start() {
    desk_.dev.launch(desk_.stream(), 10, [this] { out_ = std::vector<float>(width, 1.0F); });
  }
  void forward(rig::stream_ref stream, float* qkv, float* att, float* fch, int layer) {
    desk_.dev.launch(stream, 900, [=, this] { forward_attention(qkv, att, out_.data(), layer); });
    desk_.dev.launch(stream, 700, [=, this] { forward_mlp(fch, out_.data(), qkv, att); });
  }
  void go_back(rig::stream_ref stream, const float* qkv, const float* att, const float* fch) {
    desk_.dev.launch(stream, 1600, [=, this] { backward(grad_.data(), qkv, att, fch); });
  }
  void note(rig::stream_ref stream, std::vector<float>& what) {
    desk_.dev.launch(stream, 10, [&what, this] {
      for (const float each : what) bits_.push_back(std::bit_cast<std::uint32_t>(each));
    });
  }
  result finish(const tidepool::trace::counters& seen) {
    note(desk_.stream(), grad_);
    desk_.dev.synchronize();
    return {bits_, seen};
  }

  rig desk_;
  std::vector<float> out_ = std::vector<float>(width, 1.0F);
  std::vector<float> grad_ = std::vector<float>(width, 1.0F);
  std::vector<std::uint32_t> bits_;
};

constexpr int steps = 3;

result plain() { return trainer().plain(steps); }

// Room for a third of the layers.
options tight() {
  auto opts = arena_options(2 * 4 * (5 * width + square) + 6 * 256);
  opts.reload_ahead = 1;
  return opts;
}

// A group that has come as far as `until` in layer 0 of an open pass.
struct desk_with_group {
  explicit desk_with_group(const options& opts) : off(desk.dev, opts) {
    off.on_report([](std::string_view) {});
    pass = off.begin();
  }
  rig desk;
  offloader off;
  offloader::chunk pass;
  group attention{off, pass, "core_attn"};
  array qkv{attention}, att{attention};
  rig::stream_ref stream = desk.stream();
};

}  // namespace

TEST_CASE("layers: bits are those of an array for all layers, in 40 orders") {
  const auto expected = plain();
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    for (const auto& opts : {small_options(), tight(), small_options({"mlp"})}) {
      trainer one(machine{.order_seed = seed});
      const auto got = one.with_layers(steps, opts);
      CHECK(got == expected);
      CHECK(got.seen.modules[1].groups_offloaded == layers * steps);
    }
  }
}

TEST_CASE("layers: the device holds few of them") {
  const auto eager = trainer().with_layers(steps, small_options({"none"}));
  const auto few = trainer().with_layers(steps, tight());
  CHECK(eager == plain());
  CHECK(eager.seen.live_peak == layers * 4 * (5 * width + square));
  CHECK(few.seen.live_peak <= eager.seen.live_peak / 2);
}

TEST_CASE("layers: where a module does not leave, its arrays are allocated and zeroed once") {
  desk_with_group at(small_options({"none"}));
  auto& desk = at.desk;
  const float* places[2] = {};
  for (std::uint32_t step = 0; step < 4; ++step) {
    const bool trains = step % 2 == 0;
    at.pass = at.off.begin({.forward_only = !trains, .release = !trains});
    for (std::uint32_t l = 0; l < 2; ++l) {
      auto* const x = at.qkv.fresh(static_cast<int>(l), 64, at.stream, fill::zero);
      if (step == 0) {
        places[l] = x;
        desk.write_bytes(x, 64 * sizeof(float), l, at.stream);
      }
      CHECK(x == places[l]);
      desk.check_rows(x, {64 * sizeof(float), 1, 0, 0}, l, 0, at.stream);
      at.attention.done(static_cast<int>(l), at.stream);
      auto other = at.off.allocate<float>(64, at.stream);
      desk.write(other, 99);
    }
    for (int l = 1; trains && l >= 0; --l) {
      CHECK(at.qkv.back(l, at.stream) == places[l]);
      at.attention.release(l, at.stream);
    }
    at.pass.finish();
    if (trains) at.off.end_step();
  }
  CHECK(desk.wrong() == 0);
  // Another shape has memory of its own.
  CHECK(at.qkv.fresh(0, 640, at.stream) != nullptr);
  at.attention.reset(at.stream);
}

TEST_CASE("layers: each join that protects them is needed") {
  const auto expected = plain();
  for (const auto site : {join_site::producer, join_site::device_reuse, join_site::own_offload,
                          join_site::consumer}) {
    CAPTURE(tidepool::name_of(site));
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      trainer one(machine{.order_seed = seed});
      one.desk().dev.leave_out(site);
      wrong += one.with_layers(steps, tight()) == expected ? 0 : 1;
    }
    CHECK(wrong > 0);
  }
}

TEST_CASE("layers: a trainer that relies on zeros asks for them") {
  const auto expected = plain();
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    trainer one(machine{.poison = false, .order_seed = seed});
    one.of_att = fill::none;
    wrong += one.with_layers(steps, tight()) == expected ? 0 : 1;
    trainer other(machine{.poison = false, .order_seed = seed});
    CHECK(other.with_layers(steps, tight()) == expected);
  }
  CHECK(wrong > 0);
}

TEST_CASE("layers: a pointer of forward that backward reads shows where memory is poisoned") {
  auto opts = small_options();
  opts.poison = true;
  trainer early(machine{.poison = false}), late(machine{.poison = false});
  early.reads_early = true;
  CHECK_FALSE(early.with_layers(steps, opts) == plain());
  CHECK(late.with_layers(steps, opts) == plain());
}

TEST_CASE("layers: calls out of order say which comes first, whatever leaves") {
  for (const auto& opts : {small_options(), small_options({"none"})}) {
    desk_with_group at(opts);
    const auto stream = at.stream;
    const auto says_of = [&](array& which, auto call, const char* part) {
      const auto text = message_of([&] { call(which); });
      CAPTURE(text);
      CHECK(says(text, part));
    };
    const auto fresh = [&](array& which) { static_cast<void>(which.fresh(0, 8, stream)); };
    const auto back = [&](array& which) { static_cast<void>(which.back(0, stream)); };
    const auto look = [&](array& which) { static_cast<void>(which.at(0)); };
    const auto done = [&](array& /*which*/) { at.attention.done(0, stream); };
    const auto release = [&](array& /*which*/) { at.attention.release(0, stream); };
    const auto release_one = [&](array& which) { which.release(0, stream); };

    says_of(at.qkv, back, "back of core_attn of layer 0, microbatch 0: nothing of it is held");
    says_of(at.qkv, done, "fresh has not been called");
    says_of(at.qkv, release, "fresh has not been called");
    says_of(
        at.qkv, [&](array& which) { static_cast<void>(which.fresh(-1, 8, stream)); },
        "counted from 0");
    fresh(at.qkv);
    says_of(at.qkv, fresh, "asked for before");
    says_of(at.att, look, "array 2 of its group");
    fresh(at.att);
    says_of(at.att, back, "forward is not over with it; call done");
    says_of(
        at.att, [&](array& which) { which.done(0, stream); }, "call done of the group");
    done(at.att);
    says_of(at.att, done, "it was saved by done; call back");
    says_of(at.qkv, look, "call back before backward");
    says_of(at.qkv, release, "call back before");
    says_of(at.qkv, fresh, "several microbatches are in flight");
    back(at.att);
    CHECK(at.qkv.back(0, stream) == at.qkv.at(0));
    says_of(at.qkv, done, "it is back for backward");
    release_one(at.qkv);
    says_of(at.qkv, release_one, "array 1 of its group was released");
    says_of(at.qkv, back, "array 1 of its group was released");
    release(at.att);
    says_of(at.att, release, "it was released");
    says_of(at.att, release_one, "it was released");
    at.pass.finish();
    at.off.end_step();
    fresh(at.qkv);
    says_of(at.qkv, done, "its chunk is finished");
    at.attention.reset(stream);
  }
}

TEST_CASE("layers: after done a pass with release has nothing, and may be followed by any") {
  for (const auto& opts : {small_options(), small_options({"none"})}) {
    desk_with_group at(opts);
    at.pass = at.off.begin({.forward_only = true, .release = true});
    for (int round = 0; round < 2; ++round) {
      static_cast<void>(at.qkv.fresh(0, 64, at.stream));
      at.attention.done(0, at.stream);
      CHECK(says(message_of([&] { static_cast<void>(at.qkv.back(0, at.stream)); }),
                 "its pass was begun with release"));
      CHECK(says(message_of([&] { at.attention.release(0, at.stream); }), "nothing of it is held"));
    }
    at.pass.finish();
    at.pass = at.off.begin();
    static_cast<void>(at.qkv.fresh(0, 64, at.stream));
    at.attention.done(0, at.stream);
    CHECK(at.qkv.back(0, at.stream) != nullptr);
    at.attention.release(0, at.stream);
    at.pass.finish();
    at.off.end_step();
  }
}

TEST_CASE("layers: a group that was left without arrays does nothing") {
  for (const auto& opts : {small_options(), small_options({"none"})}) {
    desk_with_group at(opts);
    group empty{at.off, at.pass, "mlp"};
    for (const bool trains : {true, false}) {
      at.pass = trains ? at.off.begin() : at.off.begin({.forward_only = true, .release = true});
      empty.done(0, at.stream);
      at.pass.end_forward();
      if (trains) empty.release(0, at.stream);
      empty.reset(at.stream);
      at.pass.finish();
    }
    at.off.end_step();
    const array late{empty};
    CHECK(says(message_of([&] { empty.done(0, at.stream); }), "fresh has not been called"));
  }
}

TEST_CASE("layers: a pass that was dropped is given up by reset, and the next one runs") {
  for (const auto& opts : {small_options(), small_options({"none"})}) {
    desk_with_group at(opts);
    const auto stream = at.stream;
    for (int l = 0; l < 3; ++l) {
      static_cast<void>(at.qkv.fresh(l, 64, stream));
      if (l < 2) at.attention.done(l, stream);
    }
    static_cast<void>(at.qkv.back(1, stream));
    at.pass = {};
    at.attention.reset(stream);
    at.pass = at.off.begin();
    auto* const again = at.qkv.fresh(0, 128, stream);
    at.desk.write_bytes(again, 128 * sizeof(float), 7, stream);
    at.attention.done(0, stream);
    const auto* const here = at.qkv.back(0, stream);
    at.desk.check_rows(here, {128 * sizeof(float), 1, 0, 0}, 7, 0, stream);
    at.attention.release(0, stream);
    at.pass.finish();
    CHECK(at.desk.wrong() == 0);
  }
}

TEST_CASE("layers: every stream that asks for an array comes behind what brought or wrote it") {
  for (const bool stays : {false, true}) {
    CAPTURE(stays);
    std::size_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      auto opts = small_options({"core_attn", "mlp"});
      if (stays) opts.min_tensor_elements = square + 1;
      rig desk(machine{.poison = true, .order_seed = seed});
      const auto second = desk.dev.make_stream();
      offloader off(desk.dev, opts);
      off.on_report([](std::string_view) {});
      saved_arrays saved(off);
      saved.pass = off.begin();
      auto* const att = saved.att.fresh(0, square, desk.stream());
      static_cast<void>(saved.fch.fresh(0, width, desk.stream()));
      saved.fch.done(0, desk.stream());  // what is recorded here does not stand for what follows
      auto* const qkv = saved.qkv.fresh(0, 2 * square, desk.stream());
      desk.write_bytes(qkv, 2 * square * sizeof(float), 1, desk.stream(), 5000);
      desk.write_bytes(att, square * sizeof(float), 2, desk.stream(), 5000);
      saved.attention.done(0, desk.stream());
      saved.pass.end_forward();
      static_cast<void>(saved.qkv.back(0, desk.stream()));
      desk.check_rows(saved.att.back(0, second.ref()), {square * sizeof(float), 1, 0, 0}, 2, 0,
                      second.ref());
      wrong += desk.wrong();
    }
    CHECK(wrong == 0);
  }
}
