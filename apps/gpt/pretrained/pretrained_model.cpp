#include "apps/gpt/pretrained/pretrained_model.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "apps/gpt/pretrained/checkpoint_weights.hpp"
#include "apps/troupe/checkpoint/safetensors_source.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

namespace {

using core::Errc;
using core::fail;
using core::Result;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

Result<std::string> read_config(actors::Storage& storage) {
  const auto size = TRY(storage.size("config.json"));
  if (size > kMaxConfigBytes) return fail(Errc::corrupt, "config.json has {} bytes, which is too many", size);
  const auto bytes = TRY(storage.read("config.json", 0, size));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// A buffer in older files whose values are computed.
bool is_computed(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq");
}

Result<void> check_tensors(const core::Manifest& manifest, const ModelConfig& config) {
  std::set<std::string_view> known;
  const auto specs = parameters(config);
  for (const auto& spec : specs) {
    known.insert(spec.name);
    const auto* found = manifest.find(spec.name);
    if (found == nullptr)
      return fail(Errc::mismatch, "no file has the tensor '{}' of shape {}, which config.json asks for",
                  spec.name, core::to_string(shape_of(spec)));
    if (found->shape != shape_of(spec))
      return fail(Errc::mismatch, "tensor '{}' has the shape {}, by config.json it has {}", spec.name,
                  core::to_string(found->shape), core::to_string(shape_of(spec)));
    if (!core::is_floating(found->dtype))
      return fail(Errc::mismatch, "tensor '{}' is {}; expected f32, bf16 or f16, so convert the model first",
                  spec.name, core::name_of(found->dtype));
  }
  // A tied head is a copy of the embedding.
  if (config.tied_embeddings) known.insert("lm_head.weight");
  for (const auto& tensor : manifest.tensors) {
    if (!known.contains(tensor.key) && !is_computed(tensor.key))
      return fail(Errc::mismatch, "tensor '{}' has no place in the model that config.json describes",
                  tensor.key);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<PretrainedModel>> PretrainedModel::open(const std::string& directory,
                                                               std::size_t context) {
  if (!holds_safetensors(directory))
    return fail(Errc::not_found,
                "{} has no *.safetensors; give a directory of Hugging Face, with config.json", directory);
  auto source = TRY(open_safetensors(directory, actors::Links::to_blobs));
  std::sort(source.manifest.tensors.begin(), source.manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  auto text = TRY(read_config(*source.storage));
  auto config = TRY(read_huggingface_config(text));
  if (context > config.model.context)
    return fail(Errc::invalid_argument, "the model knows {} positions, found --context {}; use fewer",
                config.model.context, context);
  config.model.context = context > 0 ? context : std::min(config.model.context, kDefaultContext);
  TRY(validate(config.model));
  TRY(check_tensors(source.manifest, config.model));
  return std::unique_ptr<PretrainedModel>(
      new PretrainedModel(directory, std::move(text), std::move(config), std::move(source)));
}

Result<void> PretrainedModel::read(const ParameterSpec& spec, core::ElementRange range,
                                   std::span<float> values) const {
  return read_values(source_, spec, range, values);
}

Result<TextCodec> codec_of(const PretrainedModel* model) {
  if (model == nullptr) return TextCodec();
  auto codec = TextCodec::open(model->directory(), model->end_of_text());
  if (codec) return codec;
  return TextCodec(
      core::Error{codec.error().code,
                  codec.error().message +
                      "; or let any tokenizer make token ids, and give them as *.jsonl with {\"tokens\": "
                      "[...]} and --sample-bytes 0"},
      model->end_of_text());
}

}  // namespace troupe::apps::gpt
