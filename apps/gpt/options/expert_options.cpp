#include "apps/gpt/options/expert_options.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

Result<void> apply_expert_options(const ExpertOptions& options, bool is_begun, ModelConfig& config) {
  ExpertConfig& experts = config.experts;
  if (is_begun && options.count > 0)
    return fail(Errc::invalid_argument,
                "config.json says which experts the model has; leave out --experts {}", options.count);
  if (!is_begun && options.count > 0) {
    experts.count = options.count;
    experts.choices = options.choices;
    experts.feed_forward = options.feed_forward > 0 ? options.feed_forward : config.feed_forward;
    // So that the model can be exported as one that transformers knows.
    experts.names = ExpertConfig::Names::mixtral;
    experts.bias_rate = options.bias_rate;
    experts.balance = options.bias_rate > 0 ? 0 : kDefaultBalance;
  }
  if (experts.count == 0) {
    if (options.balance || options.bias_rate > 0 || options.z_loss > 0 || options.capacity_factor)
      return fail(Errc::invalid_argument,
                  "--balance, --bias-rate, --z-loss and --capacity-factor are about experts, and the model "
                  "has none; add "
                  "--experts, or leave them out");
    return {};
  }
  if (is_begun && options.bias_rate > 0)
    return fail(
        Errc::invalid_argument,
        "--bias-rate {} is for routers with sigmoid scores, and those of the model that was read have "
        "none; leave it out",
        options.bias_rate);
  experts.balance = options.balance.value_or(experts.balance);
  experts.z_loss = options.z_loss;
  experts.capacity_factor = options.capacity_factor;
  return {};
}

Result<void> check_expert_ranks(const core::TrainingOptions& training, const ModelConfig& config,
                                bool is_local) {
  if (is_local && config.experts.bias_rate > 0)
    return fail(
        Errc::invalid_argument,
        "--bias-rate {} counts the tokens of all ranks, and --local has none; leave one of the two out",
        config.experts.bias_rate);
  const int parallel = training.expert_parallel, cut = training.expert_tensor_parallel;
  if (parallel == 1 && cut <= 1) return {};
  const auto given = parallel == 1 ? fmt::format("--expert-tensor-parallel {}", cut)
                                   : fmt::format("--expert-parallel {}", parallel);
  if (config.experts.count == 0)
    return fail(Errc::invalid_argument,
                "{} distributes experts, and the model has none; add --experts, or leave it out", given);
  TRY(core::ExpertOwners::create(config.experts.count, static_cast<std::size_t>(parallel)));
  if (is_local)
    return fail(Errc::invalid_argument,
                "{} is for several ranks, and --local for one; leave one of the two out", given);
  return {};
}

}  // namespace troupe::apps::gpt
