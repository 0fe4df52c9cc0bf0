#include "apps/troupe/convert/model_source.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "apps/files/model_directory.hpp"
#include "apps/files/scaled_matrix.hpp"
#include "core/errors.hpp"
#include "core/models/config_fields.hpp"
#include "core/number.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;
/// A value model's head, in the order in which they are looked for.
constexpr std::array kHeads{"lm_head.weight", "reward_head.weight", "score.weight"};

Result<std::string> read_text(actors::Storage& storage, std::string_view name) {
  const auto size = TRY(storage.size(name));
  if (size > kMaxTextBytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, which is too many", name, size);
  const auto bytes = TRY(storage.read(name, 0, size));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// What the file itself says, so that nothing is converted by mistake.
void look_at_names(const core::Manifest& manifest, const core::ModelConfig& model,
                   core::WeightOptions& options) {
  if (core::has_vision(model.architecture))
    options.nested_names = manifest.find("model.language_model.embed_tokens.weight") != nullptr;
  if (!model.builder.value_head) return;
  for (const char* head : kHeads) {
    const auto* tensor = manifest.find(head);
    if (tensor == nullptr || tensor->shape.empty() || tensor->shape[0] != 1) continue;
    options.value_head = head;
    return;
  }
}

/// Buffers that are computed, and states of other libraries.
bool is_passed_over(const std::string& name) {
  return name.find("_extra_state") != std::string::npos || name.ends_with("rotary_emb.inv_freq");
}

/// Whether the tensor is that of a layer after the last one, which predicts one more token; its name tells.
bool predicts_more(const core::Manifest& manifest, const core::ModelConfig& model, std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (model.architecture != core::Architecture::deepseek_v3 || !name.starts_with(kLayers)) return false;
  const auto digits = name.substr(kLayers.size(), name.find('.', kLayers.size()) - kLayers.size());
  const auto layer =
      core::parse_number<std::int64_t>(digits, {model.transformer.num_layers, core::kMaxConfigSize});
  return layer && manifest.find(fmt::format("{}{}.eh_proj.weight", kLayers, *layer)) != nullptr;
}

/// What is left out because it is a copy must be one.
Result<void> check_copies(const ModelSource& source, const core::WeightMap& map, bool has_head) {
  const auto& manifest = source.source.manifest;
  for (const auto& [copy, original] : map.copies) {
    const auto* one = manifest.find(copy);
    const auto* other = manifest.find(original);
    if (one == nullptr || other == nullptr || TRY(are_equal(source.source, *one, *other))) continue;
    return core::fail(Errc::mismatch, "tensor '{}' should be a copy of '{}', and differs from it", copy,
                      original);
  }
  const auto& builder = source.model.builder;
  if (!has_head || !builder.share_embeddings_and_output_weights || builder.value_head) return {};
  const bool nested = core::has_vision(source.model.architecture) && source.options.nested_names;
  return check_tied_head(source.source, "lm_head.weight",
                         nested ? "model.language_model.embed_tokens.weight" : "model.embed_tokens.weight");
}

Result<void> check_tensors(const ModelSource& source, const core::WeightMap& map,
                           const std::vector<std::string>& ignored) {
  const auto& manifest = source.source.manifest;
  const auto& model = source.model;
  std::set<std::string> known;
  for (const auto& input : map.plan.inputs) {
    known.insert(input.name);
    const auto* found = manifest.find(input.name);
    if (found == nullptr)
      return core::fail(Errc::mismatch, "no file has the tensor '{}' of shape {}", input.name,
                        core::to_string(input.shape));
    if (found->shape != input.shape)
      return core::fail(Errc::mismatch, "tensor '{}' has the shape {}, by config.json it has {}", input.name,
                        core::to_string(found->shape), core::to_string(input.shape));
    if (source.is_scaled(*found)) known.insert(TRY(factors_of(source.source, *source.blocks, *found)));
  }
  for (const auto& [copy, original] : map.copies) known.insert(copy);
  if (model.builder.share_embeddings_and_output_weights) known.insert("lm_head.weight");
  for (const auto& tensor : manifest.tensors) {
    const bool may_go = std::any_of(ignored.begin(), ignored.end(),
                                    [&](const auto& prefix) { return tensor.key.starts_with(prefix); });
    if (known.contains(tensor.key) || is_passed_over(tensor.key) || may_go) continue;
    if (predicts_more(manifest, model, tensor.key)) continue;
    return core::fail(Errc::mismatch,
                      "tensor '{}' has no place in {}; --ignore-tensor leaves out names that begin so",
                      tensor.key, core::facts_of(model.architecture).name);
  }
  const bool head_goes = std::any_of(ignored.begin(), ignored.end(), [](const auto& prefix) {
    return std::string_view("lm_head.weight").starts_with(prefix);
  });
  return check_copies(source, map, !head_goes);
}

}  // namespace

std::string key_of(ModelForm form, const core::PlannedTensor& tensor) {
  return form == ModelForm::megatron ? tensor.file + ":" + tensor.name : tensor.name;
}

Result<ModelSource> open_huggingface_model(const std::string& path, const core::ConvertOptions& options,
                                           core::WeightOptions weights,
                                           const std::vector<std::string>& ignored) {
  auto directory = TRY(open_model_directory(path, options.keys, actors::Reads::past_cache));
  ModelSource result{ModelForm::huggingface, std::move(directory.source), {}, std::move(weights)};
  result.notes = std::move(directory.notes);
  result.blocks = TRY(core::scaled_blocks(directory.config));
  auto converted = TRY(core::from_huggingface(directory.config, options));
  result.model = std::move(converted.config);
  for (auto& warning : converted.warnings) result.notes.push_back(std::move(warning));
  look_at_names(result.source.manifest, result.model, result.options);
  const auto map = TRY(core::map_weights(result.model, result.options));
  TRY(check_tensors(result, map, ignored));
  return result;
}

Result<ModelSource> open_converted_model(const std::string& path, ModelForm form) {
  auto source = TRY(open_checkpoint(path, actors::Links::refuse, actors::Reads::past_cache));
  ModelSource result{form, std::move(source), {}, {}};
  const auto& common = result.source.manifest.common;
  const auto* text = common.find("model");
  const auto* kind = common.find("form");
  const std::string wanted = form == ModelForm::megatron ? "megatron" : "troupe";
  if (text == nullptr || text->as_string() == nullptr || kind == nullptr || kind->as_string() == nullptr ||
      *kind->as_string() != wanted)
    return core::fail(Errc::invalid_argument, "{} is not a model that `troupe convert weights --to {}` wrote",
                      path, wanted);
  result.model = TRY(core::parse_model_config(*text->as_string()));
  if (const auto* value = common.find("vocab_multiple"))
    result.options.vocab_multiple = value->as_int().value_or(1);
  if (const auto* value = common.find("nested_names"))
    result.options.nested_names = value->as_bool().value_or(false);
  return result;
}

Result<void> verify_model(const ModelSource& model) {
  auto& storage = *model.source.storage;
  if (model.form != ModelForm::huggingface)
    return actors::verify_checkpoint(storage, "", model.source.manifest);
  const auto text = read_text(storage, kHashesName);
  if (!text && text.error().code == Errc::not_found) return {};
  if (!text) return tl::unexpected(text.error());
  return actors::verify_checkpoint(storage, "", TRY(core::parse_manifest(*text)));
}

}  // namespace troupe::apps
