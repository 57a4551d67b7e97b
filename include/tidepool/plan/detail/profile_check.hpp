/// Checks a profile: its lists must agree with each other, and its events must be possible in their
/// order. Input is a profile; the output is nothing, or an exception with position, problem and
/// remedy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "tidepool/core/escape.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/module.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/refusal.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

class profile_check : subject {
 public:
  profile_check(const profile& step, const subject& of) : subject(of), step_(step) {
    modules();
    chunks();
    passes();
    storages();
    shared();
    link(step.link, "/link");
    if (step.peer_link) link(*step.peer_link, "/peer_link");
    events();
  }

 private:
  struct group_state {
    std::size_t to_allocate = 0;  // storages that must be allocated before its commit
    bool committed = false;
    bool restored = false;
    bool comes_back = false;  // it is restored some time in the step; else it is forgotten
  };
  struct storage_state {
    bool allocated = false;
    bool released = false;
    bool drop = false;
  };

  void need_chunk(std::size_t chunk, const phrase& place) const {
    require(chunk < step_.chunks.size(), place,
            {"there is no chunk {}, only {}", chunk, step_.chunks.size()},
            "chunks are counted from 0, in the order of `chunks`");
  }
  void need_storage(std::size_t storage, const phrase& place) const {
    require(storage < step_.storages.size(), place,
            {"there is no storage {}, only {}", storage, step_.storages.size()},
            "storages are counted from 0");
  }
  void need_group(std::size_t chunk, std::size_t group, const phrase& place) const {
    need_chunk(chunk, place);
    const auto count = step_.chunks[chunk].groups.size();
    require(group < count, place,
            {"there is no group {} in chunk {}, only {}", group, chunk, count},
            "groups are counted from 0 within their chunk");
  }

  [[nodiscard]] std::size_t number(std::size_t chunk, std::size_t group) const {
    return first_of_chunk_[chunk] + group;
  }

  // The limit is half of what 64 bits hold, because planners round sizes up and add to totals.
  void add(std::size_t& total, std::size_t bytes, const phrase& place) const {
    constexpr auto most = std::numeric_limits<std::size_t>::max() / 2;
    require(bytes <= most && total <= most - bytes, place,
            {"up to here the bytes add up to more than {}", most}, "give sizes in bytes");
    total += bytes;
  }

  void modules() const {
    require(step_.modules.size() <= max_modules, "/modules",
            {"there are {} names", step_.modules.size()}, "an offloader serves at most 64 modules");
    std::set<std::string_view> seen;
    for (std::size_t i = 0; i < step_.modules.size(); ++i) {
      const phrase place{"/modules/{}", i};
      const std::string_view name = step_.modules[i];
      require(!name.empty(), place, "the name is empty", "give every module a name");
      require(seen.insert(name).second, place,
              {"{} stands twice", tidepool::detail::text::in_quotes(name)},
              "name each module once");
      require(trace::detail::is_utf8(name), place, "the name is not UTF-8",
              "name modules in UTF-8");
    }
  }

