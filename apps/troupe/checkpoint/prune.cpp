#include "apps/troupe/checkpoint/prune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "actors/world/storage/posix.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/files/staged_directory.hpp"
#include "apps/troupe/checkpoint/verify.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

core::Result<std::string> prune_report(const PruneArguments& arguments) {
  auto storage = TRY(actors::PosixStorage::open(arguments.directory));
  if (!arguments.dry_run) TRY(say_cleared(*storage, actors::kCheckpointPrefix));
  const auto before = TRY(actors::list_checkpoints(*storage));
  if (before.empty())
    return core::fail(core::Errc::not_found,
                      "{} holds no checkpoints: expected directories such as step_00000200",
                      arguments.directory);
  // Sizes do not show a flipped bit. One checkpoint that would stay is read whole before others go.
  bool one_is_whole = false;
  const auto is_good = [&](actors::Storage& checkpoints, const std::string& name) {
    if (one_is_whole) return actors::is_good_quickly(checkpoints, name);
    const auto verdict = examine(checkpoints, name, name, false);
    one_is_whole = verdict && verdict->is_good();
    return one_is_whole;
  };
  const auto removed =
      TRY(actors::prune_checkpoints(*storage, arguments.retention, arguments.dry_run, {}, is_good));
  std::vector<std::string> kept;
  for (const auto& checkpoint : before) {
    if (std::find(removed.begin(), removed.end(), checkpoint.name) == removed.end())
      kept.push_back(checkpoint.name);
  }
  if (arguments.json) {
    const nlohmann::ordered_json json{{"removed", removed}, {"kept", kept}, {"dry_run", arguments.dry_run}};
    return json_text(json);
  }
  std::string text;
  for (const auto& name : removed)
    text += fmt::format("{} {}\n", arguments.dry_run ? "would remove" : "removed", name);
  return text + fmt::format("{} {}, {} stay\n", removed.size(),
                            arguments.dry_run ? "would be removed" : "removed", kept.size());
}

}  // namespace troupe::apps
