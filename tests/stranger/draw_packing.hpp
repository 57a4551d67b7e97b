// BF16 tensors, modules that pack, and sizes at the limits of the packed form: put over a program,
// so that a seed stands for what it did.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "program.hpp"

namespace stranger {

inline void draw_packing_options(program& into, dice& roll) {
  static constexpr std::array<std::size_t, 8> limits{1, 1, 1, 16, 600, 1024, 1025, 2048};
  into.packs_from = roll.chance(0.01) ? 0 : limits[static_cast<std::size_t>(roll.below(8))];
  for (auto& each : into.sides) {
    const int how = roll.below(10);
    if (how < 6) each.pack = pack_all;
    if (how >= 6 && how < 9) each.pack = each.modules & static_cast<unsigned>(roll.below(32));
    if (roll.chance(0.6)) each.peer_budget = 0;
    if (roll.chance(0.4) && each.memory != 2) each.budget = 0;
    if (roll.chance(0.2)) each.piece = static_cast<std::size_t>(roll.from(1, 24)) * 256;
    if (roll.chance(0.3)) each.min_elements = 1;
  }
}

// As large as a limit, or one more or less.
inline int packed_size(std::size_t packs_from, dice& roll) {
  static constexpr std::array<int, 9> beside{0, 0, -2, -1, 1, 2, 8, 15, 16};
  const int record = 1024 * roll.from(1, roll.chance(0.2) ? 8 : 3);
  const int limit = roll.chance(0.3) ? static_cast<int>(packs_from) : record;
  const int odd =
      roll.chance(0.3) ? roll.below(1024) : beside[static_cast<std::size_t>(roll.below(9))];
  return std::max(1, limit + odd);
}

// What a tensor is, by its size in programs whose steps are alike: captures and plans need that.
inline void draw_packing(program& into, dice& roll, bool sizes) {
  draw_packing_options(into, roll);
  const bool alike = roll.chance(0.7);
  const double resized = sizes ? 0.25 * roll.below(5) : 0;
  const double typed = roll.chance(0.6) ? 0.95 : 0.6;
  const double told = roll.chance(0.5) ? 0.05 : 0.5;
  const auto key = roll.next();
  std::vector<operation> all;
  for (auto& each : into.operations) {
    all.push_back(std::move(each));
    auto& op = all.back();
    const bool lent = op.what == kind::adopt;
    if ((op.what != kind::allocate && !lent) || op.b == 0) {
      const bool known = op.what == kind::write || op.what == kind::read || op.what == kind::share;
      if (known && roll.chance(alike ? 0.01 : 0.05)) all.push_back({kind::bfloat16, op.a});
      continue;
    }
    dice same(key + static_cast<std::uint64_t>(op.b));
    auto& with = alike ? same : roll;
    if (with.chance(resized) && op.d == 0) op.b = packed_size(into.packs_from, with);
    if (with.chance(typed)) op.f = with.from(own_number, cudas_number);
    if (lent && with.chance(0.3)) op.f += 8 * with.below(16);
    const int slot = op.a;
    if (with.chance(told)) all.push_back({kind::bfloat16, slot});
  }
  into.operations = std::move(all);
  if (resized > 0 && roll.chance(0.7)) {  // budgets for what is larger now
    for (auto& each : into.sides) {
      each.budget *= 4;
      each.own_bytes *= 4;
      each.host_budget *= 4;
      if (each.host_budget != 0) each.host_step = std::min(each.host_step, each.host_budget);
      for (auto& [bytes, count] : each.rings) bytes *= 4;
    }
  }
  if (roll.chance(0.12)) {
    into.fault_call = roll.from(12, 13);
    into.fault_at = roll.from(1, 12);
  }
}

// A few tensors at the limits as they really are: 256 KiB (64 KiB on the virtual device), and the
// 16 MiB of the tensor that a piece of the reload stands for.
inline void draw_packing_large(program& into, dice& roll) {
  const bool pieces = roll.chance(0.12);
  into.sides.assign(1, side{});
  into.operations.clear();
  into.fault_at = 0;
  into.packs_from = std::size_t{roll.chance(0.5) ? 64U : 256U} << 10;
  into.memory = std::size_t{pieces ? 512U : 32U} << 20;
  into.grain = pieces ? 1 << 20 : 16;
  auto& with = into.sides[0];
  with.margin = roll.chance(0.2);
  with.pack = roll.chance(0.8) ? pack_all : 0b0011;
  with.step = std::size_t{1} << (pieces ? 25 : 19);
  with.host_step = with.step;
  with.host_budget = into.memory / 2;
  with.ahead = roll.from(0, 2);
  const auto add = [&](operation op) { into.operations.push_back(std::move(op)); };
  const auto a_stream = [&] { return roll.below(into.streams); };
  static constexpr std::array<int, 9> beside{0, -1, -2, 2, 1, 1022, 1024, -1024, 16};
  const int unit = pieces ? 16 << 20 : static_cast<int>(into.packs_from);
  std::size_t most = 0;
  std::vector<int> sizes;
  for (int n = roll.from(1, pieces ? 2 : 4); n > 0; --n) {
    const int times = pieces && roll.chance(0.3) ? 2 : 1;
    sizes.push_back(times * unit + beside[static_cast<std::size_t>(roll.below(9))]);
    most = std::max(most, static_cast<std::size_t>(sizes.back()));
  }
  // Room for hardly more than one tensor, for packed blocks beside it, or for all.
  if (roll.chance(0.5))
    with.budget = (most + 255) / 256 * 256 + most / 4 * static_cast<std::size_t>(roll.below(6));
  if (with.budget != 0) with.memory = roll.below(2);
  const int count = static_cast<int>(sizes.size());
  for (int step = pieces ? 1 : roll.from(1, 3); step > 0; --step) {
    add({kind::begin, 1, 0, 1});
    for (int t = 0; t < count; ++t) {
      const int stream = a_stream();
      const int type = roll.from(as_bytes, cudas_number);
      const int bytes = sizes[static_cast<std::size_t>(t)];
      if (roll.chance(0.3)) {
        const int aside = roll.chance(0.4) ? 8 * roll.below(16) : 0;
        add({kind::adopt, t, bytes, stream, roll.below(3), 0, {}, type + aside});
      } else {
        add({kind::allocate, t, bytes, stream, 0, 0, {}, type});
        add({kind::write, t, stream});
      }
      if (type == as_bytes && roll.chance(0.8)) add({kind::bfloat16, t});
      add({kind::commit, 1, t % 4, t, a_stream(), plain, {t}});
    }
    add({kind::end_forward, 1});
    for (int t = count; t-- > 0;) {
      add({kind::restore, 1, 0, a_stream()});
      add({kind::read, t, a_stream()});
      add({kind::reset, t, a_stream()});
    }
    add({kind::finish, 1});
    if (roll.chance(0.5)) add({kind::check_idle, 0});
    add({kind::end_step, 0});
  }
}

}  // namespace stranger
