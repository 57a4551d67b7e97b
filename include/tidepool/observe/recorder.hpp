/// Records one step as a `plan::profile`: the calls on the compute streams, and their times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/observe/drain_watch.hpp"
#include "tidepool/observe/rank_waits.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::detail {

// Every call has a timing event before it and one after it, because its joins are not computing.
// The device computes from one call's second event to the next call's first.
//
// If the record fails, because an event was refused or memory is short, the step goes on, and
// `finish` throws that error. Storages are known by their numbers. Events name only storages that
// were allocated in this step.
class recorder {
 public:
  explicit recorder(hardware& dev) : dev_(&dev), marks_(dev), watch_(dev) {}

  // Drops the record; the next call begins a new one.
  void forget() noexcept {
    used_ = first_ = 0;  // also if a start fails after it
    failed_ = nullptr;
    calls_.clear();
    again_.clear();
    waits_.clear();
    inside_ = 0;
    storages_.clear();
    shared_.clear();
    seen_.clear();
    held_by_.clear();
    forward_done_.clear();
    sizes_.clear();
    watch_.forget();
  }
  // Begins a record: the step before has ended on `lane`.
  void start(lane_id lane) noexcept {
    forget();
    last_ = lane;
    first_ = mark(lane);
  }

  // Notes that a call begins on `lane`. The caller passes the result to `allocated` or `called`,
  // which note the kind of call.
  [[nodiscard]] std::size_t arrive(lane_id lane) noexcept {
    // The work before the very first call is not known.
    if (used_ == 0 && !failed_) start(lane);
    last_ = lane;
    look();
    return mark(lane);
  }
  // The lane of the latest call.
  [[nodiscard]] lane_id latest() const { return last_; }
  // Notes a copy that was given to `lane`.
  void copied(lane_id lane) noexcept {
    attempt([&] { watch_.copied(lane); });
  }
  void allocated(std::size_t from, std::uint64_t storage, std::size_t bytes,
                 lane_id lane) noexcept {
    const auto index = static_cast<std::uint32_t>(storages_.size());
    attempt([&] {
      seen_[storage].index = index;
      storages_.push_back({.bytes = bytes});
      if (inside_ == 0) sizes_.push_back(bytes);
    });
    called(from, plan::event_kind::allocate, index, 0, lane);
  }
  // Notes whether a handle holds the storage beyond the commit; returns true if such a handle was
  // noted before.
  bool outlives(std::uint64_t storage, bool beyond = true) noexcept {
    if (!beyond && !seen_.contains(storage)) return false;
    bool before = false;
    attempt([&] { before = std::exchange(seen_[storage].outlives, beyond); });
    return before;
  }
  // Notes that the restore of a group handed the storage over, while another group saves it.
  void handed_over(std::uint64_t storage, bool to_another) noexcept {
    if (!to_another && !seen_.contains(storage)) return;
    attempt([&] { seen_[storage].handed_over = to_another; });
  }
  [[nodiscard]] bool was_handed_over(std::uint64_t storage) const {
    const auto found = seen_.find(storage);
    return found != seen_.end() && found->second.handed_over;
  }
  // True if a handle holds the storage that no event names. The end of its last handle will have an
  // event.
  [[nodiscard]] bool is_held(std::uint64_t storage) const {
    const auto found = seen_.find(storage);
    return found != seen_.end() && (found->second.outlives || found->second.handed_over);
  }
  // Notes what a storage holds that a group is about to save, and how many of its bytes move; 0:
  // all. Only the first group copies it.
  void holds(std::uint64_t storage, bool bfloat16, std::size_t moves) noexcept {
    const auto* known = recorded(storage);
    if (known == nullptr) return;
    auto& about = storages_[known->index];
    about.bfloat16 = about.bfloat16 || bfloat16;
    if (about.chunk == plan::none) about.moves = moves;
  }
  // Notes a save of the storage by a group. Returns false if events cannot name all groups that
  // save it.
  [[nodiscard]] bool saved(std::uint64_t storage, std::size_t chunk, std::size_t group,
                           std::size_t place, bool beside_others) noexcept {
    auto* const known = recorded(storage);
    if (known == nullptr) return true;
    const plan::shared_save by{known->index, static_cast<std::uint32_t>(chunk),
                               static_cast<std::uint32_t>(group),
                               static_cast<std::uint32_t>(place)};
    auto& about = storages_[by.storage];
    bool first_of_group = true;
    if (about.chunk == plan::none) {
      std::tie(about.chunk, about.group, about.place) = std::tie(by.chunk, by.group, by.place);
    } else if (saved_twice(by)) {
      first_of_group = false;
    } else if (beside_others) {
      attempt([&] { shared_.push_back(by); });
    } else {
      known->unclear = true;
      first_of_group = false;
    }
    if (first_of_group) {
      attempt([&] { held_by_[{by.chunk, by.group}].push_back(storage); });
      ++known->groups;
      ++known->holding;
    }
    return !known->unclear;
  }
  // Notes a group that stays and keeps the storage on the device, but would not save it if it left.
  // Returns false if another group saves the storage, because the time of its release is unknown
  // then.
  [[nodiscard]] bool stayed_unsaved(std::uint64_t storage) noexcept {
    auto* const known = recorded(storage);
    if (known == nullptr) return true;
    known->unclear = true;
    return storages_[known->index].chunk == plan::none;
  }
  void released(std::uint64_t storage, lane_id lane) noexcept {
    const auto* const known = recorded(storage);
    if (used_ == 0 || known == nullptr) return;
    called(arrive(lane), plan::event_kind::release, known->index, 0, lane);
  }
  // Notes that the last handle goes while a group still saves the storage. Returns false if no
  // event can describe it, because no recorded group holds the storage any more, or it was dropped
  // before with its only group.
  [[nodiscard]] bool drop(std::uint64_t storage, lane_id lane) noexcept {
    outlives(storage, false);
    handed_over(storage, false);
    auto* const known = recorded(storage);
    if (used_ == 0 || known == nullptr) return true;
    if (storages_[known->index].chunk == plan::none || known->unclear) return true;
    if (known->holding == 0 || (known->groups == 1 && known->drop)) return false;
    known->drop = true;
    called(arrive(lane), plan::event_kind::drop, known->index, 0, lane);
    return true;
  }
  void called(std::size_t from, plan::event_kind kind, std::size_t index, std::size_t chunk,
              lane_id lane) noexcept {
    if (kind == plan::event_kind::restore) given_back(chunk, index);
    const auto to = mark(lane);
    const bool timed = inside_ == 0;
    attempt([&] {
      calls_.push_back({kind, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(chunk),
                        timed ? from : none, timed ? to : none});
    });
  }
  // A group is computed again between `recompute_begins` and `recomputed`. This time, and the calls
  // in it, do not count as the step's computing, because they are inside the restore.
  [[nodiscard]] std::size_t recompute_begins(lane_id lane) noexcept {
    const auto from = mark(lane);
    ++inside_;
    return from;
  }
  void recomputed(std::size_t from, std::size_t chunk, std::size_t group, lane_id lane) noexcept {
    const auto to = mark(lane);
    attempt([&] { again_.push_back({chunk, group, from, to}); });
    --inside_;
  }
  void recompute_failed() noexcept { --inside_; }
  // The stream that `stream` points to waits for other ranks between `wait_begins` and `waited`. A
  // wait before the first call is not recorded.
  [[nodiscard]] std::size_t wait_begins(const void* stream) noexcept {
    return used_ == 0 || inside_ > 0 ? none : mark(stream);
  }
  // Waits of one `kind` are for transfers of about the same size.
  void waited(std::size_t from, const void* stream, waits_for whom, std::uint32_t kind) noexcept {
    if (from >= used_) return;
    const auto to = mark(stream);
    attempt([&] { waits_.push_back({calls_.size(), from, to, whom, kind}); });
  }
  // Bytes of each storage, without those of recomputing, which is not part of every step.
  [[nodiscard]] const std::vector<std::size_t>& sizes() const { return sizes_; }
  [[nodiscard]] bool waited() const { return !waits_.empty(); }
  [[nodiscard]] bool waited_for_others() const {
    return std::ranges::any_of(
        waits_, [](const rank_wait& each) { return each.whom == waits_for::others; });
  }
  // Notes that a group does not come back: its tensors are released, or other groups hold them.
  void forgotten(std::size_t chunk, std::size_t group) noexcept { given_back(chunk, group); }
  // Notes the end of a forward pass, which is on no stream and takes no time. A second end of the
  // same pass changes nothing.
  void forward_ended(std::size_t chunk) noexcept {
    attempt([&] {
      if (forward_done_.size() <= chunk) forward_done_.resize(chunk + 1);
      if (forward_done_[chunk]) return;
      forward_done_[chunk] = true;
      look();
      calls_.push_back(
          {plan::event_kind::end_forward, 0, static_cast<std::uint32_t>(chunk), none, none});
    });
  }

