#include "apps/troupe/checkpoint/conversion_commands.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/reader.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/files/fused_experts.hpp"
#include "apps/files/meter.hpp"
#include "apps/files/model_companions.hpp"
#include "apps/files/renaming.hpp"
#include "apps/files/source.hpp"
#include "apps/files/text.hpp"
#include "apps/troupe/checkpoint/adopted_optimizer.hpp"
#include "apps/troupe/checkpoint/export.hpp"
#include "apps/troupe/checkpoint/outcome.hpp"
#include "apps/troupe/checkpoint/rewrite.hpp"
#include "apps/troupe/checkpoint/source_steps.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;
using core::Errc;
using core::Result;
using core::Value;

/// A copy of damaged bytes would have good hashes.
Result<void> verify_first(const Source& source, bool skip) {
  if (skip || source.form != SourceForm::troupe) return {};
  Meter meter("verifying", source.manifest.tensor_bytes());
  actors::ReadOptions options;
  options.progress = [&meter](std::uint64_t bytes) { meter.add(bytes); };
  return actors::verify_checkpoint(*source.storage, "", source.manifest, options);
}

Json left_out_json(const Source& source) {
  Json list = Json::array();
  for (const auto& one : source.left_out) list.push_back({{"key", one.key}, {"reason", one.reason}});
  return list;
}

/// To stderr, as it is not part of the result.
void say_notes(const Source& source) {
  for (const auto& note : source.notes) say_note(printable(note));
  for (const auto& one : source.left_out)
    say_note(fmt::format("left out '{}': {}", printable(one.key), printable(one.reason)));
}

std::string written_text(const Written& written, const Source& source, const Sharding& sharding, bool json) {
  if (json) {
    return json_text({{"path", written.path},
                      {"step", source.manifest.step.value},
                      {"tensors", source.manifest.tensors.size()},
                      {"bytes", written.bytes},
                      {"files", written.files},
                      {"ranks", sharding.ranks},
                      {"strategy", sharding.strategy},
                      {"seconds", written.seconds},
                      {"notes", source.notes},
                      {"left_out", left_out_json(source)}});
  }
  return fmt::format("{}: {} tensors, {}, cut for {} rank{} with {}, {} file{}, {:.2f} s\n", written.path,
                     source.manifest.tensors.size(), bytes_text(written.bytes), sharding.ranks,
                     sharding.ranks == 1 ? "" : "s", sharding.strategy, written.files,
                     written.files == 1 ? "" : "s", written.seconds);
}

/// What was known, with the ranks that the files are made for.
Value topology_of(const Source& source, const Sharding& sharding, const char* tool) {
  Value::Map topology;
  if (const auto* known = source.manifest.topology.as_map()) topology = *known;
  topology.set("world", sharding.ranks);
  topology.set("strategy", sharding.strategy);
  topology.set("written_by", fmt::format("troupe checkpoint {}", tool));
  return topology;
}

void add_sharding(CLI::App& command, Sharding& sharding) {
  add_number(command, "--mesh", sharding.ranks, {1, kMaxRanks}, "Number of ranks to cut the checkpoint for")
      ->capture_default_str();
  add_choice(command, "--strategy", sharding.strategy, {"zero1", "ddp"},
             "zero1: equal parts of all tensors; ddp: whole tensors")
      ->capture_default_str();
}

void add_renaming(CLI::App& command, std::vector<std::string>& rename, WrapperOptions& wrappers,
                  std::string& experts) {
  command.add_option("--rename", rename, "OLD=NEW: replace this beginning of names; repeatable")
      ->allow_extra_args(false);
  command.add_option("--drop-part", wrappers.parts, "Take this dotted part out of names; repeatable")
      ->allow_extra_args(false);
  command.add_flag("--keep-wrappers", wrappers.keep,
                   "Keep _orig_mod, _checkpoint_wrapped_module, _fsdp_wrapped_module and module in names");
  add_choice(command, "--fused-experts", experts, {"automatic", "mixtral", "qwen", "fused"},
             "Names of experts that transformers 5 has in one tensor per layer; fused keeps that")
      ->capture_default_str();
}

