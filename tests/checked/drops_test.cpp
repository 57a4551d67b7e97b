// Each join of the engine left out, on the virtual device.
#include <cstddef>
#include <optional>

#include "dropped_joins.hpp"

namespace {

// Exports whole pages of a GPU's size.
struct large_pages : tidepool::test::checked {
  [[nodiscard]] std::optional<tidepool::exported_memory> try_export(std::size_t bytes) {
    constexpr auto page = std::size_t{2} << 20;
    return tidepool::test::checked::try_export(bytes / page * page);
  }
};

}  // namespace

namespace drops = tidepool::test::drops;
using desk = tidepool::test::basic_desk<large_pages>;

TEST_CASE("checked: without `cap` nothing is out of order, nor with all joins made") {
  drops::without_cap_nothing_is_out_of_order_nor_with_all_joins_made<desk>();
}
TEST_CASE("checked: `producer` left out") { drops::producer_left_out<desk>(); }
TEST_CASE("checked: `device_reuse` left out") { drops::device_reuse_left_out<desk>(); }
TEST_CASE("checked: `reload_reuse` left out") { drops::reload_reuse_left_out<desk>(); }
TEST_CASE("checked: `own_offload` left out") { drops::own_offload_left_out<desk>(); }
TEST_CASE("checked: `consumer` left out") { drops::consumer_left_out<desk>(); }
TEST_CASE("checked: `host_reuse` left out") { drops::host_reuse_left_out<desk>(); }
TEST_CASE("checked: `peer_reuse` left out") { drops::peer_reuse_left_out<desk>(); }
TEST_CASE("checked: `peer_reuse` left out of memory that is lent") {
  drops::peer_reuse_of_a_loan_left_out<desk>();
}
TEST_CASE("checked: `file_write` left out") { drops::file_write_left_out<desk>(); }
TEST_CASE("checked: `file_reuse` left out") { drops::file_reuse_left_out<desk>(); }
TEST_CASE("checked: `row_count` left out") { drops::row_count_left_out<desk>(); }
TEST_CASE("checked: graphs with all joins have no findings") {
  drops::graphs_with_all_joins_have_no_findings<desk>();
}
TEST_CASE("checked: `launch` left out") { drops::launch_left_out<desk>(); }
TEST_CASE("checked: `after_launch` left out") { drops::after_launch_left_out<desk>(); }
TEST_CASE("checked: `fork` left out") { drops::fork_left_out<desk>(); }
TEST_CASE("checked: `join_back` left out") { drops::join_back_left_out<desk>(); }
TEST_CASE("checked: `after_capture` left out") { drops::after_capture_left_out<desk>(); }
TEST_CASE("checked: `new_stream` left out") { drops::new_stream_left_out<desk>(); }
TEST_CASE("checked: memory on loan with all joins has no findings") {
  drops::memory_on_loan_with_all_joins_has_no_findings<desk>();
}
TEST_CASE("checked: `give_back` left out") { drops::give_back_left_out<desk>(); }
TEST_CASE("checked: `borrow` left out") { drops::borrow_left_out<desk>(); }
