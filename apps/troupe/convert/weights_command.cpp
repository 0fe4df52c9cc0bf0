#include "apps/troupe/convert/weights_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "actors/world/storage/posix.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/command_line/say.hpp"
#include "apps/files/text.hpp"
#include "core/errors.hpp"
#include "core/interop/huggingface.hpp"
#include "core/interop/torch_names.hpp"
#include "core/models/weight_map.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;
using core::WeightPlan;

constexpr int kTroubleExit = 2;

Result<ModelForm> form_of(const std::string& name) {
  if (name == "huggingface") return ModelForm::huggingface;
  return name == "megatron" ? ModelForm::megatron : ModelForm::troupe;
}

Result<ModelSource> open_model(const WeightsArguments& arguments) {
  const auto form = TRY(form_of(arguments.from));
  if (form != ModelForm::huggingface) return open_converted_model(arguments.from_path, form);
  core::WeightOptions weights;
  weights.vocab_multiple = arguments.vocab_multiple;
  return open_huggingface_model(arguments.from_path, TRY(options_of(arguments.config)), std::move(weights),
                                arguments.ignored_tensors);
}

/// The model with the mesh that is asked for.
Result<core::ModelConfig> on_mesh(core::ModelConfig model, const ConfigArguments& arguments) {
  auto& config = model.transformer;
  const auto& mesh = arguments.mesh;
  config.tensor_model_parallel_size = mesh.tp;
  config.pipeline_model_parallel_size = mesh.pp;
  config.context_parallel_size = mesh.cp;
  config.expert_model_parallel_size = mesh.ep;
  config.expert_tensor_parallel_size = mesh.etp != 0 ? mesh.etp : mesh.tp;
  config.virtual_pipeline_model_parallel_size.reset();
  if (arguments.virtual_pipeline > 0)
    config.virtual_pipeline_model_parallel_size = arguments.virtual_pipeline;
  config.num_layers_in_first_pipeline_stage.reset();
  config.num_layers_in_last_pipeline_stage.reset();
  config.sequence_parallel = mesh.tp > 1;
  config.microbatch_group_size_per_vp_stage = mesh.pp;
  if (!config.pipeline_dtype) config.pipeline_dtype = config.params_dtype;
  for (const auto& [field, json] : TRY(options_of(arguments)).overrides)
    TRY(core::set_field(config, field, json));
  TRY(core::complete(config));
  return model;
}

/// From the source's tensors to whole ones by Megatron's names.
Result<WeightPlan> plan_in(const ModelSource& source) {
  const auto map = TRY(core::map_weights(source.model, source.options));
  if (source.form == ModelForm::huggingface) return map.plan;
  if (source.form == ModelForm::megatron)
    return core::invert(TRY(core::plan_shards(map, source.model.transformer)));
  WeightPlan same;
  for (const auto& output : map.plan.outputs) {
    const auto& shape = output.tensor.shape;
    same.outputs.push_back(
        {output.tensor, {{same.inputs.size(), core::Box::whole(shape), core::Shape(shape.size(), 0)}}});
    same.inputs.push_back(output.tensor);
  }
  return same;
}

/// Whole tensors go to files of limited size. `widths` are bytes of an element.
std::vector<std::string> split(WeightPlan& plan, std::uint64_t max_bytes, std::uint64_t width,
                               const std::string& single) {
  std::vector<std::uint64_t> sizes;
  for (const auto& output : plan.outputs)
    sizes.push_back(static_cast<std::uint64_t>(core::elements_of(output.tensor.shape)) * width);
  const auto files = core::split_into_files(sizes, max_bytes);
  std::vector<std::string> names;
  for (std::size_t part = 0; part < files.size(); ++part) {
    names.push_back(files.size() == 1 ? single : core::huggingface_file_name(part + 1, files.size()));
    for (const auto member : files[part]) plan.outputs[member].tensor.file = names.back();
  }
  return names;
}

