/// Whether the parts of a profile agree with each other. Places in messages are JSON pointers: they
/// are those of the file as well as of the members.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/detail/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/module.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/trace/detail/escape.hpp"

namespace tidepool::plan {

/// A profile or a machine that contradicts itself, or a plan that is not for the profile.
class profile_error : public error {
 public:
  using error::error;
};

/// A file of a profile, a plan or a machine that cannot be read or written; thrown by
/// `plan/json.hpp` and `plan/machine_json.hpp`.
class file_error : public profile_error {
 public:
  using profile_error::profile_error;
};

namespace detail {

[[nodiscard]] inline std::string number_text(double number) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), result.ptr};
}

[[nodiscard]] inline std::string place_of(std::string_view list, std::size_t index,
                                          std::string_view member = {}) {
  return "/" + std::string(list) + "/" + std::to_string(index) + std::string(member);
}

// `refuse(place, problem, remedy)` throws.
template <class Refuse>
class consistency {
 public:
  consistency(const profile& step, const Refuse& refuse) : step_(step), refuse_(refuse) {
    modules();
    chunks();
    passes();
    storages();
    shared();
    link();
    events();
  }

 private:
  static constexpr std::string_view right_time = "give microseconds, finite and not negative";

  struct group_state {
    std::size_t to_allocate = 0;  // storages that its commit still waits for
    bool committed = false;
    bool restored = false;
  };
  struct storage_state {
    bool allocated = false;
    bool released = false;
    bool let_go = false;
    std::vector<std::size_t> saved_by;  // groups
  };

  void require(bool holds, const auto& place, const auto& problem, std::string_view remedy) const {
    if (!holds) refuse_(place(), problem(), remedy);
  }
  void time(double value, const auto& place, const char* what) const {
    require(
        std::isfinite(value) && value >= 0, place,
        [&] { return std::string(what) + " is " + number_text(value); }, right_time);
  }
  void wait(double us, double of, const auto& place) const {
    time(us, place, "the wait for other ranks");
    require(
        us <= of, place, [&] { return "it waits " + number_text(us) + " us for other ranks"; },
        "a wait is a part of the computing that it is given with");
  }
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
      first_.push_back(groups_.size());
      const auto& groups = step_.chunks[c].groups;
      groups_.resize(groups_.size() + groups.size());
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

  void need_chunk(std::size_t chunk, const auto& place) const {
    require(
        chunk < step_.chunks.size(), place,
        [&] {
          return "there is no chunk " + std::to_string(chunk) + ", only " +
                 std::to_string(step_.chunks.size());
        },
        "chunks are counted from 0, in the order of `chunks`");
  }
  void need_storage(std::size_t storage, const auto& place) const {
    require(
        storage < storages_.size(), place,
        [&] {
          return "there is no storage " + std::to_string(storage) + ", only " +
                 std::to_string(storages_.size());
        },
        "storages are counted from 0");
  }
  void need_group(std::size_t chunk, std::size_t group, const auto& place) const {
    need_chunk(chunk, place);
    require(
        group < step_.chunks[chunk].groups.size(), place,
        [&] {
          return "there is no group " + std::to_string(group) + " in chunk " +
                 std::to_string(chunk) + ", only " +
                 std::to_string(step_.chunks[chunk].groups.size());
        },
        "groups are counted from 0 within their chunk");
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
    storages_.resize(step_.storages.size());
    for (std::size_t i = 0; i < step_.storages.size(); ++i) {
      const auto place = [&] { return place_of("storages", i); };
      const auto& each = step_.storages[i];
      add(total, each.bytes, [&] { return place() + "/bytes"; });
      require((each.chunk == none) == (each.group == none), place,
              [] { return "chunk and group must both be there, or neither"; },
              "leave both out where no group saves it");
      if (each.group == none) continue;
      need_group(each.chunk, each.group, place);
      ++groups_[first_[each.chunk] + each.group].to_allocate;
      storages_[i].saved_by.push_back(first_[each.chunk] + each.group);
    }
  }

