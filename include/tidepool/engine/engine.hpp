/// The engine: commit, restore, reloads ahead of use, caps and residency, on run-time module ids.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/call_ref.hpp"
#include "tidepool/core/linkage.hpp"
#include "tidepool/core/plan_source.hpp"
#include "tidepool/core/slot_list.hpp"
#include "tidepool/engine/followed_placement.hpp"
#include "tidepool/engine/graph_state.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/handle.hpp"
#include "tidepool/engine/open_chunks.hpp"
#include "tidepool/engine/recorder.hpp"
#include "tidepool/engine/room.hpp"
#include "tidepool/engine/step_learner.hpp"
#include "tidepool/engine/storages.hpp"
#include "tidepool/engine/subject.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/rules/forgotten_groups.hpp"
#include "tidepool/rules/reloads_ahead.hpp"
#include "tidepool/rules/residency.hpp"
#include "tidepool/rules/window.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_2_0::detail {

// Lives as long as its offloader and every handle and chunk made by it.
class engine : public storage_owner {
 public:
  using storage = detail::storage;

  // `names` are the modules by id; `enabled` has a bit for each that leaves.
  engine(std::unique_ptr<hardware> dev, const options& opts,
         const std::vector<std::string_view>& names, std::uint64_t enabled,
         std::unique_ptr<block_source> memory = {});
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  void retain() { ++references; }
  static void release(engine* which) noexcept;

  // Before a call that takes or reads memory, eagerly or in a capture of ours, on a stream of a
  // device that captures; before one that gives it back, of whatever graphs have left where.
  void expect_truth_for(bool captured);
  void meet_graphs(bool captured);
  [[nodiscard]] hardware& device() { return *dev_; }
  [[nodiscard]] lanes& order() { return order_; }
  [[nodiscard]] storages& memory() { return store_; }
  [[nodiscard]] handle_lists& lists() { return lists_; }
  [[nodiscard]] const options& settings() const { return opts_; }
  [[nodiscard]] bool between_steps() const { return learner_.begun() == 0; }
  [[nodiscard]] forgotten_calls& forgotten() { return learner_.forgotten; }

  // ---- handles ----

  // `source` is where the memory comes from each time, null for the offloader's own.
  [[nodiscard]] granted allocate(std::size_t bytes, std::size_t elements, lane_id lane,
                                 block_source* source = nullptr, fill contents = fill::none);
  [[nodiscard]] granted adopt_memory(void* data, std::size_t bytes, std::size_t elements,
                                     lane_id lane, memory_owner owner);

  [[nodiscard]] storage* share(storage& store) {
    ++store.handles;
    ++references;
    return &store;
  }

  // A handle is given up; what it used on `lane` so far is the last use.
  void drop(storage& store, lane_id lane, bool reloads = true);

  // `lane` waits for the reload.
  void hand_to(storage& store, lane_id lane) {
    store.handed_to = lane;
    store.handed_at = order_.next(lane);
    store.filled = false;
  }

  void take_back_untouched(storage& store, lane_id lane) noexcept;
  void note_use(storage& store, lane_id lane, const ticket& until);
  void drop_quietly(storage& store, lane_id lane) noexcept;

  // The offloader is gone; what handles still hold is freed with the last of them.
  void close() noexcept { closed_ = true; }
  // An exception destroys it: queued work may point into frames that are gone.
  void drop_work() noexcept;

  // ---- waits for other ranks, as a step that is being recorded knows them ----

  [[nodiscard]] std::size_t wait_begins(const void* stream) {
    return recorder_ == nullptr ? static_cast<std::size_t>(-1) : recorder_->wait_begins(stream);
  }
  void waited(std::size_t from, const void* stream, waits_for whom, std::uint32_t kind) {
    if (recorder_ != nullptr) recorder_->waited(from, stream, whom, kind);
  }

  // One of its tensors lies on another device, or was excluded.
  void note_elsewhere(module_id module, bool excluded);

  // ---- capture, see graph.hpp ----

