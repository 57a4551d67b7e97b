/// Trainers with one mistake each. Where `d.wrong` is false the mistake is left out.
#pragma once

#include "desk.hpp"

namespace mistakes {

// ---- joins between the trainer's own streams ----

template <class Desk>
void side_not_joined(Desk& d) {
  d.step({.forward =
              [&](int l) {
                d.forward(l);
                if (l != 1) return;
                d.join(d.compute, d.side);
                d.kernel(d.side, "gelu", {writes(d.at(1))});
                if (!d.wrong) d.join(d.side, d.compute);
              },
          .committed =
              [&](int l) {
                if (l == 1 && d.wrong) d.join(d.side, d.compute);  // a line too late
              }});
}

template <class Desk>
void event_too_early(Desk& d) {
  auto done = d.make_own();
  if (d.wrong) d.record(done, d.side);
  d.kernel(d.side, "gelu", {writes(d.scratch)});
  if (!d.wrong) d.record(done, d.side);
  d.wait(d.compute, done);
  d.kernel(d.compute, "mix", {reads(d.scratch)});
  d.step();
}

template <class Desk>
void event_reused(Desk& d) {
  auto done = d.make_own();
  auto other = d.make_own();
  d.kernel(d.side, "gelu", {writes(d.scratch)});
  d.record(done, d.side);
  d.record(d.wrong ? done : other, d.third);  // the same object for another stream
  d.wait(d.compute, done);
  d.kernel(d.compute, "mix", {reads(d.scratch)});
  d.step();
}

template <class Desk>
void zeroed_beside(Desk& d) {
  d.join(d.compute, d.side);
  d.dev.fill_bytes(d.grads, 0, bytes, d.side);
  if (!d.wrong) d.join(d.side, d.compute);
  d.step();
}

template <class Desk>
void microbatches_mixed(Desk& d) {
  void* const stash[]{d.scratch, d.dev.allocate(bytes)};
  const auto forward = [&](int mb) {
    d.forward_pass({.forward =
                        [&](int l) {
                          d.forward(l, mb);
                          [[maybe_unused]] const auto place = d.part(l, mb);
                          if (l == 1)
                            d.kernel(d.compute, "save", {writes(stash[d.wrong ? 0 : mb])});
                        }},
                   mb);
  };
  const auto backward = [&](int mb) {
    d.backward_pass({.backward =
                         [&](int l) {
                           d.backward(l, mb);
                           [[maybe_unused]] const auto place = d.part(l, mb);
                           if (l == 1) d.kernel(d.side, "use", {reads(stash[d.wrong ? 0 : mb])});
                         }},
                    mb);
  };
  forward(0);
  d.join(d.compute, d.side);
  backward(0);
  forward(1);
  d.join(d.compute, d.side);
  backward(1);
  d.off->end_step();
}

// ---- the wrong stream, or the wrong moment, for a call ----

template <class Desk>
void commit_on_other_stream(Desk& d) {
  d.step({.commit = [&](int l) { d.commit(l, l == 1 && d.wrong ? d.side : d.compute); }});
}

template <class Desk>
void restore_on_other_stream(Desk& d) {
  d.step({.restore = [&](int l) { d.restore(l, l == 1 && d.wrong ? d.side : d.compute); }});
}

template <class Desk>
void second_reader(Desk& d) {
  d.step({.backward = [&](int l) {
    d.backward(l);
    if (l != 1) return;
    if (!d.wrong) d.off->wait_for(d.at(1), d.side);
    d.kernel(d.side, "wgrad", {reads(d.at(1))});
    d.join(d.side, d.compute);
  }});
}

// The tensor of layer 1 lies in a block that the next tensor takes at once.
template <class Desk>
void reset_while_side_reads(Desk& d) {
  d.step({.forward =
              [&](int l) {
                d.at(l) = l == 1 ? d.off->allocate_from(d.block, bytes, d.compute)
                                 : d.off->allocate(bytes, d.compute);
                d.forward_kernel(l);
              },
          .backward =
              [&](int l) {
                d.backward(l);
                if (l != 1) return;
                d.join(d.compute, d.side);
                d.kernel(d.side, "wgrad", {reads(d.at(1))});
                if (!d.wrong) d.join(d.side, d.compute);
              }});
  auto next = d.off->allocate_from(d.block, bytes, d.compute);
  d.kernel(d.compute, "next", {writes(next)});
}

template <class Desk>
void reset_on_other_stream(Desk& d) {
  d.step({.forward =
              [&](int l) {
                d.at(l) = l == 1 ? d.off->allocate_from(d.block, bytes, d.compute)
                                 : d.off->allocate(bytes, d.compute);
                d.forward_kernel(l);
              },
          .reset = [&](int l) { d.at(l).reset(l == 1 && d.wrong ? d.side : d.compute); }});
  auto next = d.off->allocate_from(d.block, bytes, d.side);
  d.kernel(d.side, "next", {writes(next)});
}

template <class Desk>
void allocated_for_other_stream(Desk& d) {
  d.step({.forward = [&](int l) {
    d.at(l) = l == 2 ? d.off->allocate(bytes, d.compute)
                     : d.off->allocate_from(d.block, bytes, l == 1 && d.wrong ? d.side : d.compute);
    d.forward_kernel(l);
  }});
}

template <class Desk>
void write_after_commit(Desk& d) {
  void* old = nullptr;
  d.step({.forward =
              [&](int l) {
                d.forward(l);
                old = d.at(l).data();
                if (l == 1 && !d.wrong) d.kernel(d.compute, "dropout", {writes(old)});
              },
          .committed =
              [&](int l) {
                if (l == 1 && d.wrong) d.kernel(d.compute, "dropout", {writes(old)});
              }});
}

// Nothing is reloaded ahead here.
template <class Desk>
void read_before_restore(Desk& d) {
  void* old = nullptr;
  d.step({.forward =
              [&](int l) {
                d.forward(l);
                old = d.at(l).data();
              },
          .restore =
              [&](int l) {
                if (l == 2 && d.wrong) d.kernel(d.compute, "peek", {reads(old)});
                d.restore(l, d.compute);
                if (l == 2 && !d.wrong) d.kernel(d.compute, "peek", {reads(d.at(l))});
              }});
}

template <class Desk>
void use_after_reset(Desk& d) {
  d.step({.reset = [&](int l) {
    void* const old = d.at(l).data();
    if (l == 1 && !d.wrong) d.kernel(d.compute, "wgrad", {reads(old)});
    d.at(l).reset(d.compute);
    if (l == 1 && d.wrong) d.kernel(d.compute, "wgrad", {reads(old)});
  }});
}

template <class Desk>
void shared_written(Desk& d) {
  typename Desk::buffer other;
  const auto relu = [&] { d.kernel(d.compute, "relu", {writes(other)}); };
  d.step({.forward =
              [&](int l) {
                d.forward(l);
                if (l == 1) other = d.at(1).share();
                if (l == 1 && !d.wrong) relu();
              },
          .committed =
              [&](int l) {
                if (l != 1) return;
                if (d.wrong) relu();
                other.reset(d.compute);
              }});
}

template <class Desk>
void use_after_free(Desk& d) {
  void* const gone = d.dev.allocate(bytes);
  d.kernel(d.compute, "bias", {writes(gone)});
  d.step();
  if (!d.wrong) d.kernel(d.compute, "bias", {reads(gone)});
  d.dev.deallocate(gone);
  if (d.wrong) d.declare(d.compute, "bias", {reads(gone)});
}

// ---- memory of the trainer's own ----

// Layer 1 saves `scratch`.
template <class Desk>
void adopt(
    Desk& d, int l, std::function<void()> free = [] {}) {
  if (l != 1) return d.forward(l);
  [[maybe_unused]] const auto place = d.part(l, 0);
  d.kernel(d.compute, "fwd", {writes(d.scratch)});
  d.at(1) = d.off->adopt(d.scratch, bytes, d.compute, [free = std::move(free)] { free(); });
}

template <class Desk>
void borrowed_reused_early(Desk& d) {
  d.step({.forward = [&](int l) { adopt(d, l); },
          .committed =
              [&](int l) {
                if (l != 1) return;
                if (!d.wrong) d.off->release_borrowed();
                d.kernel(d.compute, "next", {writes(d.scratch)});
              }});
}

template <class Desk>
void borrowed_used_elsewhere(Desk& d) {
  d.step({.forward =
              [&](int l) {
                adopt(d, l);
                if (l != 1) return;
                d.join(d.compute, d.side);
                d.kernel(d.side, "router", {reads(d.scratch)});
                if (!d.wrong) d.join(d.side, d.compute);
              },
          .committed = [&](int) { d.off->release_borrowed(); }});
}

// The owner has the memory of layer 1 back and uses it on another stream.
template <class Desk>
void stale_pointer(Desk& d) {
  d.step({.forward = [&](int l) { adopt(d, l); },
          .committed =
              [&](int l) {
                if (l != 1) return;
                d.off->release_borrowed();
                d.join(d.compute, d.side);
                d.kernel(d.side, "next", {writes(d.scratch)});
              },
          .backward =
              [&](int l) {
                [[maybe_unused]] const auto place = d.part(l, 0);
                auto* const data = l == 1 && d.wrong ? d.scratch : d.at(l).data();
                d.kernel(d.compute, "bwd", {reads(data)});
              }});
}

template <class Desk>
void state_written_elsewhere(Desk& d) {
  auto moments = d.off->state_on_host(bytes, "moments");
  auto fresh = moments.create(d.compute);
  d.join(d.compute, d.side);
  d.kernel(d.side, "adamw", {writes(fresh)});
  if (!d.wrong) d.join(d.side, d.compute);
  moments.write_back(fresh, d.compute);
  d.step();
}

// ---- memory that nobody wrote ----

template <class Desk>
void scratch_unwritten(Desk& d) {
  d.step();
  auto bias = d.off->allocate(bytes, d.compute, d.wrong ? tp::fill::none : tp::fill::zero);
  d.kernel(d.compute, "bias", {reads(bias)});
}

template <class Desk>
void half_written(Desk& d) {
  d.step({.forward = [&](int l) {
    if (l != 1) return d.forward(l);
    d.at(1) = d.off->allocate(bytes, d.compute);
    d.kernel(d.compute, "fwd", {writes(d.at(1).data(), d.wrong ? bytes / 2 : bytes)});
  }});
}

// ---- the host ----

template <class Desk>
void pinned_refilled(Desk& d) {
  void* const batch = d.pinned();
  d.host_fill(batch, "batch");
  d.copy(d.scratch, batch, tp::copy_direction::host_to_device, d.side);
  if (!d.wrong) d.dev.synchronize(d.side);
  d.host_fill(batch, "next batch");
  d.join(d.side, d.compute);
  d.kernel(d.compute, "embed", {reads(d.scratch)});
  d.step();
}

template <class Desk>
void loss_read_early(Desk& d) {
  void* const loss = d.pinned();
  d.step();
  d.copy(loss, d.grads, tp::copy_direction::device_to_host, d.compute);
  if (!d.wrong) d.dev.synchronize(d.compute);
  d.host_look(loss, "loss");
}

// ---- graphs ----

template <class Desk>
void capture_waits_outside(Desk& d) {
  d.step();
  d.join(d.compute, d.side);
  d.kernel(d.side, "update", {writes(d.weights)});
  auto updated = d.dev.make_event();
  d.dev.record(updated, d.side);
  if (!d.wrong) d.dev.wait(d.compute, updated);
  d.may_be_refused([&] {
    auto graph = d.off->capture(d.compute, [&] {
      if (d.wrong) d.dev.wait(d.compute, updated);
      d.step();
    });
    graph.launch(d.compute);
  });
}

template <class Desk>
void capture_not_joined(Desk& d) {
  d.step();
  d.may_be_refused([&] {
    auto graph = d.off->capture(d.compute, [&] {
      d.step({.forward = [&](int l) {
        d.forward(l);
        if (l != 1) return;
        d.join(d.compute, d.side);
        d.kernel(d.side, "router", {writes(d.scratch)});
        if (!d.wrong) d.join(d.side, d.compute);
      }});
    });
    graph.launch(d.compute);
  });
}

// The offloader has never been given `side`, so a launch does not wait for it.
template <class Desk>
void graph_beside_update(Desk& d) {
  d.step();
  auto graph = d.off->capture(d.compute, [&] { d.step(); });
  d.join(d.compute, d.side);
  d.kernel(d.side, "update", {writes(d.weights)});
  if (!d.wrong) d.join(d.side, d.compute);
  graph.launch(d.compute);
}

}  // namespace mistakes
