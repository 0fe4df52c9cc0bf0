#include "apps/gpt/pretrained/pretrained_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>
#include <utility>

#include "apps/command_line/say.hpp"
#include "apps/files/scaled_matrix.hpp"
#include "apps/gpt/pretrained/checkpoint_weights.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

namespace {

using core::Errc;
using core::fail;
using core::Result;

constexpr const char* kHead = "lm_head.weight";

/// The length of sequences: as asked, or the model's up to a limit.
Result<std::size_t> choose_context(const HuggingFaceConfig& config, std::size_t asked,
                                   std::vector<std::string>& notes) {
  if (asked > config.model.context)
    return fail(Errc::invalid_argument, "the model knows {} positions, found --context {}; use fewer",
                config.model.context, asked);
  std::size_t context = asked > 0 ? asked : std::min(config.model.context, kDefaultContext);
  for (const auto& [key, positions] : config.limits) {
    const auto most = static_cast<std::size_t>(positions);
    if (context <= most) continue;
    if (asked > 0)
      return fail(Errc::invalid_argument,
                  "key '{}' changes the maths beyond {} positions, and the trainer's attention has no such "
                  "limit, found --context {}; use {} or less, or --key {}=null to train a model without it",
                  key, most, asked, most, key);
    context = most;
    notes.push_back(
        fmt::format("key '{}' is followed up to {} positions, so this is the context", key, most));
  }
  return context;
}

/// A buffer in older files whose values are computed.
bool is_computed(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq");
}

bool is_in_blocks(const HuggingFaceConfig& read, const core::ManifestTensor& tensor) {
  return read.blocks && tensor.dtype == core::DType::f8_e4m3;
}

Result<void> check_tensors(const Source& source, const HuggingFaceConfig& read,
                           std::vector<std::string>& notes) {
  const auto& manifest = source.manifest;
  const auto& config = read.model;
  std::set<std::string> factors;
  std::set<std::string_view> known;
  const auto specs = parameters(config);
  for (const auto& spec : specs) {
    known.insert(spec.name);
    const auto* found = manifest.find(spec.name);
    if (found == nullptr)
      return fail(Errc::mismatch, "no file has the tensor '{}' of shape {}, which config.json asks for{}",
                  spec.name, core::to_string(shape_of(spec)),
                  spec.name == kHead ? "; if the model ties its head: --key tie_word_embeddings=true" : "");
    if (found->shape != shape_of(spec))
      return fail(Errc::mismatch, "tensor '{}' has the shape {}, by config.json it has {}", spec.name,
                  core::to_string(found->shape), core::to_string(shape_of(spec)));
    if (!core::is_floating(found->dtype))
      return fail(Errc::mismatch, "tensor '{}' is {}; expected f32, bf16 or f16, so convert the model first",
                  spec.name, core::name_of(found->dtype));
    if (is_in_blocks(read, *found)) factors.insert(TRY(factors_of(source, *read.blocks, *found)));
  }
  if (!factors.empty())
    notes.push_back(fmt::format(
        "{} matrices are fp8 with a factor for each block: they are read as their values times the factors",
        factors.size()));
  if (config.tied_embeddings) {
    known.insert(kHead);
    TRY(check_tied_head(source, kHead, "model.embed_tokens.weight"));
  }
  for (const auto& tensor : manifest.tensors) {
    if (!known.contains(tensor.key) && !is_computed(tensor.key) && !factors.contains(tensor.key))
      return fail(Errc::mismatch, "tensor '{}' has no place in the model that config.json describes",
                  tensor.key);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<PretrainedModel>> PretrainedModel::open(const std::string& directory,
                                                               std::size_t context,
                                                               const ReadingOptions& options) {
  auto found = TRY(open_model_directory(directory, options.keys));
  auto config = TRY(read_huggingface_config(found.config, {{}, options.ignored}));
  if (!config.passed_over.empty()) found.notes.push_back(config.passed_over);
  config.model.context = TRY(choose_context(config, context, found.notes));
  TRY(validate(config.model));
  TRY(check_tensors(found.source, config, found.notes));
  return std::unique_ptr<PretrainedModel>(
      new PretrainedModel(directory, std::move(found), std::move(config)));
}

Result<void> PretrainedModel::read(const ParameterSpec& spec, core::ElementRange range,
                                   std::span<float> values) const {
  TRY(read_values(source_, spec, range, values));
  const auto* tensor = source_.manifest.find(spec.name);
  if (!is_in_blocks(config_, *tensor)) return {};
  std::size_t at = 0;
  for (const auto& box : core::boxes_of_range(tensor->shape, range)) {
    const auto count = static_cast<std::size_t>(box.elements());
    TRY(multiply_by_factors_of(source_, *config_.blocks, *tensor, box, values.subspan(at, count)));
    at += count;
  }
  return {};
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

void print_notes(const PretrainedModel* model, const TextCodec& codec) {
  if (model == nullptr) return;
  for (const auto& note : model->notes()) say_note("gpt: note: " + note);
  if (codec.is_bytes())
    say_note(fmt::format("gpt: note: {} has no tokenizer, so each byte of the text is a token",
                         model->directory()));
}

}  // namespace troupe::apps::gpt
