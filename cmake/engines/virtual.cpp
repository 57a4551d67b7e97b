#include "engines.hpp"

namespace tidepool {
TIDEPOOL_ENGINE(template, virtual_device);
}
