#include "apps/troupe/plan/plan_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/troupe/plan/layout_report.hpp"
#include "apps/troupe/plan/step_report.hpp"

namespace troupe::apps {

namespace {

constexpr int kUsageError = 2;

void print(const char* command, const core::Result<std::string>& report, int& exit_code) {
  if (report) {
    fmt::print("{}", *report);
    return;
  }
  fmt::print(stderr, "troupe plan {}: {}\n", command, report.error().message);
  exit_code = kUsageError;
}

void add_parameters(CLI::App& command, ParameterArguments& parameters) {
  command.add_option("--sizes", parameters.sizes, "Elements of the parameters, in registration order")
      ->delimiter(',');
  command.add_option("--shapes", parameters.shapes, "Shapes of the parameters, as in 5x4,2x6")
      ->delimiter(',');
  command.add_option("--shared", parameters.shared, "Which parameters are shared embeddings, counted from 0")
      ->delimiter(',');
}

void add_layout(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("layout", "Where parameters and buckets lie in a buffer");
  const auto arguments = std::make_shared<LayoutArguments>();  // owned by the command's callback
  command->add_option("--policy", arguments->policy, "plain, padded, whole_parameter or row_aligned")
      ->capture_default_str();
  add_parameters(*command, arguments->parameters);
  command->add_option("--bucket-size", arguments->options.bucket_size,
                      "Elements after which a bucket closes");
  command->add_option("--dp", arguments->options.shards, "Ranks that the buffer is sharded over")
      ->capture_default_str();
  command->add_flag("--high-busbw", arguments->options.pad_for_bus_bandwidth,
                    "Pad buckets to multiples of 65536 elements");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments, &exit_code] { print("layout", report_layout(*arguments), exit_code); });
}

void add_mesh(CLI::App& command, StepArguments& arguments) {
  auto& mesh = arguments.mesh;
  command.add_option("--dp", mesh.dp, "Data parallel size")->capture_default_str();
  command.add_option("--tp", mesh.tp, "Tensor parallel size")->capture_default_str();
  command.add_option("--cp", mesh.cp, "Context parallel size")->capture_default_str();
  command.add_option("--pp", mesh.pp, "Pipeline parallel size")->capture_default_str();
  command.add_option("--ep", mesh.ep, "Expert parallel size")->capture_default_str();
  command.add_option("--etp", mesh.etp, "Tensor parallel size of experts; by default that of --tp");
  command.add_option("--instances", mesh.optimizer_instances, "Copies of the sharded optimizer")
      ->capture_default_str();
  command.add_option("--order", arguments.order, "Order of the axes, fastest first")->capture_default_str();
}

void add_step(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("step", "The collectives of a training step, in order");
  const auto arguments = std::make_shared<StepArguments>();  // owned by the command's callback
  command->add_option("--strategy", arguments->strategy, "ddp or zero1")->capture_default_str();
  command->add_option("--numerics", arguments->numerics, "fast or ordered")->capture_default_str();
  command->add_option("--lanes", arguments->lanes, "Lanes of ordered numerics; by default one a rank");
  add_mesh(*command, *arguments);
  add_parameters(*command, arguments->parameters);
  command->add_option("--experts", arguments->experts, "Which parameters belong to experts, counted from 0")
      ->delimiter(',');
  command->add_option("--bucket-size", arguments->bucket_size, "Elements after which a bucket closes");
  command->add_flag("--high-busbw", arguments->high_bus_bandwidth,
                    "Pad buckets to multiples of 65536 elements");
  command->add_option("--dtype", arguments->dtype, "Of the parameters")->capture_default_str();
  command->add_option("--gradient-dtype", arguments->gradient_dtype, "Of the gradients")
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
