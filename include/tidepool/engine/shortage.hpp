// Device memory that does not suffice, in words: for want of what, who holds it, and what to do.
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

// What the source of the memory and the engine know of a request that failed.
struct shortage {
  std::string call;
  std::size_t bytes = 0;
  bool whole_group = false;  // whose tensors are apart
  memory_kind memory = memory_kind::pool;
  bool given = false;  // by the trainer, instead of one of these
  std::vector<slot_ring> rings;
  std::vector<slot_ring> wanted;  // as many as would have done so far, see `slots`
  std::size_t budget = 0;         // 0: none was given
  std::size_t reserved = 0;
  std::size_t largest_free = 0;
  bool in_pieces = false;                   // together they would do
  std::optional<memory_info> device;        // where it could be asked
  std::map<std::string, std::size_t> live;  // bytes, by what holds them
  bool restored = false;                    // some of them by handles that backward filled
  bool all_leave = false;                   // no module is left to be offloaded
  bool none_leaves = false;                 // none was asked for
  bool margin = false;                      // keeps some of it
  bool may_plan = false;                    // an automatic plan might find a way
  std::string plan;                         // a sentence, where the step is not the planned one
};

enum class lack : unsigned char { slot_size, free_slots, budget_of_one, budget, device, given };

// What it takes of its source; tensors of a group are rounded up one by one, so that theirs is
// more.
[[nodiscard]] inline std::size_t taken_by(const shortage& of) {
  if (of.whole_group) return of.bytes;
  return of.memory == memory_kind::pool ? pool::rounded(of.bytes, rounding::sixteenth)
                                        : aligned(of.bytes);
}

[[nodiscard]] inline lack lack_of(const shortage& of) {
  if (of.given) return lack::given;
  if (of.memory == memory_kind::slots) {
    // A tensor of a group lay in a slot before, so that one is large enough.
    const bool any = of.whole_group || std::any_of(of.rings.begin(), of.rings.end(), [&](auto& r) {
                       return aligned(r.bytes) >= of.bytes;
                     });
    return any ? lack::free_slots : lack::slot_size;
  }
  const auto need = taken_by(of);
  const auto most = of.budget / block_alignment * block_alignment;
  if (of.budget != 0 && need > most) return lack::budget_of_one;
  // A pool that may still grow did not for want of memory.
  const bool could_grow = of.budget == 0 || (of.reserved <= most && need <= most - of.reserved);
  return of.memory == memory_kind::pool && could_grow ? lack::device : lack::budget;
}

// The rings with room for what was wanted of each so far, this request as well, as the option takes
// them. Requests that found no slot of their own size have taken larger ones.
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
  if (!more) rings.push_back({of.bytes, 1});  // there are none as large as that
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
  add(what == lack::budget && of.may_plan, "take --policy=automatic");
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

// `--host-budget to 72 MiB or more`, where that is what it takes and not room in one piece.
[[nodiscard]] inline std::string raised(const std::string& option, std::size_t need,
                                        std::size_t budget) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  if (need <= budget) return option;
  const auto unit = need > mib ? mib : need > mib / 16 ? std::size_t{1024} : 1;
  need = (need + unit - 1) / unit * unit;  // never less than it takes
  return option + " to " + text::size_text(need) + " or more";
}

[[nodiscard]] inline std::string in_brackets(const std::string& words) {
  return words.empty() ? words : " (" + words + ")";
}

// Of a step that follows its plan: what stays by it, and the chunks that wait for backward.
struct kept_by_plan {
  std::size_t bytes = 0;
  std::size_t chunks = 0;
};

// The most of both at any time of the step that the plan was made of.
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

// The same of the chunks that are open now. Bytes are those of the plan, which knows what of a
// group could have left.
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

[[nodiscard]] inline std::string against_plan(const open_chunks& open, const plan::profile& step,
                                              const residency& keeps) {
  return against_plan(kept_now(open, step, keeps), most_kept(step, keeps));
}

}  // namespace tidepool::detail
