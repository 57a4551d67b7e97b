/// The memory behind handles and saved entries: plain data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tidepool/core/block.hpp"
#include "tidepool/core/clocks.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

// The owner of storages, an `engine`. It lives as long as its offloader, or a handle or chunk,
// refers to it.
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
  // The rectangle of the same rows without gaps, at offset 0.
  [[nodiscard]] rectangle dense() const { return {0, width, rows, width}; }
  friend bool operator==(const rectangle&, const rectangle&) = default;
};

// The contents of a tensor in one place.
struct copy_in {
  block memory;    // empty while the contents are not in this place
  ticket written;  // end of the last copy to this place
};

// The memory behind one or more handles and saved entries. A storage is identified by its object,
// not by its device address, because addresses are reused. The object is not reused while a handle
// or a group refers to it.
struct storage {
  // The latest lane that was made to wait for the memory, and the lane's next position at that
  // time.
  struct hand_over {
    lane_id to{};
    std::uint64_t at = 0;
  };
  // The rectangle of another storage of which this one is a dense copy. If `is.counted`, the rows
  // at the begin of this storage that move.
  struct part_of {
    std::uint64_t of = 0;  // number of that storage; 0: not a copy of a part
    rectangle what{};
    storage* next = nullptr;  // next one in the index of parts
  };
  struct flags {
    bool kept = false;           // opted out by `keep_resident`
    bool of_host_state = false;  // holds the contents of a host_state
    bool wanted = false;         // backward has reached a group that saved it
    bool borrowed = false;       // its device memory belongs to another owner
    bool discarded = false;      // backward computes it again
    bool of_graph = false;       // its device memory belongs to a graph, and is never free again
    bool captured = false;       // made inside a capture
    bool filled = false;         // its memory was filled since it was last handed out
    bool zeroed = false;         // its memory is zeroed for new contents
    bool bfloat16 = false;       // it holds BF16 numbers
    bool packed = false;         // its copy on the host is packed
    bool counted = false;        // only the rows of `part.what` move (`counts_rows`)
  };

  storage_owner* owner = nullptr;
  block_source* source = nullptr;  // source of its device memory; null: the offloader's own
  std::uint64_t number = 0;        // unique: no other storage ever has this number
  std::size_t bytes = 0;
  std::size_t elements = 0;
  std::uint32_t handles = 0;           // handles outside the engine
  std::uint32_t saves = 0;             // committed groups that saved it
  std::uint32_t stays = 0;             // committed groups that keep it on the device by policy
  int module = -1;                     // module of the latest group that saved it, for messages
  std::uint32_t planned = 0xFFFFFFFF;  // its number in the step that the plan was made for
  std::uint32_t idle = 0xFFFFFFFF;     // its slot in `engine::idle_`
  flags is;
  place_kind place{};  // place of the latest copy
  copy_in here;        // contents on the device
  copy_in there;       // contents in `place`
  fence used;          // last uses of the device memory by handles that are gone
  hand_over handed;
  part_of part;

  // Bytes that are copied to a place and back.
  [[nodiscard]] std::size_t moved() const { return is.counted ? part.what.bytes() : bytes; }
};

}  // namespace tidepool::detail
