// BF16 tensors, and what the documentation says of those that are packed.
#pragma once

#include "player.hpp"

namespace stranger {

// A type in angle brackets and the number of elements of `bytes`, in an argument list that goes on.
[[nodiscard]] inline const char* type_text(int type) {
  return type == as_bytes ? "" : type == own_number ? "<number>" : "<__nv_bfloat16>";
}
[[nodiscard]] inline std::size_t elements_of(int type, std::size_t bytes) {
  return type == as_bytes ? bytes : bytes / 2;
}

[[nodiscard]] inline buffer allocate_as(int type, offloader& off, std::size_t bytes,
                                        stream_ref on) {
  switch (type) {
    case own_number:
      return off.allocate<number>(bytes / 2, on);
    case cudas_number:
      return off.allocate<__nv_bfloat16>(bytes / 2, on);
    default:
      return off.allocate(bytes, on);
  }
}

[[nodiscard]] inline buffer adopt_as(int type, offloader& off, std::byte* data, std::size_t bytes,
                                     stream_ref on, tp::memory_owner&& owner) {
  switch (type) {
    case own_number:
      return off.adopt<number>(reinterpret_cast<number*>(data), bytes / 2, on, std::move(owner));
    case cudas_number:
      return off.adopt<__nv_bfloat16>(reinterpret_cast<__nv_bfloat16*>(data), bytes / 2, on,
                                      std::move(owner));
    default:
      return off.adopt(data, bytes, on, std::move(owner));
  }
}

inline void player::holds_bfloat16(int index) {
  auto& on = at(index);
  if (!usable(index)) return;
  call(name(index) + ".holds_bfloat16();", 0, [&] { on.h().holds_bfloat16(); });
  on.of->bfloat16 = true;
}

// Whether its offloader can be made: a device that packs nothing refuses names.
inline bool player::makes(int side) const {
  const auto& with = settings(side);
  const bool named = with.pack != 0 || (with.modules >> packed_module & 1U) != 0;
  return program_.packs_from != 0 || !named;
}

inline bool player::packs(int side, int module) const {
  const auto& with = settings(side);
  const auto bit = 1U << static_cast<unsigned>(module);
  if ((with.modules & bit) == 0) return false;
  return (with.pack & (bit | pack_all)) != 0 || module == packed_module;
}

// Of a handle whose address was `place`.
inline bool player::may_pack(const slot& one, const void* place) const {
  return one.of->bfloat16 && one.of->bytes >= program_.packs_from &&
         reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
}

// Whether packed blocks certainly find room, and all goes to the host. There they are larger than
// the tensors.
inline bool player::has_room(int side) const {
  const auto& with = settings(side);
  const auto& of = side_at(side);
  if (with.tight() || with.budget != 0 || with.tight_host()) return false;
  if (with.peer_budget != 0 || of.ever_borrowed) return false;
  return !capturing_ && !of.forgiven && !of.dirty && !device_.failed();
}

inline void player::check_packed(int side, int module, const std::vector<int>& slots,
                                 const std::vector<const void*>& places,
                                 const tp::trace::module_counters& before,
                                 const tp::trace::module_counters& after, const std::string& code) {
  std::size_t tensors = 0, link = 0;
  for (const auto& each : device_.packed()) {
    tensors += each.bytes;
    link += each.bytes / 1024 * 736 + each.bytes % 1024;
    bool may = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      auto& one = at(slots[i]);
      // A view of a part is never packed; one that stands for the whole tensor may be.
      const auto first = reinterpret_cast<std::uintptr_t>(places[i]) - one.where.offset;
      const auto from = reinterpret_cast<std::uintptr_t>(each.tensor) - first;
      if (from >= one.of->bytes) continue;  // it is packed in pieces
      may =
          may || (may_pack(one, each.tensor) && from + each.bytes <= one.of->bytes &&
                  (!one.is_view || one.whole || one.where.width * one.where.rows == one.of->bytes));
    }
    if (!may || !packs(side, module)) {
      find("packed what is to be copied as it is", code + ": " + std::to_string(each.bytes));
    }
    ++reached()["tensors packed"];
  }
  if (after.bytes_packed - before.bytes_packed != tensors ||
      after.bytes_on_link - before.bytes_on_link != link) {
    find("bytes_packed or bytes_on_link is wrong",
         code + ": " + std::to_string(after.bytes_packed - before.bytes_packed) + " and " +
             std::to_string(after.bytes_on_link - before.bytes_on_link) + ", not " +
             std::to_string(tensors) + " and " + std::to_string(link));
  }
  if (!packs(side, module)) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto& one = at(slots[i]);
    if (one.is_view || !may_pack(one, places[i]) || one.of->bytes == 0) continue;
    if (std::ranges::count(device_.copied(), places[i]) == 0) continue;
    ++reached()["BF16 tensors copied as they are"];
    const bool twice = one.of->loan >= 0 || one.of->handles + one.of->saves > 1;
    if (has_room(side) && !twice) find("copied as it is, although there is room", code);
  }
}

}  // namespace stranger
