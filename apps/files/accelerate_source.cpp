#include "apps/files/accelerate_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/files/dcp_source.hpp"
#include "apps/files/nested_state.hpp"
#include "apps/files/torch_file_source.hpp"
#include "core/errors.hpp"
#include "core/interop/dcp_metadata.hpp"

namespace troupe::apps {

namespace {

namespace fs = std::filesystem;
using core::Errc;
using core::Result;

constexpr std::string_view kModel = "pytorch_model_fsdp";
constexpr std::string_view kOptimizer = "optimizer";
constexpr const char* kTrainerState = "trainer_state.json";
constexpr std::uint64_t kMostJsonBytes = std::uint64_t{64} << 20;

/// One of two forms of a part; `number` tells several models or optimizers apart.
struct Part {
  std::string name;
  bool is_file = false;
};

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Those called "<stem>_0" with metadata in it, "<stem>.bin" or "<stem>_1.bin".
std::vector<Part> parts_called(const std::string& directory, std::string_view stem) {
  std::vector<Part> parts;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const auto name = at->path().filename().string();
    if (!name.starts_with(stem)) continue;
    std::string_view rest = std::string_view(name).substr(stem.size());
    const bool is_file = rest.ends_with(".bin");
    if (is_file) rest.remove_suffix(4);
    const bool fits = is_file ? rest.empty() || (rest.front() == '_' && is_number(rest.substr(1)))
                              : !rest.empty() && rest.front() == '_' && is_number(rest.substr(1));
    std::error_code ignored;
    if (!fits || (!is_file && !fs::exists(at->path() / core::kDcpMetadataName, ignored))) continue;
    parts.push_back({name, is_file});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.name < b.name; });
  return parts;
}

Result<std::optional<Part>> only_part(const std::string& directory, std::string_view stem, const char* what) {
  const auto parts = parts_called(directory, stem);
  if (parts.empty()) return std::optional<Part>();
  if (parts.size() == 1) return std::optional(parts.front());
  return core::fail(
      Errc::invalid_argument,
      "{} has {} {}, {} and others; give the path of one of them, or make a directory of links to "
      "one model and its optimizer",
      directory, parts.size(), what, parts.front().name);
}

/// The steps done, as transformers' Trainer keeps them.
Result<void> add_trainer_state(NestedState& state) {
  if (!TRY(state.has_file(kTrainerState))) return {};
  const auto file = TRY(state.open_file(kTrainerState));
  const auto bytes = file.bytes();
  if (bytes.size() > kMostJsonBytes) return {};
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const auto json = nlohmann::json::parse(text, text + bytes.size(), nullptr, false);
  const auto found = json.is_object() ? json.find("global_step") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_number_integer()) return {};
  state.source().steps = found->get<std::int64_t>();
  return {};
}

}  // namespace

bool holds_accelerate(const std::string& directory) {
  return !parts_called(directory, kModel).empty();
}

Result<Source> open_accelerate(const std::string& directory, bool check, actors::Links links) {
  const auto model = TRY(only_part(directory, kModel, "models"));
  const auto optimizer = TRY(only_part(directory, kOptimizer, "optimizers"));
  auto state = TRY(NestedState::open(SourceForm::accelerate, directory, directory, links));
  const auto add = [&](const Part& part, const char* above) -> Result<void> {
    if (!part.is_file) return add_dcp(state, part.name, check);
    return add_torch_file(state, part.name, {core::Key(above)}, check);
  };
  if (model) TRY(add(*model, "model"));
  if (optimizer) {
    TRY(add(*optimizer, "optimizer"));
  } else {
    state.note("there is no optimizer with the model");
  }
  TRY(add_trainer_state(state));
  for (const auto& name : TRY(state.source().storage->list(""))) {
    if (name.starts_with("scheduler") || name.starts_with("random_states") || name.starts_with("sampler"))
      state.note(fmt::format("not read: {}", name));
  }
  return std::move(state).finish();
}

}  // namespace troupe::apps
