#include "apps/troupe/plan/plan_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/options.hpp"
#include "apps/troupe/plan/capacity_report.hpp"
#include "apps/troupe/plan/layout_report.hpp"
#include "apps/troupe/plan/program_report.hpp"
#include "apps/troupe/plan/schedule_command.hpp"
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

void add_dtype(CLI::App& command, const std::string& name, std::string& target, const std::string& help) {
  const auto is_dtype = [](const std::string& text) {
    const auto dtype = core::dtype_from_name(text);
    return dtype ? std::string() : dtype.error().message;
  };
  command.add_option(name, target, help)->check(is_dtype, "")->capture_default_str();
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
  add_dtype(*command, "--dtype", arguments->dtype, "Of the parameters");
  add_dtype(*command, "--gradient-dtype", arguments->gradient_dtype, "Of the gradients");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments, &exit_code] { print("step", report_step(*arguments), exit_code); });
}

constexpr int kMostUnits = 10'000;
constexpr std::int64_t kMostUnitElements = std::int64_t{1} << 40;

/// The job whose program is planned.
void add_job(CLI::App& command, ProgramArguments& job) {
  add_choice(command, "--numerics", job.numerics, {"fast", "ordered"}, "fast or ordered")
      ->capture_default_str();
  add_number(command, "--ranks", job.ranks, kRanks, "Data-parallel ranks")->capture_default_str();
  add_number(command, "--outer", job.outer, kRanks,
             "Length of the outer data-parallel axis, which must divide the ranks")
      ->capture_default_str();
  add_number(command, "--rounds", job.rounds, {1, 1024}, "Microbatches of each rank")->capture_default_str();
  add_number(command, "--units", job.units, {0, kMostUnits}, "Units that are gathered on demand")
      ->capture_default_str();
  add_number(command, "--unit-elements", job.unit_elements, {0, kMostUnitElements}, "Parameters of each unit")
      ->capture_default_str();
  add_number(command, "--resident-elements", job.resident_elements, {0, kMostUnitElements},
             "Parameters outside of units")
      ->capture_default_str();
  add_dtype(command, "--dtype", job.dtype, "Of the parameters that the model reads");
  add_dtype(command, "--gradient-dtype", job.gradient_dtype, "Of accumulated gradients");
  add_dtype(command, "--wire-dtype", job.wire_dtype, "Of gradients on their way");
  add_dtype(command, "--main-dtype", job.main_dtype, "Of the values that the optimizer steps");
  add_choice(command, "--optimizer", job.optimizer, {"sgd", "momentum", "adam", "adamw", "lion", "muon"},
             "sgd, momentum, adam, adamw, lion or muon")
      ->capture_default_str();
  add_number(command, "--parameter-credits", job.parameter_credits, {1, 64}, "Units gathered at once")
      ->capture_default_str();
  add_number(command, "--gradient-credits", job.gradient_credits, {1, 64}, "Full gradients at once")
      ->capture_default_str();
  add_number(command, "--staging-elements", job.staging_elements, {0, kMostElements},
             "Elements that a rank receives at once in an exchange; 0 for all")
      ->capture_default_str();
  command.add_flag("--no-overlap", job.no_overlap, "Communication between forward and backward");
  command.add_flag("--json", job.json, "Print JSON");
}

void add_strategy(CLI::App& command, std::string& strategy) {
  add_choice(command, "--strategy", strategy, {"ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"},
             "ddp, zero1, zero2, zero3, hsdp or hfsdp")
      ->capture_default_str();
}

void add_program(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("program", "What a rank does in a step, entry by entry");
  const auto arguments = std::make_shared<ProgramArguments>();  // owned by the command's callback
  add_strategy(*command, arguments->strategy);
  add_job(*command, *arguments);
  command->callback([arguments, &exit_code] { print("program", report_program(*arguments), exit_code); });
}

void add_check(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("check", "Run the programs of all ranks against each other");
  const auto arguments = std::make_shared<ProgramArguments>();  // owned by the command's callback
  add_strategy(*command, arguments->strategy);
  add_job(*command, *arguments);
  command->callback([arguments, &exit_code] { print("check", report_check(*arguments), exit_code); });
}

void add_capacity(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("capacity", "Memory and traffic of a rank, by strategy");
  const auto arguments = std::make_shared<CapacityArguments>();  // owned by the command's callback
  add_choices(*command, "--strategy", arguments->strategies,
              {"ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"},
              "Strategies, with commas between them; by default all that fit the axes");
  add_job(*command, arguments->program);
  add_number(*command, "--memory-gib", arguments->memory_gib, {0.0, 1e9}, "Memory of one rank")
      ->capture_default_str();
  command->callback([arguments, &exit_code] { print("capacity", report_capacity(*arguments), exit_code); });
}

}  // namespace

void add_plan_command(CLI::App& troupe, int& exit_code) {
  auto* plan = troupe.add_subcommand("plan", "Show what a job computes before it starts");
  plan->require_subcommand(1);
  add_layout(*plan, exit_code);
  add_step(*plan, exit_code);
  add_program(*plan, exit_code);
  add_check(*plan, exit_code);
  add_capacity(*plan, exit_code);
  add_schedule_command(*plan, exit_code);
}

}  // namespace troupe::apps