/// Names of Hugging Face that hold the same as another are written too.
void add_copies(WeightPlan& plan, const core::WeightMap& map) {
  for (const auto& [copy, original] : map.copies) {
    for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
      if (plan.outputs[i].tensor.name != original) continue;
      auto again = plan.outputs[i];
      again.tensor.name = copy;
      plan.outputs.push_back(std::move(again));
      break;
    }
  }
}

std::uint64_t element_bytes(const ModelSource& source, const std::optional<core::DType>& dtype) {
  if (dtype) return core::size_of(*dtype);
  std::uint64_t widest = 1;
  for (const auto& tensor : source.source.manifest.tensors)
    widest = std::max<std::uint64_t>(widest, core::size_of(source.dtype_of(tensor)));
  return widest;
}

/// config.json names the dtype of the files: a loader may round to it.
core::ModelConfig stating(core::ModelConfig model, core::DType dtype) {
  const auto name = fmt::format("\"{}\"", core::torch_name(dtype));
  const auto newer = model.kept.find("dtype");  // since Transformers 4.56
  if (newer != model.kept.end()) newer->second = name;
  if (newer == model.kept.end() || model.kept.contains("torch_dtype")) model.kept["torch_dtype"] = name;
  return model;
}

/// The index, by the sizes that tensors have on disk.
Result<std::string> index_text(const ModelSource& source, const WeightJob& job) {
  core::HuggingFaceIndex index;
  for (const auto& output : job.plan.outputs) {
    index.weight_map[output.tensor.name] = output.tensor.file;
    const auto* tensor =
        source.source.manifest.find(key_of(source.form, job.plan.inputs[output.pieces.at(0).input]));
    if (tensor == nullptr) continue;
    const bool converts = job.dtype && core::is_floating(tensor->dtype) &&
                          !output.tensor.name.ends_with("e_score_correction_bias");
    index.total_bytes += static_cast<std::uint64_t>(core::elements_of(output.tensor.shape)) *
                         core::size_of(converts ? *job.dtype : source.dtype_of(*tensor));
  }
  return core::encode_huggingface_index(index);
}

Result<WeightJob> plan_job(const ModelSource& source, const WeightsArguments& arguments) {
  WeightJob job;
  job.form = TRY(form_of(arguments.to));
  if (arguments.has_dtype) job.dtype = TRY(core::dtype_from_name(arguments.config.dtype));
  auto options = source.options;
  // A padded vocabulary stays as it is padded, because whole tensors are.
  const auto model =
      job.form == ModelForm::megatron ? TRY(on_mesh(source.model, arguments.config)) : source.model;
  if (job.form == ModelForm::megatron) options.vocab_multiple = arguments.vocab_multiple;
  const auto map = TRY(core::map_weights(model, options));
  const auto source_map = TRY(core::map_weights(source.model, source.options));
  // By way of their names everywhere, so that padding and meshes of both sides do not meet.
  auto plan = TRY(core::compose(TRY(plan_in(source)), core::invert(source_map.plan)));
  const auto width = element_bytes(source, job.dtype);
  job.manifest_name = core::kManifestName;
  if (job.form == ModelForm::huggingface) {
    add_copies(plan, map);
    split(plan, arguments.max_shard_bytes, width, std::string(core::kHuggingFaceFileName));
    job.plan = std::move(plan);
    job.manifest_name = kHashesName;
    job.texts["config.json"] = TRY(core::to_huggingface(job.dtype ? stating(model, *job.dtype) : model));
    job.texts[std::string(core::kHuggingFaceIndexName)] = TRY(index_text(source, job));
  } else {
    plan = TRY(core::compose(plan, map.plan));
    job.plan = job.form == ModelForm::megatron
                   ? TRY(core::compose(plan, TRY(core::plan_shards(map, model.transformer))))
                   : std::move(plan);
    if (job.form == ModelForm::troupe)
      split(job.plan, arguments.max_shard_bytes, width, "model-00001-of-00001.safetensors");
  }
  job.common = core::Value::Map{{"step", 0},
                                {"optimizer_steps", 0},
                                {"form", arguments.to},
                                {"model", core::to_text(model)},
                                {"vocab_multiple", options.vocab_multiple},
                                {"nested_names", options.nested_names}};
  return job;
}

