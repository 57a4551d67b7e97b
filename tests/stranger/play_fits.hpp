// Memory that must be enough: a group that fits in sum where nothing is held, and steps of mixed
// sizes that need no more at their end than at their beginning.
#pragma once

#include "player.hpp"

namespace stranger {

// No handle, key or layer of an offloader has memory of its own.
inline bool player::nothing_held(int side) const {
  for (const auto& each : slots_) {
    if (!each.full() || !each.of || each.of->side != side || each.of->bytes == 0) continue;
    if (!lies_in_loan(each)) return false;
  }
  for (const auto& each : states_) {
    if (each.state && each.side == side) return false;
  }
  for (const auto& each : graphs_) {
    if (each.graph && each.side == side) return false;
  }
  for (const auto& each : layer_sets_) {
    if (each.of && each.side == side) return false;
  }
  for (const auto& each : key_passes_) {
    if (!each.open || each.side != side) continue;
    for (const auto& [key, tensor] : each.tensors) {
      const auto& scope = each.scopes[static_cast<std::size_t>(tensor.scope)];
      if (!tensor.excluded && scope.left && (scope.restored || scope.tried)) return false;
    }
  }
  return true;
}

// Whether its arena must hold a group that needs so much, as the documentation has it.
inline bool player::may_hold(int side, std::size_t bytes) const {
  const auto& with = settings(side);
  const auto& of = side_at(side);
  if (with.memory != 1 || with.own != none || capturing_) return false;
  if (of.forgiven || of.dirty || of.held || device_.failed()) return false;
  const auto budget = with.budget != 0 ? with.budget : roomy_device;
  return bytes <= budget / 256 * 256 && nothing_held(side);
}

// Blocks begin at multiples of 256.
inline std::size_t block_of(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

inline bool player::key_fits(const key_pass& in, int scope) const {
  std::size_t sum = 0;
  for (const auto& [key, each] : in.tensors) {
    if (each.scope == scope && !each.excluded) sum += block_of(each.bytes);
  }
  for (const auto& [loan, of] : in.dropped) {
    if (of == scope) return false;  // it comes back with the others, perhaps
  }
  return may_hold(in.side, sum);
}

inline bool player::group_fits(const pass& in, const group& which) const {
  if (which.way == or_discard || which.way == by_hand) return false;
  std::size_t sum = 0;
  std::set<const content*> counted;
  for (const auto& each : which.arguments) {
    if (at(each.slot).is_view || each.of->handles > static_cast<int>(!each.left)) return false;
    if (each.left && counted.insert(each.of.get()).second) sum += block_of(each.of->bytes);
  }
  return may_hold(in.side, sum);
}

inline void player::note_saved(int side) {
  std::size_t sum = 0;
  for (const auto& each : contents_) {
    if (each->side == side && each->saves > 0) sum += each->bytes;
  }
  side_at(side).saved = std::max(side_at(side).saved, sum);
}

// Where sizes differ from step to step, memory may grow while it learns them, and not on and on.
inline void player::check_growth(const operation& op) {
  if (!usable_side(op.a) || capturing_) return;
  // What is over is not looked at again, in programs as long as these.
  std::erase_if(contents_, [&](const content_ref& each) {
    return each->handles + each->saves == 0 &&
           (each->loan < 0 || loans_[static_cast<std::size_t>(each->loan)].times_back == 1);
  });
  auto& of = side_at(op.a);
  const auto& with = settings(op.a);
  const auto now = of.off->counters();
  if (op.b != 0) {
    of.host_then = now.host_reserved;
    of.device_then = now.device_reserved;
    of.saved_then = of.saved;
    return;
  }
  // With a lender memory of the host's may begin to be used when that has gone.
  if (of.ever_borrowed || (of.host_then == 0 && of.device_then == 0)) return;
  const auto judge = [&](const char* what, std::size_t then, std::size_t is, std::size_t step) {
    // As much more as was saved at once since, and half of that for pieces.
    const auto needs =
        then * std::max(of.saved, of.saved_then) / std::max(of.saved_then, std::size_t{1});
    if (is <= needs + needs / 2 + 2 * step) return;
    find(std::string(what) + " memory grows over steps",
         std::to_string(then) + " bytes reserved after the first part, " + std::to_string(is) +
             " now");
  };
  ++reached()["growth looked at"];
  judge("host", of.host_then, now.host_reserved, with.host_step);
  judge("device", of.device_then, now.device_reserved, with.step);
}

}  // namespace stranger
