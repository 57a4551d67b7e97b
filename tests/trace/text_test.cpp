#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tidepool/core/escape.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/table.hpp"

namespace text = tidepool::trace::detail;

TEST_CASE("numbers print without locale, minus zero, nan and inf") {
  CHECK(text::fixed(1234567.891, 2) == "1234567.89");
  CHECK(text::fixed(-0.001, 2) == "0.00");
  CHECK(text::fixed(-0.01, 2) == "-0.01");
  CHECK(text::fixed(std::nan(""), 2) == "0.00");
  CHECK(text::fixed(std::numeric_limits<double>::infinity(), 1) == "0.0");
  CHECK(text::fixed(1e300, 0) == "1000000000000000000");
  CHECK(text::trimmed(2.50, 2) == "2.5");
  CHECK(text::trimmed(200.0, 2) == "200");
  CHECK(text::trimmed(200.0, 0) == "200");
}

TEST_CASE("sizes and durations take the unit in which they are at least one") {
  CHECK(text::bytes_text(0) == "0 B");
  CHECK(text::bytes_text(1023) == "1023 B");
  CHECK(text::bytes_text((1 << 20) - 100) == "1.00 MiB");
  CHECK(text::bytes_text(1000) == "1000 B");
  CHECK(text::bytes_text(std::size_t{3} << 19) == "1.50 MiB");
  CHECK(text::bytes_text(std::size_t{141} << 30) == "141 GiB");
  CHECK(text::duration_text(0) == "0 \xc2\xb5s");
  CHECK(text::duration_text(0.42) == "420 ns");
  CHECK(text::duration_text(12.34) == "12.3 \xc2\xb5s");
  CHECK(text::duration_text(1402) == "1.40 ms");
  CHECK(text::duration_text(2.5e6) == "2.50 s");
  CHECK(text::duration_text(999.9) == "1.00 ms");
}

TEST_CASE("ticks lie at 1, 2 or 5 times a power of ten") {
  CHECK(text::round_step(10, 10) == doctest::Approx(1));
  CHECK(text::round_step(10, 9) == doctest::Approx(2));
  CHECK(text::round_step(0.031, 10) == doctest::Approx(0.005));
  CHECK(text::round_step(700, 10) == doctest::Approx(100));
  CHECK(text::round_step(0, 10) == 1);
  CHECK(text::round_step(std::nan(""), 10) == 1);
}

TEST_CASE("text becomes valid UTF-8") {
  const auto clean = [](std::string_view from) {
    std::string to;
    while (!from.empty()) to += text::next_character(from);
    return to;
  };
  const std::string bad{text::replacement_character};
  CHECK(clean("\xc2\xb5s") == "\xc2\xb5s");
  CHECK(clean("\xf0\x9f\x8c\x8a") == "\xf0\x9f\x8c\x8a");
  CHECK(clean("a\xff"
              "b") == "a" + bad + "b");
  CHECK(clean("\xc3") == bad);                                // cut off
  CHECK(clean("\xc0\xaf") == bad + bad);                      // overlong
  CHECK(clean("\xe0\x80\xaf") == bad + bad + bad);            // overlong
  CHECK(clean("\xed\xa0\x80") == bad + bad + bad);            // surrogate
  CHECK(clean("\xf4\x90\x80\x80") == bad + bad + bad + bad);  // past the last one
}

TEST_CASE("text is escaped for JSON and XML") {
  CHECK(text::json_text("a\"b\\c\nd\x01") == "a\\\"b\\\\c\\nd\\u0001");
  CHECK(text::xml_text("a<b>&\"c\"") == "a&lt;b&gt;&amp;&quot;c&quot;");
  const std::string bad{text::replacement_character};
  CHECK(text::xml_text(std::string_view("\0\x1b\n", 3)) == bad + bad + "\n");
  CHECK(text::xml_text("\xef\xbf\xbf") == bad);
}

TEST_CASE("long text is cut between characters") {
  const std::string dots{text::ellipsis};
  CHECK(text::cut("layers", 6) == "layers");
  CHECK(text::cut("layers", 4) == "lay" + dots);
  CHECK(text::cut("\xc2\xb5\xc2\xb5\xc2\xb5", 2) == "\xc2\xb5" + dots);
  CHECK(text::cut("layers", 0).empty());
}

TEST_CASE("a table aligns by characters, not by bytes") {
  text::text_table table({"name", "n"});
  table.rule();
  table.row({"\xc2\xb5", "10000"});
  table.row({"longer", "1"});
  CHECK(table.text() ==
        "name        n\n"
        "-------------\n"
        "\xc2\xb5       10000\n"
        "longer      1\n");
}