  // Throws the error that kept this step from being recorded, if any.
  void check() const {
    if (failed_) std::rethrow_exception(failed_);
  }

  // Runs `body`; an exception of it keeps the step from being recorded.
  template <class Call>
  void attempt(const Call& body) noexcept {
    if (failed_) return;
    try {
      body();
    } catch (...) {
      failed_ = std::current_exception();
    }
  }

  // Adds storages, events and times to a profile that has chunks and passes. Blocks the host until
  // the device is idle.
  //
  // Returns for each event the finding whether the host had waited for the device.
  [[nodiscard]] std::vector<drain> finish(plan::profile& into) {
    const auto end = mark(last_);
    check();
    dev_->synchronize();
    into.storages = storages_;
    into.shared = shared_;
    into.events.clear();
    auto before = first_;
    judge(waits_, still_us(), [&](const auto& each) { return us_between(each.from, each.to); });
    auto wait = waits_.begin();
    double stays_us = 0, goes_us = 0;  // of the waits before a call
    const auto wait_before = [&](std::size_t number) {
      for (; wait != waits_.end() && wait->before <= number; ++wait) {
        stays_us += wait->stays_us;
        goes_us += wait->goes_us;
      }
    };
    // Waits for peers that stood still are taken out of the computing before a call, or before the
    // end. Other ranks were late themselves, by an unknown time. So half of a wait for them counts,
    // and the other half goes behind all events, where no copy can use it.
    double uncertain_us = 0;
    const auto computing = [&](double us) {
      us = std::max(0.0, us - std::exchange(goes_us, 0));
      const auto counted = std::min(us, std::exchange(stays_us, 0)) / 2;
      uncertain_us += counted;
      return std::pair(us - counted, counted);
    };
    std::vector<drain> drains;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const auto& each = calls_[i];
      const bool timed = each.from != none;
      wait_before(i);
      into.events.push_back({each.kind, each.index, each.chunk, 0, 0});
      if (!timed) continue;
      auto& event = into.events.back();
      std::tie(event.compute_us, event.wait_us) = computing(us_between(before, each.from));
      const auto us_since = [&](std::size_t mark) { return us_between(mark, each.from); };
      while (drains.size() <= i) {
        drains.push_back(watch_.at(drains.size(), us_since));
        auto& us = drains.back().after_us;
        us = std::min(us, event.compute_us - event.wait_us);
      }
      before = each.to;
    }
    wait_before(calls_.size());
    std::tie(into.rest_us, into.rest_wait_us) = computing(us_between(before, end));
    into.rest_us += uncertain_us;
    for (const auto& each : again_) {
      // At least `least_us`, because 0 would mean that the group cannot be computed again.
      into.chunks[each.chunk].groups[each.group].recompute_us =
          std::max(least_us, us_between(each.from, each.to));
    }
    return drains;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  static constexpr double least_us = 1e-3;

