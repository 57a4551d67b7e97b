// Small trainers, written by somebody who had read docs/checking.md alone: twenty with a mistake,
// which the report has to name, and twenty that are right though they look wrong.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rig.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/host_state.hpp"
#include "tidepool/keyed.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/offloader.hpp"

namespace {

using device = tidepool::checked_device<tidepool::virtual_device>;
using offloader = tidepool::offloader<device>;
using buffer = offloader::buffer;
using stream = device::stream_ref;
using floats = tidepool::saved_layers<float, offloader>;

constexpr std::size_t size = 4096;

tidepool::options all_leaves() {
  auto opts = tidepool::test::small_options();
  opts.recompute_modules = {"layernorm"};
  return opts;
}

// What every trainer has: two streams, weights, a gradient, a staging buffer, an offloader.
struct bench {
  device dev{};
  device::stream first = dev.make_stream();
  device::stream second = dev.make_stream();
  stream main = first.ref();
  stream side = second.ref();
  std::array<void*, 3> own{dev.allocate(size), dev.allocate(size), dev.allocate(size)};
  void* weights = own[0];
  void* gradient = own[1];
  void* input = own[2];
  void* staging = dev.try_allocate_host(size);
  std::optional<offloader> off{std::in_place, dev, all_leaves()};
  tidepool::module_id attn = off->module("core_attn");
  tidepool::module_id act = off->module("moe_act");
  offloader::chunk pass;

  bench() {
    dev.name_stream(main, "main");
    dev.name_stream(side, "side");
    dev.host_writes(staging, size, "loader");
    for (auto* each : own) write(each, main, "initialise");
    join(main, side);
    off->on_report([](std::string_view) {});
    pass = off->begin();
  }
  bench(const bench&) = delete;
  bench& operator=(const bench&) = delete;
  ~bench() {
    pass = {};
    off.reset();
    dev.synchronize();
    for (auto* each : own) dev.deallocate(each);
    dev.deallocate_host(staging);
  }

