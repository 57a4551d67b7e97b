// What `validate` accepts, `to_text` writes and `parse_options` reads back as the same.
#include "fuzz.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/validate.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidepool;
  options value;
  if (!fuzz::accepted([&] { value = parse_options(fuzz::text_of(data, size)); })) return 0;
  const bool open = fuzz::accepted([&] { validate(value, open_module_list(value), true); });
  const bool compiled = fuzz::accepted([&] { validate(value, fuzz::whole_list::names, false); });
  const auto text = to_text(value);
  if (!open && !compiled) return 0;

  options again;
  fuzz::expect(fuzz::accepted([&] { again = parse_options(text); }), "the text is refused", text);
  fuzz::expect(again == value, "the text reads otherwise", text);
  fuzz::expect(to_text(again) == text, "written twice, it differs", text);

  // Over another base everything that the text names is replaced; the same by the environment.
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& item : detail::text::option_table) {
    if (item.write == nullptr) continue;
    variables.emplace_back(detail::text::environment_name(item), item.write(value));
  }
  options from_variables;
  const bool read = fuzz::accepted([&] {
    from_variables = from_environment(
        parse_options("--offload-modules=all --own-modules=x --max-inflight=3,all:2 --no-margin"),
        [&](const char* name) -> const char* {
          for (const auto& [known, written] : variables) {
            if (known == name) return written.c_str();
          }
          return nullptr;
        });
  });
  fuzz::expect(read && from_variables == value, "variables read otherwise", text);
  return 0;
}
