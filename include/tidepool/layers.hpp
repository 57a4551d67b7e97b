/// Arrays of which the device holds a few layers at a time: for trainers with one array for all
/// layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tidepool/error.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::inline v0_3_0 {

template <class T, class Offloader>
class saved_layers;

/// Arrays that a module saves together: the arrays of one layer leave and come back as one group.
///
/// The group belongs to `module` and follows `pass`, the chunk that is open at each call. A group
/// serves one pass at a time, so that each microbatch in flight needs groups of its own. If the
/// options leave the module out, every layer keeps its memory from step to step, like a plain
/// array: nothing is allocated, zeroed or moved again, and the trainer has to order the streams of
/// one step behind those of the step before.
///
/// Calls block the host only as `offloader` says. Each call checks the order of calls, with any
/// options: `misuse_error` says which call comes first. A group is neither copied nor moved,
/// because arrays refer to it: it must outlive them, and `off` and `pass` must outlive its last
/// call. Thread safety: none.
/// ```cpp
/// tidepool::layer_group<offloader> block{off, pass, "core_attn"};
/// tidepool::saved_layers<float, offloader> qkv{block}, att{block};
/// ```
template <class Offloader>
class layer_group {
 public:
  using stream_ref = typename Offloader::stream_ref;  ///< A stream of the device.
  using buffer = typename Offloader::buffer;          ///< Holds each layer's tensor.
  using chunk = typename Offloader::chunk;            ///< One forward pass and its backward pass.
  using handle = typename Offloader::handle;          ///< The base of buffers and views.

  /// Makes a group that saves tensors of `module` through `off`, in the chunk that `pass` holds at
  /// each call. Throws `unknown_module`.
  layer_group(Offloader& off, chunk& pass, std::string_view module)
      : off_(&off),
        pass_(&pass),
        name_(module),
        module_(off.module(module)),
        leaves_(off.enabled(module_)) {}
  layer_group(const layer_group&) = delete;
  layer_group& operator=(const layer_group&) = delete;

  /// Forward is over with this layer: its tensors from `fresh` are saved, and their pointers are
  /// gone.
  ///
  /// `stream` wrote and last read the tensors, as for `chunk::commit`, whose errors `done` throws.
  /// In a pass with `release` the memory is given back instead. A group without arrays does
  /// nothing.
  void done(int layer, stream_ref stream) {
    if (arrays_ == 0) return;
    auto& now = expect("done", layer, stage::written);
    const bool releases = pass_->info().release;
    if (leaves_ || !releases) pass_->commit(module_, layer, stream, handles(now));
    now.at = releases ? stage::none : stage::saved;
    if (now.at == stage::none) forget(now);
  }

  /// Backward is over with this layer: its memory may be reused after the work that `stream` was
  /// given. Called instead of `done`, `release` gives the layer up. A group without arrays does
  /// nothing.
  void release(int layer, stream_ref stream) {
    if (arrays_ == 0) return;
    auto& now = expect("release", layer, stage::back, stage::written);
    for (auto& each : now.arrays) give_back(each, stream);
    now.at = stage::none;
  }

  /// Gives all layers up, in any state: after a pass that was dropped, or for another shape. Memory
  /// may be reused after the work that `stream` was given. The next calls are `begin` and `fresh`.
  void reset(stream_ref stream) {
    for (auto& each : layers_) {
      each.at = stage::none;
      forget(each);
    }
    for (auto& each : layers_) {  // may throw, but by now all layers are given up
      for (auto& array : each.arrays) array.memory.reset(stream);
    }
  }

 private:
  template <class, class>
  friend class saved_layers;

  enum class stage : std::uint8_t { none, written, saved, back };

  struct part {
    buffer memory;
    bool used = false;  // true from fresh to release
  };
  struct layer_state {
    stage at = stage::none;
    std::vector<part> arrays;
  };

  [[nodiscard]] std::size_t add() { return arrays_++; }

