#include "apps/troupe/plan/plan_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/options.hpp"
#include "apps/troupe/plan/layout_report.hpp"
#include "apps/troupe/plan/step_report.hpp"

namespace troupe::apps {

namespace {

constexpr core::Bounds<int> kRanks{1, 1 << 20};
constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

void print(const char* command, const core::Result<std::string>& report, int& exit_code) {
  if (report) {
    fmt::print("{}", *report);
    return;
  }
  fmt::print(stderr, "troupe plan {}: {}\n", command, report.error().message);
  exit_code = kUsageError;
}

void add_parameters(CLI::App& command, ParameterArguments& parameters) {
  add_numbers(command, "--sizes", parameters.sizes, {0, kMostElements},
              "Elements of the parameters, in registration order");
  command.add_option("--shapes", parameters.shapes, "Shapes of the parameters, as in 5x4,2x6")
      ->delimiter(',');
  add_numbers(command, "--shared", parameters.shared, kAnyNumber<std::size_t>,
              "Which parameters are shared embeddings, counted from 0");
}

void add_layout(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("layout", "Where parameters and buckets lie in a buffer");
  const auto arguments = std::make_shared<LayoutArguments>();  // owned by the command's callback
  add_choice(*command, "--policy", arguments->policy, {"plain", "padded", "whole_parameter", "row_aligned"},
             "plain, padded, whole_parameter or row_aligned")
      ->capture_default_str();
  add_parameters(*command, arguments->parameters);
  add_number(*command, "--bucket-size", arguments->options.bucket_size, {1, kMostElements},
             "Elements after which a bucket closes");
  add_number(*command, "--dp", arguments->options.shards, kRanks, "Ranks that the buffer is sharded over")
      ->capture_default_str();
  command->add_flag("--high-busbw", arguments->options.pad_for_bus_bandwidth,
                    "Pad buckets to multiples of 65536 elements");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments, &exit_code] { print("layout", report_layout(*arguments), exit_code); });
}

void add_mesh(CLI::App& command, StepArguments& arguments) {
  auto& mesh = arguments.mesh;
  add_number(command, "--dp", mesh.dp, kRanks, "Data parallel size")->capture_default_str();
  add_number(command, "--tp", mesh.tp, kRanks, "Tensor parallel size")->capture_default_str();
  add_number(command, "--cp", mesh.cp, kRanks, "Context parallel size")->capture_default_str();
  add_number(command, "--pp", mesh.pp, kRanks, "Pipeline parallel size")->capture_default_str();
  add_number(command, "--ep", mesh.ep, kRanks, "Expert parallel size")->capture_default_str();
  add_number(command, "--etp", mesh.etp, kRanks, "Tensor parallel size of experts; by default that of --tp");
  add_number(command, "--instances", mesh.optimizer_instances, kRanks, "Copies of the sharded optimizer")
      ->capture_default_str();
  command.add_option("--order", arguments.order, "Order of the axes, fastest first")->capture_default_str();
}

void add_step(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("step", "The collectives of a training step, in order");
  const auto arguments = std::make_shared<StepArguments>();  // owned by the command's callback
  add_choice(*command, "--strategy", arguments->strategy, {"ddp", "zero1"}, "ddp or zero1")
      ->capture_default_str();
  add_choice(*command, "--numerics", arguments->numerics, {"fast", "ordered"}, "fast or ordered")
      ->capture_default_str();
  add_number(*command, "--lanes", arguments->lanes, {1, 1 << 20},
             "Lanes of ordered numerics; by default one per rank");
  add_mesh(*command, *arguments);
  add_parameters(*command, arguments->parameters);
  add_numbers(*command, "--experts", arguments->experts, kAnyNumber<std::size_t>,
              "Which parameters belong to experts, counted from 0");
  add_number(*command, "--bucket-size", arguments->bucket_size, {1, kMostElements},
             "Elements after which a bucket closes");
  command->add_flag("--high-busbw", arguments->high_bus_bandwidth,
                    "Pad buckets to multiples of 65536 elements");
  const auto is_dtype = [](const std::string& name) {
    const auto dtype = core::dtype_from_name(name);
    return dtype ? std::string() : dtype.error().message;
  };
  command->add_option("--dtype", arguments->dtype, "Of the parameters")
      ->check(is_dtype, "")
      ->capture_default_str();
  command->add_option("--gradient-dtype", arguments->gradient_dtype, "Of the gradients")
      ->check(is_dtype, "")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments, &exit_code] { print("step", report_step(*arguments), exit_code); });
}

}  // namespace

void add_plan_command(CLI::App& troupe, int& exit_code) {
  auto* plan = troupe.add_subcommand("plan", "Show what a job computes before it starts");
  plan->require_subcommand(1);
  add_layout(*plan, exit_code);
  add_step(*plan, exit_code);
}

}  // namespace troupe::apps
