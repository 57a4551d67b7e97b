#include "tidepool/src.hpp"
