#include "apps/gpt/model/expert_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "actors/session/trainer_group.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;
using core::Value;

namespace {

template <class Visit>
Result<void> for_each_layer(actors::Session& session, const ModelConfig& config, const Visit& visit) {
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    if (!config.experts.in_layer(layer)) continue;
    TRY(visit(layer, *TRY(session.experts(static_cast<std::uint32_t>(layer)))));
  }
  return {};
}

template <class T>
std::vector<T> part_of(const std::vector<T>& of_all, std::size_t layer, std::size_t experts) {
  const auto first = of_all.begin() + static_cast<std::ptrdiff_t>(layer * experts);
  return of_all.empty() ? std::vector<T>()
                        : std::vector<T>(first, first + static_cast<std::ptrdiff_t>(experts));
}

core::Result<void> of_another(const char* name, const ModelConfig& config) {
  return core::fail(core::Errc::mismatch, "the checkpoint's {} is not that of {} layers with {} experts each",
                    name, config.layers, config.experts.count);
}

/// The counts of all layers and experts.
Result<std::vector<std::int64_t>> counts_of(const Value& load, const char* name, const ModelConfig& config) {
  const Value* list = load.find(name);
  const Value* experts = load.find("experts");
  std::vector<std::int64_t> found;
  if (list != nullptr && list->as_list() != nullptr) {
    for (const Value& count : *list->as_list()) found.push_back(count.as_int().value_or(-1));
  }
  const bool fits = experts != nullptr &&
                    experts->as_int() == static_cast<std::int64_t>(config.experts.count) &&
                    found.size() == config.layers * config.experts.count &&
                    std::all_of(found.begin(), found.end(), [](std::int64_t count) { return count >= 0; });
  if (!fits) return tl::unexpected(of_another("expert_load", config).error());
  return found;
}

Result<std::vector<float>> biases_of(const Value& biases, const ModelConfig& config) {
  std::vector<float> found;
  for (const Value& bias : *biases.as_list())
    found.push_back(static_cast<float>(bias.as_double().value_or(NAN)));
  const bool fits = found.size() == config.layers * config.experts.count &&
                    std::all_of(found.begin(), found.end(), [](float bias) { return std::isfinite(bias); });
  if (!fits) return tl::unexpected(of_another("router_bias", config).error());
  return found;
}

}  // namespace

std::vector<core::ExpertLayerOptions> expert_layers(const ModelConfig& config, std::size_t tokens) {
  const std::size_t own = tokens / config.experts.members;
  std::vector<core::ExpertLayerOptions> layers;
  if (config.experts.count == 0) return layers;
  layers.resize(config.layers);
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    if (!config.experts.in_layer(layer)) continue;
    layers[layer].experts = config.experts.count;
    layers[layer].choices = config.experts.choices;
    layers[layer].tokens = own;
    // The capacity is that of the tokens of all members.
    if (config.experts.members > 1)
      layers[layer].most_rows = static_cast<std::int64_t>(config.experts.most_rows(own));
    layers[layer].capacity_factor = config.experts.capacity_factor;
    layers[layer].bias_rate = config.experts.bias_rate;
    layers[layer].score_before_choice = config.experts.score_before_choice;
  }
  return layers;
}

Result<void> count_tokens(actors::Session& session, const ModelConfig& config,
                          const core::ExpertTally& step) {
  return for_each_layer(session, config, [&](std::size_t layer, actors::ExpertLayer& experts) {
    const auto chosen = step.chosen(layer), dropped = step.dropped(layer);
    return experts.count({chosen.begin(), chosen.end()}, {dropped.begin(), dropped.end()});
  });
}

Result<core::ExpertTally> expert_load(actors::Session& session, const ModelConfig& config) {
  core::ExpertTally load(config.experts.count == 0 ? 0 : config.layers, config.experts.count);
  TRY(for_each_layer(session, config, [&](std::size_t layer, actors::ExpertLayer& experts) -> Result<void> {
    load.add(layer, experts.chosen(), experts.dropped());
    return {};
  }));
  return load;
}

Result<void> read_biases(actors::Session& session, const ModelConfig& config, std::vector<float>& biases) {
  return for_each_layer(
      session, config, [&](std::size_t layer, actors::ExpertLayer& experts) -> Result<void> {
        const auto bias = experts.bias();
        std::copy(bias.begin(), bias.end(),
                  biases.begin() + static_cast<std::ptrdiff_t>(layer * config.experts.count));
        return {};
      });
}

Result<void> take_earlier_state(actors::Session& session, const ModelConfig& config, const Value& common) {
  const Value* load = common.find("expert_load");
  const Value* bias = common.find("router_bias");
  const bool has_biases = bias != nullptr && bias->as_list() != nullptr;
  if (config.experts.count == 0 || (load == nullptr && !has_biases)) return {};
  const std::size_t experts = config.experts.count;
  std::vector<std::int64_t> chosen(config.layers * experts), dropped = chosen;
  if (load != nullptr) {
    chosen = TRY(counts_of(*load, "chosen", config));
    dropped = TRY(counts_of(*load, "dropped", config));
  }
  const auto biases = has_biases ? TRY(biases_of(*bias, config)) : std::vector<float>();
  return for_each_layer(session, config, [&](std::size_t layer, actors::ExpertLayer& of_session) {
    return of_session.restore(part_of(biases, layer, experts), part_of(chosen, layer, experts),
                              part_of(dropped, layer, experts));
  });
}

}  // namespace troupe::apps::gpt
