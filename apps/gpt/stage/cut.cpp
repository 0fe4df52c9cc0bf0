#include "apps/gpt/stage/cut.hpp"

#include <cstdint>

#include "core/errors.hpp"
#include "core/models/rank_tensors.hpp"

namespace troupe::apps::gpt {

core::Result<StageCut> cut_model(const ModelConfig& config, PipelineOptions options, int stages, int stage) {
  const auto places = static_cast<std::size_t>(stages) * static_cast<std::size_t>(options.chunks);
  if (places > config.layers) {
    return core::fail(
        core::Errc::invalid_argument,
        "expected {} layers or more, one for each chunk of {} stages, but the model has {}; use "
        "fewer stages or chunks, or a deeper model",
        places, stages, config.layers);
  }
  StageCut cut{stages, stage, {}};
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const auto [first, count] = core::layers_of_place(
        static_cast<std::int64_t>(config.layers), static_cast<std::int64_t>(places), chunk * stages + stage);
    cut.parts.push_back({static_cast<std::size_t>(first), static_cast<std::size_t>(first + count)});
  }
  return cut;
}

StageCut uncut(const ModelConfig& config) {
  return {1, 0, {whole_model(config)}};
}

TableRange parameters_of(const ModelConfig& config, const ParameterTable& table, ModelPart part) {
  const auto first_of = [&](std::size_t layer) { return table.blocks[layer].attention_norm.weight; };
  return {.begin = part.has_begin() ? 0 : first_of(part.first),
          .end = part.has_end(config) ? table.specs.size() : first_of(part.end)};
}

}  // namespace troupe::apps::gpt
