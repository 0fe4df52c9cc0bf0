#include "actors/session/c/options.hpp"

#include <algorithm>

#include "actors/session/option_table.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::CommonOption;
using core::Result;

namespace {

std::vector<CommonOption> options_of(troupe_options& options) {
  return common_options(options.world, options.session);
}

/// False if no option has that name.
Result<bool> set_one_of(const std::vector<CommonOption>& options, std::string_view name,
                        std::string_view value) {
  for (const CommonOption& option : options) {
    if (option.name != name) continue;
    if (auto set = option.value.set(value); !set)
      return core::fail(set.error().code, "{}: {}", name, set.error().message);
    return true;
  }
  return false;
}

}  // namespace

Result<void> set_option(troupe_options& options, std::string_view name, std::string_view value) {
  if (TRY(set_one_of(options_of(options), name, value))) return {};
  return core::fail(core::Errc::invalid_argument,
                    "there is no option {}; troupe_option_names() lists them, for example lanes",
                    core::quoted_excerpt(name));
}

Result<void> set_option(core::ParameterGroup& group, std::string_view name, std::string_view value) {
  const auto options = common_options(group);
  if (TRY(set_one_of(options, name, value))) return {};
  std::string names;
  for (const CommonOption& option : options) names += (names.empty() ? "" : ", ") + std::string(option.name);
  return core::fail(core::Errc::invalid_argument, "groups of parameters have no option {}; they have {}",
                    core::quoted_excerpt(name), names);
}

const std::string& option_names() {
  static const std::string names = [] {
    std::string text;
    troupe_options defaults;
    for (const auto& [name, help, value] : options_of(defaults)) {
      const bool is_flag = value.kind == core::OptionValue::Kind::flag;
      text += fmt::format("{}: {}{}\n", name, help, is_flag ? ": true or false" : "");
    }
    return text;
  }();
  return names;
}

}  // namespace troupe::actors
