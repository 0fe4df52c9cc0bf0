#include "apps/troupe/plan/plan_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <memory>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/plan/capacity_report.hpp"
#include "apps/troupe/plan/goodput.hpp"
#include "apps/troupe/plan/layout_report.hpp"
#include "apps/troupe/plan/program_report.hpp"
#include "apps/troupe/plan/quantities.hpp"
#include "apps/troupe/plan/schedule_command.hpp"

namespace troupe::apps {

namespace {

constexpr core::Bounds<int> kRanks{1, 1 << 20};
constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

void print(const char* command, const core::Result<std::string>& report, int& exit_code) {
  if (report) {
    fmt::print("{}", *report);
    return;
  }
  say_error(fmt::format("troupe plan {}", command), report.error().message);
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
  auto* command = plan.add_subcommand("layout", "Where parameters and buckets are in a buffer");
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

void add_dtype(CLI::App& command, const std::string& name, std::string& target, const std::string& help) {
  const auto is_dtype = [](const std::string& text) {
    const auto dtype = core::dtype_from_name(text);
    return dtype ? std::string() : dtype.error().message;
  };
  command.add_option(name, target, help)->check(is_dtype, "")->capture_default_str();
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
  add_number(command, "--context-parallel", job.context_parallel, kRanks,
             "Neighbouring ranks that share each microbatch, each with a part of its sequences")
      ->capture_default_str();
  add_number(
      command, "--context-pieces", job.context_pieces, {0, kRanks.most},
      "Pieces of each sequence, of which a rank may compute several, each with gradients of its own; 0: "
      "one on each of the ranks that share it")
      ->capture_default_str();
  add_number(command, "--stages", job.stages, {1, 1024},
             "Pipeline stages; --ranks and --units count those of one stage")
      ->capture_default_str();
  add_number(command, "--stage", job.stage, {0, 1023}, "Pipeline stage whose program is planned")
      ->capture_default_str();
  add_choice(command, "--schedule", job.schedule, {"gpipe", "1f1b", "interleaved", "zero_bubble"},
             "Pipeline schedule: gpipe, 1f1b, interleaved or zero_bubble")
      ->capture_default_str();
  add_number(command, "--chunks", job.chunks, {1, 1024}, "Model chunks per stage, interleaved only")
      ->capture_default_str();
  add_number(command, "--units", job.units, {0, kMostUnits}, "Units that are gathered on demand")
      ->capture_default_str();
  add_numbers(command, "--forward-order", job.forward_order, {0, kMostUnits - 1},
              "Units in the order in which forward uses them; by default from 0 up");
  add_numbers(command, "--backward-order", job.backward_order, {0, kMostUnits - 1},
              "Units in the order in which backward uses them; by default the reverse of forward");
  add_number(command, "--unit-elements", job.unit_elements, {0, kMostUnitElements}, "Parameters of each unit")
      ->capture_default_str();
  add_number(command, "--resident-elements", job.resident_elements, {0, kMostUnitElements},
             "Parameters that belong to no unit")
      ->capture_default_str();
  add_dtype(command, "--dtype", job.dtype, "Dtype of the parameters that the model reads");
  add_choice(
      command, "--gather-dtype", job.gather_dtype, {"f8_e4m3", "f8_e5m2"},
      "Dtype in which parameters are gathered, with one scale per 32 elements; with --model, the matrices "
      "of its layers");
  add_dtype(command, "--gradient-dtype", job.gradient_dtype, "Dtype of accumulated gradients");
  add_dtype(command, "--wire-dtype", job.wire_dtype,
            "Dtype in which gradients are sent, where it is narrower than theirs");
  add_dtype(command, "--main-dtype", job.main_dtype, "Dtype of the values that the optimizer steps");
  add_choice(command, "--optimizer", job.optimizer, {"sgd", "momentum", "adam", "adamw", "lion", "muon"},
             "sgd, momentum, adam, adamw, lion or muon")
      ->capture_default_str();
  add_number(command, "--parameter-credits", job.parameter_credits, {1, 64},
             "Units that may be gathered at once")
      ->capture_default_str();
  add_number(command, "--gradient-credits", job.gradient_credits, {1, 64},
             "Full gradients that may exist at once")
      ->capture_default_str();
  add_number(command, "--staging-elements", job.staging_elements, {0, kMostElements},
             "Elements that a rank receives at once in an exchange; 0: all")
      ->capture_default_str();
  command.add_flag("--no-overlap", job.no_overlap, "Do not overlap communication with forward and backward");
  command.add_flag("--json", job.json, "Print JSON");
}

void add_strategy(CLI::App& command, std::string& strategy) {
  add_choice(command, "--strategy", strategy, {"ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"},
             "ddp, zero1, zero2, zero3, hsdp or hfsdp")
      ->capture_default_str();
}

void add_program(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("program", "What a rank does in a step, entry by entry");
  const auto arguments = std::make_shared<ProgramReportArguments>();  // owned by the command's callback
  add_strategy(*command, arguments->program.strategy);
  add_job(*command, arguments->program);
  add_number(*command, "--rank", arguments->rank, {0, (1 << 20) - 1},
             "Rank whose program to show; by default rank 0, and with --output all ranks");
  command->add_option("--output", arguments->output, "Write the programs to this file, for plan check");
  command->callback([arguments, &exit_code] { print("program", report_program(*arguments), exit_code); });
}

/// Programs that do not pass each other are no error of use.
bool is_refusal(core::Errc code) {
  return code == core::Errc::mismatch || code == core::Errc::aborted || code == core::Errc::internal;
}

void add_check(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("check", "Run the programs of all ranks against each other");
  const auto arguments = std::make_shared<ProgramArguments>();      // owned by the command's callback
  const auto files = std::make_shared<std::vector<std::string>>();  // also
  add_strategy(*command, arguments->strategy);
  add_job(*command, *arguments);
  auto* positional = command->add_option(
      "FILE", *files,
      "Programs that plan program --output wrote, of all ranks together; none: those of this job");
  for (auto* option : command->get_options()) {
    const auto name = option->get_name();
    if (option != positional && name != "--help" && name != "--json") positional->excludes(option);
  }
  command->footer(
      "Exits with 1 if the programs would deadlock or disagree; the error names the entries.\n"
      "Example:\n"
      "  troupe plan program --strategy zero3 --ranks 4 --rounds 3 --output programs.json\n"
      "  troupe plan check programs.json");
  command->callback([arguments, files, &exit_code] {
    const auto report = files->empty() ? report_check(*arguments) : report_check(*files, arguments->json);
    print("check", report, exit_code);
    if (!report && is_refusal(report.error().code)) exit_code = 1;
  });
}

/// What is checked when it is read says so by the name of its option.
template <class Parse>
std::function<std::string(const std::string&)> checked_by(Parse parse) {
  return [parse](const std::string& text) {
    const auto parsed = parse(text);
    return parsed ? std::string() : parsed.error().message;
  };
}

void add_capacity_model(CLI::App& command, CapacityArguments& arguments) {
  auto* model = command.add_option("--model", arguments.model,
                                   "config.json of Hugging Face, or its directory, in place of equal units");
  for (const char* units : {"--units", "--unit-elements", "--resident-elements", "--stage"}) {
    model->excludes(command.get_option(units));
  }
  add_number(command, "--tensor-parallel", arguments.program.tensor_parallel, {1, 1024},
             "Ranks that share each layer, with --model; --ranks are those of one part of it")
      ->capture_default_str()
      ->needs(model);
  command
      .add_flag("--sequence-parallel", arguments.program.sequence_parallel,
                "These ranks also share the rows between layers")
      ->needs(model);
  add_number(command, "--tensor-slices", arguments.program.tensor_slices, {1, 1024},
             "Slices that the reference trainer computes each layer in [as many as --tensor-parallel]")
      ->needs(model);
  add_number(command, "--expert-parallel", arguments.program.expert_parallel, {1, 1 << 20},
             "Neighbouring ranks that experts are distributed over, with --model")
      ->capture_default_str()
      ->needs(model);
  add_number(command, "--expert-tensor-parallel", arguments.program.expert_tensor_parallel, {0, 1024},
             "Ranks that each expert is cut over, with --model: a multiple of --tensor-parallel; 0: as many")
      ->capture_default_str()
      ->needs(model);
  add_number(command, "--sequences", arguments.sequences, {1, 1 << 20},
             "Sequences per microbatch, with --model")
      ->capture_default_str()
      ->needs(model);
  add_number(command, "--length", arguments.length, {1, 1 << 24},
             "Tokens per sequence, with --model; by default the model's maximum, but no more than 4096")
      ->needs(model);
  command
      .add_flag("--recompute", arguments.recompute,
                "Layers keep only their input, and backward computes the rest again")
      ->needs(model);
  command
      .add_flag("--keep-probabilities", arguments.keep_probabilities,
                "Attention keeps its probabilities, as the reference trainer does on the host")
      ->needs(model);
}

void add_capacity_links(CLI::App& command, CapacityArguments& arguments) {
  command
      .add_option("--device-memory", arguments.device_memory,
                  "Memory of one rank's device, as in 80GiB or 80GB")
      ->check(checked_by(parse_bytes), "")
      ->capture_default_str();
  command
      .add_option("--link", arguments.links,
                  "inner or outer with bandwidth and latency, as in inner=400GB/s,5us and outer=50GB/s,10us, "
                  "which are the defaults; repeatable")
      ->allow_extra_args(false)
      ->check(checked_by(parse_link), "");
  add_number(
      command, "--node-ranks", arguments.node_ranks, kRanks,
      "Ranks connected by the inner link; by default the size of the inner axis if there are two axes, "
      "otherwise 8");
  add_number(
      command, "--compute-ms", arguments.compute_ms, {0.0, 1e9},
      "Time of a unit's forward and backward in a round, to tell what communication is exposed; 0: unknown")
      ->capture_default_str();
}

void add_capacity(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("capacity", "Memory and communication of a rank, by strategy");
  const auto arguments = std::make_shared<CapacityArguments>();  // owned by the command's callback
  add_choices(
      *command, "--strategy", arguments->strategies,
      {"all", "ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"},
      "Strategies on these axes, with commas between them; all, the default: those of one axis on all "
      "ranks, and with two axes hsdp and hfsdp");
  add_job(*command, arguments->program);
  auto* mesh =
      command->add_option("--mesh", arguments->mesh,
                          "Ranks of the outer and the inner axis as in 2x4, in place of --ranks and --outer");
  mesh->excludes(command->get_option("--ranks"))->excludes(command->get_option("--outer"));
  add_capacity_model(*command, *arguments);
  add_capacity_links(*command, *arguments);
  command->add_option("--html", arguments->html, "Write a page with plots to this file");
  command->footer(
      "Example:\n"
      "  troupe plan capacity --model Qwen3-8B --mesh 4x8 --rounds 2 --device-memory 80GiB --html "
      "capacity.html\n"
      "  troupe plan capacity --model Qwen3-30B-A3B --ranks 16 --tensor-parallel 2 --sequence-parallel \\\n"
      "    --stages 4 --rounds 16 --expert-parallel 8 --strategy zero1");
  command->callback([arguments, &exit_code] { print("capacity", report_capacity(*arguments), exit_code); });
}

void add_goodput(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("goodput", "What failures cost a long job, and how often to save");
  const auto a = std::make_shared<GoodputArguments>();  // owned by the command's callback
  constexpr core::Bounds<double> kSeconds{0, 1e7};
  const auto number = [&](const char* name, auto& target, auto bounds, const char* help) {
    add_number(*command, name, target, bounds, help)->capture_default_str();
  };
  number("--ranks", a->ranks, kRanks, "Devices of the job");
  number("--node-ranks", a->node_ranks, kRanks, "Devices of a node");
  number("--spare-nodes", a->spare_nodes, core::Bounds<int>{0, 1 << 16}, "Nodes whose devices stand by");
  number("--fewest-nodes", a->fewest_nodes, core::Bounds<int>{0, 1 << 20},
         "The job goes on with at least this many; 0: with all");
  number("--mtbf-per-device", a->mtbf_hours, core::Bounds<double>{1, 1e9},
         "Hours between failures of a device, with its part of the node");
  number("--node-share", a->node_share, core::Bounds<double>{0, 1},
         "Share of failures that cost a node; others end one process");
  number("--repair-hours", a->repair_hours, core::Bounds<double>{0.01, 1e5}, "Hours until a node is back");
  number("--notice", a->notice, kSeconds, "Seconds until a failure is known");
  number("--form", a->form, kSeconds, "Seconds until the ranks of the next epoch are connected");
  number("--start", a->start, kSeconds, "Seconds until a process could join");
  number("--load", a->load, kSeconds, "Seconds of loading a checkpoint");
  number("--take", a->take, kSeconds, "Seconds of taking state from other ranks' memory");
  command->add_flag("--replicated", a->replicated, "Each rank's state is in the memory of another one, too");
  command->add_flag("--restart", a->restart, "All processes are started anew after each failure");
  number("--save-every", a->save_every, kSeconds, "Seconds between saves; 0: the interval that loses least");
  number("--stall", a->stall, kSeconds, "Seconds for which a save stops training");
  number("--write", a->write, kSeconds, "Seconds until a save can be loaded");
  number("--days", a->days, core::Bounds<double>{0.01, 3650}, "Days of the job");
  number("--runs", a->runs, core::Bounds<int>{1, 10'000}, "Simulated runs, of which the mean is shown");
  number("--seed", a->seed, kAnyNumber<std::uint64_t>, "Seed of the first run");
  command->add_flag("--json", a->json, "Print JSON");
  command->footer(
      "Failures come at random, and the launcher's own machine decides what is done about each.\n"
      "Example, the 16,384 GPUs and 419 interruptions in 54 days of Llama 3:\n"
      "  troupe plan goodput --ranks 16384 --mtbf-per-device 50673 --spare-nodes 16");
  command->callback([a, &exit_code] { print("goodput", report_goodput(*a), exit_code); });
}

}  // namespace

void add_plan_command(CLI::App& troupe, int& exit_code) {
  auto* plan = troupe.add_subcommand("plan", "Show what a job computes before it starts");
  plan->require_subcommand(1);
  add_layout(*plan, exit_code);
  add_program(*plan, exit_code);
  add_check(*plan, exit_code);
  add_capacity(*plan, exit_code);
  add_schedule_command(*plan, exit_code);
  add_goodput(*plan, exit_code);
}

}  // namespace troupe::apps
