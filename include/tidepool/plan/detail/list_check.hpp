/// Whether the lists of a profile agree with each other; its events are `event_check.hpp`'s.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/escape.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/module.hpp"
#include "tidepool/plan/detail/demands.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Groups, counted over all chunks, and which of them save each storage.
struct saving_groups {
  std::size_t groups = 0;
  std::vector<std::size_t> first_of_chunk;
  std::vector<std::vector<std::size_t>> of_storage;

  [[nodiscard]] std::size_t number(std::size_t chunk, std::size_t group) const {
    return first_of_chunk[chunk] + group;
  }
};

template <class Refuse>
class list_check : demands<Refuse> {
 public:
  list_check(const profile& step, const Refuse& refuse) : demands<Refuse>(step, refuse) {
    modules();
    chunks();
    passes();
    storages();
    shared();
    link(step_.link, "/link");
    if (step_.peer_link) link(*step_.peer_link, "/peer_link");
  }

  [[nodiscard]] const saving_groups& found() const { return found_; }

 private:
  using demands<Refuse>::require;
  using demands<Refuse>::time;
  using demands<Refuse>::need_chunk;
  using demands<Refuse>::need_storage;
  using demands<Refuse>::need_group;
  using demands<Refuse>::step_;

  // Half of what 64 bits hold: planners round up, and add to totals.
  void add(std::size_t& total, std::size_t bytes, const auto& place) const {
    constexpr auto most = std::numeric_limits<std::size_t>::max() / 2;
    require(
        bytes <= most && total <= most - bytes, place,
        [&] { return "up to here the bytes add up to more than " + std::to_string(most); },
        "give sizes in bytes");
    total += bytes;
  }

  void modules() const {
    require(
        step_.modules.size() <= max_modules, [] { return "/modules"; },
        [&] { return "there are " + std::to_string(step_.modules.size()) + " names"; },
        "an offloader serves at most 64 modules");
    std::set<std::string_view> seen;
    for (std::size_t i = 0; i < step_.modules.size(); ++i) {
      const auto place = [&] { return place_of("modules", i); };
      const std::string_view name = step_.modules[i];
      require(
          !name.empty(), place, [] { return "the name is empty"; }, "give every module a name");
      require(
          seen.insert(name).second, place,
          [&] { return tidepool::detail::text::in_quotes(name) + " stands twice"; },
          "name each module once");
      for (auto rest = name; !rest.empty();) {
        const auto size = trace::detail::character_size(rest);
        require(
            size > 0, place, [] { return "the name is not UTF-8"; }, "name modules in UTF-8");
        rest.remove_prefix(size);
      }
    }
  }

  void chunks() {
    std::size_t total = 0;
    for (std::size_t c = 0; c < step_.chunks.size(); ++c) {
      const auto& groups = step_.chunks[c].groups;
      found_.first_of_chunk.push_back(found_.groups);
      found_.groups += groups.size();
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const auto place = [&] { return place_of("chunks", c) + place_of("groups", g); };
        const auto named = static_cast<std::size_t>(groups[g].module);
        require(
            named < step_.modules.size(), [&] { return place() + "/module"; },
            [&] {
              return "module " + std::to_string(named) + " has no name: there are " +
                     std::to_string(step_.modules.size());
            },
            "name every module in `modules`");
        time(groups[g].recompute_us, place, "recompute_us");
        add(total, groups[g].bytes, [&] { return place() + "/bytes"; });
      }
    }
  }

  void passes() const {
    std::vector<bool> forward(step_.chunks.size());
    std::vector<bool> backward(step_.chunks.size());
    for (std::size_t i = 0; i < step_.passes.size(); ++i) {
      const auto place = [&] { return place_of("passes", i); };
      const auto& each = step_.passes[i];
      need_chunk(each.chunk, place);
      const auto chunk = std::to_string(each.chunk);
      auto& begun = each.backward ? backward : forward;
      require(
          !begun[each.chunk], place,
          [&] {
            return "chunk " + chunk + " has a second " +
                   (each.backward ? "backward pass" : "forward pass");
          },
          "a chunk has one of each");
      require(
          !each.backward || forward[each.chunk], place,
          [&] { return "chunk " + chunk + " goes backward before forward"; },
          "list passes in the order in which they began");
      begun[each.chunk] = true;
    }
  }

  void storages() {
    std::size_t total = 0;
    found_.of_storage.resize(step_.storages.size());
    for (std::size_t i = 0; i < step_.storages.size(); ++i) {
      const auto place = [&] { return place_of("storages", i); };
      const auto& each = step_.storages[i];
      add(total, each.bytes, [&] { return place() + "/bytes"; });
      require((each.chunk == none) == (each.group == none), place,
              [] { return "chunk and group must both be there, or neither"; },
              "leave both out where no group saves it");
      if (each.group == none) continue;
      need_group(each.chunk, each.group, place);
      found_.of_storage[i].push_back(found_.number(each.chunk, each.group));
    }
  }

  void shared() {
    for (std::size_t i = 0; i < step_.shared.size(); ++i) {
      const auto place = [&] { return place_of("shared", i); };
      const auto& each = step_.shared[i];
      need_storage(each.storage, place);
      need_group(each.chunk, each.group, place);
      const auto group = found_.number(each.chunk, each.group);
      auto& saved_by = found_.of_storage[each.storage];
      require(
          !saved_by.empty() && std::ranges::find(saved_by, group) == saved_by.end(), place,
          [&] {
            return "group " + std::to_string(each.group) + " of chunk " +
                   std::to_string(each.chunk) + " is no second group that saves storage " +
                   std::to_string(each.storage);
          },
          "name the first group in `storages`, and each other one once here");
      saved_by.push_back(group);
    }
  }

  void link(const link_rates& of, const std::string& at) const {
    const auto rate = [&](double value, const char* name) {
      require(
          std::isfinite(value) && value > 0, [&] { return at + "/" + name; },
          [&] { return "the rate is " + number_text(value); }, "give GB/s, finite and above 0");
    };
    rate(of.out, "out");
    rate(of.in, "in");
    rate(of.both, "both");
    time(
        of.latency_us, [&] { return at + "/latency_us"; }, "the latency");
  }

  saving_groups found_;
};

}  // namespace tidepool::plan::detail
