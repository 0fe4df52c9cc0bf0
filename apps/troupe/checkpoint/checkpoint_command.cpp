#include "apps/troupe/checkpoint/checkpoint_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/files/renaming.hpp"
#include "apps/files/source.hpp"
#include "apps/files/text.hpp"
#include "apps/troupe/checkpoint/conversion_commands.hpp"
#include "apps/troupe/checkpoint/diff.hpp"
#include "apps/troupe/checkpoint/outcome.hpp"
#include "apps/troupe/checkpoint/prune.hpp"
#include "apps/troupe/checkpoint/show.hpp"
#include "apps/troupe/checkpoint/verify.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using core::Result;

void add_show(CLI::App& checkpoint, int& exit_code) {
  struct Arguments {
    std::string path, tensor;
    bool json = false;
    actors::Links links = actors::Links::refuse;
  };
  auto* command = checkpoint.add_subcommand("show", "Show what is in a checkpoint of Troupe or PyTorch");
  const auto arguments = std::make_shared<Arguments>();  // owned by the command's callback
  command
      ->add_option("PATH", arguments->path,
                   "A checkpoint, or a directory of checkpoints, whose newest complete one is used")
      ->required();
  command->add_option("--tensor", arguments->tensor,
                      "Show only this tensor, with a map of who holds which part");
  command->add_flag("--json", arguments->json, "Print JSON");
  add_follow_links(*command, arguments->links);
  command->footer(
      "Examples:\n"
      "  troupe checkpoint show run/checkpoints\n"
      "  troupe checkpoint show run/checkpoints/step_00000200 --tensor blocks.0.attention.weight");
  command->callback([arguments, command, &exit_code] {
    exit_code = print_outcome("show", [&]() -> Result<Outcome> {
      const auto source = TRY(open_source(arguments->path, arguments->links));
      if (command->count("--tensor") > 0)
        return Outcome{TRY(arguments->json ? show_tensor_json(source, arguments->tensor)
                                           : show_tensor_text(source, arguments->tensor))};
      if (arguments->json) return Outcome{TRY(show_json(source))};
      return Outcome{show_text(source)};
    });
  });
}

void add_verify(CLI::App& checkpoint, int& exit_code) {
  struct Arguments {
    std::string path;
    bool quick = false;
    bool json = false;
    actors::Links links = actors::Links::refuse;
  };
  auto* command = checkpoint.add_subcommand("verify", "Check every byte against its hash");
  const auto arguments = std::make_shared<Arguments>();  // owned by the command's callback
  command
      ->add_option("PATH", arguments->path,
                   "A checkpoint, or a directory of checkpoints, all of which are checked")
      ->required();
  command->add_flag("--quick", arguments->quick, "Check only the manifest and the sizes of the files");
  command->add_flag("--json", arguments->json, "Print JSON");
  add_follow_links(*command, arguments->links);
  command->footer(
      "Exits with 0 when all are good, 1 when one is damaged, 2 when there is none.\n"
      "Examples:\n"
      "  troupe checkpoint verify run/checkpoints\n"
      "  troupe checkpoint verify --quick run/checkpoints/step_00000200");
  command->callback([arguments, &exit_code] {
    exit_code = print_outcome("verify", [&]() -> Result<Outcome> {
      const auto verdicts = TRY(verify(arguments->path, arguments->quick, arguments->links));
      bool good = true;
      for (const auto& verdict : verdicts) good = good && verdict.is_good();
      return Outcome{arguments->json ? verdicts_json(verdicts, arguments->quick)
                                     : verdicts_text(verdicts, arguments->quick),
                     good};
    });
  });
}

