/// The memory behind handles and saved entries: plain data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tidepool/core/block.hpp"
#include "tidepool/core/clocks.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail {

// What a storage belongs to: an `engine`, which lives as long as anybody refers to it.
struct storage_owner {
  std::size_t references = 1;
};

// A rectangle of bytes inside a storage.
struct rectangle {
  std::size_t offset;
  std::size_t width;
  std::size_t rows;
  std::size_t pitch;

  [[nodiscard]] std::size_t bytes() const { return width * rows; }
  // The same rows, closed up.
  [[nodiscard]] rectangle dense() const { return {0, width, rows, width}; }
  friend bool operator==(const rectangle&, const rectangle&) = default;
};

// The memory behind one or more handles and saved entries. Its identity is this object, never its
// address on the device: addresses are reused, the object is not while anyone refers to it.
struct storage {
  storage_owner* owner = nullptr;
  block_source* source = nullptr;  // of its device memory; null: the offloader's own
  std::size_t bytes = 0;
  std::size_t elements = 0;
  std::uint64_t number = 0;            // no other storage ever has it
  std::uint32_t handles = 0;           // held outside
  std::uint32_t saves = 0;             // held by committed groups
  std::uint32_t stays = 0;             // of committed groups that stay by policy
  bool keep = false;                   // opted out of offloading
  bool of_host_state = false;          // a host_state's
  bool wanted = false;                 // backward has come to a group that saved it
  place_kind place{};                  // where the latest copy went
  bool borrowed = false;               // its device memory is somebody else's
  bool discarded = false;              // backward computes it again
  bool of_graph = false;               // its device memory is, and never free again
  bool captured = false;               // made inside a capture
  bool filled = false;                 // by us, since it was last handed out
  bool zeroed = false;                 // whenever it is handed out for new contents
  int module = -1;                     // of the group that saved it last, for messages
  std::uint32_t planned = 0xFFFFFFFF;  // its number in the step that the plan was made for
  block on_device;                     // empty while away
  block copy;                          // in its place; empty while there is none
  ticket offloaded;                    // the copy to its place
  ticket reloaded;                     // the last copy back
  fence last_use;                      // of handles that are gone
  lane_id handed_to{};                 // the lane that was last made to wait for the memory
  std::uint64_t handed_at = 0;         // the next position there
  std::uint64_t origin = 0;            // the number of the storage of which this is a rectangle
  rectangle part{};
  storage* next_part = nullptr;     // in the index of parts
  std::uint32_t idle = 0xFFFFFFFF;  // its slot among the storages that nobody holds
};

}  // namespace tidepool::detail
