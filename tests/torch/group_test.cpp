// Modules whose saved tensors are named one by one (`torch_pass::group`).
#include <utility>

#include "rig.hpp"

namespace tidepool::test {

TEST_CASE("group: what it is given leaves with its commit, and is back when it is read") {
  torch_desk desk(1);
  auto pass = desk.off->begin();
  auto tensor = torch::arange(64, torch::kFloat);
  const auto expected = tensor.clone();
  auto group = pass.group(desk.off->module("fc1"), 0);
  REQUIRE(group);
  auto whole = group.save(tensor);
  auto part = group.save(tensor.slice(0, 8, 16));
  CHECK(torch::equal(whole->call_unpack_hook(), expected));  // not committed yet
  group.commit();
  CHECK_FALSE(group);
  group.commit();  // an empty one: nothing
  CHECK_THROWS_AS(static_cast<void>(group.save(expected)), misuse_error);
  tensor.reset();
  CHECK(desk.bytes_out() == 256);
  pass.end_forward();
  CHECK(torch::equal(part->call_unpack_hook(), expected.slice(0, 8, 16)));
  CHECK(torch::equal(whole->call_unpack_hook(), expected));
  part.reset();
  whole.reset();
  pass.finish();
  desk.off->end_step();
}

TEST_CASE("group: empty where nothing of the module leaves; uncommitted, all stays") {
  torch_desk desk(0, small_torch_options("--offload-modules=fc1"));
  auto pass = desk.off->begin();
  CHECK_FALSE(pass.group(desk.off->module("fc2"), 0));
  const auto tensor = torch::ones(64);
  auto group = pass.group(desk.off->module("fc1"), 0);
  auto moved = std::move(group);
  CHECK_FALSE(group);
  auto saved = moved.save(tensor);
  moved = {};
  pass.end_forward();
  CHECK(torch::equal(saved->call_unpack_hook(), tensor));
  CHECK_FALSE(pass.group(desk.off->module("fc1"), 1));  // backward has begun
  CHECK(desk.bytes_out() == 0);
  saved.reset();
  pass.finish();
}

}  // namespace tidepool::test
