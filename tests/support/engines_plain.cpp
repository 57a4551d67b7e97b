#include "engines.hpp"

namespace tidepool {
TIDEPOOL_TEST_ENGINE(template, virtual_device);
}  // namespace tidepool
