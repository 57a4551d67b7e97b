#include <memory>

#include "one_step.hpp"

std::string step_before();
int patch_before();

// What is not inlined is there once a name: the linker would take one of the two for both.
int main() {
  const int here = std::make_unique<tidepool::version>()->patch;
  return here == TIDEPOOL_VERSION_PATCH && patch_before() == 9 && one_step() == step_before() ? 0
                                                                                              : 1;
}
