#include "one_step.hpp"

std::string from_compiled();

// The one kind of file makes of a step what the other does.
int main() {
#if defined(TIDEPOOL_COMPILED)
#error "this file is the header-only one"
#endif
  const auto here = one_step();
  return here.starts_with("1\n") && here == from_compiled() ? 0 : 1;
}
