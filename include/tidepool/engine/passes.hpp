// The passes of a step: their begin and end, and groups that are not restored.
#pragma once

#include <memory>
#include <string>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE auto engine::begin(const chunk_info& info) -> chunk_state& {
  if (info.release && !info.forward_only) {
    throw misuse_error("begin of microbatch " + std::to_string(info.microbatch) +
                       ": release gives up at each commit what backward needs; add forward_only,"
                       " or leave release out");
  }
  if (rows_ != nullptr && !info.forward_only) rows_->expect_asked("begin");
  if (spare_.empty()) {
    make_room(spare_, chunks_.size() + 1);
    spare_.push_back(&*chunks_.emplace_back(std::make_unique<chunk_state>()));
  }
  const auto begun = learner_.begun();
  if (!info.forward_only) {
    learner_.expect_chunk(info.model_chunk);
    live_.make_room(begun + 1);
  }
  coalesce_after_evaluation();  // the code below must not throw
  auto& fresh = *spare_.back();
  spare_.pop_back();
  fresh.start(info, info.forward_only ? 0 : begun);
  ++(info.forward_only ? counters_.passes_forward_only : counters_.passes);
  if (info.forward_only) {
    learner_.evaluation_begins();
    placement_.evaluation_begins(begun == 0);
  } else {
    live_.add(fresh);
    if (learner_.chunk_begins(info.model_chunk, info.microbatch)) start_recording();
    tell_pass(happened::pass_begun, fresh, false);
  }
  ++references;
  return fresh;
}

TIDEPOOL_INLINE void engine::end_forward(chunk_state& chunk) {
  if (chunk.info.forward_only) return;
  pass_gate();
  if (!chunk.forward_done) tell_pass(happened::pass_over, chunk, false);
  chunk.end_forward();
  if (heard_.any()) heard_.tell({.what = happened::forward_ended, .chunk = &chunk});
  reload_ahead();
}

TIDEPOOL_INLINE void engine::check_finished(const chunk_state& chunk) const {
  if (!chunk.discarded.empty()) {
    const auto& first = chunk.discarded.front();
    refuse_recompute("finish", chunk, first.what, first.layer,
                     "discarded and never computed again; call restore_or_recompute in backward"
                     " before the tensor is read");
  }
  if (chunk.waiting == 0) return learner_.expect_no_more(chunk.ordinal, chunk.groups.size());
  std::string first;
  for (std::uint32_t i = 0; i < chunk.groups.size() && first.empty(); ++i) {
    const auto& each = chunk.groups[i];
    if (each.state != group_state::restored) first = name_of_group(chunk, each.module, each.layer);
  }
  throw misuse_error(
      "finish: " + text::count_of(chunk.waiting, "group") +
      " committed and never restored, first " + first +
      "; restore every commit in backward, mark the chunk forward_only, or destroy it"
      " to give its pass up");
}

TIDEPOOL_INLINE void engine::forget(chunk_state& chunk, module_id module, int layer) {
  if (chunk.info.forward_only) return;
  pass_gate();
  forget(chunk, waiting_group(chunk, module, layer, "forget"));
}

TIDEPOOL_INLINE void engine::forget(chunk_state& chunk, std::uint32_t index) {
  auto& which = chunk.groups[index];
  if (which.awaited) forgotten_.add(chunk.ordinal, index);
  if (heard_.any()) heard_.tell({.what = happened::forgotten, .chunk = &chunk, .index = index});
  forget_group(chunk, which);
  chunk.mark_restored(which);
}

TIDEPOOL_INLINE void engine::forget_group(chunk_state& chunk, group& which) {
  if (which.kept > 0) forget_kept(chunk, which);
  ahead_.forget(which.ahead);
  auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store != nullptr) forget_save(*items[i].store);
  }
}

TIDEPOOL_INLINE void engine::end_chunk(chunk_state& chunk, bool finished) noexcept {
  if (!chunk.info.forward_only) {
    if (finished) {
      std::size_t left = 0;
      std::size_t bytes = 0;
      for (const auto& each : chunk.groups) {
        left += each.bytes > 0 ? 1 : 0;
        bytes += each.bytes;
      }
      learner_.forgotten.pass_finished(chunk.info.model_chunk, chunk.info.microbatch, left,
                                       [&] { return store_.saves_nothing(bytes); });
    }
    const bool unfinished = chunk.waiting > 0 || !chunk.discarded.empty() || !chunk.backward_begun;
    const bool given_up =
        learner_.chunk_ends(chunk.ordinal, chunk.groups.size(), !finished, unfinished);
    for (std::uint32_t i = 0; i < chunk.groups.size(); ++i) {
      auto& each = chunk.groups[i];
      if (each.state != group_state::restored) forget_group(chunk, each);
    }
    live_.remove(chunk);
    if (chunk.backward_begun) tell_pass(happened::pass_over, chunk, true);
    if (given_up && !chunk.backward_begun && chunk.ordinal + 1 == learner_.begun()) {
      learner_.forget_latest_chunk();
      live_.reuse_latest(chunk);
    } else {
      try {  // a chunk that saved nothing counts in the order of passes, too
        if (!chunk.backward_begun) begin_backward(chunk);
      } catch (...) {  // if it is not counted, a warm-up only keeps less on the device
      }
    }
  } else {
    placement_.evaluation_ended();
  }
  spare_.push_back(&chunk);
  release(this);
}

}  // namespace tidepool::detail
