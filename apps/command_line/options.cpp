#include "apps/command_line/options.hpp"

#include <algorithm>

namespace troupe::apps {

CLI::Option* add_value(CLI::App& app, const std::string& name, const core::OptionValue& value,
                       const std::string& help) {
  using Kind = core::OptionValue::Kind;
  const auto set = value.set;
  if (value.kind == Kind::flag) {
    return app.add_flag_callback(
        name, [set] { CHECK(set("true"), "a flag takes true"); }, help);
  }
  const auto take = [set](const CLI::results_t& texts) {
    return std::all_of(texts.begin(), texts.end(), [&](const auto& text) { return set(text).has_value(); });
  };
  auto* option = app.add_option(name, take, help, false, value.shown)->type_name(value.type);
  if (value.kind == Kind::list)
    return option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  const auto check = [set](const std::string& text) {
    const auto accepted = set(text);
    return accepted ? std::string() : accepted.error().message;
  };
  return option->check(check, value.choices);
}

CLI::Option* add_common(CLI::App& app, const std::vector<core::CommonOption>& all, std::string_view name) {
  const auto& [known, help, value] = core::option_named(all, name);
  auto* option = add_value(app, fmt::format("--{}", known), value, std::string(help));
  return value.has_default && value.kind == core::OptionValue::Kind::value ? option->capture_default_str()
                                                                           : option;
}

}  // namespace troupe::apps
