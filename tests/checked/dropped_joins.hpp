// Each join of the engine left out: the report names the pair that it would have ordered. On any
// device that can leave joins out.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checked_training.hpp"
#include "tidepool/places/file.hpp"
#include "tidepool/places/lending.hpp"

namespace tidepool::test::drops {

inline constexpr std::size_t few = 3 * tensor_bytes;

// A step or two on one stream, in as little memory as there may be.
template <class Desk>
void train(Desk& at, join_site without) {
  typename Desk::offloader off(at.dev, arena_options(few));
  at.dev.leave_out(without);
  basic_training<Desk> work{at, off};
  for (int i = 0; i < 3; ++i) work.step(at.compute.ref());
}

template <class Desk>
bool names(const Desk& at, join_site missing) {
  for (const auto& each : at.dev.findings()) {
    if (each.missing == missing) return true;
  }
  return false;
}

inline bool names_each(const finding& found, const char* text) {
  return to_text(found).find(text) != std::string::npos;
}

template <class Desk>
void without_cap_nothing_is_out_of_order_nor_with_all_joins_made() {
  Desk at;
  train(at, join_site::cap);
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}

template <class Desk>
void producer_left_out() {
  Desk at;
  train(at, join_site::producer);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, access_kind::kernel_write, "compute",
                 access_kind::offload, out_stream));
  CHECK(names(at, join_site::producer));
  const auto& first = at.dev.findings().at(0);
  CHECK(first.second.module == "fc1");
  CHECK(first.second.layer == 0);
  CHECK(first.second.microbatch == 0);
  CHECK(names_each(first, "fc1 of layer 0, microbatch 0"));
}

template <class Desk>
void device_reuse_left_out() {
  Desk at;
  train(at, join_site::device_reuse);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, access_kind::offload, out_stream, access_kind::handed_out,
                 "compute"));
  CHECK(names(at, join_site::device_reuse));
}

template <class Desk>
void reload_reuse_left_out() {
  Desk at;
  train(at, join_site::reload_reuse);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, access_kind::kernel_read, "compute",
                 access_kind::handed_out, in_stream));
  CHECK(names(at, join_site::reload_reuse));
}

template <class Desk>
void own_offload_left_out() {
  Desk at;
  train(at, join_site::own_offload);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, access_kind::offload, out_stream, access_kind::reload,
                 in_stream));
  CHECK(names(at, join_site::own_offload));
}

template <class Desk>
void consumer_left_out() {
  Desk at;
  train(at, join_site::consumer);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, access_kind::reload, in_stream, access_kind::kernel_read,
                 "compute"));
  CHECK(names(at, join_site::consumer));
}

// Forward passes know nothing of backward passes on the other stream, and have room on the device.
template <class Desk>
void reuse_left_out(join_site site, options opts, std::string_view in, std::string_view out,
                    std::size_t tensor = tensor_bytes, std::size_t borrows = 0) {
  for (const bool dropped : {false, true}) {
    Desk at;
    decltype(at.dev) neighbour;
    std::optional<lent_memory<decltype(at.dev)>> lent;
    typename Desk::offloader off(at.dev, opts);
    if (borrows > 0) off.borrow(lent.emplace(neighbour, borrows, "the neighbour").handle());
    if (dropped) at.dev.leave_out(site);
    basic_training<Desk> work{at, off, tensor};
    auto older = work.forward(at.compute.ref(), 0);
    for (int m = 1; m < 5; ++m) {
      auto newer = work.forward(at.compute.ref(), m);
      at.join(at.compute.ref(), at.side.ref());
      work.backward(older, at.side.ref());
      older = std::move(newer);
    }
    work.backward(older, at.side.ref());
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::unordered, access_kind::reload, in, access_kind::offload, out) ==
          dropped);
    CHECK(names(at, site) == dropped);
    CHECK(at.dev.findings().empty() == !dropped);
  }
}

[[nodiscard]] inline options few_blocks(std::size_t tensor = tensor_bytes) {
  auto opts = arena_options(64 * tensor);
  opts.host_step = opts.host_budget.emplace(10 * tensor);
  opts.reload_ahead = 1;
  return opts;
}

template <class Desk>
void host_reuse_left_out() {
  reuse_left_out<Desk>(join_site::host_reuse, few_blocks(), in_stream, out_stream);
}

// The same of blocks of a neighbour.
template <class Desk>
void peer_reuse_left_out() {
  auto opts = few_blocks();
  opts.places = {place_kind::peer};
  opts.peer_budget = opts.host_budget;
  reuse_left_out<Desk>(join_site::peer_reuse, opts, "the reload stream of the neighbour",
                       "the offload stream of the neighbour");
}

