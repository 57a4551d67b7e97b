/// Names without their definitions.
#pragma once

namespace tidepool::inline v0_3_0 {

class error;
class option_error;
class unknown_module;
class misuse_error;
class out_of_budget;
class disk_error;
class lender_error;
class device_error;

class loan_handle;
struct options;
struct chunk_info;
struct machine;
struct view_shape;

class null_device;
class virtual_device;
class cuda_device;

namespace plan {
class profile_error;
class file_error;
struct profile;
struct step_plan;
}  // namespace plan

namespace trace {
struct counters;
struct record;
}  // namespace trace

}  // namespace tidepool
