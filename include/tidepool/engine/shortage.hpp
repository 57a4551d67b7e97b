// Messages about too little device memory: the cause, the holders of memory, and the remedy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tidepool/config/list_formats.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/decide/residency.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/engine/open_chunks.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::detail {

// The facts about a request that failed, from the source of the memory and the engine.
struct shortage {
  std::string call;
  std::size_t bytes = 0;
  bool whole_group = false;  // the request is for all tensors of a group
  memory_kind memory = memory_kind::pool;
  bool given = false;  // the trainer gave the memory (`parts::memory`)
  std::vector<slot_ring> rings;
  std::vector<slot_ring> wanted;  // rings that would have sufficed, see `slots::wanted`
  std::size_t budget = 0;         // 0: no budget
  std::size_t reserved = 0;
  std::size_t largest_free = 0;
  bool in_pieces = false;                   // the free pieces together would suffice
  std::optional<memory_info> device;        // empty if it could not be asked
  std::map<std::string, std::size_t> live;  // bytes by holder
  bool restored = false;                    // handles that backward filled hold some of them
  bool all_leave = false;                   // every module is offloaded
  bool none_leaves = false;                 // no module is offloaded
  bool margin = false;                      // the margin keeps groups on the device
  const char* planning = nullptr;           // how to get a plan, which might find a way
  std::string plan;                         // a sentence if the step differs from the plan
};

enum class lack : unsigned char { slot_size, free_slots, budget_of_one, budget, device, given };

// Bytes that the request takes of its source. A group takes more, because each of its tensors is
// rounded up.
[[nodiscard]] inline std::size_t taken_by(const shortage& of) {
  if (of.whole_group) return of.bytes;
  return of.memory == memory_kind::pool ? pool::rounded(of.bytes, rounding::sixteenth)
                                        : aligned(of.bytes);
}

[[nodiscard]] inline lack lack_of(const shortage& of) {
  if (of.given) return lack::given;
  if (of.memory == memory_kind::slots) {
    // Tensors of a group have been in slots before, so that slots are large enough.
    const bool any = of.whole_group || std::any_of(of.rings.begin(), of.rings.end(), [&](auto& r) {
                       return aligned(r.bytes) >= of.bytes;
                     });
    return any ? lack::free_slots : lack::slot_size;
  }
  const auto need = taken_by(of);
  const auto most = of.budget / block_alignment * block_alignment;
  if (of.budget != 0 && need > most) return lack::budget_of_one;
  // A pool that could still grow did not, because the device had no memory.
  const bool could_grow = of.budget == 0 || (of.reserved <= most && need <= most - of.reserved);
  return of.memory == memory_kind::pool && could_grow ? lack::device : lack::budget;
}

// The option for rings with enough slots for all requests so far and this one. Requests without a
// free slot of their own size have taken larger slots.
[[nodiscard]] inline std::string rings_with_more(const shortage& of) {
  auto rings = of.rings;
  bool more = false;
  for (const auto& each : of.wanted) {
    const auto same = [&](const slot_ring& ring) { return aligned(ring.bytes) == each.bytes; };
    const auto ring = std::find_if(rings.begin(), rings.end(), same);
    if (ring == rings.end() || ring->count >= each.count) continue;
    ring->count = each.count;
    more = true;
  }
  if (!more) rings.push_back({of.bytes, 1});  // no ring has slots of this size
  return "--slots=" + text::rings_format::write(rings);
}

[[nodiscard]] inline std::string cause(const shortage& of, lack what) {
  const std::string idle = " and nothing is in flight to wait for";
  const std::string held = text::size_text(of.reserved) + " reserved, largest free block " +
                           text::size_text(of.largest_free);
  const std::string limit =
      of.budget == 0 ? "" : "--device-budget is " + text::size_text(of.budget) + ", ";
  const std::string one = of.whole_group ? "this one group" : "this one tensor";
  switch (what) {
    case lack::slot_size: {
      std::size_t largest = 0;
      for (const auto& ring : of.rings) largest = std::max(largest, ring.bytes);
      return ": no ring has slots so large, the largest have " + text::size_text(largest);
    }
    case lack::free_slots:
      if (of.whole_group) return ": its slots are taken" + idle;
      return ": every slot of at least " + text::size_text(of.bytes) + " is taken" + idle;
    case lack::budget_of_one:
      return ": " + one + " is larger than --device-budget, which is " +
             text::size_text(of.budget) +
             (of.bytes <= of.budget ? ", once rounded up to " + text::size_text(taken_by(of)) : "");
    case lack::device:
      return " (" + limit + (limit.empty() ? "" : "but ") + "the device has no more" +
             (of.device ? ": " + text::size_text(of.device->free) + " of " +
                              text::size_text(of.device->total) + " are free"
                        : "") +
             "; " + held + ")" + idle;
    case lack::given:
      return ": the memory given to this offloader (parts::memory) has no more" + idle;
    case lack::budget:
      break;
  }
  return " (" + limit + held + (of.in_pieces ? "; there is room, but in pieces" : "") + ")" + idle;
}

