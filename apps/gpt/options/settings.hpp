#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps::gpt {

struct Options;
struct RunOptions;
class Corpus;

/// What it means that a run goes on from a checkpoint with another value.
enum class ChangeWeight : std::uint8_t {
  none,   ///< nothing that is worth a word
  told,   ///< the course of training goes on; a line says so
  curve,  ///< another course of training; needs --force-resume
  model,  ///< another model, or state that is lost; refused
};

/// Something that shapes a run: all ranks have it alike, and checkpoints know it.
struct Setting {
  std::string name;  ///< of the option, if it has one
  std::string value;
  ChangeWeight change = ChangeWeight::none;
};
using Settings = std::vector<Setting>;

/// Those that follow from the command line. `run` is what became of it, with the optimizer as it was given.
Settings settings_of(const Options& options, const RunOptions& run);
/// Those of the text and the job.
void add_settings(Settings& settings, const Corpus& corpus, core::WorldSize world);

/// For SessionOptions::configuration: without what only the job knows.
std::vector<std::pair<std::string, std::string>> compared(const Settings& settings);
/// What checkpoints keep of them.
core::Value kept(const Settings& settings);

/// How a run with `settings` goes on from a checkpoint whose trainer's values are `common`. Errc::mismatch
/// names what differs, with both values, and says what to do. Otherwise a line to say, or nothing.
/// `weights_only`: no course of training is gone on with.
core::Result<std::string> compare_with_checkpoint(const core::Value& common, const Settings& settings,
                                                  bool force, bool weights_only);

}  // namespace troupe::apps::gpt
