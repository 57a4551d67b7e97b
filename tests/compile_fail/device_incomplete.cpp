// The concept says what the device lacks.
// expect: constraints not satisfied|constraint failure
// expect: dev\.memory\(\)
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

class my_device : private tidepool::null_device {
 public:
  using null_device::copy;
  using null_device::deallocate;
  using null_device::deallocate_host;
  using null_device::elapsed_us;
  using null_device::event;
  using null_device::make_event;
  using null_device::make_stream;
#ifdef TIDEPOOL_TEST_CONTROL
  using null_device::memory;
#endif
  using null_device::name;
  using null_device::record;
  using null_device::stream;
  using null_device::stream_ref;
  using null_device::synchronize;
  using null_device::try_allocate;
  using null_device::try_allocate_host;
  using null_device::wait;
};

using offloader = tidepool::offloader<my_device>;
void use(offloader&);
