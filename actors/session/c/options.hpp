#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "actors/session/options.hpp"
#include "actors/shell/process_world.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

/// What troupe_options stands for.
struct troupe_options {
  troupe::actors::ProcessWorldOptions world;
  troupe::actors::SessionOptions session;
  std::vector<troupe::core::ParameterSpec> parameters;
};

namespace troupe::actors {

/// Errc::invalid_argument when there is no such option, or it cannot have this value.
core::Result<void> set_option(troupe_options& options, std::string_view name, std::string_view value);
/// Like set_option(), of a group of parameters.
core::Result<void> set_option(core::ParameterGroup& group, std::string_view name, std::string_view value);
/// "name: what it is", a line for each.
const std::string& option_names();

}  // namespace troupe::actors