  void read(const void* x, stream on, const char* name) { dev.reads(x, size, on, name); }
  void write(void* x, stream on, const char* name) { dev.writes(x, size, on, name); }
  void add(void* x, stream on, const char* name) {
    read(x, on, name);
    write(x, on, name);
  }
  void join(stream from, stream to) {
    auto mark = dev.make_event();
    dev.record(mark, from);
    dev.wait(to, mark);
  }
  void load(stream on) {
    dev.copy(input, staging, {size, 1, size, size}, tidepool::copy_direction::host_to_device, on);
  }
  // A tensor that `on` wrote.
  [[nodiscard]] buffer made(stream on, const char* name = "forward") {
    auto x = off->allocate(size, on);
    dev.writes(x, on, name);
    return x;
  }
  [[nodiscard]] buffer restored(stream on) {
    auto x = made(main);
    pass.commit(attn, 0, main, x);
    pass.end_forward();
    if (on.key() != main.key()) join(main, on);
    pass.restore(attn, 0, on, x);
    return x;
  }
};

struct trainer {
  std::string name;
  std::function<void(bench&)> run;
  std::vector<std::string> says;  // all in one finding; none: there is none
  std::size_t pairs = 1;          // that are without an order
};

const std::vector<trainer>& with_a_mistake() {
  static const std::vector<trainer> all{
      {"the optimizer runs beside the next forward pass",
       [](bench& b) {
         b.read(b.weights, b.main, "forward");
         b.write(b.weights, b.side, "adam");
       },
       {"kernel 'forward' reads on main", "kernel 'adam' writes on side"}},
      {"two microbatches add to one gradient on two streams",
       [](bench& b) {
         b.add(b.gradient, b.main, "wgrad 0");
         b.add(b.gradient, b.side, "wgrad 1");
       },
       {"'wgrad 0'", "on main", "'wgrad 1'", "on side"},
       2},
      {"the reduction starts before the last bucket is there",
       [](bench& b) {
         b.write(b.gradient, b.main, "wgrad 0");
         b.join(b.main, b.side);
         b.dev.writes(static_cast<char*>(b.gradient) + size / 2, size / 2, b.main, "wgrad 1");
         b.read(b.gradient, b.side, "all-reduce");
       },
       {"'wgrad 1' writes on main", "'all-reduce' reads on side", "2048 bytes"}},
      {"gradients are zeroed on another stream",
       [](bench& b) {
         b.add(b.gradient, b.main, "wgrad");
         b.dev.fill_bytes(b.gradient, 0, size, b.side);
       },
       {"'wgrad'", "on main", "a fill", "on side"}},
      {"the input is loaded on a stream that nobody waits for",
       [](bench& b) {
         b.load(b.side);
         b.read(b.input, b.main, "embed");
       },
       {"a copy writes on side", "'embed' reads on main"}},
      {"the next batch overwrites the input of this one",
       [](bench& b) {
         b.load(b.main);
         b.read(b.input, b.main, "embed");
         b.load(b.side);
       },
       {"'embed' reads on main", "a copy writes on side"},
       2},
      {"the loader fills the staging buffer again too soon",
       [](bench& b) {
         b.load(b.side);
         b.dev.host_waited(b.main);
         b.dev.host_writes(b.staging, size, "loader");
       },
       {"a copy reads on side", "the host 'loader' writes"}},
      {"the event stands for the wrong stream",
       [](bench& b) {
         b.write(b.gradient, b.main, "wgrad");
         auto mark = b.dev.make_event();
         b.dev.record(mark, b.side);
         b.dev.wait(b.side, mark);
         b.read(b.gradient, b.side, "clip");
       },
       {"'wgrad' writes on main", "'clip' reads on side"}},
      {"the event is of the step before",
       [](bench& b) {
         auto mark = b.dev.make_event();
         b.dev.record(mark, b.main);
         b.write(b.weights, b.main, "adam");
         b.dev.wait(b.side, mark);
         b.read(b.weights, b.side, "forward");
       },
       {"'adam' writes on main", "'forward' reads on side"}},
      {"a layer of an array is written on another stream than it is saved on",
       [](bench& b) {
         floats x(*b.off, b.pass, "core_attn");
         auto* const data = x.fresh(0, size / sizeof(float), b.main);
         b.join(b.main, b.side);
         b.write(data, b.side, "attention");
         x.done(0, b.main);
         b.pass = {};
       },
       {"'attention' writes on side", "an offload reads", "core_attn of layer 0", "'producer'"}},
      {"a layer of an array is read on a stream that did not call back",
       [](bench& b) {
         floats x(*b.off, b.pass, "core_attn");
         b.write(x.fresh(0, size / sizeof(float), b.main), b.main, "attention");
         x.done(0, b.main);
         b.pass.end_forward();
         b.read(x.back(0, b.main), b.side, "dgrad");
         b.pass = {};
       },
       {"a reload writes", "'dgrad' reads on side", "core_attn of layer 0"}},
      {"a layer of an array is released before its second reader is through",
       [](bench& b) {
         floats x(*b.off, b.pass, "core_attn");
         b.write(x.fresh(0, size / sizeof(float), b.main), b.main, "attention");
         x.done(0, b.main);
         b.pass.end_forward();
         auto* const data = x.back(0, b.main);
         b.join(b.main, b.side);
         b.read(data, b.side, "wgrad");
         x.release(0, b.main);
         auto next = b.made(b.main, "the next");
         b.pass = {};
       },
       {"'wgrad' reads on side", "on main"}},
      {"a tensor that is saved by key is written on another stream",
       [](bench& b) {
         tidepool::keyed keys(*b.off);
         auto saving = keys.begin({});
         saving.enter(b.attn, 3);
         b.write(b.input, b.side, "softmax");
         saving.save(1, b.input, size, b.main, {});
         saving.leave(b.main);
       },
       {"'softmax' writes on side", "an offload reads", "core_attn of layer 3"}},
      {"a tensor that was loaded by key on one stream is read on another",
       [](bench& b) {
         tidepool::keyed keys(*b.off);
         auto saving = keys.begin({});
         saving.enter(b.attn, 3);
         b.write(b.input, b.main, "softmax");
         saving.save(1, b.input, size, b.main, {});
         saving.leave(b.main);
         saving.end_forward();
         b.read(saving.load(1, b.main), b.side, "dgrad");
       },
       {"a reload writes", "'dgrad' reads on side"}},
      {"a share is written while the tensor leaves",
       [](bench& b) {
         auto x = b.made(b.main);
         auto also = x.share();
         b.pass.commit(b.attn, 0, b.main, x);
         b.write(also.data(), b.main, "in-place dropout");
         also.reset(b.main);
       },
       {"an offload reads", "'in-place dropout' writes on main"}},
      {"a tensor is computed again on another stream",
       [](bench& b) {
         auto y = b.made(b.main, "norm");
         b.pass.commit_or_discard("layernorm", 0, b.main, y);
         b.pass.end_forward();
         b.join(b.main, b.side);
         b.pass.restore_or_recompute(
             "layernorm", 0, b.main, [&] { b.write(y.data(), b.side, "norm again"); }, y);
         b.read(y.data(), b.main, "dgrad");
         y.reset(b.main);
       },
       {"'norm again' writes on side", "'dgrad' reads on main"},
       2},
      {"a tensor is read after its discard",
       [](bench& b) {
         auto y = b.made(b.main, "norm");
         auto* const data = y.data();
         b.pass.commit_or_discard("layernorm", 0, b.main, y);
         b.read(data, b.main, "late");
       },
       {"'late' reads on main"}},
      {"moments are changed on another stream than they are written back on",
       [](bench& b) {
         auto moments = b.off->state_on_host(size, "moments");
         auto here = moments.create(b.main);
         b.join(b.main, b.side);
         b.write(here.data(), b.side, "adam");
         moments.write_back(here, b.main);
       },
       {"'adam' writes on side", "an offload reads"}},
      {"moments are read on another stream than they were fetched on",
       [](bench& b) {
         auto moments = b.off->state_on_host(size, "moments");
         auto here = moments.create(b.main);
         b.write(here.data(), b.main, "adam");
         moments.write_back(here, b.main);
         here = moments.fetch(b.main);
         b.read(here.data(), b.side, "adam of the next step");
         here.reset(b.main);
       },
       {"a reload writes", "'adam of the next step' reads on side"}},
      {"a graph is launched while its input is being loaded",
       [](bench& b) {
         b.pass = {};
         b.off->end_step();
         for (int i = 0; i < 2; ++i) {
           auto warm = b.off->begin();
           auto x = b.made(b.main);
           warm.commit(b.attn, 0, b.main, x);
           warm.end_forward();
           warm.restore(b.attn, 0, b.main, x);
           x.reset(b.main);
           warm.finish();
           b.off->end_step();
         }
         auto graph = b.off->capture(b.main, [&] { b.read(b.input, b.main, "embed in a graph"); });
         b.load(b.side);
         graph.launch(b.main);
       },
       {"a copy writes on side", "'embed in a graph' reads"}},
  };
  return all;
}

const std::vector<trainer>& right_ones() {
  static const std::vector<trainer> all{
      {"a second stream reads while the tensor leaves",
       [](bench& b) {
         auto x = b.made(b.main);
         b.join(b.main, b.side);
         b.read(x.data(), b.side, "statistics");
         auto also = x.share();
         b.pass.commit(b.attn, 0, b.main, x);
         also.reset(b.side);
       },
       {}},
      {"streams meet by way of a third",
       [](bench& b) {
         auto third = b.dev.make_stream();
         b.write(b.gradient, b.main, "wgrad");
         b.join(b.main, third.ref());
         b.join(third.ref(), b.side);
         b.read(b.gradient, b.side, "clip");
       },
       {}},
      {"interleaved rows on two streams",
       [](bench& b) {
         for (std::size_t row = 0; row < 8; ++row) {
           b.dev.writes(static_cast<char*>(b.gradient) + row * 512, 512,
                        row % 2 == 0 ? b.main : b.side, "rows");
         }
       },
       {}},
      {"the host waits, and no event is there",
       [](bench& b) {
         b.write(b.gradient, b.side, "wgrad");
         b.dev.synchronize(b.side);
         b.read(b.gradient, b.main, "clip");
       },
       {}},
      {"restored and released on a second stream",
       [](bench& b) {
         auto x = b.restored(b.side);
         b.read(x.data(), b.side, "dgrad");
         x.reset(b.side);
         auto next = b.made(b.main);
         next.reset(b.main);
       },
       {}},
      {"a commit on a stream that only waited for the writer",
       [](bench& b) {
         auto x = b.off->allocate(size, b.side);
         b.dev.writes(x, b.side, "forward");
         b.join(b.side, b.main);
         b.pass.commit(b.attn, 0, b.main, x);
       },
       {}},
      {"two staging turns with an event each",
       [](bench& b) {
         for (int turn = 0; turn < 4; ++turn) {
           b.load(b.side);
           b.join(b.side, b.main);
           b.read(b.input, b.main, "embed");
           b.join(b.main, b.side);
         }
       },
       {}},
      {"the loss is read by the host, late",
       [](bench& b) {
         b.write(b.gradient, b.main, "loss");
         b.dev.copy(b.staging, b.gradient, {4, 1, 4, 4}, tidepool::copy_direction::device_to_host,
                    b.main);
         b.dev.synchronize();
         b.dev.host_reads(b.staging, 4, "log");
       },
       {}},
      {"a share is read after the commit",
       [](bench& b) {
         auto x = b.made(b.main);
         auto also = x.share();
         b.pass.commit(b.attn, 0, b.main, x);
         b.read(also.data(), b.main, "next layer");
         also.reset(b.main);
       },
       {}},
      {"a pass is given up, and its memory used at once",
       [](bench& b) {
         for (int i = 0; i < 3; ++i) {
           auto x = b.made(b.main);
           b.pass.commit(b.attn, 0, b.main, x);
           b.pass = b.off->begin();
           auto y = b.made(b.side);
           b.read(y.data(), b.side, "other work");
           y.reset(b.side);
         }
       },
       {}},
      {"every stream that reads loads the key",
       [](bench& b) {
         tidepool::keyed keys(*b.off);
         auto saving = keys.begin({});
         saving.enter(b.attn, 3);
         b.write(b.input, b.main, "softmax");
         saving.save(1, b.input, size, b.main, {});
         saving.leave(b.main);
         saving.end_forward();
         b.read(saving.load(1, b.main), b.main, "dgrad");
         b.read(saving.load(1, b.side), b.side, "wgrad");
         b.join(b.side, b.main);
         saving.drop(1, b.main);
         saving.finish();
       },
       {}},
      {"an array of layers, read on two streams with a join each way",
       [](bench& b) {
         floats x(*b.off, b.pass, "core_attn");
         b.write(x.fresh(0, size / sizeof(float), b.main), b.main, "attention");
         x.done(0, b.main);
         b.pass.end_forward();
         static_cast<void>(x.back(0, b.main));
         b.join(b.main, b.side);
         b.read(x.at(0), b.side, "wgrad");
         b.join(b.side, b.main);
         x.release(0, b.main);
         b.pass.finish();
       },
       {}},
      {"a tensor is computed again and read on the second stream",
       [](bench& b) {
         auto y = b.made(b.main, "norm");
         b.pass.commit_or_discard("layernorm", 0, b.main, y);
         b.pass.end_forward();
         b.pass.restore_or_recompute(
             "layernorm", 0, b.side, [&] { b.write(y.data(), b.side, "norm again"); }, y);
         b.read(y.data(), b.side, "dgrad");
         y.reset(b.side);
       },
       {}},
      {"an evaluation gives memory back at each commit",
       [](bench& b) {
         auto evaluation = b.off->begin({.forward_only = true, .release = true});
         for (int l = 0; l < 4; ++l) {
           auto x = b.made(b.main);
           evaluation.commit(b.attn, l, b.main, x);
         }
         evaluation.finish();
       },
       {}},
      {"a step runs on the second stream alone",
       [](bench& b) {
         auto x = b.made(b.side);
         b.pass.commit(b.attn, 0, b.side, x);
         b.pass.end_forward();
         b.pass.restore(b.attn, 0, b.side, x);
         b.read(x.data(), b.side, "dgrad");
         x.reset(b.side);
         b.pass.finish();
         b.off->end_step();
       },
       {}},
      {"two offloaders on one device",
       [](bench& b) {
         offloader other(b.dev, all_leaves());
         auto pass = other.begin();
         auto y = other.allocate(size, b.main);
         b.dev.writes(y, b.main, "critic");
         auto x = b.made(b.main);
         pass.commit(b.attn, 0, b.main, y);
         b.pass.commit(b.attn, 0, b.main, x);
         pass.restore(b.attn, 0, b.main, y);
         b.read(y.data(), b.main, "critic backward");
         y.reset(b.main);
         pass.finish();
       },
       {}},
      {"moments are prefetched on no stream of the trainer's",
       [](bench& b) {
         auto moments = b.off->state_on_host(size, "moments");
         auto here = moments.create(b.main);
         b.write(here.data(), b.main, "adam");
         moments.write_back(here, b.main);
         static_cast<void>(moments.prefetch());
         here = moments.fetch(b.side);
         b.add(here.data(), b.side, "adam");
         moments.write_back(here, b.side);
       },
       {}},
      {"memory goes from stream to stream by reset and allocate",
       [](bench& b) {
         for (int i = 0; i < 6; ++i) {
           const auto on = i % 2 == 0 ? b.main : b.side;
           auto x = b.made(on);
           b.read(x.data(), on, "work");
           x.reset(on);
         }
       },
       {}},
      {"a second stream reads what one restored, by wait_for",
       [](bench& b) {
         auto x = b.restored(b.main);
         b.off->wait_for(x, b.side);
         b.read(x.data(), b.side, "wgrad");
         b.join(b.side, b.main);
         x.reset(b.main);
       },
       {}},
      {"a kernel reads what only a fill wrote",
       [](bench& b) {
         auto x = b.off->allocate(size, b.main, tidepool::fill::zero);
         b.read(x.data(), b.main, "triangle");
         x.reset(b.main);
       },
       {}},
  };
  return all;
}

}  // namespace

TEST_CASE("trainers: each of twenty mistakes is found, and the report names the pair") {
  CHECK(with_a_mistake().size() == 20);
  for (const auto& each : with_a_mistake()) {
    CAPTURE(each.name);
    bench b;
    each.run(b);
    bool named = false;
    for (const auto& found : b.dev.findings()) {
      const auto text = to_text(found);
      bool all = true;
      for (const auto& words : each.says) all = all && text.find(words) != std::string::npos;
      named = named || all;
    }
    CHECK_MESSAGE(named, b.dev.report());
    CHECK_MESSAGE(b.dev.findings().size() == each.pairs, b.dev.report());
  }
}

TEST_CASE("trainers: twenty that are right though they look wrong have no report") {
  CHECK(right_ones().size() == 20);
  for (const auto& each : right_ones()) {
    CAPTURE(each.name);
    bench b;
    each.run(b);
    CHECK_MESSAGE(b.dev.findings().empty(), b.dev.report());
  }
}
