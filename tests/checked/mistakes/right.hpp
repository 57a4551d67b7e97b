/// Trainers that look wrong and are right.
#pragma once

#include "wrong.hpp"

namespace mistakes {

// ---- joins that are there, by a way that is easily missed ----

template <class Desk>
void joined_through_third(Desk& d) {
  d.step({.forward = [&](int l) {
    d.forward(l);
    d.join(d.compute, d.side);
    d.kernel(d.side, "gelu", {writes(d.at(l))});
    d.join(d.side, d.third);
    d.join(d.third, d.compute);
  }});
}

template <class Desk>
void joined_by_the_host(Desk& d) {
  d.step({.forward = [&](int l) {
    d.forward(l);
    d.dev.synchronize(d.compute);
    d.kernel(d.side, "gelu", {writes(d.at(l))});
    d.dev.synchronize(d.side);
  }});
}

template <class Desk>
void joined_by_own_synchronize(Desk& d) {
  d.kernel(d.side, "gelu", {writes(d.scratch)});
  d.own_synchronize(d.side);
  d.kernel(d.compute, "mix", {reads(d.scratch), writes(d.scratch)});
  d.own_synchronize();
  d.kernel(d.third, "more", {writes(d.scratch)});
  d.step();
}

template <class Desk>
void event_recorded_twice(Desk& d) {
  auto done = d.make_own();
  d.kernel(d.side, "gelu", {writes(d.scratch, bytes / 2)});
  d.record(done, d.side);
  d.kernel(d.side, "tanh", {writes(static_cast<char*>(d.scratch) + bytes / 2, bytes / 2)});
  d.record(done, d.side);
  d.wait(d.compute, done);
  d.kernel(d.compute, "mix", {reads(d.scratch)});
  d.step();
}

template <class Desk>
void event_recorded_again_later(Desk& d) {
  auto done = d.make_own();
  d.kernel(d.side, "gelu", {writes(d.scratch)});
  d.record(done, d.side);
  d.wait(d.compute, done);
  d.record(done, d.third);  // the wait was for the record before
  d.kernel(d.compute, "mix", {reads(d.scratch)});
  d.wait(d.compute, done);
  d.step();
}

template <class Desk>
void joined_by_a_restore(Desk& d) {
  d.step({.backward = [&](int l) {
    d.join(d.compute, d.side);  // compute has waited for the reload
    d.kernel(d.side, "wgrad", {reads(d.at(l))});
    d.backward(l);
    d.join(d.side, d.compute);
  }});
}

template <class Desk>
void waits_that_do_nothing(Desk& d) {
  auto never = d.make_own();
  d.wait(d.compute, never);
  d.join(d.compute, d.compute);
  d.step();
}

template <class Desk>
void stream_of_each_step(Desk& d) {
  for (int i = 0; i < 3; ++i) {
    auto made = d.dev.make_stream();
    d.join(d.compute, made.ref());
    d.kernel(made.ref(), "gelu", {reads(d.weights), writes(d.scratch)});
    d.join(made.ref(), d.compute);
    d.kernel(d.compute, "mix", {reads(d.scratch), writes(d.weights)});
    d.step();
    d.dev.synchronize();
  }
}

// ---- accesses that need no order ----

template <class Desk>
void readers_at_once(Desk& d) {
  d.step({.forward =
              [&](int l) {
                d.forward(l);
                d.join(d.compute, d.side);
                d.kernel(d.side, "router", {reads(d.at(l)), reads(d.weights)});
                d.kernel(d.compute, "norm", {reads(d.at(l)), reads(d.weights)});
              },
          .commit =
              [&](int l) {
                auto behind = d.at(l).share();  // keeps the memory while `side` reads
                d.commit(l, d.compute);         // an offload reads beside it
                behind.reset(d.side);
              }});
}

template <class Desk>
void two_halves(Desk& d) {
  d.step({.forward = [&](int l) {
    d.at(l) = d.off->allocate(bytes, d.compute);
    auto* const data = static_cast<char*>(d.at(l).data());
    d.join(d.compute, d.side);
    d.kernel(d.side, "high", {writes(data + bytes / 2, bytes / 2)});
    d.kernel(d.compute, "low", {writes(data, bytes / 2)});
    d.join(d.side, d.compute);
  }});
}

// q is copied out while k, in the same rows, is still being written.
template <class Desk>
void columns_in_turn(Desk& d) {
  constexpr std::size_t width = bytes / 16, rows = 8, pitch = 2 * width;
  auto qk = d.off->allocate(rows * pitch, d.compute);
  auto q = qk.view({.width = width, .rows = rows, .pitch = pitch});
  auto k = qk.view({.offset = width, .width = width, .rows = rows, .pitch = pitch});
  const auto fill = [&](auto stream, const char* name, const auto& part) {
    for (std::size_t row = 0; row < rows; ++row) {
      d.kernel(stream, name, {writes(part.template as<char>() + row * pitch, width)});
    }
  };
  d.join(d.compute, d.side);
  fill(d.compute, "q", q);
  d.pass[0] = d.off->begin();
  d.pass[0].template commit<"act">(0, d.compute, q);
  fill(d.side, "k", k);
  qk.reset(d.side);
  d.pass[0].template commit<"act">(1, d.side, k);
  d.pass[0].end_forward();
  d.pass[0].template restore<"act">(1, d.compute, k);
  d.pass[0].template restore<"act">(0, d.compute, q);
  d.kernel(d.compute, "scores", {reads(q.data(), rows * width), reads(k.data(), rows * width)});
  q.reset(d.compute);
  k.reset(d.compute);
  d.pass[0].finish();
  d.off->end_step();
}

template <class Desk>
void padding_moved(Desk& d) {
  const auto half = [&](auto use_of, int l) { return use_of(d.at(l).data(), bytes / 2); };
  d.step({.forward =
              [&](int l) {
                d.at(l) = d.off->allocate(bytes, d.compute);
                d.kernel(d.compute, "fwd", {half([](auto... a) { return writes(a...); }, l)});
              },
          .backward =
              [&](int l) {
                d.kernel(d.compute, "bwd", {half([](auto... a) { return reads(a...); }, l)});
              }});
}

template <class Desk>
void kept_tensor_is_written(Desk& d) {
  d.step({.forward =
              [&](int l) {
                d.forward(l);
                if (l == 1) d.at(l).keep_resident();
              },
          .committed =
              [&](int l) {
                if (l == 1) d.kernel(d.compute, "next", {reads(d.at(l)), writes(d.at(l))});
              }});
}

// ---- memory that is used again ----

template <class Desk>
void block_in_turn(Desk& d) {
  d.step({.forward = [&](int l) {
    d.at(l) = d.off->allocate_from(d.block, bytes, l == 1 ? d.side : d.compute);
    if (l != 1) return d.forward_kernel(l);
    d.kernel(d.side, "fwd", {writes(d.at(l))});
    d.join(d.side, d.compute);
  }});
}

template <class Desk>
void every_handle_by_its_stream(Desk& d) {
  for (int i = 0; i < 3; ++i) {
    auto x = d.off->allocate_from(d.block, bytes, d.compute);
    d.kernel(d.compute, "fwd", {writes(x)});
    auto also = x.share();
    d.join(d.compute, d.side);
    d.kernel(d.side, "router", {reads(also)});
    x.reset(d.compute);
    also.reset(d.side);  // who gets the block next waits for both
  }
  d.step();
}

template <class Desk>
void borrowed_still_read(Desk& d) {
  d.step({.forward = [&](int l) { adopt(d, l); },
          .committed =
              [&](int l) {
                if (l == 1) d.kernel(d.compute, "next", {reads(d.scratch)});
              }});
}

template <class Desk>
void owner_uses_it_at_once(Desk& d) {
  d.step(
      {.forward =
           [&](int l) { adopt(d, l, [&d] { d.kernel(d.compute, "next", {writes(d.scratch)}); }); },
       .committed = [&](int) { d.off->release_borrowed(); }});
}

template <class Desk>
void freed_while_it_runs(Desk& d) {
  void* const gone = d.dev.allocate(bytes);
  d.kernel(d.side, "bias", {writes(gone)});
  d.dev.deallocate(gone);  // waits
  void* const again = d.dev.allocate(bytes);
  d.kernel(d.compute, "bias", {writes(again)});
  d.step();
}

template <class Desk>
void pinned_in_turn(Desk& d) {
  void* const batch[]{d.pinned(), d.pinned()};
  for (int i = 0; i < 4; ++i) {
    if (i >= 2) d.dev.synchronize(d.side);
    d.host_fill(batch[i % 2], "batch");
    d.join(d.compute, d.side);  // who read the batch before
    d.copy(d.scratch, batch[i % 2], tp::copy_direction::host_to_device, d.side);
    d.join(d.side, d.compute);
    d.kernel(d.compute, "embed", {reads(d.scratch)});
  }
  d.step();
}

// ---- passes ----

template <class Desk>
void two_in_flight(Desk& d) {
  d.forward_pass({}, 0);
  for (int i = 0; i < 3; ++i) {
    const int mb = i % 2;
    d.forward_pass({.forward = [&](int l) { d.forward(l, 1 - mb); },
                    .commit = [&](int l) { d.commit(l, d.compute, 1 - mb); }},
                   1 - mb);
    d.backward_pass({}, mb);
  }
  d.backward_pass({}, 1);
  d.off->end_step();
}

template <class Desk>
void module_left_out(Desk& d) {
  d.pass[0] = d.off->begin();
  d.forward(0);
  d.pass[0].template commit<"attn">(0, d.side, d.at(0));  // not enabled: nothing happens
  d.kernel(d.compute, "next", {writes(d.at(0))});
  d.pass[0].end_forward();
  d.pass[0].template restore<"attn">(0, d.side, d.at(0));
  d.backward(0);
  d.at(0).reset(d.compute);
  d.pass[0].finish();
  d.off->end_step();
}

template <class Desk>
void commit_behind_a_join(Desk& d) {
  d.step({.commit =
              [&](int l) {
                d.join(d.compute, d.side);
                d.commit(l, d.side);
              },
          .restore =
              [&](int l) {
                d.restore(l, d.third);
                d.join(d.third, d.compute);
              },
          .reset =
              [&](int l) {
                d.join(d.compute, d.side);
                d.at(l).reset(d.side);
              }});
}

template <class Desk>
void forgotten_group(Desk& d) {
  d.step({.restore =
              [&](int l) {
                if (l == 1) {
                  d.pass[0].template forget<"act">(1);
                } else {
                  d.restore(l, d.compute);
                }
              },
          .backward =
              [&](int l) {
                if (l != 1) d.backward(l);
              }});
}

// ---- graphs ----

template <class Desk>
void graph_that_forks(Desk& d) {
  d.step();
  auto graph = d.off->capture(d.compute, [&] {
    d.step({.forward = [&](int l) {
      d.forward(l);
      d.join(d.compute, d.side);
      d.kernel(d.side, "gelu", {writes(d.at(l))});
      d.join(d.side, d.third);
      d.join(d.third, d.compute);
    }});
  });
  graph.launch(d.compute);
  graph.launch(d.compute);
}

template <class Desk>
void graph_between_updates(Desk& d) {
  d.step();
  auto graph = d.off->capture(d.compute, [&] { d.step(); });
  for (int i = 0; i < 3; ++i) {
    graph.launch(i == 1 ? d.third : d.compute);
    d.join(i == 1 ? d.third : d.compute, d.side);
    d.kernel(d.side, "update", {reads(d.grads), writes(d.weights)});
    d.join(d.side, i == 0 ? d.third : d.compute);
    d.join(d.third, d.compute);
  }
  d.step();
}

}  // namespace mistakes