  struct call {
    plan::event_kind kind;
    std::uint32_t index;
    std::uint32_t chunk;
    std::size_t from;
    std::size_t to;
  };

  struct recomputing {
    std::size_t chunk;
    std::size_t group;
    std::size_t from;
    std::size_t to;
  };

  // The facts about a storage that the events of this step tell, as the check of a profile reads
  // them.
  struct storage_state {
    std::uint32_t index = plan::none;  // in the record; none if it was allocated before
    bool outlives = false;
    bool handed_over = false;
    std::uint32_t groups = 0;   // groups that were recorded as saving it
    std::uint32_t holding = 0;  // groups of these that are not restored
    bool drop = false;
    bool unclear = false;  // a group that no event names saves it
  };

  void given_back(std::size_t chunk, std::size_t group) noexcept {
    const auto found =
        held_by_.find({static_cast<std::uint32_t>(chunk), static_cast<std::uint32_t>(group)});
    if (found == held_by_.end()) return;
    for (const auto storage : found->second) --seen_.find(storage)->second.holding;
    held_by_.erase(found);
  }

  // True if one group saved the storage by two handles. The storage then comes and goes with the
  // first.
  [[nodiscard]] bool saved_twice(const plan::shared_save& by) const {
    const auto same_group = [&](const auto& other) {
      return other.chunk == by.chunk && other.group == by.group;
    };
    // Shares of the group that commits now are at the end of the list.
    for (auto at = shared_.rbegin(); at != shared_.rend() && same_group(*at); ++at) {
      if (at->storage == by.storage) return true;
    }
    return same_group(storages_[by.storage]);
  }
  // Null for a storage that no event names.
  [[nodiscard]] storage_state* recorded(std::uint64_t storage) {
    const auto found = seen_.find(storage);
    const bool there = !failed_ && found != seen_.end() && found->second.index != plan::none;
    return there ? &found->second : nullptr;
  }

  // The time that the step stood still in its calls.
  [[nodiscard]] double still_us() const {
    double us = 0;
    for (const auto& each : calls_) us += each.from == none ? 0 : us_between(each.from, each.to);
    return us;
  }

  void look() noexcept {
    if (used_ > 0) attempt([&] { watch_.look(marks_[used_ - 1], used_ - 1, calls_.size()); });
  }
  std::size_t mark(lane_id lane) noexcept { return mark(dev_->stream(lane)); }
  std::size_t mark(const void* stream) noexcept {
    const auto number = used_;
    attempt([&] {
      marks_.record(used_, stream);
      ++used_;
    });
    return failed_ ? none : number;
  }
  [[nodiscard]] double us_between(std::size_t from, std::size_t to) const {
    return std::max(0.0, marks_.elapsed_us(from, to));
  }

  hardware* dev_;
  std::exception_ptr failed_;
  lane_id last_{};
  std::size_t first_ = 0;
  std::size_t used_ = 0;
  std::size_t inside_ = 0;  // depth of recomputing
  timing_events marks_;
  std::vector<call> calls_;
  std::vector<recomputing> again_;
  std::vector<rank_wait> waits_;
  std::vector<plan::storage_profile> storages_;
  std::vector<plan::shared_save> shared_;
  std::unordered_map<std::uint64_t, storage_state> seen_;  // by number of the storage
  // Storages of each group that is committed and not restored.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint64_t>> held_by_;
  std::vector<bool> forward_done_;  // for each chunk
  std::vector<std::size_t> sizes_;
  drain_watch watch_;
};

}  // namespace tidepool::detail
