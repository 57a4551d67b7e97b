// Memory that another process lends: when it comes, and what becomes of it.
#pragma once

#include <cstdint>
#include <string>

#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/lenders.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/loan.hpp"

namespace tidepool::inline v0_2_0::detail {

class borrower {
 public:
  explicit borrower(engine& owner) : owner_(&owner) {}

  void borrow(const loan_handle& from, lender_gone then) {
    auto& store = owner_->memory();
    if (store.order().capturing()) {
      throw misuse_error("borrow: a capture cannot; borrow before it, or after");
    }
    const bool first = !store.has(place_kind::peer);
    if (!first && peer().blocks) {
      throw misuse_error("borrow: this offloader has a neighbour's memory already, " + peer().name +
                         "; call return_loan first, or take --places=peer out");
    }
    if (first && store.order().count() + 2 > max_lanes) {
      throw misuse_error("borrow: copies to a neighbour take two of the " +
                         std::to_string(max_lanes) + " streams that an offloader serves, and " +
                         std::to_string(store.order().count()) +
                         " are in use; use fewer, or borrow before the first step");
    }
    store.borrow(from);
    then_ = then;
    peer().graphs_before_loan = store.order().graphs();
    if (!first) return;
    owner_->device().name_copy_streams(peer().offload, peer().reload, place_kind::peer);
  }

  // Blocks the host until copies to and from it are over, where any are.
  void give_back() {
    if (lent() == nullptr) return;
    const auto refuse = [&](const std::string& why) {
      throw misuse_error("return_loan: " + peer().name + ": " + why);
    };
    if (const auto used = peer().blocks->used(); used > 0) {
      refuse(text::size_text(used) +
             " lie there and have not come back; call it between"
             " steps");
    }
    if (captured()) {
      refuse("graphs were captured, which copy to it; destroy them with this offloader");
    }
    // Where that fails the memory may be in use: it stays until the offloader goes.
    owner_->device().synchronize(peer().offload);
    owner_->device().synchronize(peer().reload);
    peer().close_loan();
  }

  // A step begins, and its lender is not there: call `go_on`. What still lies in the memory keeps
  // it until a later step, where it need not be given back at once.
  [[nodiscard]] bool alone(bool trains) const {
    return trains && lent() != nullptr && owner_->between_steps() && !lent()->here() &&
           (then_ == lender_gone::fails || peer().blocks->used() == 0);
  }

  // Says so to `reports` and gives it back, or throws.
  template <class Reports>
  void go_on(const Reports& reports) {
    if (captured()) throw_lender_gone("begin", *lent());
    const auto happened = lent()->what_happened();
    if (then_ == lender_gone::fails) {
      throw lender_error("begin: " + happened +
                             "; nothing is lost. Call return_loan to go on without it, or borrow"
                             " with lender_gone::moves_on",
                         lent()->lender());
    }
    reports.report("places: " + happened + "; groups go to the next place from now on");
    give_back();
  }

 private:
  // Graphs of before know nothing of the loan.
  [[nodiscard]] bool captured() const {
    const auto& order = owner_->memory().order();
    return order.capturing() || order.graphs() != peer().graphs_before_loan;
  }
  // Null where nothing is borrowed.
  [[nodiscard]] const loan* lent() const {
    return owner_->memory().has(place_kind::peer) ? peer().lent : nullptr;
  }
  [[nodiscard]] offload_place& peer() const { return owner_->memory().at(place_kind::peer); }

  engine* owner_;
  lender_gone then_{};
};

}  // namespace tidepool::detail
