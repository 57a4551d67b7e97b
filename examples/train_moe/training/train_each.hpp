/// The same training several times over, with other options of the library.
#pragma once

#include <cstdio>
#include <string>
#include <tidepool/parse.hpp>
#include <vector>

#include "../../tools/device_line.hpp"
#include "../parallel/alone.hpp"
#include "run_result.hpp"
#include "train.hpp"

namespace moe {

/// The same training once for each of `variants`, on one device.
template <class Kernels, template <class, class> class Link, class Device>
std::vector<run_result> train_each(Device& dev, const settings& run,
                                   const std::vector<tidepool::options>& variants,
                                   const corpus& text, typename Link<Device, Kernels>::team& team) {
  if (run.progress) tools::print_device_of(dev);
  const std::size_t free_before = dev.memory().free;
  std::vector<run_result> results;
  for (const tidepool::options& opt : variants) {
    const std::string options = to_text(opt);
    if (run.progress)
      std::printf("tidepool: %s\n", options.empty() ? "no offload" : options.c_str());
    settings mine = run;
    if (&opt != &variants.back()) {  // one run saves; the others have its bits
      mine.save.clear();
      mine.save_plan.clear();
      mine.plan.clear();
    }
    results.push_back(
        trainer<Device, Kernels, Link>(dev, free_before, mine, opt, text, team).run());
  }
  return results;
}

/// The same for all of the model in this process.
template <class Kernels, class Device>
std::vector<run_result> train_each(Device& dev, const settings& run,
                                   const std::vector<tidepool::options>& variants,
                                   const corpus& text) {
  typename alone<Device, Kernels>::team nobody;
  return train_each<Kernels, alone>(dev, run, variants, text, nobody);
}

}  // namespace moe
