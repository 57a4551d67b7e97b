// Plays a program against the library and the model at once.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model.hpp"
#include "writer.hpp"

namespace stranger {

enum : unsigned {
  misuse = 1,
  budget = 2,
  failure = 4,
  own = 8,
  profile = 16,
  option = 32,
  gone = 64
};

class player {
 public:
  player(const program& what, std::uint64_t order, bool write_code);
  [[nodiscard]] played play();

 private:
  struct stop {};       // a finding: nothing that follows can be relied on
  struct body_ends {};  // a refusal inside a capture, which fails with it

  // ---- findings, and calls that may throw (player.cpp) ----
  void find(const std::string& key, const std::string& text);
  void note(const std::string& key, const std::string& text);
  void note_race(const std::string& key, const std::string& text);
  void look();  // at what the race checker and the kernels have seen
  template <class F>
  unsigned call(const std::string& code, unsigned allowed, F&& body);
  // `must`: it has to throw a misuse_error.
  template <class F>
  void refused(const std::string& code, F&& body);
  [[nodiscard]] unsigned may(int side, unsigned more = 0) const;
  // Of a call that may report, such as `begin` and `end_step`: also what the sink throws.
  [[nodiscard]] unsigned may_report(int side) const;
  [[nodiscard]] unsigned may_allocate(int side) const;

  // ---- the whole ----
  void make_sides();
  [[nodiscard]] static tp::options options_of(const side& with);
  void step(const operation& op);
  void step_other(const operation& op);
  std::size_t run_from(std::size_t first, bool inside);
  void finish();
  void give_up_all(bool graphs_first);
  void probe(int side);
  void canonical_step(int side);
  void check_whole(int side);
  void drop_side(int side);

  // ---- the trainer's streams (play_kernels.hpp) ----
  [[nodiscard]] int stream_of(int wanted) const;
  [[nodiscard]] stream_ref ref(int stream) const {
    return streams_[static_cast<std::size_t>(stream)].ref();
  }
  void order(int before, int after);
  void order_for(const positions& what, int stream);
  std::uint32_t tick(int stream) { return ++position_[static_cast<std::size_t>(stream)]; }
  void give(int side, int stream);  // the offloader meets it
  void compute(int stream, double ns, std::function<void()> body,
               std::vector<clocks::touch> accesses, std::string label);
  void kernel(slot& on, int index, int stream, bool writes, std::uint64_t version);
  [[nodiscard]] bool usable(int index) const;
  [[nodiscard]] std::uint64_t& version_of(content& of) {
    return capturing_ ? of.captured : of.truth;
  }
  void touch(const content_ref& of);
  void write(int index, int stream);
  void read(int index, int stream);
  void join(int first, int second);

  // ---- tensors (play_tensors.hpp) ----
  void allocate(const operation& op);
  void share(int from, int to);
  void make_view(int from, int to, int shape, bool whole);
  bool reset(int index, int stream);
  void destroy(int index);
  void move_handle(int from, int to);
  [[nodiscard]] bool vacate(int index, int stream);
  void fill(int index, buffer&& made, content_ref of, int stream);
  void emptied(slot& at);
  void check_places(int index);
  [[nodiscard]] static bool free_to_use(const slot& at) { return at.group < 0; }

  // ---- passes (play_passes.hpp) ----
  void begin(const operation& op);
  [[nodiscard]] std::vector<int> arguments(const operation& op, int side, bool buffers,
                                           std::size_t most) const;
  [[nodiscard]] std::string list_of(const std::vector<int>& slots) const;
  void commit(const operation& op);
  void note_commit(pass& in, const operation& op, const std::vector<int>& slots,
                   const std::vector<const void*>& places, int stream);
  void check_cap(int side, int module, int stream);

  // ---- packing (play_packing.hpp) ----
  [[nodiscard]] bool makes(int side) const;
  void holds_bfloat16(int index);
  [[nodiscard]] bool packs(int side, int module) const;
  [[nodiscard]] bool may_pack(const slot& one, const void* place) const;
  [[nodiscard]] bool has_room(int side) const;
  void check_packed(int side, int module, const std::vector<int>& slots,
                    const std::vector<const void*>& places,
                    const tp::trace::module_counters& before,
                    const tp::trace::module_counters& after, const std::string& code);
  void end_forward(int chunk);
  [[nodiscard]] group* group_at(pass& in, int back);
  [[nodiscard]] bool newest(const pass& in, const group& which) const;
  void start_reload(const operation& op);
  void restore(const operation& op);
  void come_back(pass& in, group& which, int stream);
  void recompute_again(group& which, int stream);
  void fill_again(argument& each, int stream);
  void discard(const operation& op);
  void recompute(const operation& op);
  void finish_pass(int chunk);
  void abandon(int chunk);
  void forget_pass(pass& which);
  void misuse_pass(const operation& op);

