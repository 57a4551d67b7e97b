// The findings so far: each pair of accesses once, with its names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tidepool/device/detail/order_clocks.hpp"
#include "tidepool/device/detail/order_step.hpp"
#include "tidepool/device/finding.hpp"

namespace tidepool::inline v0_3_0::detail {

class finding_list {
 public:
  static constexpr std::size_t most = 64;  // the most pairs that are kept

  // Names are kept once, as numbers; 0 is none.
  [[nodiscard]] std::uint32_t number_of(std::string_view name) {
    if (name.empty()) return 0;
    if (const auto at = numbers_.find(name); at != numbers_.end()) return at->second;
    const auto fresh = static_cast<std::uint32_t>(names_.size());
    names_.emplace_back(name);
    numbers_.emplace(std::string(name), fresh);
    return fresh;
  }

  void add(finding_kind kind, const order_access& first, bool first_writes,
           const order_access& second, bool second_writes, std::uintptr_t begin, std::uintptr_t end,
           const order_clocks& clocks) {
    ++count_;
    for (auto& old : pairs_) {
      if (old.kind != kind || !alike(old.first, first) || !alike(old.second, second)) continue;
      auto& known = found_[old.index];
      // Pieces of one range that the same two accesses touch count as one finding.
      const auto next = reinterpret_cast<std::uintptr_t>(known.data) + known.bytes;
      if (known.first.number == first.number && known.second.number == second.number &&
          next == begin) {
        known.bytes += end - begin;
      } else {
        ++known.times;
      }
      return;
    }
    if (found_.size() == most) return;
    finding fresh;
    fresh.kind = kind;
    fresh.first = told(first, first_writes, clocks);
    fresh.second = told(second, second_writes, clocks);
    fresh.data = reinterpret_cast<const void*>(begin);  // NOLINT(performance-no-int-to-ptr)
    fresh.bytes = end - begin;
    if (kind == finding_kind::unordered || kind == finding_kind::returned_early) {
      fresh.missing = join_between(first, first_writes, second, second_writes, clocks);
    }
    pairs_.push_back({kind, first, second, found_.size()});
    found_.push_back(std::move(fresh));
  }

  [[nodiscard]] const std::vector<finding>& all() const { return found_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  void clear() {
    found_.clear();
    pairs_.clear();
    count_ = 0;
  }

 private:
  struct pair {
    finding_kind kind{};
    order_access first, second;
    std::size_t index = 0;
  };
  struct hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };

  // True for accesses of one place in the program, in any layer and microbatch.
  static bool alike(const order_access& a, const order_access& b) {
    return a.kind == b.kind && a.name == b.name && a.module == b.module && a.stream == b.stream;
  }

  [[nodiscard]] checked_access told(const order_access& who, bool writes,
                                    const order_clocks& clocks) const {
    checked_access result;
    result.kind = who.kind;
    result.name = names_[who.name];
    const bool by_host = who.stream == order_clocks::host;
    if (!by_host) result.stream = clocks.name(who.stream);
    result.module = names_[who.module];
    result.layer = who.layer;
    result.microbatch = who.microbatch;
    result.graph = who.graph;
    result.number = who.number;
    result.writes = writes;
    return result;
  }

  static bool is_kernel(access_kind kind) {
    return kind == access_kind::kernel_read || kind == access_kind::kernel_write ||
           kind == access_kind::fill || kind == access_kind::copy;
  }

  // The join of an offloader that orders two such accesses; empty if no join does.
  std::optional<join_site> join_between(const order_access& first, bool first_writes,
                                        const order_access& second, bool second_writes,
                                        const order_clocks& clocks) const {
    using kind = access_kind;
    if (first.graph != second.graph) {
      return second.graph != 0 ? join_site::launch : join_site::after_launch;
    }
    if (second.kind == kind::returned) return join_site::give_back;
    if (first.kind == kind::returned) return join_site::borrow;
    if (second.kind == kind::handed_out) {
      return clocks.copies(second.stream) ? join_site::reload_reuse : join_site::device_reuse;
    }
    if (second.kind == kind::offload) {
      if (second_writes) {
        if (first.kind != kind::reload) return std::nullopt;
        return clocks.peer(second.stream) ? join_site::peer_reuse : join_site::host_reuse;
      }
      return first.kind == kind::reload ? join_site::consumer : join_site::producer;
    }
    if (second.kind == kind::reload) {
      if (second_writes) return join_site::reload_reuse;
      if (first.kind == kind::reload && first_writes) return join_site::unpack;
      return first.kind == kind::offload ? std::optional(join_site::own_offload) : std::nullopt;
    }
    if (second.kind == kind::host_read && first.kind == kind::offload) {
      return names_[second.name] == "the file" ? join_site::file_write : join_site::row_count;
    }
    if (second.kind == kind::host_write && first.kind == kind::reload && !first_writes) {
      return join_site::file_reuse;
    }
    if (!is_kernel(second.kind)) return std::nullopt;
    if (first.kind == kind::reload && first_writes) return join_site::consumer;
    // Memory that was not handed out again is still the trainer's, so that no join of an offloader
    // is missing.
    return std::nullopt;
  }

  std::vector<std::string> names_{std::string()};
  std::unordered_map<std::string, std::uint32_t, hash, std::equal_to<>> numbers_;
  std::vector<finding> found_;
  std::vector<pair> pairs_;
  std::uint64_t count_ = 0;
};

}  // namespace tidepool::detail