ExpertNames expert_names(const std::string& option) {
  if (option == "mixtral") return ExpertNames::mixtral;
  if (option == "qwen") return ExpertNames::qwen;
  return option == "fused" ? ExpertNames::fused : ExpertNames::automatic;
}

struct ImportArguments {
  std::string from, to;
  Sharding sharding;
  std::int64_t step = 0;
  bool has_step = false;
  std::vector<std::string> rename;
  WrapperOptions wrappers;
  std::string experts = "automatic";
  std::string optimizer = "as-is";
  bool json = false;
  actors::Links links = actors::Links::refuse;
};

/// What a session looks for, and what an export to PyTorch does; moments are as old as they say, or as the
/// step.
void set_values(Source& source, std::int64_t optimizer_steps) {
  auto& common = source.manifest.common;
  Value::Map values{{"step", source.manifest.step.value}, {"optimizer_steps", optimizer_steps}};
  if (!source.steps_missed.empty()) values.set(core::kStepsMissedKey, core::value_of(source.steps_missed));
  values.set(kTrainerKey, std::move(common));
  if (source.torch) values.set(kTorchStateKey, value_of(*source.torch));
  common = std::move(values);
}

Result<Outcome> import_checkpoint(const ImportArguments& arguments) {
  auto source = TRY(open_foreign(arguments.from, true, arguments.links));
  auto rules = TRY(Renaming::parse(arguments.rename));
  const auto said = steps_said_by(source);
  TRY(drop_wrappers(source, arguments.wrappers));
  std::optional<std::int64_t> optimizer_steps;
  if (arguments.optimizer == "torch") {
    optimizer_steps = TRY(from_torch_names(source, rules));
  } else {
    TRY(rename_all(source, rules));
  }
  TRY(split_fused_experts(source, expert_names(arguments.experts)));
  if (source.manifest.tensors.empty())
    return core::fail(Errc::invalid_argument, "{} has no tensor that can be imported", arguments.from);
  if (!source.has_values) {
    source.manifest.step = core::StepCount{said ? said->steps : optimizer_steps.value_or(0)};
    if (said && !arguments.has_step)
      source.notes.push_back(fmt::format("step {}, as {} says", said->steps, said->where));
  }
  if (arguments.has_step) source.manifest.step = core::StepCount{arguments.step};
  say_notes(source);
  if (!source.has_values) set_values(source, optimizer_steps.value_or(source.manifest.step.value));
  const auto written = TRY(write_checkpoint(source, arguments.sharding,
                                            topology_of(source, arguments.sharding, "import"), arguments.to));
  return Outcome{written_text(written, source, arguments.sharding, arguments.json)};
}

struct ExportArguments {
  std::string from, to, target, form = "distcp", dtype, model;
  std::uint64_t max_shard_bytes = HuggingFaceOptions{}.max_file_bytes;
  std::vector<std::string> rename;
  WrapperOptions wrappers;
  std::string experts = "automatic";
  std::string optimizer = "automatic";
  bool weights_only = false;
  bool with_optimizer = false;
  bool skip_verify = false;
  bool json = false;
  actors::Links links = actors::Links::refuse;
};

/// From the directory that was named, what is exported, or what its trainer saved. What is not found is said
/// to stderr.
Result<ModelFiles> model_of(const Source& source, const ExportArguments& arguments) {
  if (!arguments.model.empty()) return model_files_in(arguments.model);
  if (source.form == SourceForm::safetensors) {
    if (auto own = model_files_in(source.path)) return own;
  }
  const auto* saved = source.manifest.common.find("trainer");
  auto files = saved != nullptr ? ModelFiles::of(*saved) : ModelFiles{};
  if (files.config.empty())
    say_note("no config.json and no tokenizer: --model DIR takes them along from there");
  if (!files.directory.empty() && !model_files_in(files.directory)) {
    say_note(fmt::format("no tokenizer: {} is not there any more; --model DIR takes it along from there",
                         printable(files.directory)));
    files.directory.clear();
  }
  return files;
}