  // ---- steps, plans, state (play_steps.hpp) ----
  void end_step(int side);
  void save_plan(int side);
  void follow(int side);
  void check_counters(int side);
  void trace(int side);
  void span(const operation& op);
  void wait_for(const operation& op);
  void make_state(const operation& op);
  void create_state(const operation& op);
  void prefetch_state(int which);
  void fetch_state(const operation& op);
  void write_state(const operation& op);
  void drop_state(int which);

  // ---- graphs (play_graphs.hpp) ----
  [[nodiscard]] layout standing(int side) const;
  // An empty tensor may have no address: 1 then, since 0 stands for what is saved.
  [[nodiscard]] static std::uintptr_t place_of(const slot& of) {
    const auto at = reinterpret_cast<std::uintptr_t>(of.is_view ? of.v.data() : of.b.data());
    return at == 0 ? 1 : at;
  }
  [[nodiscard]] layout device_layout(int side) const;
  void compare(int side);
  void given_up(const content_ref& of);
  std::size_t capture(const operation& op, std::size_t next);
  void begin_body(int side, int stream, bool all);
  void end_body(bool done);
  void give_up_body();
  void launch(const operation& op);
  [[nodiscard]] bool dead_inside(const recorded_graph& which) const;
  [[nodiscard]] bool must_run(const recorded_graph& which) const;
  void drop_graph(int which);

  // ---- borrowed memory (play_borrowed.hpp) ----
  [[nodiscard]] int find_region(std::size_t bytes, int home, int beside);
  void write_region(int which);
  void release_region(int which);
  void came_back(int loan);
  [[nodiscard]] int lend(int region, int side);
  template <class Body>
  void with_owner(int loan, int kind, Body&& body);
  [[nodiscard]] std::string owner_text(int region, int kind) const;
  [[nodiscard]] bool lies_in_loan(const slot& of) const;
  void adopt(const operation& op);
  void release_borrowed(int side);
  void check_loans();
  void check_idle(int side);
  [[nodiscard]] bool idle(int side) const;
  [[nodiscard]] bool pass_open(int side) const;
  [[nodiscard]] bool others_alive(int side) const;  // that are no slots
  void wait_handle(const operation& op);
  void forget(const operation& op);
  [[nodiscard]] std::unique_ptr<tp::block_source> make_memory(int side);
  [[nodiscard]] void* memory_from(int side, std::size_t bytes);
  void memory_to(int side, void* pointer, std::size_t bytes);
  void free_regions();
  // reads or writes a piece of memory; version 0 of a read stands for zeros
  void touch_words(std::byte* at, std::size_t bytes, std::uint64_t words, std::uint64_t version,
                   int stream, bool writes, const std::string& what);

  // ---- memory that another device lends (play_lending.hpp) ----
  [[nodiscard]] unsigned may_miss_lender(int side) const;
  void begun_without_lender(int side, const std::string& code);
  void note_loan(int side);
  void borrow_memory(const operation& op);
  void return_memory(int side);
  void lender_goes(const operation& op);
  [[nodiscard]] bool without_lender(int side);
  void check_lenders();

  // ---- memory that must be enough (play_fits.hpp) ----
  [[nodiscard]] bool nothing_held(int side) const;
  [[nodiscard]] bool may_hold(int side, std::size_t bytes) const;
  [[nodiscard]] bool key_fits(const key_pass& in, int scope) const;
  [[nodiscard]] bool group_fits(const pass& in, const group& which) const;
  void note_saved(int side);
  void check_growth(const operation& op);

