/// The engine: commit, restore, reloads ahead of use, caps and residency, on run-time module ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/call_ref.hpp"
#include "tidepool/core/decision.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/core/linkage.hpp"
#include "tidepool/core/room.hpp"
#include "tidepool/core/slot_list.hpp"
#include "tidepool/decide/decider.hpp"
#include "tidepool/engine/capture_gate.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/handle.hpp"
#include "tidepool/engine/learning.hpp"
#include "tidepool/engine/misuse.hpp"
#include "tidepool/engine/open_chunks.hpp"
#include "tidepool/engine/row_counter.hpp"
#include "tidepool/engine/storages.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/rules/reloads_ahead.hpp"
#include "tidepool/rules/window.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/nvtx.hpp"

namespace tidepool::inline v0_3_0::detail {

// An engine lives as long as its offloader and every handle and chunk made by it.
class engine : public storage_owner {
 public:
  using storage = detail::storage;

  // `names` has the modules by id; `enabled` has a bit for each module that leaves.
  engine(std::unique_ptr<hardware> dev, const options& opts,
         const std::vector<std::string_view>& names, std::uint64_t enabled,
         std::unique_ptr<block_source> memory = {}, planner_base* planner = nullptr,
         file_opener file = nullptr);
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  void retain() { ++references; }
  static void release(engine* which) noexcept;

  [[nodiscard]] hardware& device() { return *dev_; }
  // The gate is null before the first capture.
  [[nodiscard]] std::unique_ptr<capture_gate>& gate() { return gate_; }
  // The counter is null before the first `counts_rows`.
  [[nodiscard]] std::unique_ptr<row_counter>& rows() { return rows_; }
  // Runs before a call that takes or reads memory. `captured` is true if the call's stream is under
  // capture. A call without a stream belongs to the capture under way, if any.
  void pass_gate(bool captured) {
    if (captured != order_.capturing()) throw_mixed_capture(order_.capturing());
    pass_gate();
  }
  void pass_gate() {
    if (gate_ != nullptr) gate_->pass();
  }
  // Runs before a call that releases memory.
  void meet_graphs(bool captured) {
    if (captured != order_.capturing()) throw_mixed_capture(order_.capturing());
    meet_graphs();
  }
  void meet_graphs() {
    if (gate_ != nullptr) gate_->meet();
  }
  [[nodiscard]] lanes& order() { return order_; }
  [[nodiscard]] storages& memory() { return store_; }
  [[nodiscard]] handle_lists& lists() { return lists_; }
  [[nodiscard]] observers& heard() { return heard_; }
  // The slot that observe/tracing.hpp fills; it is null before the first trace.
  [[nodiscard]] std::unique_ptr<observer>& tracer_slot() { return tracer_; }
  [[nodiscard]] bool tracing() const { return tracer_ != nullptr && heard_.has(*tracer_); }
  [[nodiscard]] const options& settings() const { return opts_; }
  [[nodiscard]] const reload_limits& limits() const { return decider_.limits(); }
  [[nodiscard]] bool between_steps() const { return learner_.begun() == 0; }
  [[nodiscard]] step_learner& steps() { return learner_; }

  // ---- handles ----

  // Takes memory from `source`, also for each reload; null: from the offloader's own source.
  [[nodiscard]] granted allocate(std::size_t bytes, std::size_t elements, lane_id lane,
                                 block_source* source = nullptr, fill contents = fill::none);
  [[nodiscard]] granted adopt_memory(void* data, std::size_t bytes, std::size_t elements,
                                     lane_id lane, memory_owner owner);

  [[nodiscard]] storage* share(storage& store) {
    ++store.handles;
    ++references;
    return &store;
  }

  // Drops a handle; the work that `lane` has been given so far is its last use.
  void drop(storage& store, lane_id lane, bool reloads = true);

  // Notes that the memory was handed to `lane`, which has joined its fence.
  void hand_to(storage& store, lane_id lane) {
    store.handed.to = lane;
    store.handed.at = order_.next(lane);
    store.is.filled = false;
  }

  void take_back_untouched(storage& store, lane_id lane) noexcept;
  void note_use(storage& store, lane_id lane, const ticket& until);
  void drop_quietly(storage& store, lane_id lane) noexcept;

  // Runs when the offloader goes. Memory that handles still hold is freed with the last handle.
  void close() noexcept {
    closed_ = true;
    if (recorder_ != nullptr) heard_.remove(*std::exchange(recorder_, nullptr));
    learning_.reset();
  }
  // Drops queued work when an exception destroys the offloader, because the work may point into
  // frames that are gone.
  void drop_work() noexcept;