[[nodiscard]] inline std::string remedy(const shortage& of, lack what) {
  if (what == lack::slot_size) return "Add a ring: " + rings_with_more(of);
  if (what == lack::budget_of_one) {
    return "Raise --device-budget, or save it in smaller " +
           std::string(of.whole_group ? "groups" : "tensors");
  }
  std::string ways;
  const auto add = [&](bool helps, const char* way) {
    if (helps) ways += std::string(way) + ", ";
  };
  add(of.restored, "reset handles once backward has used them");
  add(what == lack::budget && of.margin, "take --no-margin");
  add(what == lack::budget && of.planning != nullptr, of.planning);
  add(!of.all_leave && !of.none_leaves, "offload more modules");
  add(of.none_leaves, "name modules to offload (none is: --offload-modules=all)");
  ways += "or run fewer microbatches in flight";
  if (what == lack::free_slots) return "Add slots: " + rings_with_more(of) + "; " + ways;
  if (what == lack::given) return "Free some of it elsewhere, " + ways;
  return (what == lack::device ? "Leave it more of the device, " : "Raise --device-budget, ") +
         ways;
}

[[nodiscard]] inline std::string in_words(const shortage& of) {
  const auto what = lack_of(of);
  auto text = of.call + ": " + text::size_text(of.bytes) + " of device memory do not fit" +
              cause(of, what) + ". ";
  if (what != lack::slot_size && what != lack::budget_of_one) {
    std::vector<std::string> live;
    for (const auto& [name, size] : of.live) live.push_back(name + " " + text::size_text(size));
    text += "Live: " + (live.empty() ? "nothing" : text::join(live, ", ")) + ". " + of.plan;
  }
  return text + remedy(of, what);
}

// The advice `--host-budget to 72 MiB or more`. If the free memory is in pieces, the advice adds a
// piece for the request. A larger budget does not help if memory is refused below the budget.
[[nodiscard]] inline std::string raised(const std::string& option, const pool& blocks,
                                        std::size_t bytes) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  const auto more = aligned(bytes);
  const bool pieces = blocks.used() + more <= blocks.budget();
  if (pieces && more <= blocks.budget() - blocks.reserved()) {
    return "the memory that the machine gives (less than " + option + ")";
  }
  auto need = (pieces ? blocks.budget() : blocks.used()) + more;
  const auto unit = need > mib ? mib : need > mib / 16 ? std::size_t{1024} : 1;
  need = (need + unit - 1) / unit * unit;  // rounded up, so that the advice suffices
  return option + " to " + text::size_text(need) + " or more" +
         (pieces ? " (the rest is in pieces)" : "");
}

[[nodiscard]] inline std::string in_brackets(const std::string& words) {
  return words.empty() ? words : " (" + words + ")";
}

// Bytes that stay by the plan of a step, and chunks that wait for backward.
struct kept_by_plan {
  std::size_t bytes = 0;
  std::size_t chunks = 0;
};

// The most of each at any time of the step that the plan was made of.
[[nodiscard]] inline kept_by_plan most_kept(const plan::profile& step, const residency& keeps) {
  kept_by_plan now;
  kept_by_plan most;
  for (const auto& each : step.passes) {
    now.chunks += each.backward ? 0 : 1;
    most.chunks = std::max(most.chunks, now.chunks);
    now.chunks -= each.backward ? 1 : 0;
  }
  for (const auto& each : step.events) {
    const bool out = each.kind == plan::event_kind::commit;
    if (!out && each.kind != plan::event_kind::restore) continue;
    if (keeps.planned(each.chunk, each.index) != plan::action::keep) continue;
    const auto bytes = step.chunks[each.chunk].groups[each.index].bytes;
    now.bytes = out ? now.bytes + bytes : now.bytes - bytes;
    most.bytes = std::max(most.bytes, now.bytes);
  }
  return most;
}

// Bytes and chunks of the chunks that are open now. Bytes are the plan's, which has only the part
// of a group that could have left.
[[nodiscard]] inline kept_by_plan kept_now(const open_chunks& open, const plan::profile& step,
                                           const residency& keeps) {
  kept_by_plan now;
  for (const auto* chunk : open.all()) {
    if (chunk == nullptr) continue;
    now.chunks += chunk->backward_begun ? 0 : 1;
    for (std::uint32_t i = 0; i < chunk->groups.size(); ++i) {
      if (chunk->groups[i].kept == 0 || keeps.planned(chunk->ordinal, i) != plan::action::keep) {
        continue;
      }
      now.bytes += step.chunks[chunk->ordinal].groups[i].bytes;
    }
  }
  return now;
}

[[nodiscard]] inline std::string against_plan(const kept_by_plan& now, const kept_by_plan& most) {
  if (now.bytes <= most.bytes && now.chunks <= most.chunks) return {};
  return "The plan keeps " + text::size_text(most.bytes) +
         " at once and was made of a step with at most " + std::to_string(most.chunks) +
         " chunks in flight; now " + std::to_string(now.chunks) + " are, and " +
         text::size_text(now.bytes) + " stay: keep the order and the number of chunks. ";
}

}  // namespace tidepool::detail