  // ---- tensors by key (play_keys.hpp, play_key_reads.hpp) ----
  void key_begin(const operation& op);
  void key_enter(const operation& op);
  void key_save(const operation& op);
  void exclude_weights(int side);
  [[nodiscard]] bool is_weight(const void* data) const;
  [[nodiscard]] int saved_region(const key_pass& in) const;
  void key_leave(const operation& op);
  void key_end_forward(int which);
  void key_load(const operation& op);
  void key_read(const operation& op);
  void read_key(int key, key_tensor& of, int stream);
  void key_drop(const operation& op);
  void key_finish(int which);
  void key_abandon(int which);
  void key_misuse(const operation& op);
  void end_keys(key_pass& which);
  [[nodiscard]] key_pass* keys_at(int which);
  [[nodiscard]] std::string key_name(int which) const { return "k" + std::to_string(which); }

  // ---- arrays of layers (play_layers.hpp) ----
  void layers_make(const operation& op);
  void layers_begin(const operation& op);
  void layer_fresh(const operation& op);
  void layer_use(const operation& op, bool writes);
  void layer_done(const operation& op);
  void layer_back(const operation& op);
  void layer_release(const operation& op);
  void layers_finish(int which);
  void layers_abandon(int which);
  void layers_reset(int which, int stream);
  void layers_drop(int which, int stream);
  void layers_misuse(const operation& op);
  [[nodiscard]] layer_set* layers_at(int which);
  [[nodiscard]] bool leaves_out(const layer_set& which) const;
  [[nodiscard]] layer_cell* cell_at(layer_set& in, const operation& op);
  void end_cell(layer_cell& which, bool keeps);
  void order_for_layer(layer_set& in, int layer, int stream);
  [[nodiscard]] std::string set_name(int which) const { return "l" + std::to_string(which); }

  [[nodiscard]] std::string name(int index) const;
  [[nodiscard]] std::string off_name(int side) const { return "off" + std::to_string(side); }
  [[nodiscard]] slot& at(int index) { return slots_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const slot& at(int index) const { return slots_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] side_model& side_at(int which) { return sides_[static_cast<std::size_t>(which)]; }
  [[nodiscard]] const side_model& side_at(int which) const {
    return sides_[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] const side& settings(int which) const {
    return program_.sides[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] bool usable_side(int which) const {
    return which >= 0 && which < static_cast<int>(sides_.size()) && side_at(which).off &&
           (!capturing_ || capture_side_ == which);
  }

  const program& program_;
  writer code_;
  std::vector<finding> found_;
  bool failed_ = false;         // nothing that follows can be relied on
  bool evil_question_ = false;  // the next that is asked throws
  bool adopting_ = false;       // its owner may have the memory back in a capture
  bool raced_ = false;          // words may be wrong for that
  int at_operation_ = -1;
  kind operation_ = kind::probe;
  std::size_t checks_ = 0;
  std::uint64_t numbers_ = 0, versions_ = 0;
  int group_numbers_ = 0;

  device neighbour_{tp::machine{.device_bytes = std::size_t{1} << 20}};
  device device_;
  std::vector<device::stream> streams_;
  std::array<void*, source_count> source_memory_{};
  std::array<std::unique_ptr<tp::fixed_block>, source_count> sources_;
  std::array<int, source_count> source_side_{};
  bool over_ = false;  // what comes back now is nobody's any more
  std::deque<region> regions_;
  std::deque<loan> loans_;
  std::deque<side_model> sides_;
  std::array<key_pass, key_pass_count> key_passes_;
  std::array<layer_set, layer_set_count> layer_sets_;
  std::array<recorded_graph, graph_count> graphs_;
  std::array<visitor, state_count> states_;
  std::array<pass, chunk_count> passes_;
  std::array<slot, slot_count> slots_;
  std::vector<content_ref> contents_;

  positions position_{};
  std::array<positions, most_streams> knows_{};

  // the capture under way
  bool capturing_ = false;
  int capture_side_ = 0, capture_stream_ = 0;
  unsigned capture_streams_ = 0;
  recorded_graph* into_ = nullptr;
  std::set<std::uint64_t> before_ids_;
  std::set<const content*> ended_before_;
  std::map<std::uint64_t, const void*> before_places_;
  struct touches {
    positions ready{}, used{};
  };
  std::map<std::uint64_t, touches> before_touched_;
  std::set<int> body_passes_;
  std::set<std::uint64_t> body_contents_;
  std::set<int> body_states_;
  std::array<positions, most_streams> knows_before_{};

  // the window of each module's copies, for caps
  struct flight {
    std::size_t lane;
    std::uint32_t position;
    std::size_t bytes;
  };
  std::map<std::pair<int, int>, std::vector<flight>> flights_;

  std::string saved_profile_, saved_plan_;
};

}  // namespace stranger