  void begin_capture(lane_id origin);
  [[nodiscard]] std::unique_ptr<captured_graph> end_capture(lane_id origin);
  void abandon_capture(lane_id origin) noexcept;
  [[nodiscard]] std::shared_ptr<const memory_layout> layout_before_capture() const {
    return graphs_.layout_before;
  }
  [[nodiscard]] std::shared_ptr<const memory_layout> layout_after_capture();
  void replay(captured_graph& graph, const std::shared_ptr<const memory_layout>& before,
              const std::shared_ptr<const memory_layout>& after, lane_id lane);

  // ---- chunks ----

  [[nodiscard]] chunk_state& begin(const chunk_info& info);
  void end_forward(chunk_state& chunk);

  // Copies what leaves of `handles`, once `lane` has come this far. Unless that is done by hand,
  // their handles are emptied, and the device memory is free after its copy.
  void commit(chunk_state& chunk, module_id module, int layer, lane_id lane, handle_list handles,
              commit_kind how);

  void start_reload(chunk_state& chunk, module_id module, int layer);

  // Fills the handles of a group again and makes `lane` wait for its reload.
  void restore(chunk_state& chunk, module_id module, int layer, lane_id lane, handle_list handles);
  // The same for `commit_kind::or_discard`: calls `again` where it was discarded, or is timed.
  void restore_or_recompute(chunk_state& chunk, module_id module, int layer, lane_id lane,
                            handle_list handles, call_ref again);

  // `lane` waits for what brought back, or wrote, the tensor that a handle holds.
  void wait_for(const handle_base& saved, lane_id lane);
  // A group that nobody will restore: what was saved of it goes.
  void forget(chunk_state& chunk, module_id module, int layer);
  // Of one that will be, one tensor again for `lane`, while forward goes on.
  [[nodiscard]] granted read_again(chunk_state& chunk, module_id module, int layer,
                                   std::size_t argument, lane_id lane);

  // A restore that does nothing is given handles that no commit has emptied.
  static void expect_full(int layer, std::size_t argument, const handle_base& given);

  // Whether that will call its function.
  [[nodiscard]] bool will_recompute(chunk_state& chunk, module_id module, int layer) const;

  // ---- recomputing ----

  static constexpr std::size_t not_recomputed = static_cast<std::size_t>(-1);
  // The place of a name among `recompute_modules`, which are few.
  [[nodiscard]] std::size_t recomputed(std::string_view name) const;

  // Frees the memory of `tensors` behind what `lane` has been given, and remembers their sizes.
  void discard(chunk_state& chunk, std::size_t what, int layer, lane_id lane, handle_list tensors);
  // Gives them memory again, which `again` is called to fill.
  void recompute(chunk_state& chunk, std::size_t what, int layer, lane_id lane, handle_list tensors,
                 call_ref again);

  // ---- state that lives on the host, see host_state.hpp ----

  [[nodiscard]] storage& make_state(std::size_t bytes, std::string_view name);
  [[nodiscard]] granted create_state(storage& store, std::string_view name, lane_id lane);
  bool prefetch_state(storage& store, std::string_view name);
  [[nodiscard]] granted fetch_state(storage& store, std::string_view name, lane_id lane);
  // `written`: it has contents.
  void write_state(storage& store, std::string_view name, handle_base& changed, lane_id lane,
                   bool& written);
  void drop_state(storage& store) noexcept;
  [[nodiscard]] bool keep_orphan(storage& store) noexcept;
  void drop_orphans(bool nothing_ran) noexcept;

  // Throws `misuse_error` when something was committed and never restored.
  void check_finished(const chunk_state& chunk) const;

  // The chunk's backward pass is over, or will never run.
  void end_chunk(chunk_state& chunk, bool finished) noexcept;

  stage end_step();

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  [[nodiscard]] const plan::profile& profile() const { return learner_.step(); }

