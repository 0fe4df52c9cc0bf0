#pragma once

#include <string>

#include "apps/troupe/plan/parameters.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct LayoutArguments {
  std::string policy = "padded";
  ParameterArguments parameters;
  core::LayoutOptions options;
  bool json = false;
};

/// What `troupe plan layout` prints.
core::Result<std::string> report_layout(const LayoutArguments& arguments);

}  // namespace troupe::apps
