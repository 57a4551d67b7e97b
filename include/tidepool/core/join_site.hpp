/// The places where the engine makes one stream wait for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidepool::inline v0_3_0 {

/// Every place where the engine makes one stream wait for another. Tests tell a device to leave one
/// of them out, to show that each is needed.
enum class join_site : std::uint8_t {
  producer,       ///< an offload waits for the kernel that wrote its source
  device_reuse,   ///< a compute stream waits until the last user of a device block has ended
  reload_reuse,   ///< a reload waits until the last user of its device block has ended
  host_reuse,     ///< an offload waits until the reload out of its host block has ended
  own_offload,    ///< a reload waits for the offload of the same storage
  unpack,         ///< a kernel that unpacks waits for the copy of what it reads
  consumer,       ///< a compute stream waits for the reload of the tensor that it will read
  cap,            ///< a compute stream waits because too many offloads are in flight
  launch,         ///< a graph waits for the work that all streams were given before it
  after_launch,   ///< eager work waits for the graphs before it
  fork,           ///< all copy streams enter a capture
  join_back,      ///< all copy streams are joined before the capture ends
  after_capture,  ///< eager work waits for eager work from before the capture
  new_stream,     ///< a stream that is new after a capture waits for all work before it
  borrow,      ///< a stream waits for the stream whose allocator gave the memory that it will touch
  give_back,   ///< the stream of an owner waits for the last use of memory that goes back to it
  peer_reuse,  ///< an offload waits until the reload out of its block of a neighbour has ended
  file_write,  ///< the host waits for a copy into the ring of a file before it writes the file
  file_reuse,  ///< the host waits for a copy out of the ring of a file before it refills the slot
  row_count,   ///< the host waits for the copies of row counts before it reads the counts
  count        ///< how many there are
};

/// The name of a join, as traces and `--drop-joins` of the tests have it.
[[nodiscard]] constexpr std::string_view name_of(join_site site) {
  constexpr std::string_view names[]{"producer",      "device_reuse", "reload_reuse", "host_reuse",
                                     "own_offload",   "unpack",       "consumer",     "cap",
                                     "launch",        "after_launch", "fork",         "join_back",
                                     "after_capture", "new_stream",   "borrow",       "give_back",
                                     "peer_reuse",    "file_write",   "file_reuse",   "row_count"};
  return names[static_cast<std::size_t>(site)];
}

}  // namespace tidepool