// The same of memory that another process lends: whole pages, which are of 2 MiB on a GPU.
template <class Desk>
void peer_reuse_of_a_loan_left_out() {
  constexpr auto lent = std::size_t{2} << 20;
  constexpr auto tensor = lent / 10 / block_alignment * block_alignment;  // ten fit, not eleven
  reuse_left_out<Desk>(join_site::peer_reuse, few_blocks(tensor),
                       "the reload stream of the neighbour", "the offload stream of the neighbour",
                       tensor, lent);
}

// ---- a file ----

// The ring has two slots, so that each is written and read into many times.
[[nodiscard]] inline options few_slots() {
  auto opts = arena_options(few);
  opts.places = {place_kind::file};
  opts.file_path = "/tmp";
  opts.file_budget = std::size_t{1} << 20;
  opts.file_ring = 8192;
  return opts;
}

template <class Desk>
void file_left_out(join_site site, access_kind copy, std::string_view stream, access_kind by_host) {
  for (const bool dropped : {false, true}) {
    Desk at;
    typename Desk::offloader off(at.dev, few_slots(), {.file = tidepool::file_place()});
    if (dropped) at.dev.leave_out(site);
    basic_training<Desk> work{at, off};
    for (int i = 0; i < 3; ++i) work.step(at.compute.ref());
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::unordered, copy, stream, by_host, "") == dropped);
    CHECK(names(at, site) == dropped);
    CHECK(at.dev.findings().empty() == !dropped);
  }
}

template <class Desk>
void file_write_left_out() {
  file_left_out<Desk>(join_site::file_write, access_kind::offload, "the offload stream of the file",
                      access_kind::host_read);
}

template <class Desk>
void file_reuse_left_out() {
  file_left_out<Desk>(join_site::file_reuse, access_kind::reload, "the reload stream of the file",
                      access_kind::host_write);
}

// ---- rows that are counted on the device ----

// An eager step, and a graph of one. A graph's counts are copied on streams of the offloader, too.
template <class Desk>
void row_count_left_out() {
  for (const bool dropped : {false, true}) {
    Desk at;
    typename Desk::offloader off(at.dev, arena_options(few));
    auto* const count = static_cast<std::uint32_t*>(at.dev.allocate(sizeof(std::uint32_t)));
    at.dev.fill_bytes(count, 0, sizeof *count, at.compute.ref());
    {
      basic_training<Desk> work{at, off};
      work.count = count;
      if (dropped) at.dev.leave_out(join_site::row_count);
      work.step(at.compute.ref());
      CHECK((!off.rows_overflowed() || dropped));
      auto graph = off.capture(at.compute.ref(), [&] { work.step(at.compute.ref()); });
      graph.launch(at.compute.ref());
      CHECK((!off.rows_overflowed() || dropped));
    }
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::unordered, access_kind::offload, out_stream,
                   access_kind::host_read, "") == dropped);
    CHECK(names(at, join_site::row_count) == dropped);
    CHECK(at.dev.findings().empty() == !dropped);
    at.dev.synchronize();
    at.dev.deallocate(count);
  }
}

// ---- around captures ----

// Eager steps, a graph of one, launches, and eager steps again, on two streams.
template <class Desk>
void train_in_graphs(Desk& at, join_site without) {
  typename Desk::offloader off(at.dev, arena_options(few));
  basic_training<Desk> work{at, off};
  for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
  at.dev.leave_out(without);
  auto graph = off.capture(at.compute.ref(), [&] { work.step(at.compute.ref()); });
  for (int i = 0; i < 2; ++i) graph.launch(at.compute.ref());
  work.step(at.side.ref());
  graph.launch(at.compute.ref());
  work.step(at.side.ref());
}

template <class Desk>
void graphs_with_all_joins_have_no_findings() {
  Desk at;
  train_in_graphs(at, join_site::cap);
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}

template <class Desk>
void launch_left_out() {
  Desk at;
  train_in_graphs(at, join_site::launch);
  INFO(at.dev.report());
  REQUIRE(names(at, join_site::launch));
  bool side_first = false;
  for (const auto& each : at.dev.findings()) {
    side_first = side_first || (each.first.graph == 0 && each.second.graph == 1);
  }
  CHECK(side_first);
}

template <class Desk>
void after_launch_left_out() {
  Desk at;
  train_in_graphs(at, join_site::after_launch);
  INFO(at.dev.report());
  REQUIRE(names(at, join_site::after_launch));
  bool graph_first = false;
  for (const auto& each : at.dev.findings()) {
    graph_first = graph_first || (each.first.graph == 1 && each.second.graph == 0);
  }
  CHECK(graph_first);
}

// A capture that copies nothing: the copy streams enter it by this join alone.
template <class Desk>
void fork_left_out() {
  for (const bool dropped : {false, true}) {
    Desk at;
    typename Desk::offloader off(at.dev, arena_options(few));
    basic_training<Desk> work{at, off};
    for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
    if (dropped) at.dev.leave_out(join_site::fork);
    const auto capture = [&] {
      auto graph = off.capture(at.compute.ref(), [&] { at.fill_own(at.compute.ref()); });
    };
    if (dropped) {
      CHECK_THROWS_AS(capture(), tidepool::device_error);
    } else {
      capture();
    }
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::foreign_capture, access_kind::recorded, out_stream,
                   access_kind::waited, "compute") == dropped);
    CHECK(at.dev.findings().empty() == !dropped);
  }
}