  // Follows this from now on. `step` is the profile that it was made for.
  void adopt(plan::profile step, plan::actions what, plan::placement where = {},
             followed by = followed::planned);
  // The same for a decision, with its limits.
  void apply(plan::profile step, const decision& what, followed by);
  // The same for one from elsewhere, which the next step is held to.
  void follow(plan::profile step, const decision& what);
  // The plan that was to be made of a recorded step was not: the next step is the first again.
  void record_again() noexcept;

  [[nodiscard]] trace::counters counters() const;
  void start_trace(std::string title, const void* origin);
  [[nodiscard]] trace::record finish_trace();
  [[nodiscard]] std::string name_of_group(const chunk_state& chunk, module_id module,
                                          int layer) const;

 private:
  struct group_ref {
    chunk_state* chunk;
    std::uint32_t index;
  };

  ~engine();

  // The device's context is gone, and with it all that a handle stands for.
  [[nodiscard]] bool lost() const noexcept;
  // The step then finds the memory that any other finds.
  void coalesce_after_evaluation() {
    if (learner_.evaluated_between()) store_.device_source().coalesce();
  }
  // The compute stream has come to a call; costs a branch while no step is being recorded.
  [[nodiscard]] std::size_t arrive(lane_id lane) {
    last_lane_ = lane;
    return recorder_ == nullptr ? 0 : recorder_->arrive(lane);
  }

  void trace_pass(const chunk_state& chunk, bool backward, bool begins) noexcept;
  [[nodiscard]] plan::action planned(const chunk_state& chunk, int layer,
                                     handle_list handles) const;
  [[nodiscard]] static bool takes_more_than_planned(handle_list handles);
  [[nodiscard]] bool discardable(handle_list handles) const;
  [[nodiscard]] bool begin_recompute(chunk_state& chunk, std::size_t what, int layer, lane_id lane,
                                     handle_list tensors);
  void give_up(chunk_state& chunk, std::size_t what, int layer, handle_list tensors) noexcept;
  void note_recompute(chunk_state& chunk, const group& which, plan::action what);
  [[nodiscard]] bool stays_anyway(handle_list handles) const;
  void note_held(const storage& held, const storage* saved);
  void note_outliving(lane_id lane, handle_list handles, bool counted);
  void note_held_by_hand(const saved* item, handle_list handles);
  void record_drop(storage& store, lane_id lane) noexcept;
  void note_handed_over(storage& store) const {
    if (recorder_ == nullptr) return;
    recorder_->handed_over(store.number, store.saves + store.stays > 0);
  }
  [[nodiscard]] static std::size_t bytes_of(handle_list handles);
  [[nodiscard]] static std::size_t bytes_of(const handle_base& given);

  void close_step();
  [[nodiscard]] stage learn();
  void start_recording() noexcept;

  [[nodiscard]] bool expect_commit(const chunk_state& chunk, module_id module, int layer,
                                   commit_kind how);
  void decide(const chunk_state& chunk, int layer, handle_list handles, commit_kind how,
              verdict& decided) const;
  void transfer(chunk_state& chunk, group& which, saved* items, handle_list handles,
                plan::action what, bool choose, tally& seen);
  void expect_argument(const chunk_state& chunk, const group& into, handle_list handles,
                       std::uint32_t number, class extent& known);
  void collect(chunk_state& chunk, group& into, saved* items, handle_list handles,
               plan::action what, bool choose, tally& seen);
  [[nodiscard]] const char* why_not(const handle_base& given) const;
  [[nodiscard]] bool leaves(const handle_base& candidate, tally& seen) const;
  [[nodiscard]] storage& saved_as(const handle_base& given);
  [[nodiscard]] bool move_on(group& into, saved* items);
  void offload(chunk_state& chunk, group& which, saved* items);
  void cap(const group& which, const ticket& done);
  void undo(chunk_state& chunk) noexcept;
  void note_staying(chunk_state& chunk, group& which, const verdict& decided, handle_list handles);
  void empty_handles(group& which, const saved* item, plan::action what, handle_list handles);
  void count_commit(const group& which, const tally& seen, bool stays);
  void record_commit(chunk_state& chunk, const verdict& decided, std::size_t from, lane_id lane,
                     handle_list handles);
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
  void hand_over(chunk_state& chunk, std::uint32_t index, lane_id lane, handle_list handles,
                 std::size_t from);
  [[nodiscard]] bool measures(chunk_state& chunk, const group& which, handle_list handles) const;
  void lend(chunk_state& chunk, const group& which, lane_id lane, handle_list handles);
  void take_back_lent(chunk_state& chunk, std::uint32_t index, lane_id lane,
                      handle_list handles) noexcept;
  [[nodiscard]] bool try_reload(chunk_state& chunk, std::uint32_t index, bool by_size = false);
  void bring(chunk_state& chunk, const group& which, place_kind from, bool alone);
  void require_reload(chunk_state& chunk, std::uint32_t index);
  void reload_ahead();
  void reload_again(chunk_state& chunk, std::uint32_t index);

