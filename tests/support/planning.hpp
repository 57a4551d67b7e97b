/// Offloaders with a planner.
#pragma once

#include "tidepool/offloader.hpp"
#include "tidepool/plan.hpp"

namespace tidepool::test {

/// `Offloader`, given the library's planner.
template <class Offloader>
class planning : public Offloader {
 public:
  template <class Device>
  planning(Device& dev, const options& opts = {}, tidepool::detail::file_opener file = nullptr)
      : Offloader(dev, opts, {.planner = tidepool::planner(), .file = file}) {}
};

}  // namespace tidepool::test
