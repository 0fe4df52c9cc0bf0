#include "actors/planes/step/expert_options.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/errors.hpp"
#include "core/experts/exchange.hpp"

namespace troupe::actors {

namespace {

/// More would not fit into counts of any exchange, and most likely are a mistake.
constexpr std::size_t kMostExperts = 1 << 16;

core::Result<void> check_layer(const core::ExpertLayerOptions& layer, std::size_t number,
                               const core::TrainingOptions& options) {
  const auto wrong = [&](const std::string& what) {
    return core::fail(core::Errc::invalid_argument, "layer {} of TrainingOptions::experts has {}", number,
                      what);
  };
  if (layer.experts > kMostExperts)
    return wrong(fmt::format("{} experts; at most {} are possible", layer.experts, kMostExperts));
  const auto spread =
      TRY(core::ExpertSpread::create({.experts = layer.experts,
                                      .ranks = static_cast<std::size_t>(options.expert_ranks()),
                                      .parts = static_cast<std::size_t>(options.expert_parts()),
                                      .columns = static_cast<std::size_t>(options.expert_columns())}));
  if (layer.choices < 1 || layer.choices > layer.experts) {
    return wrong(fmt::format("{} choices of a token among {} experts; give a number from 1 to that",
                             layer.choices, layer.experts));
  }
  if (layer.tokens < 1 || layer.tokens > (std::size_t{1} << 32))
    return wrong(fmt::format("{} tokens of a microbatch; give as many as a rank may have", layer.tokens));
  if (!std::isfinite(layer.bias_rate) || layer.bias_rate < 0)
    return wrong(fmt::format("a bias rate of {}; give 0 or a number above it", layer.bias_rate));
  if (layer.most_rows && *layer.most_rows < 0)
    return wrong(fmt::format("room for {} rows; give 0 or more", *layer.most_rows));
  TRY(core::most_expert_rows(
      spread, {.tokens = layer.tokens, .choices = layer.choices, .capacity_factor = layer.capacity_factor}));
  return {};
}

}  // namespace

std::int64_t expert_words(const core::TrainingOptions& options) {
  std::int64_t words = 0;
  for (const auto& layer : options.experts) words += 2 * static_cast<std::int64_t>(layer.experts);
  return words;
}

std::string describe_experts(const core::TrainingOptions& options) {
  std::string text;
  for (std::size_t number = 0; number < options.experts.size(); ++number) {
    const auto& layer = options.experts[number];
    if (layer.experts == 0) continue;
    text += fmt::format(
        "\nexperts of layer {}: {}, {} of each of {} tokens, capacity factor {}, most rows {}, exchanges {}, "
        "bias rate {}, score before choice {}",
        number, layer.experts, layer.choices, layer.tokens, layer.capacity_factor.value_or(0),
        layer.most_rows.value_or(-1), layer.exchanges, layer.bias_rate, layer.score_before_choice);
  }
  return text;
}

core::Result<void> check_experts(const core::TrainingOptions& options, int groups) {
  const int etp = options.expert_tensor_parallel, tp = options.tensor_parallel;
  if (etp < 0 || (etp > 0 && etp % tp != 0 && tp % etp != 0)) {
    return core::fail(
        core::Errc::invalid_argument,
        "expert_tensor_parallel {} with tensor_parallel {}: choose two numbers of which one divides "
        "the other, or 0 for the same",
        etp, tp);
  }
  if (options.expert_parallel % options.expert_columns() != 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "expert_tensor_parallel {} with tensor_parallel {}: the ranks that share a layer keep "
        "different experts in {} groups, over which expert_parallel {} cannot be distributed; choose a "
        "multiple of {}",
        etp, tp, options.expert_columns(), options.expert_parallel, options.expert_columns());
  }
  const int ep = options.expert_ranks(), parts = options.expert_parts(), cp = options.context_parallel;
  const int data_parallel = groups * cp;
  const auto named = [&] {
    if (parts == 1) return fmt::format("expert_parallel {}", ep);
    return fmt::format("expert_parallel {} times {} parts of each expert", options.expert_parallel, parts);
  };
  if (ep < 1 || data_parallel % ep != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "{} does not divide {} data-parallel ranks; choose a number from 1 that does", named(),
                      data_parallel);
  }
  for (std::size_t layer = 0; layer < options.experts.size(); ++layer) {
    if (options.experts[layer].experts > 0) TRY(check_layer(options.experts[layer], layer, options));
  }
  if (ep == 1) return {};
  if (ep % cp != 0 && cp % ep != 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} with context_parallel {}: ranks that experts are distributed over are neighbours, as are "
        "those that share sequences; choose two numbers of which one divides the other",
        named(), cp);
  }
  if (ep > cp && options.lanes % groups != 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} lanes are not a multiple of {} data-parallel ranks{}, which go through their lanes "
        "together in groups of {} that experts are distributed over; use a multiple of {} lanes",
        options.lanes, groups, cp == 1 ? "" : fmt::format(" times {} that share lanes", cp), ep, groups);
  }
  if (data_parallel / ep % options.optimizer_instances != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "{} optimizer instances do not divide the {} ranks that keep the same experts; use "
                      "fewer instances, or a smaller expert_parallel",
                      options.optimizer_instances, data_parallel / ep);
  }
  return {};
}

}  // namespace troupe::actors