  // ---- recording steps, and making plans ----

  // `learns` is null without a planner, `records` while no step is recorded.
  [[nodiscard]] learning* learns() const { return learning_.get(); }
  [[nodiscard]] learning* records() const { return recorder_; }

  // Counts a tensor of `module` that lies on another device, or was `excluded`.
  void note_elsewhere(module_id module, bool excluded);

  // ---- chunks ----

  [[nodiscard]] chunk_state& begin(const chunk_info& info);
  void end_forward(chunk_state& chunk);

  // Copies the tensors of `handles` that leave, behind the work that `lane` has been given. Their
  // handles are emptied, except in a commit by hand, and the device memory is free after its copy.
  void commit(chunk_state& chunk, module_id module, int layer, lane_id lane, handle_list handles,
              commit_kind how);

  void start_reload(chunk_state& chunk, module_id module, int layer);

  // Fills the handles of a group again and makes `lane` wait for its reload.
  void restore(chunk_state& chunk, module_id module, int layer, lane_id lane, handle_list handles);
  // Like `restore`, for `commit_kind::or_discard`. Calls `again` if the group was discarded, or to
  // measure the time of `again`.
  void restore_or_recompute(chunk_state& chunk, module_id module, int layer, lane_id lane,
                            handle_list handles, call_ref again);

  // Makes `lane` wait for the copy or the work that wrote the tensor of a handle.
  void wait_for(const handle_base& saved, lane_id lane);
  // Releases the saved memory of a group that will not be restored.
  void forget(chunk_state& chunk, module_id module, int layer);
  void forget(chunk_state& chunk, std::uint32_t index);
  // Brings one tensor of a committed group back for `lane`, while forward goes on. The group still
  // has to be restored later.
  [[nodiscard]] granted read_again(chunk_state& chunk, module_id module, int layer,
                                   std::size_t argument, lane_id lane);

  // Throws if a commit has emptied `given`, because the restore of a module that never leaves does
  // not fill it.
  static void expect_full(int layer, std::size_t argument, const handle_base& given);

  [[nodiscard]] bool will_recompute(chunk_state& chunk, module_id module, int layer) const;

  // ---- recomputing by name, which to a plan is work of the trainer like any other ----

  static constexpr std::size_t not_recomputed = static_cast<std::size_t>(-1);
  // The index of a name in `recompute_modules`, which is a short list.
  [[nodiscard]] std::size_t recomputed(std::string_view name) const;
  [[nodiscard]] std::size_t recomputed(module_id module) const;
  [[nodiscard]] bool recomputes(module_id m) const { return recomputed(m) != not_recomputed; }
  [[nodiscard]] std::optional<module_id> module_named(std::string_view name) const;

  // Releases the memory of `tensors` behind the work that `lane` has been given; keeps their sizes.
  void discard(chunk_state& chunk, std::size_t what, int layer, lane_id lane, handle_list tensors);
  // Gives discarded `tensors` memory again, and calls `again` to fill it.
  void recompute(chunk_state& chunk, std::size_t what, int layer, lane_id lane, handle_list tensors,
                 call_ref again);
  [[nodiscard]] static bool will_recompute(chunk_state& chunk, std::size_t what, int layer);

  // Throws `misuse_error` if a group was committed or discarded and never restored.
  void check_finished(const chunk_state& chunk) const;

  // Ends a chunk whose backward pass is over, or will never run.
  void end_chunk(chunk_state& chunk, bool finished) noexcept;

  stage end_step();

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  [[nodiscard]] const plan::profile& profile() const { return learner_.profile(); }

  // Follows a plan from now on. `step` is the profile that the plan was made for.
  void adopt(plan::profile step, plan::actions what, plan::placement where = {},
             followed by = followed::planned);
  // Limits what stays by the plan that is followed, see `decision`.
  void keep_at_most(std::size_t bytes, std::size_t free_piece);
  // Like `adopt`, for a decision with its limits.
  void apply(plan::profile step, const decision& what, followed by);
  // Like `apply`, for a plan from elsewhere: calls of the next step that differ from it are
  // refused.
  void follow(plan::profile step, const decision& what);
  // Makes the next step the first again, because no plan was made of the recorded step.
  void record_again() noexcept;
  // Like `record_again`, also after the engine has stopped recording steps.
  void warm_up_anew();
  // Has the next steps recorded under the plan that is followed, so that another is made of them.
  void time_again() noexcept;
  // The lane of the latest call on a compute stream.
  [[nodiscard]] lane_id last_lane() const { return last_lane_; }
  [[nodiscard]] bool capturing() const { return order_.capturing(); }

