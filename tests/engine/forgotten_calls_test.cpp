// Calls that a trainer forgets without an error: they are told once, and no right program is.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rig.hpp"
#include "tidepool/keyed.hpp"

namespace {

using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;
constexpr std::size_t layers = 4;

struct trainer {
  rig desk;
  offloader off{desk.dev, small_options()};
  std::vector<std::string> reports;
  std::vector<rig::buffer> saved{layers};

  trainer() {
    off.on_report([this](std::string_view line) { reports.emplace_back(line); });
  }
  offloader::chunk forward(std::vector<rig::buffer>& into, int microbatch = 0) {
    auto pass = off.begin({.microbatch = microbatch});
    for (std::size_t l = 0; l < into.size(); ++l) {
      into[l] = off.allocate(size, desk.stream());
      pass.commit<"fc1">(static_cast<int>(l), desk.stream(), into[l]);
    }
    return pass;
  }
  void backward(offloader::chunk& pass, std::vector<rig::buffer>& from, std::size_t keeps = 0) {
    for (std::size_t l = from.size(); l-- > 0;) {
      pass.restore<"fc1">(static_cast<int>(l), desk.stream(), from[l]);
      if (l >= keeps) from[l].reset(desk.stream());
    }
    pass.finish();
  }
  void train(int microbatch = 0, std::size_t keeps = 0) {
    auto pass = forward(saved, microbatch);
    backward(pass, saved, keeps);
  }
  [[nodiscard]] std::size_t told(std::string_view what) const {
    std::size_t count = 0;
    for (const auto& line : reports) count += line.find(what) != std::string::npos ? 1 : 0;
    return count;
  }
};

constexpr std::string_view no_end = "no step has ended";
constexpr std::string_view no_reset = "offloading saves no memory";

}  // namespace

TEST_CASE("forgotten calls: end_step, however long it goes on") {
  trainer by;
  for (int i = 0; i < 256; ++i) by.train();
  CHECK(by.reports.empty());
  for (int i = 0; i < 600; ++i) by.train();
  CHECK(by.reports.size() == 1);
  CHECK(by.told(no_end) == 1);
  CHECK(by.told("call end_step()") == 1);
}

TEST_CASE("forgotten calls: end_step, in a trainer that numbers its microbatches") {
  trainer by;
  for (int i = 0; i < 300; ++i) {
    for (int m = 0; m < 2; ++m) by.train(m);
  }
  CHECK(by.told(no_end) == 1);
}

TEST_CASE("forgotten calls: steps of many passes, with numbers or fewer of one number") {
  trainer by;
  for (int step = 0; step < 3; ++step) {
    for (int m = 0; m < 400; ++m) by.train(m);
    by.off.end_step();
    for (int m = 0; m < 200; ++m) by.train();
    by.off.end_step();
  }
  for (int i = 0; i < 300; ++i) {  // nor passes that nothing is learnt of
    auto evaluation = by.off.begin({.forward_only = true});
    evaluation = {};
    std::vector<rig::buffer> given_up(layers);
    auto pass = by.forward(given_up);
    pass = {};
  }
  CHECK(by.told(no_end) == 0);
}

TEST_CASE("forgotten calls: handles that are reset after the pass, or never") {
  for (const bool ends : {false, true}) {
    trainer by;
    for (int step = 0; step < 10; ++step) {
      by.train(step, layers);
      if (ends) by.off.end_step();
      CHECK(by.told(no_reset) == (step < 3 ? 0U : 1U));
    }
    CHECK(by.off.counters().saved() == 0);
    CHECK(by.reports.size() == 1);
  }
}

TEST_CASE("forgotten calls: another handle holds what the committed one gave up") {
  trainer by;
  for (int step = 0; step < 5; ++step) {
    auto pass = by.off.begin();
    std::vector<rig::buffer> others;
    for (std::size_t l = 0; l < layers; ++l) {
      by.saved[l] = by.off.allocate(size, by.desk.stream());
      others.push_back(by.saved[l].share());
      pass.commit<"fc1">(static_cast<int>(l), by.desk.stream(), by.saved[l]);
    }
    by.backward(pass, by.saved);
    by.off.end_step();
  }
  CHECK(by.told(no_reset) == 1);
}

TEST_CASE("forgotten calls: groups that were offloaded by hand, and not reset") {
  for (const bool resets : {false, true}) {
    trainer by;
    for (int step = 0; step < 5; ++step) {
      auto pass = by.off.begin();
      for (std::size_t l = 0; l < layers; ++l) {
        by.saved[l] = by.off.allocate(size, by.desk.stream());
        pass.start_offload<"fc1">(static_cast<int>(l), by.desk.stream(), by.saved[l]);
        if (resets) by.saved[l].reset(by.desk.stream());
      }
      by.backward(pass, by.saved, resets ? 0 : layers);
      by.off.end_step();
    }
    CHECK(by.told(no_reset) == (resets ? 0U : 1U));
  }
}

TEST_CASE("forgotten calls: keys that are loaded and never dropped") {
  for (const bool drops : {false, true}) {
    trainer by;
    tidepool::keyed keys(by.off);
    for (int step = 0; step < 5; ++step) {
      auto pass = keys.begin();
      const auto stream = by.desk.stream();
      std::vector<void*> memory;
      for (std::size_t l = 0; l < layers; ++l) {
        pass.run(by.off.module("fc1"), static_cast<int>(l), stream, [&] {
          memory.push_back(by.desk.dev.allocate(size));
          pass.save(l, memory.back(), size, stream, [] {});
        });
      }
      pass.end_forward();
      for (std::size_t l = layers; l-- > 0;) {
        static_cast<void>(pass.load(l, stream));
        if (drops) pass.drop(l, stream);
      }
      pass.finish();
      by.off.end_step();
      for (auto* each : memory) by.desk.dev.deallocate(each);
    }
    CHECK(by.told(no_reset) == (drops ? 0U : 1U));
  }
}

TEST_CASE("forgotten calls: right programs that hold some, or all where others are away") {
  trainer by;
  for (int step = 0; step < 8; ++step) {  // the first layer's, until its gradient is added up
    by.train(0, 1);
    by.off.end_step();
  }
  CHECK(by.told(no_reset) == 0);
  trainer deep;  // three passes in flight: a pass holds all of its own in backward
  for (int step = 0; step < 8; ++step) {
    std::vector<std::vector<rig::buffer>> saved(3);
    std::vector<offloader::chunk> open;
    for (auto& each : saved) {
      each.resize(layers);
      open.push_back(deep.forward(each, static_cast<int>(open.size())));
    }
    for (std::size_t m = 0; m < saved.size(); ++m) {
      deep.backward(open[m], saved[m], layers);
      saved[m].clear();
    }
    deep.off.end_step();
  }
  CHECK(deep.told(no_reset) == 0);
  CHECK(deep.off.counters().saved() > 0);
}

TEST_CASE("forgotten calls: a model of two groups, whose last handles go behind the pass") {
  trainer by;
  by.saved.resize(2);
  for (int step = 0; step < 8; ++step) {
    by.train(0, 2);
    by.off.end_step();
  }
  CHECK(by.reports.empty());
}
