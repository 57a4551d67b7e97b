#include "engines.hpp"

namespace tidepool {
TIDEPOOL_TEST_ENGINE(template, test::counting_device<virtual_device>);
}  // namespace tidepool