  [[nodiscard]] trace::counters counters() const;
  [[nodiscard]] std::string name_of_group(const chunk_state& chunk, module_id module,
                                          int layer) const;

 private:
  friend class graph_gate;
  friend class row_counts;
  friend struct state_calls;
  friend class told_call;
  template <bool>
  friend class work_on_group;
  struct group_ref {
    chunk_state* chunk;
    std::uint32_t index;
  };

  ~engine();

  // True if the device's context is gone, and with it the memory of every handle.
  [[nodiscard]] bool lost() const noexcept;
  // Merges free memory after an evaluation, so that the step finds the same memory as any other
  // step.
  void coalesce_after_evaluation() {
    if (learner_.evaluated_between()) store_.device_source().coalesce();
  }
  // Reports that a pass begins or ends, on the lane of the latest call on a compute stream.
  void tell_pass(happened what, chunk_state& chunk, bool backward) noexcept {
    if (heard_.any())
      heard_.tell({.what = what, .lane = last_lane_, .chunk = &chunk, .backward = backward});
  }
  struct asked;  // questions of the decider
  [[nodiscard]] bool discardable(handle_list handles) const;
  [[nodiscard]] bool begin_recompute(chunk_state& chunk, std::size_t what, int layer, lane_id lane,
                                     handle_list tensors);
  void note_recompute(chunk_state& chunk, const group& which, plan::action what);
  [[nodiscard]] static std::size_t bytes_of(handle_list handles);

  void close_step();
  [[nodiscard]] stage learn();
  void start_recording() noexcept;

  void transfer(chunk_state& chunk, group& which, saved* items, handle_list handles,
                plan::action what, bool choose, tally& seen);
  void expect_argument(const chunk_state& chunk, const group& into, handle_list handles,
                       std::uint32_t number, class extent& known);
  void collect(chunk_state& chunk, group& into, saved* items, handle_list handles,
               plan::action what, bool choose, tally& seen);
  [[nodiscard]] const char* why_not(const handle_base& given) const;
  [[nodiscard]] bool leaves(const handle_base& candidate, tally& seen) const;
  [[nodiscard]] bool packs(const group& into, const saved& item) const;
  void count_raw(const storage& store) noexcept;
  [[nodiscard]] storage& saved_as(const handle_base& given);
  [[nodiscard]] bool move_on(group& into, saved* items);
  void offload(chunk_state& chunk, group& which, saved* items);
  void cap(const group& which, const ticket& done, std::size_t bytes);
  void undo(chunk_state& chunk) noexcept;
  void note_staying(chunk_state& chunk, group& which, const verdict& decided, handle_list handles);
  void empty_handles(group& which, const saved* item, plan::action what, handle_list handles);
  void count_commit(const group& which, const saved* items, const tally& seen, bool stays);
  void release_saved(chunk_state& chunk, module_id module, int layer, lane_id lane,
                     handle_list handles);
  [[nodiscard]] std::size_t bytes_that_could_leave(handle_list handles) const;

  std::uint32_t waiting_group(chunk_state& chunk, module_id module, int layer, const char* call);
  void begin_backward(chunk_state& chunk);
  [[nodiscard]] std::uint32_t fetch(chunk_state& chunk, module_id module, int layer, lane_id lane,
                                    handle_list handles);
  [[nodiscard]] bool expect_committed(const chunk_state& chunk, const group& which, saved* items,
                                      handle_list handles) const;
  [[noreturn]] void refuse_spare(const chunk_state& chunk, const group& which,
                                 std::uint32_t argument, std::uint64_t saved_as) const;
  void hand_over(chunk_state& chunk, std::uint32_t index, lane_id lane, handle_list handles);
  [[nodiscard]] bool measures(chunk_state& chunk, const group& which, handle_list handles) const;
  void lend(chunk_state& chunk, const group& which, lane_id lane, handle_list handles);
  void take_back_lent(chunk_state& chunk, std::uint32_t index, lane_id lane,
                      handle_list handles) noexcept;
  [[nodiscard]] bool try_reload(chunk_state& chunk, std::uint32_t index, haste how);
  [[nodiscard]] bool bring(std::span<saved> items, const std::uint32_t* by_size, haste how,
                           span_label& label, std::size_t& bytes);
  void require_reload(chunk_state& chunk, std::uint32_t index);
  void reload_ahead();
  void reload_again(chunk_state& chunk, std::uint32_t index);

