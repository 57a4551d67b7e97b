// Finds silent modules and their reasons: the implementation of silent.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/silent.hpp"

namespace tidepool::inline v0_3_0::trace {

namespace detail {
using tidepool::detail::text::count_of;
}

TIDEPOOL_INLINE bool silent(const module_counters& module) {
  const auto bytes = module.bytes_offloaded + module.bytes_reloaded + module.bytes_recomputed;
  return module.enabled && bytes == 0;
}

TIDEPOOL_INLINE std::vector<std::string> silent_modules(const counters& totals) {
  std::vector<std::string> names;
  for (const auto& module : totals.modules) {
    if (silent(module)) names.push_back(module.name);
  }
  return names;
}

TIDEPOOL_INLINE std::string why_silent(const module_counters& module) {
  const std::string by_policy =
      " kept on the device by --offload-layers, --margin, --offload-fraction,"
      " --delta-bytes-per-rank or a plan";
  const auto some = [](std::uint64_t count, const char* one, const char* more, const char* text) {
    return count == 0 ? "" : detail::count_of(count, "tensor") + (count == 1 ? one : more) + text;
  };
  const auto elsewhere = some(module.tensors_elsewhere, " lies", " lie",
                              " on another device than the offloader's; make the offloader for the"
                              " device that the module runs on");
  const auto excluded = some(module.tensors_excluded, " was", " were",
                             " excluded (exclude, exclude_if), and no other is there to leave;"
                             " exclude less, or take the module out of --offload-modules");
  if (module.groups == 0 && !elsewhere.empty()) return elsewhere;
  if (module.groups == 0 && !excluded.empty()) return excluded;
  if (module.groups == 0 && module.by_all) {
    return "nothing was committed under this name, for which --offload-modules=all stands too; that"
           " is as it should be where the model has no such module";
  }
  if (module.groups == 0) {
    return "nothing was committed under this name. The model has no such module, another one does"
           " its work, or it runs only where nothing is saved for a backward pass (forward_only,"
           " no gradients); check the spelling in its calls, or take it out of --offload-modules."
           " A call by a misspelt name compiles and does nothing, except with"
           " tidepool::strict_modules";
  }
  if (module.groups_resident >= module.groups) {
    return (module.groups == 1 ? "its one group was"
                               : "all its " + detail::count_of(module.groups, "group") + " were") +
           by_policy + "; relax the one that applies";
  }
  std::string text;
  if (module.groups_resident > 0) {
    text = std::to_string(module.groups_resident) + " of its " +
           detail::count_of(module.groups, "group") + " were" + by_policy + "; in the others, ";
  }
  if (module.tensors_small > 0) {
    return text + detail::count_of(module.tensors_small, "tensor") +
           " had fewer elements than --min-tensor-elements; lower that";
  }
  if (module.tensors_shared > 0) {
    return text + detail::count_of(module.tensors_shared, "tensor") +
           " had been saved before and count for the module that saved them first; nothing to do";
  }
  if (!elsewhere.empty()) return text + elsewhere;
  if (!excluded.empty()) return text + excluded;
  return text +
         "no tensor was free to leave; look for keep_resident and for commits without"
         " tensors";
}

namespace detail {

// An addition for a module without commits: the tensors that the trainer discarded instead of
// saving them.
TIDEPOOL_INLINE std::string discarded_words(const counters& totals) {
  std::string names;
  for (const auto& each : totals.recomputed) {
    if (each.tensors > 0) names += (names.empty() ? "'" : "', '") + each.name;
  }
  if (names.empty()) return {};
  return ". The trainer discarded tensors of " + names +
         "' to compute them again; where this module saves them, nothing of it is left to offload";
}

// An addition for a module without commits: the name that may have been meant.
TIDEPOOL_INLINE std::string nearest_words(const counters& totals, std::string_view missing) {
  std::vector<std::string_view> names;
  for (const auto& each : totals.modules) {
    if (each.groups > 0 || !each.enabled) names.push_back(each.name);
  }
  const auto near = tidepool::detail::text::nearest(missing, names);
  if (near.empty()) return {};
  const bool committed = std::ranges::any_of(
      totals.modules, [&](const auto& each) { return each.name == near && each.groups > 0; });
  return std::string(". The nearest name that ") +
         (committed ? "has commits" : "was not asked for") + " is '" + std::string(near) + "'";
}

// Raw records cross the link in parts, by kernels. If there are many, packing costs more than it
// saves.
TIDEPOOL_INLINE bool mostly_raw(const module_counters& module) {
  constexpr std::uint64_t enough = 64;
  return module.records_seen >= enough && 4 * module.records_raw > module.records_seen;
}

}  // namespace detail

TIDEPOOL_INLINE std::vector<std::string> silent_messages(const counters& totals) {
  std::vector<std::string> messages;
  const auto left = [](const module_counters& module) { return module.groups_offloaded > 0; };
  if (totals.steps == 0 && std::ranges::any_of(totals.modules, left)) {
    return {
        "tidepool: no step has ended: call end_step() once all chunks of a step are finished;"
        " plans, and what the first step settles, wait for it"};
  }
  if (totals.passes == 0 && totals.passes_forward_only > 0 &&
      std::ranges::any_of(totals.modules, silent)) {
    return {
        "tidepool: nothing was offloaded, since all passes so far were forward_only; begin those"
        " that train without it"};
  }
  std::vector<std::string> missing;
  for (const auto& each : totals.modules) {
    if (!silent(each)) continue;
    const bool absent =
        each.groups == 0 && each.tensors_elsewhere == 0 && each.tensors_excluded == 0;
    if (absent && each.by_all) {
      missing.push_back("'" + each.name + "'");
      continue;
    }
    messages.push_back(
        "tidepool: module '" + each.name + "' was asked for and moved no byte in " +
        detail::count_of(totals.steps, "step") + ": " + why_silent(each) +
        (absent ? detail::discarded_words(totals) + detail::nearest_words(totals, each.name) : ""));
  }
  if (!missing.empty()) {
    std::string names;
    for (const auto& name : missing) names += (names.empty() ? "" : ", ") + name;
    messages.push_back("tidepool: --offload-modules=all stands for " + names +
                       " too, and nothing was committed under " +
                       (missing.size() == 1 ? "that name" : "those names") + " in " +
                       detail::count_of(totals.steps, "step") +
                       "; that is as it should be where the model has no such module" +
                       detail::discarded_words(totals));
  }
  for (const auto& each : totals.modules) {
    if (!detail::mostly_raw(each)) continue;
    messages.push_back(
        "tidepool: " + std::to_string(100 * each.records_raw / each.records_seen) +
        " % of what is packed of '" + each.name +
        "' does not fit the packed form and is slow to pack; name the other modules in --pack");
  }
  for (const auto& each : totals.recomputed) {
    if (each.tensors > 0 || totals.steps == 0) continue;
    messages.push_back("tidepool: '" + each.name +
                       "' was to be recomputed, and the trainer discarded nothing of it in " +
                       detail::count_of(totals.steps, "step") +
                       "; does it call commit_or_discard and restore_or_recompute by that name?");
  }
  return messages;
}

}  // namespace tidepool::trace
