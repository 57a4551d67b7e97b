#include <memory>

#include "one_step.hpp"

std::string step_before() { return one_step(); }

int patch_before() { return std::make_unique<tidepool::version>()->patch; }
