#include <tidepool/codec/fp8.hpp>
#include <tidepool/tidepool.hpp>

int from_second();
int from_third();

int main() {
  int sum = tidepool::version{}.major + from_second();
#if defined(WITH_THIRD)
  sum += from_third();
#endif
  return sum < 0 ? 1 : 0;
}
