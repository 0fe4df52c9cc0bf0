#include "apps/gpt/experts/expert_config.hpp"

#include "core/errors.hpp"
#include "core/experts/dispatch.hpp"

namespace troupe::apps::gpt {

std::size_t ExpertConfig::most_rows(std::size_t rows) const {
  std::size_t most = rows * choices;  // of each rank
  if (ranks > 1 && capacity_factor) {
    const auto capacity =
        core::expert_capacity(static_cast<std::int64_t>(rows), choices, count, *capacity_factor);
    CHECK(capacity.has_value(), "the capacity factor of a valid configuration is above 0");
    most = std::min(most, owners().per_rank() * static_cast<std::size_t>(*capacity));
  }
  return most * ranks;
}

}  // namespace troupe::apps::gpt
