#include "apps/gpt/experts/router_bias.hpp"

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"
#include "core/experts/balance.hpp"

namespace troupe::apps::gpt {

using core::Result;
using core::Value;

namespace {

/// The values that a checkpoint keeps of a run have little room.
constexpr std::size_t kMostBiases = 4096;

}  // namespace

Result<RouterBias> RouterBias::create(const ExpertConfig& config, std::size_t layers) {
  if (layers * config.count > kMostBiases)
    return core::fail(core::Errc::invalid_argument,
                      "{} layers with {} experts have more biases than the {} that a checkpoint keeps; leave "
                      "out --bias-rate, and use --balance",
                      layers, config.count, kMostBiases);
  return RouterBias(config.bias_rate, layers, config.count);
}

RouterBias::RouterBias(double rate, std::size_t layers, std::size_t experts)
    : rate_(rate), experts_(experts), values_(std::make_shared<std::vector<float>>(layers * experts)) {}

void RouterBias::update(const ExpertTally& step) {
  CHECK(step.layers() * experts_ == values_->size(), "the counts are those of the model");
  for (std::size_t layer = 0; layer < step.layers(); ++layer)
    core::update_expert_bias(std::span(*values_).subspan(layer * experts_, experts_), step.chosen(layer),
                             rate_);
}

Value RouterBias::value() const {
  Value::List list;
  for (const float bias : *values_) list.emplace_back(static_cast<double>(bias));
  return list;
}

Result<void> RouterBias::set_value(const Value& value) {
  const auto* list = value.as_list();
  std::vector<float> found;
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i)
    found.push_back(static_cast<float>((*list)[i].as_double().value_or(NAN)));
  const bool fits = found.size() == values_->size() &&
                    std::all_of(found.begin(), found.end(), [](float bias) { return std::isfinite(bias); });
  if (!fits)
    return core::fail(core::Errc::mismatch,
                      "the checkpoint's router_bias is not that of {} layers with {} experts each",
                      values_->size() / experts_, experts_);
  *values_ = std::move(found);
  return {};
}

}  // namespace troupe::apps::gpt