/// Whether it can become what it was in PyTorch.
bool is_from_torch(const Source& source) {
  return source.torch && (source.form == SourceForm::troupe || !source.has_values);
}

DcpNames dcp_names(const Source& source, const ExportArguments& arguments) {
  if (arguments.optimizer == "as-is") return DcpNames::as_they_are;
  if (is_from_torch(source)) return DcpNames::as_imported;
  return arguments.optimizer == "torch" ? DcpNames::torch : DcpNames::as_they_are;
}

/// Whether names and nesting stay those of PyTorch's files.
bool goes_back(const Source& source, const ExportArguments& arguments) {
  return arguments.target == "dcp" && arguments.form == "distcp" &&
         dcp_names(source, arguments) == DcpNames::as_imported;
}

/// What is renamed is at the top of a nested state.
Result<void> name_for_export(Source& source, const ExportArguments& arguments) {
  auto rules = TRY(Renaming::parse(arguments.rename));
  auto wrappers = arguments.wrappers;
  wrappers.keep = wrappers.keep || source.form == SourceForm::troupe || goes_back(source, arguments);
  const auto before = source.torch ? source.torch->tensors : std::vector<TorchPlace>{};
  TRY(drop_wrappers(source, wrappers));
  const auto container = arguments.target == "huggingface" ? common_container(source) : "";
  if (arguments.target == "huggingface") TRY(split_fused_experts(source, expert_names(arguments.experts)));
  if (!container.empty()) {
    TRY(rename_all(source, [&](const std::string& key) { return rules(key, key.substr(container.size())); }));
    source.notes.push_back(fmt::format("taken off the names, as all are below it: {}", container));
  } else {
    TRY(rename_all(source, rules));
  }
  if (!goes_back(source, arguments)) return {};
  for (std::size_t i = 0; i < before.size(); ++i) {
    auto& place = source.torch->tensors[i];
    if (place.key != before[i].key) place = {place.key, {core::Key(place.key)}, {}, {}, place.carried};
  }
  return {};
}

Result<Exported> export_as(const Source& source, const ExportArguments& arguments) {
  if (arguments.target == "dcp") {
    if (!arguments.model.empty())
      return core::fail(Errc::invalid_argument, "--model is for --to huggingface only; leave it out");
    if (!arguments.dtype.empty())
      return core::fail(Errc::invalid_argument, "--dtype is for --to huggingface only; leave it out");
    const bool is_torch = arguments.optimizer == "torch";
    if (arguments.form == "distcp") return export_dcp(source, arguments.to, dcp_names(source, arguments));
    if (is_torch)
      return core::fail(
          Errc::invalid_argument,
          "--optimizer torch needs a place for values, which --form safetensors has not; leave one "
          "of the two out");
    return export_sharded_safetensors(source, arguments.to);
  }
  if (arguments.optimizer == "torch")
    return core::fail(Errc::invalid_argument, "--optimizer torch is for --to dcp only; leave it out");
  HuggingFaceOptions options;
  options.max_file_bytes = arguments.max_shard_bytes;
  options.model = TRY(model_of(source, arguments));
  if (!arguments.dtype.empty()) {
    options.dtype = TRY(core::dtype_from_name(arguments.dtype));
    if (!core::is_floating(*options.dtype))
      return core::fail(Errc::invalid_argument, "--dtype {}: expected a floating dtype such as bf16",
                        arguments.dtype);
  }
  return export_huggingface(source, arguments.to, options);
}