void print_written(const WeightsArguments& arguments, const WeightsWritten& written) {
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"path", arguments.to_path},
                                         {"tensors", written.tensors},
                                         {"bytes", written.bytes},
                                         {"files", written.files},
                                         {"kept_files", written.kept_files}};
    fmt::print("{}", json_text(json));
    return;
  }
  fmt::print("{}: {} tensors, {}, {} file{}", arguments.to_path, written.tensors, bytes_text(written.bytes),
             written.files, written.files == 1 ? "" : "s");
  if (written.kept_files > 0) fmt::print(", {} of them from before", written.kept_files);
  fmt::print("\n");
}

/// A checkpoint of Troupe goes into a directory of checkpoints, everything else is a directory of its own.
Result<WeightsWritten> run(WeightsArguments arguments) {
  TRY(apply_mesh(arguments.config));
  auto path = std::filesystem::path(arguments.to_path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (arguments.to == "troupe") path /= core::checkpoint_name(core::StepCount{0});
  const auto name = path.filename().string();
  if (name.empty() || name == "." || name == "..")
    return core::fail(Errc::invalid_argument, "'{}' names no new directory", arguments.to_path);
  const auto above = path.parent_path().string();
  auto storage = TRY(actors::PosixStorage::open_or_make(above.empty() ? "." : above));
  return convert_weights(arguments, *storage, name);
}

Result<WeightsWritten> caught(const WeightsArguments& arguments) {
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    return core::fail(Errc::internal, "gave up: {}", error.what());
  }
}

}  // namespace

Result<WeightsWritten> convert_weights(const WeightsArguments& arguments, actors::Storage& storage,
                                       const std::string& name) {
  const auto source = TRY(open_model(arguments));
  for (const auto& note : source.notes) say_note("note: " + note);
  if (!arguments.skip_verify) TRY(verify_model(source));
  return write_weights(source, TRY(plan_job(source, arguments)), storage, name);
}

void add_convert_weights(CLI::App& convert, int& exit_code) {
  const auto arguments = std::make_shared<WeightsArguments>();  // owned by the command's callback
  auto* command = convert.add_subcommand("weights", "Convert the tensors of a model");
  command->add_option("IN", arguments->from_path, "A directory")->required();
  command->add_option("OUT", arguments->to_path, "A directory that does not exist yet")->required();
  const auto forms = CLI::IsMember({"huggingface", "megatron", "troupe"});
  command->add_option("--from", arguments->from, "huggingface, megatron or troupe")
      ->check(forms)
      ->capture_default_str();
  command->add_option("--to", arguments->to, "huggingface, megatron or troupe")->required()->check(forms);
  add_config_options(*command, arguments->config);
  command
      ->add_option("--vocab-multiple", arguments->vocab_multiple,
                   "Megatron: pad the embedding so that each rank's rows are a multiple of this")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--max-shard-bytes", arguments->max_shard_bytes, "Size of a file")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 62))
      ->capture_default_str();
  command
      ->add_option("--ignore-tensor", arguments->ignored_tensors,
                   "Leave out Hugging Face tensors whose names begin with this; repeatable")
      ->allow_extra_args(false);
  command->add_flag("--no-verify", arguments->skip_verify,
                    "Do not check the bytes against their hashes first");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer(
      "If interrupted, run it again: it keeps the complete files in OUT.partial.\n"
      "Examples:\n"
      "  troupe convert weights Qwen3-8B parts --to megatron --tp 2 --pp 2\n"
      "  troupe convert weights parts Qwen3-again --from megatron --to huggingface");
  command->callback([arguments, command, &exit_code] {
    arguments->has_dtype = command->count("--dtype") > 0;
    const auto written = caught(*arguments);
    if (written) return print_written(*arguments, *written);
    say_error("troupe convert weights", written.error().message);
    exit_code = kTroubleExit;
  });
}

}  // namespace troupe::apps