void add_diff(CLI::App& checkpoint, int& exit_code) {
  struct Arguments {
    std::string left, right;
    std::vector<std::string> rename;
    bool weights_only = false;
    bool json = false;
    actors::Links links = actors::Links::refuse;
  };
  auto* command = checkpoint.add_subcommand("diff", "Show where two checkpoints differ");
  const auto arguments = std::make_shared<Arguments>();  // owned by the command's callback
  const char* side = "A checkpoint of Troupe, PyTorch (distributed) or Hugging Face";
  command->add_option("A", arguments->left, side)->required();
  command->add_option("B", arguments->right, side)->required();
  command->add_option("--rename", arguments->rename, "OLD=NEW: replace this beginning of B's names")
      ->allow_extra_args(false);
  command->add_flag("--weights-only", arguments->weights_only, "Leave out names that begin with optimizer.");
  command->add_flag("--json", arguments->json, "Print JSON");
  add_follow_links(*command, arguments->links);
  command->footer(
      "Tensors are compared bit by bit, however they are sharded. Exits with 0 when the two are equal, 1 "
      "when\n"
      "they differ, 2 when one cannot be read.\n"
      "Examples:\n"
      "  troupe checkpoint diff run1/checkpoints/step_00000200 run2/checkpoints/step_00000200\n"
      "  troupe checkpoint diff run/checkpoints model --weights-only");
  command->callback([arguments, &exit_code] {
    exit_code = print_outcome("diff", kTrouble, [&]() -> Result<Outcome> {
      auto left = TRY(open_source(arguments->left, arguments->links));
      auto right = TRY(open_source(arguments->right, arguments->links));
      auto rules = TRY(Renaming::parse(arguments->rename));
      for (auto* each : {&left, &right}) {
        if (each->form != SourceForm::troupe) TRY(drop_wrappers(*each, {}));
      }
      TRY(rename_all(right, rules));
      if (arguments->weights_only) {
        keep_weights_only(left);
        keep_weights_only(right);
      }
      for (const auto* each : {&left, &right}) {
        for (const auto& note : each->notes) say_note(each->path + ": " + printable(note));
      }
      const auto difference = TRY(diff_checkpoints(left, right));
      return Outcome{arguments->json ? difference_json(difference) : difference_text(difference),
                     difference.is_equal()};
    });
  });
}

void add_prune(CLI::App& checkpoint, int& exit_code) {
  const auto arguments = std::make_shared<PruneArguments>();  // owned by the command's callback
  auto* command = checkpoint.add_subcommand("prune", "Remove old checkpoints");
  command->add_option("DIR", arguments->directory, "A directory of checkpoints")->required();
  add_number(*command, "--keep-last", arguments->retention.keep_last, {1, 1'000'000'000},
             "How many of the newest checkpoints to keep")
      ->required();
  add_number(*command, "--keep-every", arguments->retention.keep_every, kAnyNumber<std::int64_t>,
             "Also keep those whose step is a multiple of this");
  command->add_flag("--dry-run", arguments->dry_run, "Only say what would be removed");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer(
      "Only complete checkpoints count, and damaged ones stay for you to look at. The\n"
      "newest is read and checked against its hashes first, and where it is damaged, the\n"
      "next, so one good checkpoint always stays. The others' manifests and sizes are checked.\n"
      "Examples:\n"
      "  troupe checkpoint prune run/checkpoints --keep-last 3 --dry-run\n"
      "  troupe checkpoint prune run/checkpoints --keep-last 3 --keep-every 1000");
  command->callback([arguments, &exit_code] {
    exit_code =
        print_outcome("prune", [&]() -> Result<Outcome> { return Outcome{TRY(prune_report(*arguments))}; });
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& troupe, int& exit_code) {
  auto* checkpoint =
      troupe.add_subcommand("checkpoint", "Show, check, compare and convert checkpoints, without a model");
  checkpoint->require_subcommand(1);
  add_show(*checkpoint, exit_code);
  add_verify(*checkpoint, exit_code);
  add_diff(*checkpoint, exit_code);
  add_reshard(*checkpoint, exit_code);
  add_import(*checkpoint, exit_code);
  add_export(*checkpoint, exit_code);
  add_prune(*checkpoint, exit_code);
}

}  // namespace troupe::apps
