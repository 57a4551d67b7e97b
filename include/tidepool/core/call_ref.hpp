// A reference to a function of the caller, valid during one call, because it must not allocate.
#pragma once

#include <memory>
#include <type_traits>

namespace tidepool::inline v0_3_0::detail {

class call_ref {
 public:
  template <class Call>
    requires(!std::is_same_v<std::remove_cvref_t<Call>, call_ref>)
  call_ref(Call&& what)  // NOLINT(google-explicit-constructor): stands for a function
      : what_(const_cast<void*>(static_cast<const void*>(std::addressof(what)))),
        run_([](void* at) { (*static_cast<std::remove_reference_t<Call>*>(at))(); }) {}

  void operator()() const { run_(what_); }

 private:
  void* what_;
  void (*run_)(void*);
};

}  // namespace tidepool::detail
