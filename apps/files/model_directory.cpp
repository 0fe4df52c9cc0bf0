#include "apps/files/model_directory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "actors/planes/checkpoint/reader.hpp"
#include "apps/files/safetensors_source.hpp"
#include "apps/files/text.hpp"
#include "core/element_range.hpp"
#include "core/errors.hpp"
#include "core/interop/huggingface.hpp"
#include "core/interop/lfs_pointer.hpp"
#include "core/models/model_config.hpp"
#include "core/values/json_object.hpp"

namespace troupe::apps {

namespace {

namespace fs = std::filesystem;
using core::Errc;
using core::Result;
using Names = std::set<std::string>;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr const char* kAdapter = "adapter_config.json";
constexpr std::size_t kNamed = 6;

/// Endings of files that hold weights, in all forms that people keep side by side.
constexpr std::array<std::string_view, 13> kWeights{".safetensors", ".safetensors.index.json",
                                                    ".bin",         ".bin.index.json",
                                                    ".pt",          ".pth",
                                                    ".gguf",        ".ggml",
                                                    ".h5",          ".ot",
                                                    ".msgpack",     ".onnx",
                                                    ".npz"};
/// What trainers leave beside a model.
constexpr std::array<std::string_view, 5> kStates{"training_args", "optimizer", "scheduler", "scaler",
                                                  "rng_state"};

bool holds_weights(std::string_view name) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return std::any_of(kWeights.begin(), kWeights.end(), ends) &&
         std::none_of(kStates.begin(), kStates.end(), begins);
}

/// Files and folders in a directory; the latter, if they hold weights or a configuration, end in "/".
Result<Names> names_in(const std::string& directory) {
  Names names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const auto name = at->path().filename().string();
    std::error_code ignored;
    if (!at->is_directory(ignored)) {
      names.insert(name);
      continue;
    }
    bool is_model = false;
    for (fs::directory_iterator in(at->path(), ignored), last; !ignored && in != last;
         in.increment(ignored)) {
      const auto inner = in->path().filename().string();
      is_model = is_model || holds_weights(inner) || inner == "config.json";
    }
    if (is_model) names.insert(name + "/");
  }
  if (error)
    return core::fail(Errc::not_found,
                      "{} has no *.safetensors: {}; give a directory of Hugging Face, with config.json",
                      directory, error.message());
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  const auto shown =
      std::vector(names.begin(), names.begin() + std::min<std::ptrdiff_t>(kNamed, std::ssize(names)));
  auto text = printable(fmt::format("{}", fmt::join(shown, ", ")));
  if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
  return text;
}

/// Which files make the model, and the index that says so.
struct Choice {
  Names files;
  std::string index;
};

Result<Choice> by_index(actors::Storage& storage, const std::string& name) {
  const auto index = TRY(read_index(storage, name));
  Choice choice{{}, name};
  std::map<std::string, std::size_t> tensors;
  for (const auto& [tensor, file] : index.weight_map) ++tensors[file];
  for (const auto& [file, count] : tensors) {
    const auto size = storage.size(file);
    if (!size && size.error().code == Errc::not_found)
      return core::fail(Errc::corrupt, "the index gives {} tensors to a file that is missing: {}", count,
                        size.error().message);
    choice.files.insert(file);
  }
  if (choice.files.empty()) return core::fail(Errc::corrupt, "{} names no file", name);
  return choice;
}

/// Sorted names of all parts of a model, "NAME-00001-of-00003.safetensors" and so on, or of a sharded save.
bool are_complete(const std::vector<std::string>& files) {
  const auto is_shard = [](const auto& file) { return file.starts_with("shard-"); };
  if (files.empty()) return false;
  if (std::all_of(files.begin(), files.end(), is_shard)) return true;
  const auto prefix = files.front().substr(0, files.front().find("-00001-of-"));
  for (std::size_t part = 1; part <= files.size(); ++part) {
    if (files[part - 1] != fmt::format("{}-{:05}-of-{:05}{}", prefix, part, files.size(), kSafetensorsSuffix))
      return false;
  }
  return true;
}

/// Why a directory without model.safetensors and index is not a model.
core::Error no_model(const std::string& directory, const Names& names) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [](const auto& name) { return holds_weights(name) || name.ends_with('/'); });
  const auto message = [&](std::string text) { return core::Error{Errc::not_found, std::move(text)}; };
  if (std::none_of(names.begin(), names.end(), holds_weights))
    return message(
        fmt::format("{} has no *.safetensors; give a directory of Hugging Face, with config.json{}",
                    directory, found.empty() ? "" : ", such as one of " + listed(found)));
  if (names.contains(kAdapter))
    return message(
        fmt::format("{} has no *.safetensors of a model but an adapter ({}); merge it into its model first: "
                    "PeftModel.from_pretrained(...).merge_and_unload().save_pretrained(OUT), in Python",
                    directory, listed(found)));
  return message(
      fmt::format("{} has no *.safetensors that transformers would read: expected model.safetensors or "
                  "model.safetensors.index.json, found {}; AutoModelForCausalLM.from_pretrained(DIR)"
                  ".save_pretrained(OUT), in Python, writes it, if transformers reads them",
                  directory, listed(found)));
}

