// The engine's errors in words: the mistake, its place, and the remedy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/shortage.hpp"

namespace tidepool::inline v0_3_0::detail {

[[gnu::cold]] TIDEPOOL_INLINE std::string engine::name_of_group(const chunk_state& chunk,
                                                                module_id module, int layer) const {
  return names_[static_cast<std::size_t>(module)] + " of layer " + std::to_string(layer) +
         ", microbatch " + std::to_string(chunk.info.microbatch);
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::refuse(const char* call, const chunk_state& chunk,
                                                  module_id module, int layer,
                                                  const std::string& why) const {
  throw misuse_error(std::string(call) + " of " + name_of_group(chunk, module, layer) + ": " + why);
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::refuse_argument(const char* call,
                                                           const chunk_state& chunk,
                                                           const group& which, std::uint32_t index,
                                                           const char* why) const {
  refuse(call, chunk, which.module, which.layer,
         "argument " + std::to_string(index + 1) + " " + why);
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::refuse_count(const chunk_state& chunk,
                                                        const group& which,
                                                        std::size_t given) const {
  refuse("restore", chunk, which.module, which.layer,
         std::to_string(given) + " arguments, but " + std::to_string(which.count) +
             " were committed; pass the same, in order");
}

// Refuses a handle that another commit emptied: such a handle is a mistake, as a wrong layer,
// arguments in another order, or another microbatch.
[[gnu::cold]] TIDEPOOL_INLINE void engine::refuse_spare(const chunk_state& chunk,
                                                        const group& which, std::uint32_t argument,
                                                        std::uint64_t saved_as) const {
  for (auto* other : live_.all()) {
    for (std::uint32_t i = 0; other != nullptr && i < other->groups.size(); ++i) {
      const auto& each = other->groups[i];
      if (each.state == group_state::restored) continue;
      const auto* items = other->saved_of(each);
      for (std::uint32_t j = 0; j < each.count; ++j) {
        if (items[j].store == nullptr || items[j].store->number != saved_as) continue;
        refuse_argument(
            "restore", chunk, which, argument,
            ("was emptied by the commit of " + name_of_group(*other, each.module, each.layer) +
             ", as argument " + std::to_string(j + 1) +
             (other != &chunk ? "; restore it in that one's chunk, or give each microbatch in"
                                " flight handles of its own"
              : &each != &which && each.module == which.module && each.layer == which.layer
                  ? ", but an earlier one than this restores; of one module and layer the last"
                    " commit comes back first"
                  : "; pass what was committed, in the same order") +
             ", or reset it first")
                .c_str());
      }
    }
  }
  refuse_argument("restore", chunk, which, argument,
                  "was emptied by a commit of a chunk that was dropped, of another offloader's, or"
                  " that another handle has restored; pass what this chunk committed, or reset it"
                  " first");
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::throw_out_of_places(const chunk_state& chunk,
                                                               const group& which,
                                                               std::size_t bytes) const {
  std::string options;
  std::string in_use;
  std::string raise;
  std::size_t budget = 0;
  for (const auto kind : places_) {
    const auto& place = store_.at(kind);
    if (!place.blocks) continue;
    budget = place.blocks->budget();
    const auto word = std::string(name_of(kind));
    const bool host = kind == place_kind::host;
    const auto between = [&](std::string_view text) { return options.empty() ? "" : text; };
    const auto full = place.staged ? place.staged->full() : std::string();
    in_use += std::string(between(" and ")) + text::size_text(place.blocks->used()) + " of " +
              text::size_text(budget) + (host ? "" : " of " + place.name) + in_brackets(full);
    raise += between(" or ");
    raise += place.lent != nullptr ? "what " + place.lent->lender() + " lends"
             : !full.empty()       ? "the free room on the disk of " + opts_.file_path
                                   : raised("--" + word + "-budget", *place.blocks, bytes);
    options += std::string(between(", ")) + word + "_budget";
  }
  const bool host = std::ranges::find(opts_.places, place_kind::host) != opts_.places.end();
  const bool peer = std::ranges::find(opts_.places, place_kind::peer) != opts_.places.end();
  throw out_of_budget("commit of " + name_of_group(chunk, which.module, which.layer) + ": " +
                          options + ": " + text::size_text(bytes) + " more do not fit; " + in_use +
                          " are in use" + in_brackets(counters_.host_budget) + ". Raise " + raise +
                          (host   ? ", offload"
                           : peer ? ", give --places=peer,host, offload"
                                  : ", give --places=host,file:/path, offload") +
                          " fewer modules, or lower --offload-fraction",
                      bytes, budget);
}

[[noreturn, gnu::cold]] inline void throw_out_of_source(std::size_t bytes, const std::string& what,
                                                        const block_source& own) {
  throw out_of_budget(what + ": " + text::size_text(bytes) +
                          " do not fit the source given to allocate_from, which has " +
                          text::size_text(own.reserved()) + " and a largest free block of " +
                          text::size_text(own.largest_free()) +
                          ". Reset what is in it first, or give a larger one",
                      bytes, own.budget());
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::throw_out_of_device(std::size_t bytes,
                                                               const std::string& what,
                                                               const block_source* own) {
  const auto& source = store_.device_source();
  shortage short_of;
  short_of.call = what;
  short_of.bytes = bytes;
  short_of.whole_group = what.starts_with("reload of ");
  short_of.memory = opts_.memory;
  short_of.given = store_.has_given_memory();
  short_of.rings = opts_.slots;
  short_of.budget = source.budget();
  short_of.reserved = source.reserved();
  short_of.largest_free = source.largest_free();
  std::size_t elsewhere = 0;
  store_.for_each([&](const storage& store) {
    if (!store.here.memory) return;
    if (store.source != nullptr || store.is.borrowed) elsewhere += store.bytes;
    if (store.source != nullptr) return;
    const bool restored = store.is.wanted && store.saves == 0;
    auto name = store.module < 0 ? std::string("not committed")
                                 : names_[static_cast<std::size_t>(store.module)];
    short_of.live[restored ? name + " (restored and not reset)" : name] += store.bytes;
    short_of.restored = short_of.restored || restored;
  });
  if (own != nullptr) throw_out_of_source(bytes, what, *own);
  short_of.in_pieces = short_of.reserved >= store_.live() - elsewhere + bytes;
  if (opts_.memory == memory_kind::slots) {
    short_of.wanted = static_cast<const slots&>(source).wanted();
  }
  const bool all = std::ranges::find(opts_.offload_modules, "all") != opts_.offload_modules.end();
  short_of.all_leave =
      all || std::ranges::all_of(counters_.modules, &trace::module_counters::enabled);
  short_of.none_leaves = std::ranges::none_of(counters_.modules, &trace::module_counters::enabled);
  short_of.margin = learner_.by_rule() && opts_.margin;
  const bool by_rule_alone = opts_.fraction < 1 || opts_.delta_bytes_per_rank > 0;
  if (opts_.policy == policy_kind::megatron && !by_rule_alone && !learner_.unproven() &&
      opts_.memory != memory_kind::slots && (short_of.in_pieces || short_of.margin)) {
    short_of.planning = learning_ != nullptr ? "take --policy=automatic"
                                             : "take --policy=automatic and parts::planner";
  }
  if (lack_of(short_of) == lack::device) {
    try {
      short_of.device = dev_->memory();
    } catch (const device_error&) {  // the device may refuse the question in a capture
    }
  }
  learner_.starves();
  if (learner_.unproven()) {
    short_of.plan =
        "A plan from elsewhere is in its first step: is it of this model and these options? ";
  } else if (!learner_.warming_up() && profile().timed()) {
    short_of.plan = against_plan(kept_now(live_, profile(), decider_.keeps()),
                                 most_kept(profile(), decider_.keeps()));
  }
  if (learner_.may_leave_plan()) {
    short_of.plan +=
        "The step may be larger than the one that was planned for: drop its chunks, call end_step()"
        " and run it again, and a new plan is made of it. ";
  }
  throw out_of_budget(in_words(short_of), bytes, source.budget());
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::throw_still_open() const {
  const auto* open = live_.first();
  for (const auto& each : chunks_) {
    if (open == nullptr && std::ranges::find(spare_, each.get()) == spare_.end()) open = each.get();
  }
  const auto& info = open->info;
  throw misuse_error(
      std::string("end_step: the ") + (info.forward_only ? "forward_only " : "") +
      "chunk of microbatch " + std::to_string(info.microbatch) +
      " is still open; finish every chunk of the step first, or destroy one to give its pass up");
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::refuse_released(const char* call,
                                                           const chunk_state& chunk,
                                                           module_id module, int layer) const {
  refuse(call, chunk, module, layer,
         "its commit released it, since the chunk was begun with forward_only and release; begin a"
         " pass that goes backward without them");
}

}  // namespace tidepool::detail
