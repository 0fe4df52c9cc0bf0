#include "apps/gpt/model/expert_config.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

std::size_t ExpertConfig::most_rows(std::size_t rows) const {
  const auto most =
      core::most_expert_rows(spread(), {rows, choices, members, members_of_rank, capacity_factor});
  CHECK(most.has_value(), "the capacity factor of a valid configuration is above 0");
  return static_cast<std::size_t>(*most);
}

}  // namespace troupe::apps::gpt