  void shared() {
    for (std::size_t i = 0; i < step_.shared.size(); ++i) {
      const auto place = [&] { return place_of("shared", i); };
      const auto& each = step_.shared[i];
      need_storage(each.storage, place);
      need_group(each.chunk, each.group, place);
      const auto group = first_[each.chunk] + each.group;
      auto& saved_by = storages_[each.storage].saved_by;
      require(
          !saved_by.empty() && std::ranges::find(saved_by, group) == saved_by.end(), place,
          [&] {
            return "group " + std::to_string(each.group) + " of chunk " +
                   std::to_string(each.chunk) + " is no second group that saves storage " +
                   std::to_string(each.storage);
          },
          "name the first group in `storages`, and each other one once here");
      saved_by.push_back(group);
      ++groups_[group].to_allocate;
    }
  }

  void link() const {
    const auto rate = [&](double value, const char* name) {
      require(
          std::isfinite(value) && value > 0, [&] { return std::string("/link/") + name; },
          [&] { return "the rate is " + number_text(value); }, "give GB/s, finite and above 0");
    };
    rate(step_.link.out, "out");
    rate(step_.link.in, "in");
    rate(step_.link.both, "both");
    time(
        step_.link.latency_us, [] { return "/link/latency_us"; }, "the latency");
  }

  void events() {
    std::vector<bool> ended(step_.chunks.size());
    forward_done_.assign(step_.chunks.size(), false);
    for (std::size_t i = 0; i < step_.events.size(); ++i) {
      const auto place = [&] { return place_of("events", i); };
      const auto& each = step_.events[i];
      time(each.compute_us, place, "compute_us");
      wait(each.wait_us, each.compute_us, place);
      switch (each.kind) {
        case event_kind::allocate:
        case event_kind::release:
        case event_kind::let_go:
          storage_event(each, place);
          break;
        case event_kind::commit:
        case event_kind::restore:
          group_event(each, place);
          break;
        case event_kind::end_forward:
          need_chunk(each.chunk, place);
          require(
              each.index == 0, place,
              [&] {
                return "the end of a forward pass has the index " + std::to_string(each.index);
              },
              "give 0");
          require(
              !ended[each.chunk], place,
              [&] {
                return "the forward pass of chunk " + std::to_string(each.chunk) + " ends twice";
              },
              "end it once");
          ended[each.chunk] = forward_done_[each.chunk] = true;
          break;
        default:
          refuse_(place(), "this is no kind of event", "take one of `event_kind`");
      }
    }
    time(
        step_.rest_us, [] { return "/rest_us"; }, "the rest");
    wait(step_.rest_wait_us, step_.rest_us, [] { return "/rest_wait_us"; });
    time(
        compute_us(step_), [] { return "/events"; }, "the computing of all");
  }

  void storage_event(const event& each, const auto& place) {
    const auto name = [&] { return "storage " + std::to_string(each.index); };
    need_storage(each.index, place);
    require(
        each.chunk == 0, place,
        [&] { return name() + " has a chunk, " + std::to_string(each.chunk) + ", in its event"; },
        "give 0; `storages` says which group saves it");
    auto& state = storages_[each.index];
    if (each.kind == event_kind::allocate) {
      require(
          !state.allocated, place, [&] { return name() + " is allocated twice"; },
          "give each allocation a storage of its own");
      state.allocated = true;
      for (const auto group : state.saved_by) --groups_[group].to_allocate;
      return;
    }
    require(
        state.allocated, place,
        [&] {
          return name() + (each.kind == event_kind::let_go ? " is let go" : " is released") +
                 " before it is allocated";
        },
        "list events in the order of the compute stream");
    if (each.kind == event_kind::let_go) {
      require(
          std::ranges::any_of(
              state.saved_by,
              [&](auto group) { return groups_[group].committed && !groups_[group].restored; }),
          place, [&] { return name() + " is let go, but its group does not hold it then"; },
          "let it go between its group's commit and restore");
      require(
          !state.let_go || state.saved_by.size() > 1, place,
          [&] { return name() + " is let go twice"; },
          "let it go once, with the last handle that outlived the commit");
      state.let_go = true;
      return;
    }
    require(
        !state.released, place, [&] { return name() + " is released twice"; },
        "release it once, with its last handle");
    require(
        std::ranges::all_of(state.saved_by, [&](auto group) { return groups_[group].restored; }),
        place, [&] { return name() + " is released before its group is restored"; },
        "release it after the restore; without a group it may go at any time");
    state.released = true;
  }

