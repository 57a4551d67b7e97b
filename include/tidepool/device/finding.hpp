/// The findings of a device that checks the order of accesses, and their text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tidepool/core/join_site.hpp"

namespace tidepool::inline v0_3_0 {

/// The kind of an access to memory.
enum class access_kind : std::uint8_t {
  kernel_read,   ///< a kernel reads, as the trainer declared
  kernel_write,  ///< a kernel writes, as the trainer declared
  copy,          ///< a copy of the trainer's
  offload,       ///< an offloader copies to the host
  reload,        ///< an offloader copies back
  fill,          ///< memory is filled on a stream
  host_read,     ///< the host reads, as the trainer declared
  host_write,    ///< the host writes, as the trainer declared
  handed_out,    ///< an offloader gives memory to a stream
  given_back,    ///< an offloader takes it back: a commit, a reset, an eviction
  returned,      ///< borrowed memory goes back to its owner
  allocated,     ///< memory is taken from the device
  freed,         ///< memory goes back to the device
  recorded,      ///< an event is recorded
  waited,        ///< a stream waits for an event
  capture_end    ///< a capture ends
};

/// An access that takes part in a finding.
struct checked_access {
  access_kind kind{};        ///< the kind of access
  std::string name;          ///< the name that was declared; or empty
  std::string stream;        ///< by name, or by number in order of creation
  std::string module;        ///< empty if it is not known
  int layer = -1;            ///< -1: none
  int microbatch = -1;       ///< -1: none
  std::uint64_t graph = 0;   ///< the number of its capture; 0: none
  std::uint64_t number = 0;  ///< its number in the order of issue
  bool writes = false;       ///< true for a write, false for a read
};

/// The mistake between two accesses.
enum class finding_kind : std::uint8_t {
  unordered,        ///< both touch the same bytes, one writes, and neither waits for the other
  never_written,    ///< the second reads bytes without a write since the first handed them out
  given_back,       ///< the second touches memory after the first gave it back
  returned_early,   ///< borrowed memory went back before its owner's stream had joined its last use
  foreign_capture,  ///< a stream waits for an event from the other side of a capture
  not_joined        ///< a capture ends before one of its streams was joined back
};

/// A mistake: two accesses, the bytes, and the missing order between them.
struct finding {
  finding_kind kind{};         ///< the mistake
  checked_access first;        ///< the access that was issued first
  checked_access second;       ///< the access that is wrong after it
  const void* data = nullptr;  ///< the first byte that both touch
  std::size_t bytes = 0;       ///< number of bytes that both touch
  /// The join of an offloader that would order the two accesses; empty if no join of an offloader
  /// does.
  std::optional<join_site> missing;
  std::uint64_t times = 1;  ///< how often this pair was found
};

namespace detail {

// The first words about an access.
[[nodiscard]] inline std::string_view words_of(access_kind kind) {
  constexpr std::string_view words[]{"kernel",
                                     "kernel",
                                     "a copy",
                                     "an offload",
                                     "a reload",
                                     "a fill",
                                     "the host",
                                     "the host",
                                     "the memory is handed out",
                                     "the memory is given back",
                                     "the memory goes back to its owner",
                                     "the memory is allocated",
                                     "the memory is freed",
                                     "an event is recorded",
                                     "a wait",
                                     "the capture ends"};
  return words[static_cast<std::size_t>(kind)];
}

// "kernel 'gelu' writes on stream 'compute', expert_fc1 of layer 2, microbatch 1 [#120]"
[[nodiscard]] inline std::string words_of(const checked_access& access) {
  std::string text(words_of(access.kind));
  if (!access.name.empty()) text += " '" + access.name + "'";
  if (access.kind < access_kind::handed_out) text += access.writes ? " writes" : " reads";
  if (!access.stream.empty()) text += " on " + access.stream;
  if (!access.module.empty()) {
    text += ", " + access.module;
    if (access.layer >= 0) text += " of layer " + std::to_string(access.layer);
    if (access.microbatch >= 0) text += ", microbatch " + std::to_string(access.microbatch);
  }
  if (access.graph != 0) text += ", in graph " + std::to_string(access.graph);
  return text + " [#" + std::to_string(access.number) + "]";
}

[[nodiscard]] inline std::string_view headline_of(finding_kind kind) {
  constexpr std::string_view lines[]{
      "two accesses to the same bytes without an order",
      "memory is read that nothing has written since it was handed out",
      "memory is touched after it was given back",
      "borrowed memory goes back to its owner before the owner's stream has joined its last use",
      "a stream waits for an event from the other side of a capture",
      "a capture ends before one of its streams was joined back"};
  return lines[static_cast<std::size_t>(kind)];
}

// The remedy in the trainer's code for a missing join of an offloader.
[[nodiscard]] inline std::string_view remedy_of(join_site site) {
  switch (site) {
    case join_site::producer:
      return "commit on the stream that writes the tensor, or make the stream of the commit wait "
             "for it first";
    case join_site::device_reuse:
    case join_site::reload_reuse:
      return "commit or reset the tensor on the stream of its last use, or make that stream wait "
             "for it first";
    case join_site::consumer:
      return "restore on the stream that uses the tensor, make that stream wait for the one that "
             "restored, or call wait_for(tensor, stream)";
    case join_site::borrow:
    case join_site::give_back:
      return "give the memory up on the stream of its last use, and allocate it in the order of "
             "the stream that its allocator serves";
    case join_site::launch:
      return "launch on a stream that waits for the first access, or through the offloader";
    case join_site::after_launch:
      return "make the stream of the second access wait for the launch";
    default:
      return "no call of a trainer makes this join: the offloader, or the device, left it out";
  }
}

// The remedy for two accesses that no join of an offloader orders; empty if only the wait helps.
[[nodiscard]] inline std::string_view remedy_between(const finding& found) {
  const auto first = found.first.kind;
  const auto second = found.second.kind;
  if (second == access_kind::host_read || second == access_kind::host_write) {
    return ": synchronize the stream, or the event, before the host goes on";
  }
  if (first == access_kind::offload && !found.first.writes) {
    return ": write the tensor before its commit, or once the offloader has given the memory back";
  }
  if (first == access_kind::handed_out) {
    return ": or allocate the memory for the stream that uses it first";
  }
  return {};
}

[[nodiscard]] inline std::string missing_of(const finding& found) {
  const auto& first = found.first.stream;
  const auto& second = found.second.stream;
  switch (found.kind) {
    case finding_kind::never_written:
      return "a write of these bytes ahead of the read, or its declaration: dev.writes(pointer, "
             "bytes, stream, name)";
    case finding_kind::given_back:
      return found.first.kind == access_kind::freed
                 ? "use the memory before it is freed"
                 : "use the memory before it is given back, or restore the tensor first";
    case finding_kind::foreign_capture:
      return "record the event on the same side of the capture as the wait";
    case finding_kind::not_joined:
      return "the stream that captures has to wait for an event that " + first +
             " records behind its last work";
    default:
      break;
  }
  std::string text = first == second ? "the second access has to wait for the first"
                                     : (second.empty() ? "the host" : second) +
                                           " has to wait for an event that " + first +
                                           " records behind the first access";
  if (found.missing) {
    text += " (join '" + std::string(name_of(*found.missing)) + "'): ";
    return text.append(remedy_of(*found.missing));
  }
  return text.append(remedy_between(found));
}

}  // namespace detail

/// A finding in four lines of words: both accesses, and the missing order between them.
[[nodiscard]] inline std::string to_text(const finding& found) {
  std::string text(detail::headline_of(found.kind));
  if (found.bytes > 0) {
    text += " (" + std::to_string(found.bytes) + " bytes";
    if (found.times > 1) text += ", found " + std::to_string(found.times) + " times";
    text += ")";
  }
  return text + "\n  first:   " + detail::words_of(found.first) +
         "\n  second:  " + detail::words_of(found.second) +
         "\n  missing: " + detail::missing_of(found) + "\n";
}

}  // namespace tidepool
