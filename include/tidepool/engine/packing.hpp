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
#include "tidepool/core/clocks.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::detail {

// The parts of a packed tensor in its block on the host. The link carries the first; kernels write
// and read the second in place.
struct packed_block {
  explicit packed_block(const storage& store)
      : packed(static_cast<std::byte*>(store.there.memory.data)),
        spill(packed + pack_form::spill_at(store.moved())),
        link(pack_form::packed_bytes(store.moved())) {}

  std::byte* packed;
  std::byte* spill;
  std::size_t link;
};

// Device memory through which the packed tensors of a group come back. The first block has room for
// each piece, and the second for several, so that small tensors share a kernel's wait.
struct incoming_sizes {
  std::size_t piece;  // tensor bytes of a piece
  std::size_t first = 0;
  std::size_t all = 0;  // of the packed tensors

  // The largest packed piece may be the last, because bytes behind the last record travel as they
  // are.
  void add(std::size_t tensor_bytes) {
    first = std::max({first, pack_form::packed_bytes(std::min(tensor_bytes, piece)),
                      pack_form::packed_bytes(tensor_bytes % piece)});
    all += aligned(pack_form::packed_bytes(tensor_bytes));
  }
  [[nodiscard]] std::size_t second() const {
    const auto rest = std::min(all - aligned(first), pack_form::packed_bytes(piece));
    return rest == 0 ? 0 : std::max(first, rest);
  }
};

// Bytes of the tensors so far that could be packed, whether there was room for packing or not.
struct packing_sizes {
  std::uint64_t tensors = 0;
  std::uint64_t link = 0;       // of their packed forms
  std::uint64_t offloaded = 0;  // of all groups that went to the host meanwhile
  std::size_t incoming = 0;     // packed forms that are on the device at once on their way back
  std::size_t of_group = 0;     // packed forms of one group

  // Device memory that a step needs beside its tensors, so that every tensor can be packed.
  [[nodiscard]] std::size_t staging() const { return incoming + aligned(of_group); }
  // The rates of a link in bytes of tensors. Packed tensors take less time, unless their unpacking,
  // beside the link, takes longer.
  [[nodiscard]] plan::link_rates rates(plan::link_rates of, double unpack_rate) const {
    if (tensors == 0 || offloaded < tensors) return of;
    const auto all = static_cast<double>(offloaded);
    const auto share = 1 - static_cast<double>(tensors - link) / all;
    const auto packed = static_cast<double>(tensors) / all;
    const auto unpack = unpack_rate > 0 ? packed / unpack_rate : 0;
    of.out /= share;
    of.in = 1 / std::max(share / of.in, unpack);
    of.both /= share;
    return of;
  }
};

// A piece of a tensor that a kernel unpacks once its copy is there.
struct arriving_piece {
  std::byte* tensor;
  const std::byte* packed;
  const std::byte* spill;
  std::size_t bytes;
};

// Device memory that holds packed tensors until the link has taken or brought them. No call of the
// engine leaves any of it taken.
struct staged_tensors {
  // A commit has a block for each tensor, in the order of its arguments. A reload has two, so that
  // the link fills the first while a kernel unpacks the second; then they change places. It has one
  // if that is enough, or all there is room for, and none if kernels read host memory.
  std::vector<grant> blocks;
  std::size_t queued = 0;                // blocks of a commit whose copies are queued
  std::size_t filled = 0;                // bytes of the first block of a reload
  std::vector<arriving_piece> arriving;  // pieces in it, or all that kernels read on the host

  [[nodiscard]] bool any() const { return !blocks.empty() || !arriving.empty(); }
  [[nodiscard]] copy_item next_out(const storage& store) {
    const packed_block there(store);
    return {there.packed, blocks[queued++].memory.data, there.link};
  }
};

// True if plans decide whether tensors are packed. Until the first plan they are, so that the plan
// knows the sizes.
[[nodiscard]] inline bool packed_by_plan(const options& opts) {
  return !opts.pack.empty() && opts.pack.front() == "auto";
}

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
  // A piece begins where a part of the spill begins.
  constexpr auto unit = pack_form::records_of_spill * pack_form::tensor_record;
  if (const auto piece = dev.can().pack_piece; piece == 0 || piece % unit != 0) {
    throw option_error("tidepool: pack: this device (" + std::string(dev.name()) +
                       ") unpacks pieces of " + std::to_string(piece) +
                       " B; its pack_piece() must return a multiple of " + std::to_string(unit));
  }
  if (opts.pack.front() == "all" || packed_by_plan(opts)) return ~std::uint64_t{0};
  std::uint64_t bits = 0;
  for (std::size_t m = 0; m < names.size(); ++m) {
    if (std::ranges::find(opts.pack, names[m]) != opts.pack.end()) bits |= std::uint64_t{1} << m;
  }
  return bits;
}

}  // namespace tidepool::detail
