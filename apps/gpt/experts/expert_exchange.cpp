#include "apps/gpt/experts/expert_exchange.hpp"

#include <vector>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<core::ExpertExchange> plan_rows(const ExpertConfig& config, std::size_t rows,
                                       const core::Dispatch& dispatch, ExpertPeers* peers) {
  CHECK((peers != nullptr) == (config.ranks > 1), "a pass over experts of other ranks has them as peers");
  std::vector<std::int64_t> own;
  for (std::size_t expert = 0; expert < config.count; ++expert) own.push_back(dispatch.count(expert));
  const auto counts =
      peers == nullptr ? std::vector<std::vector<std::int64_t>>{own} : TRY(peers->gather_counts(own));
  const auto most = static_cast<std::int64_t>(config.most_rows(rows));
  return core::plan_exchange(config.owners(), config.place, counts, most);
}

}  // namespace troupe::apps::gpt