Result<Choice> choose(actors::Storage& storage, const std::string& directory, const Names& names,
                      const nlohmann::json& config) {
  const auto wanted = config.find("transformers_weights");
  if (wanted != config.end() && wanted->is_string()) {
    const auto name = wanted->get<std::string>();
    if (!names.contains(name))
      return core::fail(Errc::not_found,
                        "{}: config.json names '{}' as transformers_weights, which is not there", directory,
                        printable(name));
    if (name.ends_with(kIndexSuffix)) return by_index(storage, name);
    return Choice{{name}, ""};
  }
  const std::string single(core::kHuggingFaceFileName), index(core::kHuggingFaceIndexName);
  if (names.contains(single)) return Choice{{single}, ""};
  if (names.contains(index)) return by_index(storage, index);
  std::vector<std::string> parts;
  std::copy_if(names.begin(), names.end(), std::back_inserter(parts),
               [](const auto& name) { return name.ends_with(kSafetensorsSuffix); });
  if (!are_complete(parts)) return tl::unexpected(no_model(directory, names));
  return Choice{{parts.begin(), parts.end()}, ""};
}

Result<std::string> read_config_text(actors::Storage& storage, const std::string& directory,
                                     const Names& names) {
  if (!names.contains("config.json")) {
    std::vector<std::string> folders;
    std::copy_if(names.begin(), names.end(), std::back_inserter(folders),
                 [](const auto& name) { return name.ends_with('/'); });
    return core::fail(Errc::not_found, "{} has no config.json; give a directory of Hugging Face{}", directory,
                      folders.empty() ? "" : ", such as one of its " + listed(folders));
  }
  const auto size = TRY(storage.size("config.json"));
  if (size > kMaxConfigBytes)
    return core::fail(Errc::corrupt, "config.json has {} bytes, which is too many", size);
  const auto bytes = TRY(storage.read("config.json", 0, size));
  TRY(core::check_is_no_pointer(bytes, "config.json"));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::string> notes_of(const Choice& choice, const Names& names) {
  std::vector<std::string> others;
  for (const auto& name : names) {
    if (choice.files.contains(name) || name == choice.index) continue;
    if (holds_weights(name) || name.ends_with('/')) others.push_back(name);
  }
  std::vector<std::string> notes;
  const auto what = choice.index.empty() ? listed({choice.files.begin(), choice.files.end()})
                                         : "what " + choice.index + " names";
  if (!others.empty())
    notes.push_back(fmt::format("the model is {}, as for transformers; not read: {}", what, listed(others)));
  if (names.contains(kAdapter))
    notes.push_back(fmt::format(
        "{} is that of an adapter, which is not applied; merge it first if it should be", kAdapter));
  return notes;
}

}  // namespace

Result<ModelDirectory> open_model_directory(const std::string& directory,
                                            const std::map<std::string, std::string>& keys,
                                            actors::Reads reads) {
  const auto names = TRY(names_in(directory));
  const auto storage = TRY(actors::PosixStorage::open(directory, actors::Links::to_blobs));
  if (std::none_of(names.begin(), names.end(), holds_weights))
    return tl::unexpected(no_model(directory, names));
  auto config = TRY(core::with_keys(TRY(read_config_text(*storage, directory, names)), keys));
  const auto json = TRY(core::parse_json_object(config, "config.json"));
  const auto choice = TRY(choose(*storage, directory, names, json));
  auto source = TRY(open_safetensors_files(directory, choice.files, actors::Links::to_blobs, reads));
  std::sort(source.manifest.tensors.begin(), source.manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  return ModelDirectory{std::move(source), std::move(config), notes_of(choice, names)};
}

Result<bool> are_equal(const Source& source, const core::ManifestTensor& one,
                       const core::ManifestTensor& other) {
  if (one.shape != other.shape) return false;
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  const auto elements = core::elements_of(one.shape);
  std::vector<float> values[2];
  actors::ReadOptions options;
  options.verify = false;
  for (std::int64_t first = 0; first < elements; first += kElements) {
    const core::ElementRange range{first, std::min(first + kElements, elements)};
    std::vector<core::LoadTarget> targets;
    std::vector<std::span<std::byte>> places;
    for (std::size_t side = 0; side < 2; ++side) {
      values[side].resize(static_cast<std::size_t>(range.size()));
      auto bytes = std::as_writable_bytes(std::span(values[side]));
      for (auto& box : core::boxes_of_range(one.shape, range)) {
        const auto size = static_cast<std::size_t>(box.elements()) * sizeof(float);
        places.push_back(bytes.first(size));
        bytes = bytes.subspan(size);
        targets.push_back(
            {side == 0 ? one.key : other.key, core::DType::f32, one.shape, std::move(box), false});
      }
    }
    TRY(actors::read_tensors(*source.storage, "", source.manifest, targets, places, options));
    if (values[0] != values[1]) return false;
  }
  return true;
}

Result<void> check_tied_head(const Source& source, const std::string& head, const std::string& embedding) {
  const auto* own = source.manifest.find(head);
  const auto* tied = source.manifest.find(embedding);
  if (own == nullptr || tied == nullptr || TRY(are_equal(source, *own, *tied))) return {};
  return core::fail(
      Errc::mismatch,
      "config.json says tie_word_embeddings, but '{}' is stored and differs from '{}'; transformers 5 uses "
      "the stored head, older versions the embedding: give --key tie_word_embeddings=false for the stored "
      "head, or remove that tensor to tie",
      head, embedding);
}

}  // namespace troupe::apps