Result<Outcome> export_checkpoint(const ExportArguments& arguments) {
  auto source = TRY(open_source(arguments.from, arguments.links));
  const bool is_model = arguments.target == "huggingface";
  if (arguments.weights_only || (is_model && !arguments.with_optimizer)) keep_weights_only(source);
  if (is_model || arguments.form == "safetensors") leave_out_carried(source);
  TRY(name_for_export(source, arguments));
  if (source.manifest.tensors.empty())
    return core::fail(Errc::invalid_argument, "{} has no tensor to export", source.path);
  TRY(verify_first(source, arguments.skip_verify));
  const auto exported = TRY(export_as(source, arguments));
  const bool keeps_values = !is_model && arguments.form == "distcp";
  if (!keeps_values && source.has_values)
    say_note("the step, common values and objects have no place in these files; left out");
  say_notes(source);
  if (arguments.json) {
    return Outcome{json_text({{"path", arguments.to},
                              {"from", source.path},
                              {"tensors", exported.tensors},
                              {"bytes", exported.bytes},
                              {"files", exported.files},
                              {"seconds", exported.seconds},
                              {"values", keeps_values},
                              {"notes", source.notes},
                              {"left_out", left_out_json(source)}})};
  }
  return Outcome{fmt::format("{}: {} tensors, {}, {} files, {:.2f} s\n", arguments.to, exported.tensors,
                             bytes_text(exported.bytes), exported.files.size(), exported.seconds)};
}

}  // namespace

void add_reshard(CLI::App& checkpoint, int& exit_code) {
  struct Arguments {
    std::string from, to;
    Sharding sharding;
    bool skip_verify = false;
    bool json = false;
    actors::Links links = actors::Links::refuse;
  };
  const auto arguments = std::make_shared<Arguments>();  // owned by the command's callback
  auto* command = checkpoint.add_subcommand(
      "reshard", "Write a checkpoint as another number of ranks would have saved it");
  command->add_option("PATH", arguments->from, "A checkpoint, or a directory of checkpoints")->required();
  command->add_option("OUT", arguments->to, "The directory of checkpoints to add it to")->required();
  add_sharding(*command, arguments->sharding);
  command->get_option("--mesh")->required();
  command->add_flag("--no-verify", arguments->skip_verify,
                    "Do not check the bytes against their hashes first");
  command->add_flag("--json", arguments->json, "Print JSON");
  add_follow_links(*command, arguments->links);
  command->footer(
      "Training resumes on any number of ranks without this.\n"
      "Use it only to get files of another size or number.\n"
      "With zero1 the tensors of each kind of state are stored one after another, by name; every rank gets "
      "an\n"
      "equal part. `troupe checkpoint diff` finds the two equal.\n"
      "Example:\n"
      "  troupe checkpoint reshard run/checkpoints/step_00000200 other/checkpoints --mesh 8");
  command->callback([arguments, &exit_code] {
    exit_code = print_outcome("reshard", [&]() -> Result<Outcome> {
      const auto source = TRY(open_checkpoint(arguments->from, arguments->links));
      TRY(verify_first(source, arguments->skip_verify));
      const auto& sharding = arguments->sharding;
      const auto written =
          TRY(write_checkpoint(source, sharding, topology_of(source, sharding, "reshard"), arguments->to));
      return Outcome{written_text(written, source, sharding, arguments->json)};
    });
  });
}

