#include "apps/troupe/convert/convert_command.hpp"

#include <CLI/CLI.hpp>

#include "apps/troupe/convert/config_command.hpp"
#include "apps/troupe/convert/weights_command.hpp"

namespace troupe::apps {

void add_convert_command(CLI::App& troupe, int& exit_code) {
  auto* convert = troupe.add_subcommand("convert", "Convert models from Hugging Face to Megatron and back");
  convert->require_subcommand(1);
  add_convert_config(*convert, exit_code);
  add_convert_weights(*convert, exit_code);
}

}  // namespace troupe::apps