// A capture of a forward pass, whose offloads nothing in it waits for but this join.
template <class Desk>
void join_back_left_out() {
  for (const bool dropped : {false, true}) {
    Desk at;
    typename Desk::offloader off(at.dev, arena_options(2 * few));
    basic_training<Desk> work{at, off};
    for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
    if (dropped) at.dev.leave_out(join_site::join_back);
    const auto capture = [&] {
      std::optional<typename basic_training<Desk>::pass> open;
      auto graph = off.capture(at.compute.ref(), [&] { open = work.forward(at.compute.ref()); });
    };
    if (dropped) {
      CHECK_THROWS_AS(capture(), tidepool::device_error);
    } else {
      capture();
    }
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::not_joined, access_kind::offload, out_stream,
                   access_kind::capture_end, "compute") == dropped);
    CHECK(at.dev.findings().empty() == !dropped);
  }
}

// Reloads from before a capture, which the capture takes back: who has their memory behind it waits
// for them by this alone.
template <class Desk>
void after_capture_left_out() {
  for (const bool dropped : {false, true}) {
    Desk at;
    typename Desk::offloader off(at.dev, arena_options(2 * few));
    basic_training<Desk> work{at, off};
    for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
    auto open = work.forward(at.compute.ref());
    if (dropped) at.dev.leave_out(join_site::after_capture);
    auto graph = off.capture(at.compute.ref(), [&] { at.fill_own(at.compute.ref()); });
    std::vector<typename Desk::buffer> others;
    for (std::size_t held = 0; held < 2 * few; held += tensor_bytes) {
      others.push_back(off.allocate(tensor_bytes, at.compute.ref()));
    }
    for (auto& each : others) each.reset(at.compute.ref());
    work.backward(open, at.compute.ref());
    off.end_step();
    INFO(at.dev.report());
    CHECK(at.dev.findings().empty() == !dropped);
    CHECK(at.found(finding_kind::unordered, access_kind::reload, in_stream, access_kind::handed_out,
                   "compute") == dropped);
  }
}

template <class Desk>
void new_stream_left_out() {
  for (const bool dropped : {false, true}) {
    Desk at;
    typename Desk::offloader off(at.dev, arena_options(few));
    basic_training<Desk> work{at, off};
    for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
    auto graph = off.capture(at.compute.ref(), [&] { work.step(at.compute.ref()); });
    graph.launch(at.compute.ref());
    work.step(at.compute.ref());
    if (dropped) at.dev.leave_out(join_site::new_stream);
    work.step(at.side.ref());
    INFO(at.dev.report());
    CHECK(at.found(finding_kind::unordered, access_kind::kernel_read, "compute",
                   access_kind::handed_out, "side") == dropped);
    CHECK(at.dev.findings().empty() == !dropped);
  }
}

// ---- memory of somebody else's ----

// An allocator in the order of `compute`: what comes back is handed out again first.
template <class Desk>
struct lender {
  Desk& at;
  std::vector<void*> free{};
  std::vector<void*> all{};

  void* take(std::size_t bytes) {
    if (free.empty()) {
      all.push_back(at.dev.allocate(bytes));
      return all.back();
    }
    auto* const data = free.back();
    free.pop_back();
    return data;
  }
  void give(void* data) { free.push_back(data); }
  ~lender() {
    for (auto* each : all) at.dev.deallocate(each);
  }
};

template <class Desk>
void train_on_loan(Desk& at, join_site without) {
  lender<Desk> from{at};
  auto opts = small_options();
  opts.borrowed_slack = 0;
  typename Desk::offloader off(
      at.dev, opts,
      {.memory = tidepool::memory_on<typename Desk::device>(
           at.compute.ref(), [&](std::size_t bytes) { return from.take(bytes); },
           [&](void* data) { from.give(data); })});
  at.dev.leave_out(without);
  basic_training<Desk> work{at, off};
  for (int i = 0; i < 3; ++i) work.step(at.compute.ref());
}

template <class Desk>
void memory_on_loan_with_all_joins_has_no_findings() {
  Desk at;
  train_on_loan(at, join_site::cap);
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}

template <class Desk>
void give_back_left_out() {
  Desk at;
  train_on_loan(at, join_site::give_back);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::returned_early, access_kind::offload, out_stream,
                 access_kind::returned, "compute"));
  CHECK(names(at, join_site::give_back));
}

template <class Desk>
void borrow_left_out() {
  Desk at;
  train_on_loan(at, join_site::borrow);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, access_kind::returned, "compute", access_kind::handed_out,
                 in_stream));
  CHECK(names(at, join_site::borrow));
}

}  // namespace tidepool::test::drops
