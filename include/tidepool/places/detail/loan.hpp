// Borrowed memory: how an offloader gets memory that another process lends, uses it as a place, and
// gives it back.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tidepool/core/linkage.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/error.hpp"
#include "tidepool/places/lending.hpp"

namespace tidepool::inline v0_3_0::detail {

// Borrowed memory, mapped in one piece. If `owner` is given, it uses the memory as a place.
class loan_pages final : public loan {
 public:
  loan_pages(hardware& dev, const loan_handle& from, engine* owner = nullptr, lender_gone then = {})
      : loan(from.checked().lender(), from.bytes()),
        dev_(&dev),
        owner_(owner),
        then_(then),
        graphs_before_(owner == nullptr ? 0 : owner->order().graphs()) {
    const auto kind = loan_handle::read(from.device_);
    if (from.kind_ != loan_handle::sum_of(dev.name().data(), dev.name().size())) {
      throw lender_error("borrow: " + lender() + " lends memory of a device of the kind '" + kind +
                             "', and this one is of the kind '" + std::string(dev.name()) +
                             "'; lend and borrow on devices of one kind",
                         lender());
    }
    auto link = ask(from);
    begin_ = static_cast<std::byte*>(dev.import_memory(link.memory.get(), size_));
    link_ = std::move(link.lender);
  }
  ~loan_pages() override {
    dev_->drop_import(begin_);
    // Forked children hold copies of the link. The shutdown ends the link for all copies, so the
    // lender sees it end.
    if (::getpid() == process_) ::shutdown(link_.get(), SHUT_RDWR);
  }

  [[nodiscard]] void* try_allocate(std::size_t bytes) override {
    if (taken_ || bytes > size_) return nullptr;
    taken_ = true;
    return begin_;
  }
  void deallocate(void* /*pages*/) noexcept override { taken_ = false; }
  [[nodiscard]] std::size_t free_bytes() const override { return taken_ ? 0 : size_; }

  [[nodiscard]] bool here() const noexcept { return look_at(link_.get()) == far_end::there; }
  [[nodiscard]] std::string what_happened() const {
    return lender() + (look_at(link_.get()) == far_end::said_so ? " wants its memory back"
                                                                : ", which lent memory, has ended");
  }
  [[nodiscard]] bool holds(const void* pointer) const noexcept {
    const auto* const at = static_cast<const std::byte*>(pointer);
    return at != nullptr && std::less_equal<>()(begin_, at) && std::less<>()(at, begin_ + size_);
  }
  // Tells the lender that this process has the memory. Before, the lender serves the next process
  // if this one ends.
  void confirm() const noexcept { say(link_.get(), has_it); }

  // A lender has gone: the loan ends now, or, if tensors still lie in its memory and the borrower
  // may move on, in a later step.
  void before_step(const std::function<void(std::string_view)>& report) override {
    if (!owner_->between_steps() || here()) return;
    if (then_ == lender_gone::moves_on && peer().blocks->used() > 0) return;
    if (captured()) throw_gone("begin");
    const auto happened = what_happened();
    if (then_ == lender_gone::fails) {
      throw lender_error("begin: " + happened +
                             "; nothing is lost. Call return_loan to go on without it, or borrow"
                             " with lender_gone::moves_on",
                         lender());
    }
    report("places: " + happened + "; groups go to the next place from now on");
    give_back();
  }

  // If tensors lie in the lender's memory, the graph is the rest of a step that has begun. The
  // graph may run although the lender has gone, because this mapping keeps the memory.
  void before_launch(const memory_layout& before) const override {
    if (here()) return;
    const bool begun =
        std::ranges::any_of(before, [&](const storage_place& each) { return holds(each.copy); });
    if (!begun) throw_gone("launch");
  }

  void give_back() override {
    const auto refuse = [&](const std::string& why) {
      throw misuse_error("return_loan: " + peer().name + ": " + why);
    };
    if (const auto used = peer().blocks->used(); used > 0) {
      refuse(text::size_text(used) + " lie there and have not come back; call it between steps");
    }
    if (captured()) {
      refuse("graphs were captured, which copy to it; destroy them with this offloader");
    }
    // If a synchronisation fails, the memory may be in use, so it is kept until the offloader goes.
    auto& place = peer();
    dev_->synchronize(place.offload);
    dev_->synchronize(place.reload);
    place.lent = nullptr;
    place.blocks.reset();  // the place takes no groups until it has memory again
    place.pages.reset();   // destroys this object
  }

 private:
  // True if a graph is being captured, or was captured since the loan began: it may copy to this
  // memory.
  [[nodiscard]] bool captured() const {
    return owner_->order().capturing() || owner_->order().graphs() != graphs_before_;
  }
  [[nodiscard]] offload_place& peer() const { return owner_->memory().at(place_kind::peer); }

  [[noreturn]] void throw_gone(const char* call) const {
    throw lender_error(std::string(call) + ": " + what_happened() +
                           "; nothing is lost. Graphs copy to that memory: make another offloader",
                       lender());
  }

  [[nodiscard]] loan_link ask(const loan_handle& from) const {
    try {
      if (auto link = ask_lender(from.socket_); link.memory) return link;
    } catch (const std::system_error& problem) {
      throw lender_error("borrow: " + lender() + " cannot be asked: " + problem.what() +
                             "; see how many descriptors a process may have (ulimit -n)",
                         lender());
    }
    throw lender_error(
        "borrow: " + lender() +
            " does not lend: it has ended or does not answer, has taken its memory back or lent it"
            " to another, or is on another host or in a container with a network of its own;"
            " have it lend again, or go on without",
        lender());
  }

  hardware* dev_;
  engine* owner_;
  lender_gone then_;
  std::uint64_t graphs_before_;
  descriptor link_;
  bool taken_ = false;
  pid_t process_ = ::getpid();
};

#if TIDEPOOL_DEFINITIONS
TIDEPOOL_INLINE void borrow_for(engine& owner, const loan_handle& from, lender_gone then) {
  auto& store = owner.memory();
  if (owner.order().capturing()) {
    throw misuse_error("borrow: a capture cannot; borrow before it, or after");
  }
  const bool first = !store.has(place_kind::peer);
  if (!first && store.at(place_kind::peer).blocks) {
    throw misuse_error("borrow: this offloader has a neighbour's memory already, " +
                       store.at(place_kind::peer).name +
                       "; call return_loan first, or take --places=peer out");
  }
  if (first && owner.order().count() + 2 > max_lanes) {
    throw misuse_error("borrow: copies to a neighbour take two of the " +
                       std::to_string(max_lanes) + " streams that an offloader serves, and " +
                       std::to_string(owner.order().count()) +
                       " are in use; use fewer, or borrow before the first step");
  }
  auto memory = std::make_unique<loan_pages>(owner.device(), from, &owner, then);
  const auto& lent = *memory;
  store.borrow(std::move(memory));
  lent.confirm();
  if (!first) return;
  const auto& peer = store.at(place_kind::peer);
  owner.device().name_copy_streams(peer.offload, peer.reload, peer.unpack, place_kind::peer);
}
#endif

}  // namespace tidepool::detail
