#include "apps/gpt/pretrained/checkpoint_weights.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "actors/planes/checkpoint/reader.hpp"
#include "apps/files/fused_experts.hpp"
#include "apps/files/renaming.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

Result<void> check_tensors(const Source& source, const ModelConfig& model) {
  std::set<std::string_view> known;
  const auto specs = parameters(model);
  for (const auto& spec : specs) {
    known.insert(spec.name);
    const auto* found = source.manifest.find(spec.name);
    if (found == nullptr)
      return fail(Errc::mismatch,
                  "{} has no tensor '{}', which is a parameter of this model; give the options of the "
                  "run that saved it",
                  source.path, spec.name);
    if (found->shape != shape_of(spec) || !core::is_floating(found->dtype))
      return fail(Errc::mismatch,
                  "{} has the tensor '{}' as {} of shape {}; in this model it has the shape {}; give "
                  "the options of the run that saved it",
                  source.path, spec.name, core::name_of(found->dtype), core::to_string(found->shape),
                  core::to_string(shape_of(spec)));
  }
  for (const auto& tensor : source.manifest.tensors) {
    if (!known.contains(tensor.key))
      return fail(Errc::mismatch,
                  "{} has the tensor '{}', which is not a parameter of this model; give the options of the "
                  "run that saved it",
                  source.path, tensor.key);
  }
  return {};
}

}  // namespace

core::Shape shape_of(const ParameterSpec& spec) {
  core::Shape shape;
  for (const std::size_t extent : spec.shape) shape.push_back(static_cast<std::int64_t>(extent));
  return shape;
}

Result<void> read_values(const Source& source, const ParameterSpec& spec, core::ElementRange range,
                         std::span<float> values) {
  CHECK(range.size() == static_cast<std::int64_t>(values.size()), "room for exactly the range's elements");
  const auto shape = shape_of(spec);
  const auto bytes = std::as_writable_bytes(values);
  std::vector<core::LoadTarget> targets;
  std::vector<std::span<std::byte>> places;
  std::size_t at = 0;
  for (auto& box : core::boxes_of_range(shape, range)) {
    const auto count = static_cast<std::size_t>(box.elements()) * sizeof(float);
    places.push_back(bytes.subspan(at, count));
    at += count;
    targets.push_back({spec.name, core::DType::f32, shape, std::move(box), false});
  }
  actors::ReadOptions options;
  options.verify = false;
  return actors::read_tensors(*source.storage, "", source.manifest, targets, places, options);
}

Result<std::shared_ptr<const CheckpointWeights>> CheckpointWeights::open(const std::string& path,
                                                                         const ModelConfig& model) {
  auto source = TRY(open_source(path));
  // All of its files, so before the optimizer's tensors are left out.
  if (source.form == SourceForm::troupe) TRY(actors::verify_checkpoint(*source.storage, "", source.manifest));
  if (source.form != SourceForm::troupe) TRY(drop_wrappers(source, {}));
  keep_weights_only(source);
  leave_out_carried(source);
  TRY(split_fused_experts(source, ExpertNames::automatic));
  const auto container = common_container(source);
  TRY(rename_all(source, [&](const std::string& key) { return key.substr(container.size()); }));
  TRY(check_tensors(source, model));
  return std::shared_ptr<const CheckpointWeights>(new CheckpointWeights(std::move(source)));
}

}  // namespace troupe::apps::gpt