  void group_event(const event& each, const auto& place) {
    need_group(each.chunk, each.index, place);
    const auto name = [&] {
      return "group " + std::to_string(each.index) + " of chunk " + std::to_string(each.chunk);
    };
    auto& state = groups_[first_[each.chunk] + each.index];
    const bool restores = each.kind == event_kind::restore;
    if (restores) forward_done_[each.chunk] = true;
    require(
        restores || !forward_done_[each.chunk], place,
        [&] { return name() + " is committed after its chunk's forward pass"; },
        "commit all groups of a chunk before it ends, and before the first restore");
    require(
        state.committed || !restores, place,
        [&] { return name() + " is restored before it is committed"; },
        "list events in the order of the compute stream");
    require(
        !(restores ? state.restored : state.committed), place,
        [&] { return name() + " is " + (restores ? "restored" : "committed") + " twice"; },
        "commit and restore each group once");
    require(
        state.to_allocate == 0, place,
        [&] { return name() + " is committed before all its storages are allocated"; },
        "allocate them before the commit");
    (restores ? state.restored : state.committed) = true;
  }

  const profile& step_;
  const Refuse& refuse_;
  std::vector<std::size_t> first_;  // of each chunk's groups
  std::vector<group_state> groups_;
  std::vector<storage_state> storages_;
  std::vector<bool> forward_done_;  // of each chunk, where events have come to
};

[[noreturn]] inline void refuse_profile(const std::string& place, const std::string& problem,
                                        std::string_view remedy) {
  throw profile_error("tidepool: profile at " + place + ": " + problem + "; " +
                      std::string(remedy));
}

}  // namespace detail

/// Throws `profile_error` where planning for `step` would make no sense.
inline void check(const profile& step) {
  static_cast<void>(detail::consistency(step, detail::refuse_profile));
}

/// Throws `profile_error` unless `chosen` has an action for each group of `step`, and finite times.
inline void check(const step_plan& chosen, const profile& step) {
  const auto same = [&](const std::string& place, const char* what, std::size_t found,
                        std::size_t expected) {
    if (found == expected) return;
    throw profile_error("tidepool: plan at " + place + ": found " + std::to_string(found) + " " +
                        what + ", expected " + std::to_string(expected) +
                        " as in the profile; plan this profile anew");
  };
  same("/chunks", "chunks", chosen.what.size(), step.chunks.size());
  for (std::size_t c = 0; c < chosen.what.size(); ++c) {
    same(detail::place_of("chunks", c, "/groups"), "groups", chosen.what[c].size(),
         step.chunks[c].groups.size());
  }
  const auto finite = [](double value, const char* place) {
    if (std::isfinite(value)) return;
    throw profile_error("tidepool: plan at " + std::string(place) + ": the time is " +
                        detail::number_text(value) + "; give finite microseconds");
  };
  finite(chosen.expected.step_us, "/expected/step_us");
  finite(chosen.expected.stall_us, "/expected/stall_us");
  finite(chosen.expected.extra_us, "/expected/extra_us");
  finite(chosen.bound_us, "/bound_us");
}

}  // namespace tidepool::plan
