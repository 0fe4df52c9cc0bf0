#include "apps/gpt/model/share.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

template <class T>
void copy_runs(const PartLayout& layout, const T* part, T* whole) {
  for (std::int64_t run = 0; run < layout.runs; ++run)
    std::copy_n(part + run * layout.run, layout.run, whole + layout.first + run * layout.stride);
}

}  // namespace

Result<void> check_share(const ModelConfig& config, const TensorShare& share) {
  if (share.sequence && share.size == 1) {
    return fail(Errc::invalid_argument,
                "sequence parallelism is between tensor-parallel ranks, and there is one; use "
                "--tensor-parallel 2 or more, or leave --sequence-parallel out");
  }
  if (!share.is_sliced()) return {};
  const std::size_t slices = share.size * share.slices;
  const struct {
    const char* name;
    std::size_t value;
  } cuts[] = {{"heads", config.heads},
              {"heads with keys of their own (key_value_heads)", config.key_heads()},
              {"feed_forward", config.feed_forward},
              {"feed_forward of experts", config.experts.feed_forward},
              {"feed_forward of the experts that all tokens share", config.experts.shared_feed_forward},
              {"vocabulary", config.vocabulary}};
  for (const auto& [name, value] : cuts) {
    if (value % slices == 0) continue;
    return fail(Errc::invalid_argument,
                "tensor parallelism cuts the {} evenly, found {} for {} {}; choose a number of them that "
                "divides it",
                name, value, slices, share.slices > 1 ? "slices" : "ranks");
  }
  return {};
}

ModelConfig config_of_share(const ModelConfig& config, std::size_t size) {
  ModelConfig part = config;
  part.head_dimension = config.head_size();
  part.heads /= size;
  part.key_value_heads = config.key_heads() / size;
  part.feed_forward /= size;
  part.experts.feed_forward /= size;
  part.experts.shared_feed_forward /= size;
  part.vocabulary /= size;
  return part;
}

namespace {

ModelConfig with_whole_experts(ModelConfig config) {
  config.experts.feed_forward = config.experts.feed_forward * config.experts.parts / config.experts.columns;
  config.experts.ranks /= config.experts.parts;
  config.experts.place /= config.experts.parts;
  config.experts.parts = 1;
  return config;
}

}  // namespace

SharedTable::SharedTable(const ModelConfig& config, const TensorShare& share)
    : share_(share),
      expert_part_(config.experts.part()),
      columns_(config.experts.columns),
      whole_(parameter_table(with_whole_experts(config))),
      part_(parameter_table(config_of_share(config, share.size))) {}

SharedParameter SharedTable::at(std::size_t parameter) const {
  SharedParameter found{&whole_.specs[parameter], &part_.specs[parameter], std::nullopt};
  const auto& whole = found.whole->shape;
  const auto differs = std::mismatch(whole.begin(), whole.end(), found.part->shape.begin()).first;
  if (differs != whole.end()) found.axis = static_cast<std::size_t>(differs - whole.begin());
  return found;
}

PartLayout SharedTable::layout(std::size_t parameter, std::size_t index) const {
  const SharedParameter shared = at(parameter);
  const auto elements = static_cast<std::int64_t>(shared.part->elements());
  if (!shared.axis) return {.runs = 1, .run = elements, .stride = elements};
  PartLayout layout;
  for (std::size_t axis = 0; axis < *shared.axis; ++axis)
    layout.runs *= static_cast<std::int64_t>(shared.part->shape[axis]);
  layout.run = elements / layout.runs;
  layout.stride = static_cast<std::int64_t>(shared.whole->elements()) / layout.runs;
  layout.first = layout.run * static_cast<std::int64_t>(place_of(parameter, index));
  return layout;
}

void SharedTable::declare(std::span<core::ParameterSpec> specs) const {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const SharedParameter shared = at(i);
    auto& spec = specs[i];
    // An expert that is whole here, and on no other rank that shares the layer.
    const bool is_apart = columns_ > 1 && shared.whole->is_expert;
    if (!shared.axis && !is_apart) continue;
    for (const std::size_t extent : shared.whole->shape)
      spec.global_shape.push_back(static_cast<std::int64_t>(extent));
    spec.offset.assign(spec.global_shape.size(), 0);
    if (!shared.axis) continue;
    const std::size_t place = place_of(i, share_.index);
    spec.offset[*shared.axis] = static_cast<std::int64_t>(place * shared.part->shape[*shared.axis]);
  }
}

Result<void> read_part(const InitialValues& whole, const SharedTable& table, std::size_t parameter,
                       core::ElementRange range, std::span<float> values) {
  const PartLayout layout = table.layout(parameter, table.share().index);
  const ParameterSpec& spec = table.whole().specs[parameter];
  for (std::int64_t at = range.start; at < range.end;) {
    const std::int64_t into = at % layout.run;
    const std::int64_t count = std::min(layout.run - into, range.end - at);
    const std::int64_t place = layout.first + at / layout.run * layout.stride + into;
    TRY(whole.read(
        spec, {place, place + count},
        values.subspan(static_cast<std::size_t>(at - range.start), static_cast<std::size_t>(count))));
    at += count;
  }
  return {};
}

void copy_from_part(const PartLayout& layout, const float* part, float* whole) {
  copy_runs(layout, part, whole);
}

void copy_from_part(const PartLayout& bytes, const std::byte* part, std::byte* whole) {
  copy_runs(bytes, part, whole);
}

}  // namespace troupe::apps::gpt
