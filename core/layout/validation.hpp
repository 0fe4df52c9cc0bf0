#pragma once

#include <vector>

#include "core/layout/buffer_layout.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Checks that shards, bucket size and sizes are such that no position of a layout overflows.
Result<void> validate(const std::vector<LayoutParameter>& parameters, const LayoutOptions& options);

}  // namespace troupe::core
