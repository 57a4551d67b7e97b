/// Whether the events of a profile can follow each other, once its lists agree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tidepool/plan/detail/demands.hpp"
#include "tidepool/plan/detail/list_check.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

template <class Refuse>
class event_check : demands<Refuse> {
 public:
  event_check(const profile& step, const saving_groups& saved, const Refuse& refuse)
      : demands<Refuse>(step, refuse),
        saved_(saved),
        groups_(saved.groups),
        storages_(step.storages.size()),
        forward_done_(step.chunks.size()) {
    for (const auto& groups : saved.of_storage) {
      for (const auto group : groups) ++groups_[group].to_allocate;
    }
    for (const auto& each : step.events) {
      if (each.kind != event_kind::restore || each.chunk >= step.chunks.size()) continue;
      if (each.index >= step.chunks[each.chunk].groups.size()) continue;
      groups_[saved.number(each.chunk, each.index)].comes_back = true;
    }
    events();
  }

 private:
  using demands<Refuse>::require;
  using demands<Refuse>::time;
  using demands<Refuse>::need_chunk;
  using demands<Refuse>::need_storage;
  using demands<Refuse>::need_group;
  using demands<Refuse>::step_;

  struct group_state {
    std::size_t to_allocate = 0;  // storages that its commit still waits for
    bool committed = false;
    bool restored = false;
    bool comes_back = false;  // some time in the step; what does not was forgotten
  };
  struct storage_state {
    bool allocated = false;
    bool released = false;
    bool drop = false;
  };

  void wait(double us, double of, const auto& place) const {
    time(us, place, "the wait for other ranks");
    require(
        us <= of, place, [&] { return "it waits " + number_text(us) + " us for other ranks"; },
        "a wait is a part of the computing that it is given with");
  }

  void events() {
    std::vector<bool> ended(step_.chunks.size());
    for (std::size_t i = 0; i < step_.events.size(); ++i) {
      const auto place = [&] { return place_of("events", i); };
      const auto& each = step_.events[i];
      time(each.compute_us, place, "compute_us");
      wait(each.wait_us, each.compute_us, place);
      switch (each.kind) {
        case event_kind::allocate:
        case event_kind::release:
        case event_kind::drop:
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
        case event_kind::synchronise:
          require(
              each.index == 0 && each.chunk == 0, place,
              [&] { return "the host's wait for the device has an index or a chunk"; },
              "give 0 for both");
          break;
        default:
          this->refuse_(place(), "this is no kind of event", "take one of `event_kind`");
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
    const auto& saved_by = saved_.of_storage[each.index];
    if (each.kind == event_kind::allocate) {
      require(
          !state.allocated, place, [&] { return name() + " is allocated twice"; },
          "give each allocation a storage of its own");
      state.allocated = true;
      for (const auto group : saved_by) --groups_[group].to_allocate;
      return;
    }
    require(
        state.allocated, place,
        [&] {
          return name() + (each.kind == event_kind::drop ? " is dropped" : " is released") +
                 " before it is allocated";
        },
        "list events in the order of the compute stream");
    if (each.kind == event_kind::drop) {
      require(
          std::ranges::any_of(
              saved_by,
              [&](auto group) { return groups_[group].committed && !groups_[group].restored; }),
          place, [&] { return name() + " is dropped, but its group does not hold it then"; },
          "let it go between its group's commit and restore");
      require(
          !state.drop || saved_by.size() > 1, place, [&] { return name() + " is dropped twice"; },
          "let it go once, with the last handle that outlived the commit");
      state.drop = true;
      return;
    }
    require(
        !state.released, place, [&] { return name() + " is released twice"; },
        "release it once, with its last handle");
    require(
        std::ranges::all_of(saved_by,
                            [&](auto group) {
                              const auto& by = groups_[group];
                              return by.comes_back ? by.restored : by.committed;
                            }),
        place, [&] { return name() + " is released before its group is restored"; },
        "release it after the restore; without a group it may go at any time");
    state.released = true;
  }

  void group_event(const event& each, const auto& place) {
    need_group(each.chunk, each.index, place);
    const auto name = [&] {
      return "group " + std::to_string(each.index) + " of chunk " + std::to_string(each.chunk);
    };
    auto& state = groups_[saved_.number(each.chunk, each.index)];
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

  const saving_groups& saved_;
  std::vector<group_state> groups_;
  std::vector<storage_state> storages_;
  std::vector<bool> forward_done_;  // of each chunk, where events have come to
};

}  // namespace tidepool::plan::detail
