#include "engines.hpp"

namespace tidepool {
TIDEPOOL_ENGINE(template, cuda_device);
}