void add_import(CLI::App& checkpoint, int& exit_code) {
  const auto arguments = std::make_shared<ImportArguments>();  // owned by the command's callback
  auto* command =
      checkpoint.add_subcommand("import", "Make a checkpoint from one of PyTorch or Hugging Face");
  command
      ->add_option(
          "FROM", arguments->from,
          "A directory of torch.distributed.checkpoint, of Accelerate's FSDP, of *.safetensors or of "
          "verl's files of each rank, or one file of safetensors or torch.save")
      ->required();
  command->add_option("OUT", arguments->to, "The directory of checkpoints to add it to")->required();
  add_number(*command, "--step", arguments->step, {0, kMostSteps},
             "Number of steps done; by default what the files say (step, global_step, ...), or 0");
  add_renaming(*command, arguments->rename, arguments->wrappers, arguments->experts);
  add_choice(*command, "--optimizer", arguments->optimizer, {"as-is", "torch"},
             "torch: rename optimizer state saved by PyTorch's get_state_dict() to Troupe's names, so that a "
             "session continues with its moments and step count")
      ->capture_default_str();
  add_sharding(*command, arguments->sharding);
  command->add_flag("--json", arguments->json, "Print JSON");
  add_follow_links(*command, arguments->links);
  command->footer(
      "Pickles are read as data: nothing in them is executed. What is not plain data is listed: its bytes\n"
      "are carried, so that an export to dcp gives them back, or it is left out.\n"
      "Examples:\n"
      "  troupe checkpoint import dcp_directory run/checkpoints --step 200 --rename model.=\n"
      "  troupe checkpoint import dcp_directory run/checkpoints --optimizer torch\n"
      "  troupe checkpoint import Qwen3-0.6B run/checkpoints");
  command->callback([arguments, command, &exit_code] {
    arguments->has_step = command->count("--step") > 0;
    exit_code = print_outcome("import", [&] { return import_checkpoint(*arguments); });
  });
}

void add_export(CLI::App& checkpoint, int& exit_code) {
  const auto arguments = std::make_shared<ExportArguments>();  // owned by the command's callback
  auto* command = checkpoint.add_subcommand("export", "Write a checkpoint for PyTorch or Hugging Face");
  command->add_option("PATH", arguments->from, "A checkpoint, or a directory of checkpoints")->required();
  command->add_option("OUT", arguments->to, "A directory that does not exist yet")->required();
  add_choice(*command, "--to", arguments->target, {"dcp", "huggingface"}, "dcp or huggingface")->required();
  add_choice(*command, "--form", arguments->form, {"distcp", "safetensors"},
             "For dcp: distcp, or safetensors (without values)")
      ->capture_default_str();
  auto* weights = command->add_flag("--weights-only", arguments->weights_only,
                                    "Leave out names that begin with optimizer.; huggingface does so unless "
                                    "--with-optimizer is given");
  command
      ->add_flag("--with-optimizer", arguments->with_optimizer,
                 "For huggingface: keep names that begin with optimizer.")
      ->excludes(weights);
  add_number(*command, "--max-shard-bytes", arguments->max_shard_bytes, {1, std::uint64_t{1} << 62},
             "For huggingface: largest size of a file")
      ->capture_default_str();
  command->add_option("--model", arguments->model,
                      "For huggingface: take config.json and the tokenizer's files along from this model "
                      "directory; by default from PATH, if it is one, or from where training began");
  command->add_option("--dtype", arguments->dtype,
                      "For huggingface: convert floating-point tensors, e.g. to bf16");
  add_renaming(*command, arguments->rename, arguments->wrappers, arguments->experts);
  add_choice(
      *command, "--optimizer", arguments->optimizer, {"automatic", "as-is", "torch"},
      "For dcp: torch writes the names of PyTorch's get_state_dict(), below model and optim; as-is those "
      "of Troupe; automatic those that an imported checkpoint had, and else those of Troupe")
      ->capture_default_str();
  command->add_flag("--no-verify", arguments->skip_verify,
                    "Do not check the bytes against their hashes first");
  command->add_flag("--json", arguments->json, "Print JSON");
  add_follow_links(*command, arguments->links);
  command->footer(
      "Examples:\n"
      "  troupe checkpoint export run/checkpoints dcp_directory --to dcp\n"
      "  troupe checkpoint export run/checkpoints tuned --to huggingface --dtype bf16 --model Qwen3-0.6B");
  command->callback([arguments, &exit_code] {
    exit_code = print_outcome("export", [&] { return export_checkpoint(*arguments); });
  });
}

}  // namespace troupe::apps