  [[nodiscard]] bool bring_one(storage& store, const span_label& label);
  [[nodiscard]] granted fetch_one(storage& store, lane_id lane, const span_label& label);
  void take_back(storage& store, lane_id on);
  void warm_up_anew();
  // The steps to come have no plan: an arena keeps their memory closer together.
  void without_a_plan() noexcept;
  void expect_group(const chunk_state& chunk, module_id module, int layer, commit_kind how) const;
  void forget_handle(storage& store, lane_id lane);
  void forget_save(storage& store);
  void forget_group(chunk_state& chunk, group& which);
  void record_forget(chunk_state& chunk, const group& which) noexcept;
  void forget_kept(chunk_state& chunk, group& which);
  void forget_idle(storage& store);
  [[nodiscard]] bool evict_one();
  [[nodiscard]] bool give_back_unused();
  template <class Take>
  [[nodiscard]] bool take_or_evict(const Take& take);
  [[nodiscard]] memory_layout layout(bool reloads = true) const;
  // Before an eager call that takes or reads memory, of no stream.
  void settle();
  void meet_after_launch();
  void expect_layout(const std::shared_ptr<const memory_layout>& before);
  void expect_truth();
  void forget_reloads() noexcept;
  void leave_capture() noexcept;
  // Messages are put together out of line, so that the calls that go well stay short.
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
  // Of memory that has been given back since its allocation.
  [[nodiscard]] bool place_again(storage& store, lane_id lane) {
    return store_.place(store, lane, placement_.again(store.planned, store.bytes));
  }
  [[noreturn]] void refuse_released(const char* call, const chunk_state& chunk, module_id module,
                                    int layer) const;
  // `own` is the source of the trainer's that was asked, null for the offloader's.
  [[noreturn]] void throw_out_of_device(std::size_t bytes, const std::string& what,
                                        const block_source* own);

  std::unique_ptr<hardware> dev_;
  options opts_;
  std::vector<std::string> names_;
  std::vector<rectangle> labels_;  // the same, for handles
  trace::nvtx_names ranges_;
  std::vector<window> windows_;
  residency keeps_;
  step_learner learner_;
  forgotten_groups forgotten_;
  followed_placement placement_;
  storages store_;
  lanes& order_ = store_.order();
  tracer& trace_ = store_.trace();
  const std::vector<place_kind>& places_ = store_.places();  // the nearest first
  std::vector<std::unique_ptr<chunk_state>> chunks_;
  std::vector<chunk_state*> spare_;
  open_chunks live_;
  reloads_ahead<group_ref> ahead_;
  slot_list<storage*> idle_;            // on the device again only because another group needs them
  std::unique_ptr<recorder> recorder_;  // until the timed step is over
  lane_id last_lane_{};                 // of the latest call on a compute stream
  trace::counters counters_;
  std::vector<std::uint64_t> bytes_before_step_;
  bool tracing_ = false;
  bool closed_ = false;
  bool starved_ = false;  // a reload ahead of use waits for memory that goes back to an allocator
  handle_lists lists_;
  graph_state graphs_;
  std::uint64_t issued_before_ = 0;  // by the device, where work runs in the process
  std::shared_ptr<const void> identity_ = std::make_shared<char>();  // for sources of memory
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
