// Memory that another device lends: borrowed, returned, and taken away between any two calls.
#pragma once

#include <tidepool/places/lending.hpp>

#include "player.hpp"

namespace stranger {

// What a begin of a pass that trains, and a launch, may throw: the lender is gone.
inline unsigned player::may_miss_lender(int side) const {
  const auto& of = side_at(side);
  if (!of.borrows || of.lender_here) return 0;
  return !of.moves_on || of.graphs_since || capturing_ ? static_cast<unsigned>(gone) : 0U;
}

// A pass that trains has begun.
inline void player::begun_without_lender(int side, const std::string& code) {
  auto& of = side_at(side);
  if (!of.borrows || of.lender_here) return;
  if (!of.moves_on && !of.begun) find("a step begins without its lender", code);
  note_loan(side);
}

// What moves on has given it back.
inline void player::note_loan(int side) {
  auto& of = side_at(side);
  for (const auto& each : of.off->counters().places) {
    if (!each.name.starts_with("peer") || each.budget != 0) continue;
    ++reached()["moved on"];
    of.borrows = false;
  }
  if (!of.borrows && of.lent && of.lent->in_use()) find("moved on, and has it still", "");
}

inline void player::borrow_memory(const operation& op) {
  if (!usable_side(op.a) || capturing_ || settings(op.a).peer_budget != 0) return;
  auto& of = side_at(op.a);
  const auto n = std::to_string(op.a);
  const auto code = off_name(op.a) + "->borrow(lent" + n +
                    "->handle(), tp::lender_gone::" + (op.c != 0 ? "moves_on" : "fails") + ");";
  const auto then = op.c != 0 ? tp::lender_gone::moves_on : tp::lender_gone::fails;
  if (of.borrows) {
    if (of.lent) refused(code, [&] { of.off->borrow(of.lent->handle(), then); });
    return;
  }
  const auto bytes = static_cast<std::size_t>(op.b);
  call("lent" + n + ".emplace(neighbour, " + std::to_string(bytes) + ", \"rank " + n + "\");", 0,
       [&] { of.lent.emplace(neighbour_, bytes, "rank " + n); });
  if (call(code, may(op.a), [&] { of.off->borrow(of.lent->handle(), then); }) != 0) {
    if (of.lent->in_use()) find("a borrow that failed keeps the loan", code);
    return;
  }
  of.borrows = of.lender_here = of.ever_borrowed = true;
  of.moves_on = op.c != 0;
  of.graphs_since = false;
  if (!of.lent->in_use()) find("borrowed, and nobody has it", code);
}

inline void player::return_memory(int side) {
  if (!usable_side(side) || capturing_) return;
  auto& of = side_at(side);
  const bool must = !of.borrows || (idle(side) && !of.graphs_since && !of.dirty && !of.forgiven);
  const auto threw =
      call(off_name(side) + "->return_loan();", must ? 0U : static_cast<unsigned>(misuse),
           [&] { of.off->return_loan(); });
  if (threw != 0 || !of.borrows) return;
  if (of.graphs_since) find("returned, although graphs copy to it", "");
  of.borrows = false;
  if (of.lent && of.lent->in_use()) find("returned, and in use", "");
}

inline void player::lender_goes(const operation& op) {
  if (capturing_ || !usable_side(op.a)) return;
  auto& of = side_at(op.a);
  if (!of.borrows || !of.lent) return;
  const auto name = "lent" + std::to_string(op.a);
  if (op.b != 0) {
    call(name + ".reset();", 0, [&] { of.lent.reset(); });
  } else {
    call(name + "->take_back();", 0, [&] { of.lent->take_back(); });
  }
  of.lender_here = false;
}

// Of an offloader all of which is given up: whether it can train again.
inline bool player::without_lender(int side) {
  auto& of = side_at(side);
  if (!of.borrows || of.lender_here) return true;
  if (of.graphs_since) return false;  // another offloader is needed
  if (!of.moves_on || at_operation_ % 2 == 0) return_memory(side);
  return of.moves_on || !of.borrows;
}

inline void player::check_lenders() {
  for (auto& each : sides_) {
    if (each.lent && each.lent->in_use()) find("all is gone, and a loan is in use", "");
    each.lent.reset();
  }
  // What an exception leaves mapped stays so until the virtual device goes.
  if (device_.failed()) return;
  if (neighbour_.memory().free != neighbour_.memory().total) find("a lender has not all back", "");
}

}  // namespace stranger
