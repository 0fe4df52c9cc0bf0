#include "apps/troupe/convert/config_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "actors/world/storage/posix.hpp"
#include "apps/command_line/pairs.hpp"
#include "apps/command_line/say.hpp"
#include "core/errors.hpp"
#include "core/interop/lfs_pointer.hpp"
#include "core/models/pipeline.hpp"
#include "core/number.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr int kTroubleExit = 2;
constexpr int kMaxMeshSize = 65536;
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;

struct Arguments {
  std::string file, target;
  ConfigArguments config;
  bool json = false;
};

std::string summary(const core::ModelConfig& model) {
  const auto& config = model.transformer;
  auto text =
      fmt::format("{}\n  layers {}, hidden {}, heads {} in {} groups of width {}, ffn {}, vocabulary {}\n",
                  core::facts_of(model.architecture).name, config.num_layers, config.hidden_size,
                  config.num_attention_heads, *config.num_query_groups, *config.kv_channels,
                  *config.ffn_hidden_size, model.builder.vocab_size);
  if (config.num_moe_experts)
    text += fmt::format("  experts {} of width {}, {} per token\n", *config.num_moe_experts,
                        *config.moe_ffn_hidden_size, config.moe_router_topk);
  return text + fmt::format("  tensor parallel {}, pipeline {}, context {}, expert {}, expert tensor {}\n",
                            config.tensor_model_parallel_size, config.pipeline_model_parallel_size,
                            config.context_parallel_size, config.expert_model_parallel_size,
                            *config.expert_tensor_parallel_size);
}

Result<std::string> convert(Arguments arguments) {
  TRY(apply_mesh(arguments.config));
  const auto text = TRY(read_config(arguments.file));
  if (arguments.target == "huggingface") return core::to_huggingface(TRY(core::parse_model_config(text)));
  const auto converted = TRY(core::from_huggingface(text, TRY(options_of(arguments.config))));
  TRY(core::place_layers(converted.config.transformer));
  for (const auto& warning : converted.warnings) say_note("warning: " + warning);
  return arguments.json ? core::to_text(converted.config) : summary(converted.config);
}

}  // namespace

Result<std::string> read_config(const std::string& name) {
  std::filesystem::path path(name);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  const auto folder = path.parent_path().string();
  auto storage = TRY(actors::PosixStorage::open(folder.empty() ? "." : folder));
  const auto file = path.filename().string();
  const auto size = TRY(storage->size(file));
  if (size > kMaxConfigBytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, more than a configuration may have", path.string(),
                      size);
  const auto bytes = TRY(storage->read(file, 0, size));
  TRY(core::check_is_no_pointer(bytes, path.string()));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void add_config_options(CLI::App& command, ConfigArguments& arguments) {
  auto& mesh = arguments.mesh;
  const auto size = CLI::Range(1, kMaxMeshSize);
  command.add_option("--tp", mesh.tp, "Tensor parallel size")->check(size)->capture_default_str();
  command.add_option("--pp", mesh.pp, "Pipeline parallel size")->check(size)->capture_default_str();
  command.add_option("--cp", mesh.cp, "Context parallel size")->check(size)->capture_default_str();
  command.add_option("--ep", mesh.ep, "Expert parallel size")->check(size)->capture_default_str();
  command.add_option("--etp", mesh.etp, "Tensor parallel size of experts; by default that of --tp")
      ->check(size);
  command.add_option("--mesh", arguments.sizes, "All of them: tp=2,pp=4,cp=1,ep=1,etp=1,vpp=2")
      ->delimiter(',');
  command.add_option("--vpp", arguments.virtual_pipeline, "Chunks of layers per pipeline stage")->check(size);
  command.add_option("--dtype", arguments.dtype, "Dtype of parameters: f32, f16 or bf16")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--key", arguments.keys,
                  "KEY=VALUE: in place of what config.json says, as JSON or a word; repeatable")
      ->allow_extra_args(false);
  command.add_option("--set", arguments.overrides, "FIELD=JSON: a field of Megatron; repeatable")
      ->allow_extra_args(false);
  command
      .add_option("--ignore", arguments.ignored,
                  "A key of config.json that is passed over though its meaning is not known; repeatable")
      ->allow_extra_args(false);
  command.add_flag("--class-defaults", arguments.class_defaults,
                   "Fill in the head_dim of DeepSeek as transformers' class does, with the rotary width");
}

Result<void> apply_mesh(ConfigArguments& arguments) {
  auto& mesh = arguments.mesh;
  const std::map<std::string, int*> sizes{{"tp", &mesh.tp},   {"pp", &mesh.pp},
                                          {"cp", &mesh.cp},   {"ep", &mesh.ep},
                                          {"etp", &mesh.etp}, {"vpp", &arguments.virtual_pipeline}};
  for (const auto& [name, text] : TRY(pairs_of("--mesh", arguments.sizes))) {
    const auto size = sizes.find(name);
    const auto value = core::parse_number<int>(text, {1, kMaxMeshSize});
    if (size == sizes.end() || !value)
      return core::fail(Errc::invalid_argument,
                        "--mesh: '{}={}' is not one of tp, pp, cp, ep, etp, vpp with a size of 1 to {}", name,
                        text, kMaxMeshSize);
    *size->second = *value;
  }
  return {};
}

Result<core::ConvertOptions> options_of(const ConfigArguments& arguments) {
  core::ConvertOptions options;
  options.mesh = arguments.mesh;
  options.virtual_pipeline = arguments.virtual_pipeline;
  options.dtype = TRY(core::dtype_from_name(arguments.dtype));
  options.class_defaults = arguments.class_defaults;
  options.keys = TRY(pairs_of("--key", arguments.keys));
  options.overrides = TRY(pairs_of("--set", arguments.overrides));
  options.ignored = {arguments.ignored.begin(), arguments.ignored.end()};
  return options;
}

void add_convert_config(CLI::App& convert_command, int& exit_code) {
  const auto arguments = std::make_shared<Arguments>();  // owned by the command's callback
  auto* command = convert_command.add_subcommand("config", "Convert the configuration of a model");
  command
      ->add_option("FILE", arguments->file,
                   "config.json or its directory; with --to huggingface, what --to megatron --json printed")
      ->required();
  command->add_option("--to", arguments->target, "megatron or huggingface")
      ->required()
      ->check(CLI::IsMember({"megatron", "huggingface"}));
  add_config_options(*command, arguments->config);
  command->add_flag("--json", arguments->json, "Print all fields as JSON; huggingface always does");
  command->footer(
      "A key that changes the maths and has no field is refused by name.\n"
      "Example:\n"
      "  troupe convert config Qwen3-8B/config.json --to megatron --tp 2 --pp 2 --cp 2 --json");
  command->callback([arguments, &exit_code] {
    const auto text = convert(*arguments);
    if (text) {
      fmt::print("{}", *text);
      return;
    }
    say_error("troupe convert config", text.error().message);
    exit_code = kTroubleExit;
  });
}

}  // namespace troupe::apps
