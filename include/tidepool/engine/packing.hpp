// Tensors that are packed before they take the link to the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/codec/pack_form.hpp"
#include "tidepool/core/block.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

// The parts of a packed tensor in its block on the host. The link carries the first; kernels write
// and read the second in place.
struct packed_block {
  explicit packed_block(const storage& store)
      : packed(static_cast<std::byte*>(store.there.memory.data)),
        spill(packed + pack_form::spill_at(store.bytes)),
        link(pack_form::packed_bytes(store.bytes)) {}

  std::byte* packed;
  std::byte* spill;
  std::size_t link;
};

// A tensor is packed, and comes back, in pieces of whole records, so that a large tensor needs
// device memory for one piece alone on its way back.
inline constexpr std::size_t packed_piece = std::size_t{32} << 20;
static_assert(packed_piece % (16 * pack_form::tensor_record) == 0,
              "pieces of the spill are aligned");

// Calls `each(start, bytes)` for the pieces of a tensor.
template <class Each>
void for_each_piece(std::size_t tensor_bytes, const Each& each) {
  for (std::size_t start = 0; start < tensor_bytes; start += packed_piece) {
    each(start, std::min(packed_piece, tensor_bytes - start));
  }
}

// Device memory that holds packed tensors until the link has taken or brought them. No call of the
// engine leaves any of it taken.
struct staged_tensors {
  std::vector<block> outgoing;  // of one group, in the order of its arguments
  std::size_t queued = 0;       // of `outgoing`
  block incoming;               // serves one tensor after the other; null: none was free

  [[nodiscard]] bool any() const { return !outgoing.empty() || incoming; }
  [[nodiscard]] copy_item next_out(const storage& store) {
    const packed_block there(store);
    return {there.packed, outgoing[queued++].data, there.link};
  }
};

// The modules whose tensors are packed, a bit for each. Throws `option_error` if the device cannot
// pack.
[[nodiscard]] inline std::uint64_t packed_modules(const hardware& dev, const options& opts,
                                                  const std::vector<std::string>& names) {
  if (opts.pack.empty()) return 0;
  if (dev.can().packs_from == 0) {
    throw option_error(
        "tidepool: pack: this device (" + std::string(dev.name()) +
        ") does not pack. A cuda_device does: #include <tidepool/pack.hpp> in a file"
        " that nvcc compiles, and call device.use(tidepool::cuda_packer()) before the"
        " offloader is made. Otherwise take --pack out");
  }
  if (opts.pack.front() == "all") return ~std::uint64_t{0};
  std::uint64_t bits = 0;
  for (std::size_t m = 0; m < names.size(); ++m) {
    if (std::ranges::find(opts.pack, names[m]) != opts.pack.end()) bits |= std::uint64_t{1} << m;
  }
  return bits;
}

}  // namespace tidepool::detail