  template <class T>
  [[nodiscard]] T* fresh(std::size_t array, int layer, std::size_t count, stream_ref stream,
                         fill contents) {
    auto& now = layer_to_write(layer);
    if (now.at > stage::written) refuse("fresh", layer, now.at);
    auto& mine = now.arrays[array];
    if (mine.used)
      refuse("fresh", layer,
             "it was asked for before; ask once, and then at(); reset the group after a pass that "
             "was dropped");
    if (mine.memory && mine.memory.size() != count * sizeof(T)) mine.memory.reset(stream);
    if (!mine.memory) mine.memory = off_->template allocate<T>(count, stream, contents);
    mine.used = true;
    now.at = stage::written;
    return mine.memory.template as<T>();
  }

  [[nodiscard]] void* back(std::size_t array, int layer, stream_ref stream) {
    auto& now = expect("back", layer, stage::saved, stage::back);
    if (now.at == stage::saved) {
      pass_->restore(module_, layer, stream, handles(now));
      now.at = stage::back;
    }
    const auto& mine = used("back", now, array, layer).memory;
    if (leaves_) off_->wait_for(mine, stream);  // another stream may have brought the group
    return mine.data();
  }

  [[nodiscard]] void* at(std::size_t array, int layer) {
    auto& now = expect("at", layer, stage::written, stage::back);
    return used("at", now, array, layer).memory.data();
  }

  void release(std::size_t array, int layer, stream_ref stream) {
    auto& now = expect("release", layer, stage::back, stage::written);
    give_back(used("release", now, array, layer), stream);
    if (handles(now).empty()) now.at = stage::none;
  }

  void give_back(part& which, stream_ref stream) {
    if (leaves_) which.memory.reset(stream);
    which.used = false;
  }
  static void forget(layer_state& of) {
    for (auto& each : of.arrays) each.used = false;
  }

  [[nodiscard]] layer_state& layer_to_write(int layer) {
    if (layer < 0) refuse("fresh", layer, "layers are counted from 0");
    const auto index = static_cast<std::size_t>(layer);
    if (index >= layers_.size()) layers_.resize(index + 1);
    auto& now = layers_[index];
    if (now.arrays.size() < arrays_) now.arrays.resize(arrays_);
    return now;
  }

  [[nodiscard]] std::span<handle* const> handles(layer_state& of) {
    list_.clear();
    for (auto& each : of.arrays) {
      if (each.used) list_.push_back(&each.memory);
    }
    return list_;
  }

  [[nodiscard]] layer_state& expect(const char* call, int layer, stage wanted,
                                    std::optional<stage> or_this = {}) {
    const auto index = static_cast<std::size_t>(layer);
    if (layer < 0 || index >= layers_.size()) refuse(call, layer, stage::none);
    auto& now = layers_[index];
    if (now.at != wanted && now.at != or_this) refuse(call, layer, now.at);
    return now;
  }
  [[nodiscard]] part& used(const char* call, layer_state& of, std::size_t array, int layer) {
    if (array < of.arrays.size() && of.arrays[array].used) return of.arrays[array];
    refuse(call, layer,
           "array " + std::to_string(array + 1) +
               " of its group was released, or fresh never gave it for this layer");
  }

  [[noreturn, gnu::cold]] void refuse(const char* call, int layer, const std::string& why) const {
    throw misuse_error(std::string(call) + " of " + name_ + " of layer " + std::to_string(layer) +
                       ", microbatch " + std::to_string(pass_->info().microbatch) + ": " + why);
  }
  [[noreturn, gnu::cold]] void refuse(const char* call, int layer, stage found) const {
    constexpr const char* why[]{
        "nothing of it is held: it was released, its pass was begun with release, or fresh has not"
        " been called; the order is fresh, done, back, release",
        "forward is not over with it; call done after its last use, then back before backward reads"
        " it",
        "it was saved by done; call back before backward reads it, and release after that. After a"
        " pass that was dropped call reset of the group; where several microbatches are in flight,"
        " give each groups of its own",
        "it is back for backward; call release after its last use"};
    refuse(call, layer, why[static_cast<std::size_t>(found)]);
  }

