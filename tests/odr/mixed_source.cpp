#include <tidepool/src.hpp>
