#pragma once

#include <string>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps::gpt {

/// An option of the command line: its name, and its value as it was written there.
struct GivenOption {
  std::string name;
  std::string value;
};

/// What LocalTrainer can do of it. Errc::invalid_argument names all options that it cannot.
core::Result<void> check_local_options(const std::vector<GivenOption>& given, bool only_evaluates);

}  // namespace troupe::apps::gpt
