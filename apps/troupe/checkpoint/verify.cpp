#include "apps/troupe/checkpoint/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "actors/world/storage/posix.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/files/meter.hpp"
#include "apps/files/text.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

void add_damage(Verdict& verdict, std::string_view message) {
  while (!message.empty()) {
    const auto end = std::min(message.find('\n'), message.size());
    const std::string line(message.substr(0, end));
    message.remove_prefix(std::min(end + 1, message.size()));
    // All parts of a file that is missing say the same.
    const auto known = std::find(verdict.damage.begin(), verdict.damage.end(), line);
    if (!line.empty() && known == verdict.damage.end()) verdict.damage.push_back(line);
  }
}

}  // namespace

Result<Verdict> examine(actors::Storage& storage, const std::string& name, const std::string& path,
                        bool quick) {
  Verdict verdict;
  verdict.path = path;
  const auto manifest = actors::read_manifest(storage, name);
  if (!manifest) {
    if (manifest.error().code == Errc::mismatch) return tl::unexpected(manifest.error());
    add_damage(verdict, manifest.error().message);
    return verdict;
  }
  verdict.step = manifest->step.value;
  verdict.tensors = manifest->tensors.size();
  verdict.bytes = manifest->tensor_bytes();
  Meter meter("verifying", quick ? 0 : verdict.bytes);
  if (quick) {
    auto good = actors::check_quickly(storage, name);
    if (!good) add_damage(verdict, good.error().message);
  } else {
    actors::ReadOptions options;
    options.progress = [&meter](std::uint64_t bytes) { meter.add(bytes); };
    auto good = actors::verify_checkpoint(storage, name, *manifest, options);
    if (!good) add_damage(verdict, good.error().message);
  }
  verdict.seconds = meter.seconds();
  return verdict;
}

Result<std::vector<Verdict>> verify(const std::string& path, bool quick, actors::Links links) {
  const std::filesystem::path directory(path);
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    return core::fail(Errc::not_found, "{} is not a checkpoint: expected a directory", path);
  auto storage = TRY(actors::PosixStorage::open(path, links));
  std::vector<Verdict> verdicts;
  if (std::filesystem::is_regular_file(directory / core::kManifestName, error)) {
    verdicts.push_back(TRY(examine(*storage, "", path, quick)));
    return verdicts;
  }
  for (const auto& checkpoint : TRY(actors::list_checkpoints(*storage)))
    verdicts.push_back(
        TRY(examine(*storage, checkpoint.name, (directory / checkpoint.name).string(), quick)));
  if (verdicts.empty()) {
    return core::fail(Errc::not_found,
                      "{} is not a checkpoint: expected {} or directories such as step_00000200 in it, found "
                      "neither; a directory without a manifest is a save that never finished",
                      path, core::kManifestName);
  }
  return verdicts;
}

std::string verdicts_text(const std::vector<Verdict>& verdicts, bool quick) {
  std::string text;
  for (const auto& verdict : verdicts) {
    if (verdict.is_good() && quick) {
      text += fmt::format("good     {}  step {}, {} tensors, {}: manifest and sizes\n", verdict.path,
                          verdict.step, verdict.tensors, bytes_text(verdict.bytes));
    } else if (verdict.is_good()) {
      const auto rate = static_cast<double>(verdict.bytes) / 1e6 / std::max(verdict.seconds, 1e-9);
      text += fmt::format("good     {}  step {}, {} tensors, {} in {:.2f} s, {:.0f} MB/s\n", verdict.path,
                          verdict.step, verdict.tensors, bytes_text(verdict.bytes), verdict.seconds, rate);
    } else {
      text += fmt::format("DAMAGED  {}\n", verdict.path);
      for (const auto& line : verdict.damage) text += fmt::format("         {}\n", printable(line));
    }
  }
  return text;
}

std::string verdicts_json(const std::vector<Verdict>& verdicts, bool quick) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const auto& verdict : verdicts) {
    Json one{{"path", verdict.path}, {"good", verdict.is_good()}};
    one["step"] = verdict.step < 0 ? Json() : Json(verdict.step);
    one["tensors"] = verdict.tensors;
    one["bytes"] = verdict.bytes;
    one["hashes"] = !quick;
    one["seconds"] = verdict.seconds;
    one["damage"] = verdict.damage;
    list.push_back(std::move(one));
  }
  return json_text(list);
}

}  // namespace troupe::apps
