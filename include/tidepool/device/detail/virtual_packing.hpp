// How the virtual device packs: on the CPU, at the rates of its machine.
#pragma once

#include <cstddef>
#include <utility>

#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/virtual.hpp"

namespace tidepool::inline v0_3_0 {

TIDEPOOL_INLINE void virtual_device::pack(std::byte* packed, std::byte* spill,
                                          const std::byte* tensor, std::size_t bytes,
                                          stream_ref on) {
  auto run = [=, moves = model_.moves_bytes] {
    if (moves) pack_form::pack(packed, spill, tensor, bytes);
  };
  launch(on, static_cast<double>(bytes) / model_.pack_rate, std::move(run), "pack",
         {{tensor, bytes, false},
          {packed, pack_form::packed_bytes(bytes), true},
          {spill, pack_form::spill_bytes(bytes), true}});
}

TIDEPOOL_INLINE void virtual_device::unpack(std::byte* tensor, const std::byte* packed,
                                            const std::byte* spill, std::size_t bytes,
                                            stream_ref on) {
  const auto link = pack_form::packed_bytes(bytes);
  auto ns = static_cast<double>(bytes) / model_.unpack_rate;
  if (spill == packed + pack_form::spill_at(bytes))
    ns += static_cast<double>(link) / model_.reload_rate;
  auto run = [=, moves = model_.moves_bytes] {
    if (moves) pack_form::unpack(tensor, packed, spill, bytes);
  };
  launch(on, ns, std::move(run), "unpack",
         {{packed, link, false},
          {spill, pack_form::spill_bytes(bytes), false},
          {tensor, bytes, true}});
}

}  // namespace tidepool
