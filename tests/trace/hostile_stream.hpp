/// A stream whose locale and format would spoil every number that is formatted through it.
#pragma once

#include <ios>
#include <locale>
#include <sstream>
#include <string>

namespace tidepool::test {

struct odd_numbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

class hostile_stream : public std::ostringstream {
 public:
  hostile_stream() {
    imbue(std::locale(std::locale::classic(), new odd_numbers));
    setf(std::ios::hex, std::ios::basefield);
    setf(std::ios::showbase | std::ios::showpos | std::ios::uppercase);
    width(1 << 20);
    fill('*');
    precision(1);
  }
};

}  // namespace tidepool::test
