/// Sizes of the trainer's model that other tests cannot tell from each other by their bits.
#include <doctest/doctest.h>

#include "../../examples/train_moe/model/config.hpp"

namespace {

moe::model_sizes sixteen_classes() {
  moe::model_sizes model;
  model.batch = 4;
  model.seq = 2048;
  model.top_k = 8;
  model.experts = 16;
  model.row_classes = 16;
  return model;
}

}  // namespace

TEST_CASE("sizes: rows about the fair share have one size, and it lies in the middle of them") {
  const auto model = sixteen_classes();
  const moe::index fair = model.tokens() * model.top_k;
  const moe::index width = fair / 16 / 2;
  CHECK(model.roomy(fair - width) == fair - width);
  CHECK(model.roomy(fair - width + 1) == fair + width);
  CHECK(model.roomy(fair) == fair + width);
  CHECK(model.roomy(fair + width) == fair + width);
  CHECK(model.roomy(fair + width + 1) == fair + 3 * width);
  CHECK_FALSE(model.same_sizes());
}

TEST_CASE("sizes: classes hold all rows and are whole paddings, whatever the sizes") {
  auto model = sixteen_classes();
  for (const moe::index tokens : {1, 7, 96, 2048}) {
    for (const moe::index classes : {1, 3, 16, 4096}) {
      model.batch = 1;
      model.seq = tokens;
      model.row_classes = classes;
      for (moe::index rows = 0; rows < 300; ++rows) {
        REQUIRE(model.roomy(rows) >= rows);
        REQUIRE(model.roomy(rows) % moe::row_padding == 0);
        REQUIRE(model.roomy(rows) <= model.roomy(rows + 1));
      }
    }
  }
}

TEST_CASE("sizes: without classes rows have the size that they have, or that of a capacity") {
  auto model = sixteen_classes();
  model.row_classes = 0;
  for (const moe::index rows : {0, 1, 8, 1001}) CHECK(model.roomy(rows) == rows);
  CHECK_FALSE(model.same_sizes());
  model.capacity_factor = 1.25;
  CHECK(model.same_sizes());
  model.row_classes = 16;
  CHECK_FALSE(model.same_sizes());
}