  [[nodiscard]] bool bring_one(storage& store, span_label label) {
    saved one{.store = &store};
    std::size_t bytes = 0;
    return bring({&one, 1}, nullptr, haste::needed, label, bytes);
  }
  [[nodiscard]] granted fetch_one(storage& store, lane_id lane, const span_label& label);
  void take_back(storage& store, lane_id on);
  void listen_to_steps() noexcept {
    if (recorder_ == nullptr && learning_ != nullptr) heard_.add(*(recorder_ = learning_.get()));
  }
  // Sets how an arena places memory in steps without a plan. An automatic policy packs memory
  // closely.
  void without_a_plan() noexcept;
  void forget_handle(storage& store, lane_id lane);
  void forget_save(storage& store);
  void forget_group(chunk_state& chunk, group& which);
  void forget_kept(chunk_state& chunk, group& which);
  void forget_idle(storage& store);
  [[nodiscard]] bool evict_one();
  [[nodiscard]] bool give_back_unused();
  template <class Take>
  [[nodiscard]] bool take_or_evict(const Take& take);
  // Messages are made out of line, so that calls that succeed stay short.
  [[noreturn]] void refuse(const char* call, const chunk_state& chunk, module_id module, int layer,
                           const std::string& why) const;
  [[noreturn]] void refuse_argument(const char* call, const chunk_state& chunk, const group& which,
                                    std::uint32_t index, const char* why) const;
  [[noreturn]] void refuse_recompute(const char* call, const chunk_state& chunk, std::size_t what,
                                     int layer, const std::string& why) const;
  [[noreturn]] void refuse_count(const chunk_state& chunk, const group& which,
                                 std::size_t given) const;
  [[noreturn]] void throw_out_of_places(const chunk_state& chunk, const group& which,
                                        std::size_t bytes) const;
  [[noreturn]] void throw_still_open() const;
  void place_or_throw(storage& store, lane_id lane, const char* call,
                      std::size_t offset = anywhere);
  // Places a storage whose memory was released since its allocation.
  [[nodiscard]] bool place_again(storage& store, lane_id lane) {
    return store_.place(store, lane, placement_.again(store.planned, store.bytes));
  }
  [[noreturn]] void refuse_released(const char* call, const chunk_state& chunk, module_id module,
                                    int layer) const;
  // `own` is the trainer's source that had no room; null: the offloader's source.
  [[noreturn]] void throw_out_of_device(std::size_t bytes, const std::string& what,
                                        const block_source* own);

  std::unique_ptr<hardware> dev_;
  const options opts_;
  std::vector<std::string> names_;
  std::vector<rectangle> labels_;  // module names in the form that handles store
  trace::nvtx_names ranges_;
  std::vector<window> windows_;
  decider decider_;
  step_learner& learner_ = decider_.steps;
  forgotten_groups& forgotten_ = decider_.forgotten;
  followed_placement& placement_ = decider_.where;
  observers heard_;
  std::unique_ptr<observer> tracer_;  // null before the first trace
  storages store_;
  lanes& order_ = store_.order();
  const std::vector<place_kind>& places_ = store_.places();  // places, the nearest first
  std::vector<std::unique_ptr<chunk_state>> chunks_;
  std::vector<chunk_state*> spare_;
  open_chunks live_;
  reloads_ahead<group_ref> ahead_;
  slot_list<storage*> idle_;  // on the device without a handle; evicted first
  std::unique_ptr<learning> learning_;
  learning* recorder_ = nullptr;  // `learning_` until the timed step is over
  lane_id last_lane_{};           // lane of the latest call on a compute stream
  trace::counters counters_;
  std::vector<std::uint64_t> bytes_before_step_;
  bool closed_ = false;
  bool starved_ = false;  // a reload ahead waits for memory that goes back to an allocator
  handle_lists lists_;
  std::unique_ptr<capture_gate> gate_;
  std::uint64_t issued_before_ = 0;  // work issued before this engine, where it runs in the process
  std::shared_ptr<const void> identity_ = std::make_shared<char>();  // names this engine to sources
  std::unique_ptr<row_counter> rows_;  // the last member, because it waits for copies when it goes
};

// The engine that a storage belongs to.
[[nodiscard]] inline engine& owner_of(const storage& store) {
  return static_cast<engine&>(*store.owner);
}

inline void handle_base::lose() noexcept {
  if (store_ != nullptr) engine::release(&owner_of(*std::exchange(store_, nullptr)));
}
inline void handle_base::give_up(lane_id lane) {
  owner_of(*store_).drop(*store_, lane);
  store_ = nullptr;
  part_ = {};
}
inline void handle_base::drop_full() noexcept { owner_of(*store_).drop_quietly(*store_, lane_); }

}  // namespace tidepool::detail

#if TIDEPOOL_DEFINITIONS
#include "tidepool/engine/definitions.hpp"
#endif
