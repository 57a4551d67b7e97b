// What the sources include, to be compiled ahead once for each compiler. The engines are declared
// to be elsewhere, so that no source makes them again only to be refused.
#pragma once

#include <string>

#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/module.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool {
extern template class detail::engine<null_device>;
extern template class detail::engine<virtual_device>;
extern template class detail::plan_maker<null_device>;
extern template class detail::plan_maker<virtual_device>;
}  // namespace tidepool