  void chunks() {
    std::size_t total = 0;
    for (std::size_t c = 0; c < step_.chunks.size(); ++c) {
      const auto& groups = step_.chunks[c].groups;
      first_of_chunk_.push_back(groups_.size());
      groups_.resize(groups_.size() + groups.size());
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const auto named = static_cast<std::size_t>(groups[g].module);
        require(named < step_.modules.size(), {"/chunks/{}/groups/{}/module", c, g},
                {"module {} has no name: there are {}", named, step_.modules.size()},
                "name every module in `modules`");
        time(groups[g].recompute_us, {"/chunks/{}/groups/{}", c, g}, "recompute_us");
        add(total, groups[g].bytes, {"/chunks/{}/groups/{}/bytes", c, g});
      }
    }
  }

  void passes() const {
    std::vector<bool> forward(step_.chunks.size());
    std::vector<bool> backward(step_.chunks.size());
    for (std::size_t i = 0; i < step_.passes.size(); ++i) {
      const phrase place{"/passes/{}", i};
      const auto& each = step_.passes[i];
      need_chunk(each.chunk, place);
      auto begun = each.backward ? backward[each.chunk] : forward[each.chunk];
      require(!begun, place,
              {"chunk {} has a second {} pass", each.chunk, each.backward ? "backward" : "forward"},
              "a chunk has one of each");
      require(!each.backward || forward[each.chunk], place,
              {"chunk {} goes backward before forward", each.chunk},
              "list passes in the order in which they began");
      begun = true;
    }
  }

  void storages() {
    std::size_t total = 0;
    saved_by_.resize(step_.storages.size());
    for (std::size_t i = 0; i < step_.storages.size(); ++i) {
      const phrase place{"/storages/{}", i};
      const auto& each = step_.storages[i];
      add(total, each.bytes, {"/storages/{}/bytes", i});
      require(each.moves <= each.bytes, {"/storages/{}/moves", i},
              {"{} bytes move of {}", each.moves, each.bytes}, "a copy moves at most all bytes");
      require((each.chunk == none) == (each.group == none), place,
              "chunk and group must both be there, or neither",
              "leave both out where no group saves it");
      if (each.group == none) continue;
      need_group(each.chunk, each.group, place);
      saved_by_[i].push_back(number(each.chunk, each.group));
    }
  }

  void shared() {
    for (std::size_t i = 0; i < step_.shared.size(); ++i) {
      const phrase place{"/shared/{}", i};
      const auto& each = step_.shared[i];
      need_storage(each.storage, place);
      need_group(each.chunk, each.group, place);
      const auto group = number(each.chunk, each.group);
      auto& saved_by = saved_by_[each.storage];
      require(!saved_by.empty() && std::ranges::find(saved_by, group) == saved_by.end(), place,
              {"group {} of chunk {} is no second group that saves storage {}", each.group,
               each.chunk, each.storage},
              "name the first group in `storages`, and each other one once here");
      saved_by.push_back(group);
    }
  }

  void events() {
    storages_.resize(step_.storages.size());
    forward_done_.resize(step_.chunks.size());
    ended_.resize(step_.chunks.size());
    for (const auto& groups : saved_by_) {
      for (const auto group : groups) ++groups_[group].to_allocate;
    }
    for (const auto& each : step_.events) {
      if (each.kind != event_kind::restore || each.chunk >= step_.chunks.size()) continue;
      if (each.index >= step_.chunks[each.chunk].groups.size()) continue;
      groups_[number(each.chunk, each.index)].comes_back = true;
    }
    for (std::size_t i = 0; i < step_.events.size(); ++i) one(step_.events[i], {"/events/{}", i});
    time(step_.rest_us, "/rest_us", "the rest");
    wait(step_.rest_wait_us, step_.rest_us, "/rest_wait_us");
    time(compute_us(step_), "/events", "the computing of all");
  }

  void wait(double us, double of, const phrase& place) const {
    time(us, place, "the wait for other ranks");
    require(us <= of, place, {"it waits {} us for other ranks", us},
            "a wait is a part of the computing that it is given with");
  }

  void one(const event& each, const phrase& place) {
    time(each.compute_us, place, "compute_us");
    wait(each.wait_us, each.compute_us, place);
    switch (each.kind) {
      case event_kind::allocate:
      case event_kind::release:
      case event_kind::drop:
        return storage_event(each, place);
      case event_kind::commit:
      case event_kind::restore:
        return group_event(each, place);
      case event_kind::end_forward:
        need_chunk(each.chunk, place);
        require(each.index == 0, place, {"the end of a forward pass has the index {}", each.index},
                "give 0");
        require(!ended_[each.chunk], place, {"the forward pass of chunk {} ends twice", each.chunk},
                "end it once");
        ended_[each.chunk] = forward_done_[each.chunk] = true;
        return;
      case event_kind::synchronise:
        require(each.index == 0 && each.chunk == 0, place,
                {"the host's wait for the device has an index or a chunk"}, "give 0 for both");
        return;
    }
    refuse(place.text(), "this is no kind of event", "take one of `event_kind`");
  }

  void storage_event(const event& each, const phrase& place) {
    need_storage(each.index, place);
    require(each.chunk == 0, place,
            {"storage {} has a chunk, {}, in its event", each.index, each.chunk},
            "give 0; `storages` says which group saves it");
    auto& state = storages_[each.index];
    const auto& saved_by = saved_by_[each.index];
    if (each.kind == event_kind::allocate) {
      require(!state.allocated, place, {"storage {} is allocated twice", each.index},
              "give each allocation a storage of its own");
      state.allocated = true;
      for (const auto group : saved_by) --groups_[group].to_allocate;
      return;
    }
    const bool drops = each.kind == event_kind::drop;
    require(state.allocated, place,
            {"storage {} is {} before it is allocated", each.index, drops ? "dropped" : "released"},
            "list events in the order of the compute stream");
    if (drops) {
      const auto holds = [&](std::size_t group) {
        return groups_[group].committed && !groups_[group].restored;
      };
      require(std::ranges::any_of(saved_by, holds), place,
              {"storage {} is dropped, but its group does not hold it then", each.index},
              "let it go between its group's commit and restore");
      require(!state.drop || saved_by.size() > 1, place,
              {"storage {} is dropped twice", each.index},
              "let it go once, with the last handle that outlived the commit");
      state.drop = true;
      return;
    }
    const auto done = [&](std::size_t group) {
      const auto& by = groups_[group];
      return by.comes_back ? by.restored : by.committed;
    };
    require(!state.released, place, {"storage {} is released twice", each.index},
            "release it once, with its last handle");
    require(std::ranges::all_of(saved_by, done), place,
            {"storage {} is released before its group is restored", each.index},
            "release it after the restore; without a group it may go at any time");
    state.released = true;
  }

  void group_event(const event& each, const phrase& place) {
    need_group(each.chunk, each.index, place);
    auto& state = groups_[number(each.chunk, each.index)];
    const bool restores = each.kind == event_kind::restore;
    if (restores) forward_done_[each.chunk] = true;
    const auto need = [&](bool holds, const char* problem, std::string_view remedy) {
      require(holds, place, {problem, each.index, each.chunk}, remedy);
    };
    need(restores || !forward_done_[each.chunk],
         "group {} of chunk {} is committed after its chunk's forward pass",
         "commit all groups of a chunk before it ends, and before the first restore");
    need(state.committed || !restores, "group {} of chunk {} is restored before it is committed",
         "list events in the order of the compute stream");
    need(!state.restored || !restores, "group {} of chunk {} is restored twice",
         "commit and restore each group once");
    need(!state.committed || restores, "group {} of chunk {} is committed twice",
         "commit and restore each group once");
    need(state.to_allocate == 0,
         "group {} of chunk {} is committed before all its storages are allocated",
         "allocate them before the commit");
    (restores ? state.restored : state.committed) = true;
  }

  const profile& step_;
  std::vector<std::size_t> first_of_chunk_;
  std::vector<group_state> groups_;                 // of all chunks
  std::vector<std::vector<std::size_t>> saved_by_;  // groups that save each storage
  std::vector<storage_state> storages_;
  std::vector<bool> forward_done_;  // true for chunks whose `end_forward` was read
  std::vector<bool> ended_;
};

}  // namespace tidepool::plan::detail