  Offloader* off_;
  chunk* pass_;
  std::string name_;
  module_id module_;
  bool leaves_;
  std::size_t arrays_ = 0;
  std::vector<layer_state> layers_;
  std::vector<handle*> list_;  // arguments of the call that runs
};

/// An array of layers: `fresh` to write a layer, `back` to read it in backward.
///
/// An array made without a group gets a group of its own. `done` and `release` of a shared group
/// serve all its arrays. Pointers hold from `fresh` to `done` and from `back` to `release`; `back`
/// may return another address than `fresh`. Errors and lifetime: see `layer_group`.
/// ```cpp
/// float* l_att = att.fresh(l, B * NH * T * T, stream, tidepool::fill::zero);  // forward
/// block.done(l, stream);
/// float* l_att = att.back(l, stream);                                         // backward
/// block.release(l, stream);
/// ```
template <class T, class Offloader>
class saved_layers {
  static_assert(std::is_trivially_copyable_v<T>, "tidepool: saved_layers moves bytes");

 public:
  using stream_ref = typename Offloader::stream_ref;  ///< A stream of the device.
  using group = layer_group<Offloader>;               ///< Arrays that are saved together.

  /// Adds an array to the group `with`, whose arrays are saved together. `with` must outlive it.
  explicit saved_layers(group& with) : group_(&with), array_(with.add()) {}
  /// Makes a group of its own for the array; `off`, `pass` and `module` as for `layer_group`.
  /// Throws `unknown_module`.
  saved_layers(Offloader& off, typename Offloader::chunk& pass, std::string_view module)
      : alone_(std::make_unique<group>(off, pass, module)),
        group_(alone_.get()),
        array_(alone_->add()) {}
  saved_layers(const saved_layers&) = delete;
  saved_layers& operator=(const saved_layers&) = delete;

  /// Memory for `count` elements of a layer, which work given to `stream` from now on may write.
  /// Recycled memory has old contents, unless `contents` is `fill::zero`. Throws as
  /// `offloader::allocate`.
  [[nodiscard]] T* fresh(int layer, std::size_t count, stream_ref stream,
                         fill contents = fill::none) {
    return group_->template fresh<T>(array_, layer, count, stream, contents);
  }

  /// The layer as it was at `done`. The first call for an array of a group brings all arrays of the
  /// group back. `stream` waits for the reload, or for the work that wrote an array that stayed;
  /// every stream that reads an array calls `back`. If the module is not enabled, or the pass is
  /// `forward_only`, the trainer has to order the streams. Throws as `chunk::restore`.
  [[nodiscard]] T* back(int layer, stream_ref stream) {
    return static_cast<T*>(group_->back(array_, layer, stream));
  }

  /// The address of `layer`, between `fresh` and `done`, and between `back` and `release`. Makes no
  /// stream wait; at other times it throws `misuse_error`.
  [[nodiscard]] T* at(int layer) const { return static_cast<T*>(group_->at(array_, layer)); }

  /// Calls `layer_group::done` of `layer` on `stream`, for an array that is alone in its group.
  /// Throws its errors, and `misuse_error` if the array shares its group.
  void done(int layer, stream_ref stream) {
    if (alone_ == nullptr) {
      group_->refuse("done", layer, "this array shares its group; call done of the group, once");
    }
    group_->done(layer, stream);
  }
  /// Releases this array's memory of `layer` ahead of the group's others: it may be reused after
  /// the work that `stream` was given.
  void release(int layer, stream_ref stream) { group_->release(array_, layer, stream); }

 private:
  std::unique_ptr<group> alone_;
  group* group_;
  std::size_t array_;
};

}  // namespace tidepool
